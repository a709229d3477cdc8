"""Candidates against the baseline arm, outcomes compared, verdicts that hold together; and the best arm.

Axes: A arms, S seeds, P problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atrium.compare.arms import Arm, are_same_method
from atrium.compare.outcomes import OutcomeTable
from atrium.compare.scored_arms import ScoredArms
from atrium.compare.statistics import Comparison, compare_arms, verdict
from atrium.compare.verdicts import Verdict
from atrium.document.formatting import counted
from atrium.stats.crossed import SHARES, CrossedMean, Uncertainty, Values, crossed_mean
from atrium.stats.estimates import Interval
from atrium.stats.pairing import SeedPairing
from atrium.stats.simultaneous import Family

MACRO = "macro average"
MEAN = "mean"
PASS = "pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A candidate against the baseline by one measure on one benchmark or the macro average.

    `sources` says what new problems are, where problems come in clusters. `if_wrong` is the comparison in
    which runs that diverged count as always wrong; None where none did.
    """

    baseline: str
    candidate: str
    measure: str
    benchmark: str
    comparison: Comparison
    pairing: SeedPairing
    verdict: Verdict
    sources: str = ""
    if_wrong: Comparison | None = None

    @property
    def design(self) -> str:
        """`paired seeds 0–4`, or `paired seeds 0–4; 12 clusters`."""
        return f"{self.pairing.words}; {self.sources}" if self.sources else self.pairing.words

    @property
    def words(self) -> str:
        """The verdict in one sentence that is understood by itself."""
        return f"{self.candidate} against {self.baseline}: {self.verdict.words} ({self.design})"

    @property
    def another_exam(self) -> Interval | None:
        """The interval for new seeds and new problems; with two readings, the one that contains both."""
        return _hull([one.difference.another_exam for one in self._readings])

    @property
    def this_exam(self) -> Interval | None:
        """The interval for new seeds and the same problems; with two readings, the one that contains both."""
        return _hull([one.difference.this_exam for one in self._readings])

    @property
    def p_value(self) -> float | None:
        """The p value of no difference in another exam; with two readings, the larger one."""
        known = [one.difference.another_exam for one in self._readings]
        return max((one.p_value for one in known if one is not None), default=None)

    @property
    def _readings(self) -> list[Comparison]:
        return [one for one in (self.comparison, self.if_wrong) if one is not None]


def _hull(known: Sequence[Uncertainty | None]) -> Interval | None:
    """The interval that contains all; None where one of them is unknown."""
    intervals = [one.interval for one in known if one is not None]
    if len(intervals) < len(known):
        return None
    return Interval(min(low for low, _ in intervals), max(high for _, high in intervals))


def compare_pairs(
    arms: Sequence[Arm],
    tables: Mapping[str, Mapping[str, OutcomeTable]],
    measures: Sequence[str],
    *,
    k: int,
    seed: int,
    num_looks: int = 1,
) -> list[Pair]:
    """All candidates against the first arm: the macro average is one family, all single benchmarks another.

    `tables` holds outcomes by benchmark and arm, seeds ascending. The level is divided between `num_looks`.
    """
    by_name = {arm.name: arm for arm in arms}
    found = []
    for measure in measures:
        for name, scores in scores_by_benchmark(arms, tables, measure, k=k, num_looks=num_looks).items():
            for candidate, contrast in scores.contrasts(arms[0].name):
                comparison = compare_arms(
                    contrast.baseline,
                    contrast.candidate,
                    is_paired=contrast.pairing.is_paired,
                    clusters=scores.clusters,
                    family=scores.family,
                    spread=contrast.spread,
                    seed=seed,
                )
                judged = verdict(
                    comparison,
                    baseline_name=arms[0].name,
                    candidate_name=candidate,
                    same_method=are_same_method(arms[0], by_name[candidate]),
                )
                found.append(
                    Pair(
                        baseline=arms[0].name,
                        candidate=candidate,
                        measure=measure,
                        benchmark=name,
                        comparison=comparison,
                        pairing=contrast.pairing,
                        verdict=judged,
                        sources=scores.sources,
                    )
                )
    return found


def best_arms(
    arms: Sequence[Arm],
    tables: Mapping[str, Mapping[str, OutcomeTable]],
    pairs: Sequence[Pair],
    *,
    k: int,
    num_looks: int = 1,
) -> dict[tuple[str, str], str | None]:
    """The arm shown to be the best by measure and benchmark; None while any verdict there is withheld.

    An arm that is one method with another is not better than it, whatever the scores say.
    """
    found: dict[tuple[str, str], str | None] = {}
    by_name = {arm.name: arm for arm in arms}
    withheld = {(pair.measure, pair.benchmark) for pair in pairs if pair.verdict.withheld}
    for measure in dict.fromkeys(pair.measure for pair in pairs):
        for name, scores in scores_by_benchmark(arms, tables, measure, k=k, num_looks=num_looks).items():
            best = None if (measure, name) in withheld else scores.best()
            others = [arm for arm in arms if arm.name != best]
            is_double = best is not None and any(are_same_method(by_name[best], arm) for arm in others)
            found[measure, name] = None if is_double else best
    return found


def left_out_of_pairs(pairs: Sequence[Pair]) -> list[str]:
    """Notes on seeds of only one arm that a paired difference does not use."""
    numbers = {(pair.candidate, pair.baseline): pair.pairing.num_left_out for pair in pairs}
    return [
        f"left out of the difference: {counted(num, 'seed')} of only one of {candidate} and {baseline}"
        for (candidate, baseline), num in numbers.items()
        if num
    ]


def scores_by_benchmark(
    arms: Sequence[Arm],
    tables: Mapping[str, Mapping[str, OutcomeTable]],
    measure: str,
    *,
    k: int,
    num_looks: int = 1,
) -> dict[str, ScoredArms]:
    """The scores of all arms on the macro average and on every benchmark, with the family of each."""
    single: dict[str, tuple[str, ...]] = {name: (name,) for name in tables}
    families = [{MACRO: tuple(tables)}, single] if len(tables) > 1 else [single]
    return {
        name: ScoredArms(
            values={
                arm.name: [values_of(tables[member][arm.name], measure, k) for member in members]
                for arm in arms
            },
            seeds={arm.name: arm.seeds for arm in arms},
            clusters=[next(iter(tables[member].values())).cluster_P for member in members],
            family=Family(num_candidates=len(arms) - 1, num_benchmarks=len(family), num_looks=num_looks),
        )
        for family in families
        for name, members in family.items()
    }


def score_of(tables: Sequence[OutcomeTable], measure: str, k: int) -> CrossedMean:
    """One arm's mean over benchmarks, seeds and problems."""
    clusters = [table.cluster_P for table in tables]
    return crossed_mean([values_of(table, measure, k) for table in tables], clusters=clusters, limits=SHARES)


def values_of(table: OutcomeTable, measure: str, k: int) -> Values:
    """Mean@K or Pass@k by run and problem [S, P]."""
    return table.mean_at_k() if measure == MEAN else table.pass_at(k)

"""Candidates against the baseline arm, outcomes compared, verdicts that hold together; and the best arm.

Axes: A arms, S seeds, P problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atrium.compare.arms import Arm, are_same_method
from atrium.compare.crossed import SHARES, CrossedMean, Values, crossed_mean
from atrium.compare.outcomes import OutcomeTable
from atrium.compare.pairing import SeedPairing, pair_seeds
from atrium.compare.robust import mean_scores
from atrium.compare.simultaneous import Family, SeedSpread, moderated_spreads, shown_best
from atrium.compare.statistics import Comparison, arms_difference, compare_arms, verdict, verdict_on
from atrium.compare.verdicts import Verdict
from atrium.tracking.formatting import counted

MACRO = "macro average"
MEAN = "mean"
PASS = "pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A candidate against the baseline by one measure on one benchmark or the macro average."""

    baseline: str
    candidate: str
    measure: str
    benchmark: str
    comparison: Comparison
    pairing: SeedPairing
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What every arm did by one measure on some benchmarks: `value_SP` by arm, seeds ascending."""

    values: Mapping[str, Sequence[Values]]
    family: Family

    def of(self, arm: Arm, seeds: Sequence[int]) -> list[Values]:
        """An arm's values of these seeds, by benchmark."""
        rows = [arm.seeds.index(seed) for seed in seeds]
        return [value_SP[rows] for value_SP in self.values[arm.name]]

    def spreads(self, arms: Sequence[Arm], pairings: Sequence[SeedPairing]) -> Sequence[SeedSpread | None]:
        """The moderated spread over seeds of every difference from the first arm; None where not shared."""
        first = pairings[0]
        found = None
        if first.is_paired and all(one == first for one in pairings):
            scores = [mean_scores(self.of(arm, first.baseline)).mean(axis=1) for arm in arms]
            found = moderated_spreads(np.stack(scores))
        return found or [None] * len(pairings)


def compare_pairs(
    arms: Sequence[Arm],
    tables: Mapping[str, Mapping[str, OutcomeTable]],
    measures: Sequence[str],
    *,
    k: int,
    seed: int,
) -> list[Pair]:
    """All candidates against the first arm: the macro average is one family, all single benchmarks another.

    `tables` holds outcomes by benchmark and arm, seeds ascending.
    """
    pairings = [pair_seeds(arms[0].runs, candidate.runs) for candidate in arms[1:]]
    found = []
    for measure in measures:
        for name, scores in scores_by_benchmark(arms, tables, measure, k=k).items():
            comparisons = _compared(arms, pairings, scores, seed)
            for candidate, pairing, comparison in zip(arms[1:], pairings, comparisons, strict=True):
                judged = verdict(
                    comparison,
                    baseline_name=arms[0].name,
                    candidate_name=candidate.name,
                    same_method=are_same_method(arms[0], candidate),
                )
                found.append(
                    Pair(
                        baseline=arms[0].name,
                        candidate=candidate.name,
                        measure=measure,
                        benchmark=name,
                        comparison=comparison,
                        pairing=pairing,
                        verdict=judged,
                    )
                )
    return found


def _compared(
    arms: Sequence[Arm], pairings: Sequence[SeedPairing], scores: Scores, seed: int
) -> list[Comparison]:
    """Every other arm compared with the first one."""
    return [
        compare_arms(
            scores.of(arms[0], pairing.baseline),
            scores.of(candidate, pairing.candidate),
            is_paired=pairing.is_paired,
            family=scores.family,
            spread=spread,
            seed=seed,
        )
        for candidate, pairing, spread in zip(arms[1:], pairings, scores.spreads(arms, pairings), strict=True)
    ]


def best_arms(
    arms: Sequence[Arm],
    tables: Mapping[str, Mapping[str, OutcomeTable]],
    pairs: Sequence[Pair],
    *,
    k: int,
) -> dict[tuple[str, str], str | None]:
    """The arm shown to be the best by measure and benchmark; None while any verdict there is withheld."""
    withheld = {(pair.measure, pair.benchmark) for pair in pairs if pair.verdict.withheld}
    return {
        (measure, name): None if (measure, name) in withheld else best_arm(arms, scores)
        for measure in dict.fromkeys(pair.measure for pair in pairs)
        for name, scores in scores_by_benchmark(arms, tables, measure, k=k).items()
    }


def left_out_of_pairs(pairs: Sequence[Pair]) -> list[str]:
    """Notes on seeds of only one arm that a paired difference does not use."""
    numbers = {(pair.candidate, pair.baseline): pair.pairing.num_left_out for pair in pairs}
    return [
        f"left out of the difference: {counted(num, 'seed')} of only one of {candidate} and {baseline}"
        for (candidate, baseline), num in numbers.items()
        if num
    ]


def best_arm(arms: Sequence[Arm], scores: Scores) -> str | None:
    """The arm that is shown to be the best: better than every other one, in intervals that hold together."""
    means = [float(np.mean([value_SP.mean() for value_SP in scores.values[arm.name]])) for arm in arms]

    def is_better(one: int, other: int) -> bool:
        ordered = [arms[one], *(arm for arm in arms if arm is not arms[one])]
        pairings = [pair_seeds(arms[one].runs, arm.runs) for arm in ordered[1:]]
        place = ordered.index(arms[other]) - 1
        pairing = pairings[place]
        difference = arms_difference(
            scores.of(arms[one], pairing.baseline),
            scores.of(arms[other], pairing.candidate),
            is_paired=pairing.is_paired,
            family=scores.family,
            spread=scores.spreads(ordered, pairings)[place],
        )
        judged = verdict_on(difference, pairing.num_seeds, names=(arms[one].name, arms[other].name))
        return judged.kind == "worse" and not are_same_method(arms[one], arms[other])

    best = shown_best(means, is_better)
    return None if best is None else arms[best].name


def scores_by_benchmark(
    arms: Sequence[Arm], tables: Mapping[str, Mapping[str, OutcomeTable]], measure: str, *, k: int
) -> dict[str, Scores]:
    """The scores of all arms on the macro average and on every benchmark, with the family of each."""
    single: dict[str, tuple[str, ...]] = {name: (name,) for name in tables}
    families = [{MACRO: tuple(tables)}, single] if len(tables) > 1 else [single]
    return {
        name: Scores(
            values={
                arm.name: [values_of(tables[member][arm.name], measure, k) for member in members]
                for arm in arms
            },
            family=Family(num_candidates=len(arms) - 1, num_benchmarks=len(family)),
        )
        for family in families
        for name, members in family.items()
    }


def score_of(tables: Sequence[OutcomeTable], measure: str, k: int) -> CrossedMean:
    """One arm's mean over benchmarks, seeds and problems."""
    return crossed_mean([values_of(table, measure, k) for table in tables], limits=SHARES)


def values_of(table: OutcomeTable, measure: str, k: int) -> Values:
    """Mean@K or Pass@k by run and problem [S, P]."""
    return table.mean_at_k() if measure == MEAN else table.pass_at(k)

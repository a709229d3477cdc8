"""Comparison of arms with a baseline, where a verdict must hold however diverged runs are counted.

A diverged run counts either with its score or as always wrong (`stats.readings`). The scores come from plain
arrays (`stats.library`), recorded runs (`compare.judged_pairs`) or a sweep (`sweep.fresh_seeds`). All
functions are pure.

Axes: S seeds, P problems.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

from atrium.stats.arrays import Floats
from atrium.stats.clusters import sources_words
from atrium.stats.comparison import Comparison, TwoArms, verdict, verdict_on
from atrium.stats.crossed import Uncertainty
from atrium.stats.estimates import Interval
from atrium.stats.pairing import SeedPairing, pair_seeds
from atrium.stats.readings import as_always_wrong
from atrium.stats.robust import mean_scores
from atrium.stats.simultaneous import Family, SeedSpread, moderated_spreads
from atrium.stats.wording import Verdict, under_both_readings, unfinished, uninformative

MEAN = "mean"
PASS = "pass"


class Missing(Protocol):
    """A run without an outcome, which limits the verdict on its pair."""

    @property
    def kind(self) -> Literal["preliminary", "incomplete"]:
        """The kind of verdict that results if this run is missing.

        `preliminary` if the run is live or was interrupted, and `incomplete` if it ended in another way.
        """

    @property
    def words(self) -> str:
        """The run and its state as text, such as `study/atr-1 is still running`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A candidate compared with the baseline by one measure, on one benchmark or the macro average.

    `sources` describes the clusters of new problems, and is empty without clusters. `if_wrong` is the
    comparison in which diverged runs count as always wrong, or None if none of the runs compared diverged.
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
        """The seeds and clusters as text: `paired seeds 0–4`, or `paired seeds 0–4; 12 clusters`."""
        return f"{self.pairing.words}; {self.sources}" if self.sources else self.pairing.words

    @property
    def words(self) -> str:
        """The verdict as one self-contained sentence."""
        return f"{self.candidate} against {self.baseline}: {self.verdict.words} ({self.design})"

    @property
    def new_seeds_and_problems(self) -> Interval | None:
        """The interval for new seeds and new problems, widened to cover `if_wrong` if runs diverged.

        None if `comparison` or `if_wrong` has no such interval.
        """
        return _hull([one.difference.new_seeds_and_problems for one in self._readings])

    @property
    def new_seeds(self) -> Interval | None:
        """The interval for new seeds and the same problems, widened to cover `if_wrong` if runs diverged.

        None if `comparison` or `if_wrong` has no such interval.
        """
        return _hull([one.difference.new_seeds for one in self._readings])

    @property
    def p_value(self) -> float | None:
        """The two-sided p value of no difference, for new seeds and new problems; None if unknown.

        If runs diverged, this is the larger of the p values of `comparison` and `if_wrong`.
        """
        known = [one.difference.new_seeds_and_problems for one in self._readings]
        return max((one.p_value for one in known if one is not None), default=None)

    @property
    def _readings(self) -> list[Comparison]:
        return [one for one in (self.comparison, self.if_wrong) if one is not None]


def _hull(known: Sequence[Uncertainty | None]) -> Interval | None:
    """Return the smallest interval that contains all given intervals, or None if any of them is unknown."""
    intervals = [one.interval for one in known if one is not None]
    if len(intervals) < len(known):
        return None
    return Interval(min(low for low, _ in intervals), max(high for _, high in intervals))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredArms:
    """The scores of every arm, in arrays `value_SP` of shares in [0, 1].

    `values` maps each arm to one array per benchmark, and `seeds` maps each arm to the seeds of the rows.
    Benchmarks have equal weights. `measure` and `benchmark` name the scores. `family` is the family of
    differences whose intervals hold simultaneously. `clusters` names every problem's cluster, by benchmark.
    `is_paired` is True if all arms have the same seeds by design, however few, and False if no seeds are
    paired; with None, `pair_seeds` decides.
    """

    values: Mapping[str, Sequence[Floats]]
    seeds: Mapping[str, Sequence[int]]
    family: Family
    clusters: Sequence[ArrayLike | None] | None = None
    is_paired: bool | None = None
    measure: str = MEAN
    benchmark: str = ""

    @property
    def sources(self) -> str:
        """Text that describes the clusters of each benchmark with clusters, or an empty text."""
        return sources_words(self.clusters or ())

    def as_always_wrong(self, diverged: Mapping[str, Collection[int]]) -> ScoredArms:
        """Return scores that count all answers of the `diverged` seeds, listed by arm, as wrong."""
        values = {
            arm: as_always_wrong(own, [seed in diverged[arm] for seed in self.seeds[arm]])
            for arm, own in self.values.items()
        }
        return replace(self, values=values)

    def pairs(
        self,
        baseline: str,
        diverged: Mapping[str, Sequence[int]],
        *,
        missing: Mapping[str, Sequence[Missing]] | None = None,
        same_methods: Collection[str] = (),
    ) -> list[Pair]:
        """Return a comparison with the baseline, including its verdict, for each arm except the baseline.

        Verdicts hold under both readings of diverged runs, and take missing runs into account. `diverged`
        lists the seeds that diverged, by arm, and `missing` the runs without an outcome. `same_methods` are
        the arms with the same method as the baseline.
        """
        by_score = self._compared(baseline)
        is_any = any(diverged.values())
        as_wrong = self.as_always_wrong(diverged)._compared(baseline) if is_any else by_score
        pairs = [
            Pair(
                baseline=baseline,
                candidate=name,
                measure=self.measure,
                benchmark=self.benchmark,
                comparison=comparison,
                pairing=pairing,
                verdict=verdict(comparison, baseline, name, same_method=name in same_methods),
                sources=self.sources,
            )
            for name, pairing, comparison in by_score
        ]
        return [
            _judged(pair, wrong, diverged, missing or {}, self._common_score())
            for pair, (_, _, wrong) in zip(pairs, as_wrong, strict=True)
        ]

    def verdicts(self, baseline: str) -> dict[str, Verdict]:
        """Return the verdict on each arm except the baseline, compared with the baseline, by arm."""
        return {
            name: verdict_on(arms.difference(), pairing.num_seeds, names=(baseline, name))
            for name, pairing, arms in self._against(baseline)
        }

    def best(self, diverged: Mapping[str, Collection[int]]) -> str | None:
        """Return the arm shown to be better than all others under both readings, or None if there is none."""
        leaders = self.leaders(diverged)
        return leaders[0] if len(leaders) == 1 else None

    def leaders(self, diverged: Mapping[str, Collection[int]]) -> tuple[str, ...]:
        """Return the arms that may be the best, the arm with the highest score first.

        Under each reading of diverged runs, these are the arm with the highest score and all arms that are
        not shown to be worse than it (Hsu's comparison with the best). The result contains every arm that is
        among these under at least one reading.
        """
        readings = (self, self.as_always_wrong(diverged)) if any(diverged.values()) else (self,)
        return tuple(dict.fromkeys(name for one in readings for name in one._leaders()))

    def ranked(self) -> list[str]:
        """Return the names of all arms, the arm with the highest mean score first."""
        means = {name: np.mean([one_SP.mean() for one_SP in own]) for name, own in self.values.items()}
        return sorted(means, key=lambda name: -means[name])

    def _leaders(self) -> list[str]:
        names = self.ranked()
        against = self.verdicts(names[0])
        return [name for name in names if name == names[0] or against[name].kind != "worse"]

    def _common_score(self) -> float | None:
        """Return the score that all arms, seeds and problems share, or None if scores differ."""
        scores = {float(end) for own in self.values.values() for one in own for end in (one.min(), one.max())}
        return scores.pop() if len(scores) == 1 else None

    def _compared(self, baseline: str) -> list[tuple[str, SeedPairing, Comparison]]:
        return [(name, pairing, arms.compared()) for name, pairing, arms in self._against(baseline)]

    def _against(self, baseline: str) -> Iterator[tuple[str, SeedPairing, TwoArms]]:
        """Yield (name, seeds used, `TwoArms` with the baseline) for each arm except the baseline."""
        names = [baseline, *(name for name in self.values if name != baseline)]
        pairings = [self._pairing(self.seeds[baseline], self.seeds[name]) for name in names[1:]]
        spreads = self._spreads(names, pairings)
        for name, pairing, spread in zip(names[1:], pairings, spreads, strict=True):
            arms = TwoArms(
                self._of(baseline, pairing.baseline),
                self._of(name, pairing.candidate),
                is_paired=pairing.is_paired,
                clusters=self.clusters,
                family=self.family,
                spread=spread,
            )
            yield name, pairing, arms

    def _pairing(self, baseline: Sequence[int], candidate: Sequence[int]) -> SeedPairing:
        if self.is_paired is None:
            return pair_seeds(baseline, candidate)
        return SeedPairing(is_paired=self.is_paired, baseline=tuple(baseline), candidate=tuple(candidate))

    def _of(self, arm: str, seeds: Sequence[int]) -> list[Floats]:
        rows = [list(self.seeds[arm]).index(seed) for seed in seeds]
        return [value_SP[rows] for value_SP in self.values[arm]]

    def _spreads(self, names: Sequence[str], pairings: Sequence[SeedPairing]) -> Sequence[SeedSpread | None]:
        """Return the moderated spread of each candidate's difference from the first arm.

        All spreads are None unless all arms share the same paired seeds and `moderated_spreads` has a result.
        """
        found = None
        if len(set(pairings)) == 1 and pairings[0].is_paired:
            seeds = pairings[0].baseline
            scores = [mean_scores(self._of(name, seeds)).mean(axis=1) for name in names]
            found = moderated_spreads(np.stack(scores))
        return found or [None] * len(pairings)


def _judged(
    pair: Pair,
    as_wrong: Comparison,
    diverged: Mapping[str, Sequence[int]],
    missing: Mapping[str, Sequence[Missing]],
    common_score: float | None,
) -> Pair:
    """Return the pair with a verdict that takes diverged and missing runs into account.

    `as_wrong` is the comparison in which diverged runs count as always wrong. `common_score` is the score
    that all arms, seeds and problems share, or None if scores differ.
    """
    used = {pair.baseline: pair.pairing.baseline, pair.candidate: pair.pairing.candidate}
    seeds = [f"seed {seed} of {arm}" for arm, own in used.items() for seed in diverged[arm] if seed in own]
    pair = replace(pair, if_wrong=as_wrong if seeds else None)
    if pair.verdict.kind == "same_method":
        return pair
    judged = under_both_readings(pair.verdict, verdict(as_wrong, *used), seeds)
    if common_score in (0.0, 1.0):
        judged = uninformative(is_correct=common_score == 1.0)
    if lacking := [run for arm in used for run in missing.get(arm, ())]:
        kind = min(run.kind for run in lacking)  # "incomplete" precedes "preliminary"
        judged = unfinished(kind, pair.comparison.difference.value, [run.words for run in lacking])
    return replace(pair, verdict=judged)

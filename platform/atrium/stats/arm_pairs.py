"""Arms compared with a baseline: every pair with the verdict that holds under both readings.

Pure functions of arrays and records. `stats.library` fills them from plain arrays, `compare.judged_pairs`
from recorded runs, `sweep.fresh_seeds` from the runs of a sweep.

Axes: S seeds, P problems.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

from atrium.stats.clusters import sources_words
from atrium.stats.comparison import Comparison, TwoArms, verdict, verdict_on
from atrium.stats.crossed import Uncertainty, Values
from atrium.stats.estimates import Interval
from atrium.stats.pairing import SeedPairing, pair_seeds
from atrium.stats.readings import as_always_wrong
from atrium.stats.robust import mean_scores
from atrium.stats.simultaneous import Family, SeedSpread, moderated_spreads
from atrium.stats.wording import Verdict, under_both_readings, unfinished

MEAN = "mean"
PASS = "pass"


class Missing(Protocol):
    """A run without an outcome: the resulting kind of verdict, and a description of the run's state."""

    @property
    def kind(self) -> Literal["preliminary", "incomplete"]:
        """The kind of verdict."""

    @property
    def words(self) -> str:
        """The description, such as `study/atr-1 still runs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A candidate compared with the baseline by one measure, on one benchmark or the macro average.

    `sources` says what new problems are, if problems have clusters. `if_wrong` is the comparison in which
    diverged runs count as always wrong; None if there are none.
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
        """Describe the seeds: `paired seeds 0–4`, or `paired seeds 0–4; 12 clusters`."""
        return f"{self.pairing.words}; {self.sources}" if self.sources else self.pairing.words

    @property
    def words(self) -> str:
        """Return the verdict in one self-contained sentence."""
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
        """The p value of no difference with new problems; with two readings, the larger one."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredArms:
    """The values of every arm: `values` holds `value_SP` by benchmark, `seeds` the seed of each row, by arm.

    Values are those of a `measure` on a `benchmark`, or on several with equal weights. `family` is that of
    all arms against one of them. `clusters` names every problem's cluster by benchmark. `is_paired` says that
    all arms have the same seeds by design, however few (True), or that no seeds are paired (False); None
    leaves it to `pair_seeds`.
    """

    values: Mapping[str, Sequence[Values]]
    seeds: Mapping[str, Sequence[int]]
    family: Family
    clusters: Sequence[ArrayLike | None] | None = None
    is_paired: bool | None = None
    measure: str = MEAN
    benchmark: str = ""

    @property
    def sources(self) -> str:
        """Describe new problems, by benchmark with clusters; empty if problems have none."""
        return sources_words(self.clusters or ())

    def as_always_wrong(self, diverged: Mapping[str, Collection[int]]) -> ScoredArms:
        """Return the second reading: answers of diverged seeds are wrong; `diverged` holds those by arm."""
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
        """Yield every other arm against the baseline, with the verdict under both readings and missing runs.

        `diverged` are the seeds that diverged, by arm, and `missing` the runs without an outcome.
        `same_methods` are arms that are one method with the baseline.
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
            _judged(pair, wrong, diverged, missing or {})
            for pair, (_, _, wrong) in zip(pairs, as_wrong, strict=True)
        ]

    def verdicts(self, baseline: str) -> dict[str, Verdict]:
        """Return the verdict on every other arm against the baseline."""
        return {
            name: verdict_on(arms.difference(), pairing.num_seeds, names=(baseline, name))
            for name, pairing, arms in self._against(baseline)
        }

    def best(self, diverged: Mapping[str, Collection[int]]) -> str | None:
        """Return the arm that is shown to be the best in both readings: every other arm is worse."""
        leaders = self.leaders(diverged)
        return leaders[0] if len(leaders) == 1 else None

    def leaders(self, diverged: Mapping[str, Collection[int]]) -> tuple[str, ...]:
        """Return the highest arm and those not shown to be worse than it in at least one reading.

        A comparison with the best after Hsu: these arms may be the best. The highest comes first.
        """
        readings = (self, self.as_always_wrong(diverged)) if any(diverged.values()) else (self,)
        return tuple(dict.fromkeys(name for one in readings for name in one._leaders()))

    def _leaders(self) -> list[str]:
        means = {name: np.mean([one_SP.mean() for one_SP in own]) for name, own in self.values.items()}
        names = sorted(means, key=lambda name: -means[name])
        against = self.verdicts(names[0])
        return [name for name in names if name == names[0] or against[name].kind != "worse"]

    def _compared(self, baseline: str) -> list[tuple[str, SeedPairing, Comparison]]:
        return [(name, pairing, arms.compared()) for name, pairing, arms in self._against(baseline)]

    def _against(self, baseline: str) -> Iterator[tuple[str, SeedPairing, TwoArms]]:
        """Every other arm by its name, how its seeds are used, and it beside the baseline."""
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

    def _of(self, arm: str, seeds: Sequence[int]) -> list[Values]:
        rows = [list(self.seeds[arm]).index(seed) for seed in seeds]
        return [value_SP[rows] for value_SP in self.values[arm]]

    def _spreads(self, names: Sequence[str], pairings: Sequence[SeedPairing]) -> Sequence[SeedSpread | None]:
        """Return the moderated spread of each difference from the first arm; None if seeds are not shared."""
        first = pairings[0]
        found = None
        if first.is_paired and all(one == first for one in pairings):
            scores = [mean_scores(self._of(name, first.baseline)).mean(axis=1) for name in names]
            found = moderated_spreads(np.stack(scores))
        return found or [None] * len(pairings)


def _judged(
    pair: Pair,
    as_wrong: Comparison,
    diverged: Mapping[str, Sequence[int]],
    missing: Mapping[str, Sequence[Missing]],
) -> Pair:
    """Return the pair with the verdict that also holds in the second reading and with missing runs."""
    used = {pair.baseline: pair.pairing.baseline, pair.candidate: pair.pairing.candidate}
    seeds = [f"seed {seed} of {arm}" for arm, own in used.items() for seed in diverged[arm] if seed in own]
    pair = replace(pair, if_wrong=as_wrong if seeds else None)
    if pair.verdict.kind == "same_method":
        return pair
    judged = under_both_readings(pair.verdict, verdict(as_wrong, *used), seeds)
    if lacking := [run for arm in used for run in missing.get(arm, ())]:
        kind = min(run.kind for run in lacking)  # incomplete rather than preliminary
        judged = unfinished(kind, pair.comparison.difference.value, [run.words for run in lacking])
    return replace(pair, verdict=judged)

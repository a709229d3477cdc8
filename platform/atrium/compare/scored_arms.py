"""The scores of several arms as arrays: how each is compared with another, and which is shown to be the best.

Pure functions of arrays; `arm_pairs` fills them from recorded runs.

Axes: S seeds, P problems.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from atrium.compare.statistics import arms_difference, verdict_on
from atrium.compare.verdicts import Verdict
from atrium.stats.clusters import sources_words
from atrium.stats.crossed import Values
from atrium.stats.pairing import SeedPairing, pair_seeds
from atrium.stats.robust import mean_scores
from atrium.stats.simultaneous import Family, SeedSpread, moderated_spreads, shown_best


class Contrast(NamedTuple):
    """What a difference is computed from: both sides' values by benchmark, and how seeds are used."""

    baseline: list[Values]
    candidate: list[Values]
    pairing: SeedPairing
    spread: SeedSpread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredArms:
    """What every arm did: `values` holds `value_SP` by benchmark, `seeds` the seed of every row, by arm.

    `family` is that of all arms against one of them. `clusters` names every problem's cluster by benchmark.
    """

    values: Mapping[str, Sequence[Values]]
    seeds: Mapping[str, Sequence[int]]
    family: Family
    clusters: Sequence[ArrayLike | None] | None = None

    @property
    def sources(self) -> str:
        """What new problems are, by benchmark with clusters; empty where problems come in none."""
        return sources_words(self.clusters or ())

    def contrasts(self, baseline: str) -> Iterator[tuple[str, Contrast]]:
        """Every other arm against the baseline, by its name."""
        names = [baseline, *(name for name in self.values if name != baseline)]
        pairings = [pair_seeds(self.seeds[baseline], self.seeds[name]) for name in names[1:]]
        spreads = self._spreads(names, pairings)
        for name, pairing, spread in zip(names[1:], pairings, spreads, strict=True):
            sides = self._of(baseline, pairing.baseline), self._of(name, pairing.candidate)
            yield name, Contrast(*sides, pairing, spread)

    def verdicts(self, baseline: str) -> dict[str, Verdict]:
        """The verdict on every other arm against the baseline."""
        found = {}
        for name, contrast in self.contrasts(baseline):
            difference = arms_difference(
                contrast.baseline,
                contrast.candidate,
                is_paired=contrast.pairing.is_paired,
                clusters=self.clusters,
                family=self.family,
                spread=contrast.spread,
            )
            found[name] = verdict_on(difference, contrast.pairing.num_seeds, names=(baseline, name))
        return found

    def best(self) -> str | None:
        """The arm that is shown to be the best, as the baseline that every other arm is worse than."""
        names = list(self.values)
        means = [float(np.mean([value_SP.mean() for value_SP in self.values[name]])) for name in names]
        against = self.verdicts(names[int(np.argmax(means))])
        best = shown_best(means, lambda _, other: against[names[other]].kind == "worse")
        return None if best is None else names[best]

    def _of(self, arm: str, seeds: Sequence[int]) -> list[Values]:
        rows = [list(self.seeds[arm]).index(seed) for seed in seeds]
        return [value_SP[rows] for value_SP in self.values[arm]]

    def _spreads(self, names: Sequence[str], pairings: Sequence[SeedPairing]) -> Sequence[SeedSpread | None]:
        """The moderated spread of every difference from the first arm; None where seeds are not shared."""
        first = pairings[0]
        found = None
        if first.is_paired and all(one == first for one in pairings):
            scores = [mean_scores(self._of(name, first.baseline)).mean(axis=1) for name in names]
            found = moderated_spreads(np.stack(scores))
        return found or [None] * len(pairings)

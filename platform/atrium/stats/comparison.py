"""The comparison of two arms (`TwoArms`), and the verdict on their difference.

An arm is a list of arrays `value_SP`, one per benchmark: the score of each seed's checkpoint on each problem,
a share in [0, 1] (Mean@K or Pass@k of the problem). Both arms answer the same problems in the same order.
Paired arms also have the same seeds in the same order. Their values are subtracted seed by seed and problem
by problem before they are averaged, so that effects of a shared seed cancel.

Other modules of `atrium.stats` do the computations: `crossed` computes intervals for paired arms, `unpaired`
for other arms, and `simultaneous` for several candidates; `robust` computes the statistics that need many
seeds. `wording` contains the text of verdicts. Differences are candidate minus baseline, and one point is
0.01.

Axes: S seeds, P problems, B benchmarks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
from numpy.typing import ArrayLike

from atrium.stats import wording
from atrium.stats.crossed import SHARES, CrossedMean, crossed_mean
from atrium.stats.estimates import Interval
from atrium.stats.robust import (
    MIN_SEEDS_BOOTSTRAP,
    MIN_SEEDS_IQM,
    bootstrap_interval,
    interquartile_mean,
    mean_scores,
    permutation_p_value,
    probability_of_improvement,
)
from atrium.stats.simultaneous import SINGLE, Family, SeedSpread
from atrium.stats.unpaired import unpaired_difference
from atrium.stats.wording import Verdict, judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A candidate compared with a baseline. Values that cannot be estimated are None.

    `difference` has two intervals: for new seeds and new problems, and for new seeds and the same problems.
    `improvement` is the probability that a seed of the candidate scores higher than a seed of the baseline.
    It requires 10 seeds per arm, as do its interval and the interval of the IQMs' difference. IQMs require 4
    seeds per arm, and `permutation_p` 6 paired seeds. `family` counts the differences over which both
    intervals are simultaneous.
    """

    difference: CrossedMean
    baseline: CrossedMean
    candidate: CrossedMean
    is_paired: bool
    improvement: float | None
    improvement_interval: Interval | None
    iqm_baseline: float | None
    iqm_candidate: float | None
    iqm_difference_interval: Interval | None
    permutation_p: float | None
    family: Family

    @property
    def num_seeds(self) -> tuple[int, int]:
        """The numbers of runs of the baseline and of the candidate in the difference."""
        return self.baseline.num_seeds, self.candidate.num_seeds


@dataclass(frozen=True, slots=True)
class TwoArms:
    """A baseline and a candidate: lists of `value_SP` by benchmark with the same problems in the same order.

    Paired arms have the same seeds in the same order. `clusters` has one entry per benchmark: the cluster of
    every problem [P], or None. `family` counts the differences that have simultaneous intervals with this
    one; `spread` is the moderated variance over seeds, if there are several candidates. `difference` and
    `compared` raise `ValueError` if shapes differ or values are not shares.
    """

    baseline: Sequence[ArrayLike]
    candidate: Sequence[ArrayLike]
    _: KW_ONLY
    is_paired: bool = True
    clusters: Sequence[ArrayLike | None] | None = None
    family: Family = SINGLE
    spread: SeedSpread | None = None

    def difference(self) -> CrossedMean:
        """Return the difference of the arms with its intervals."""
        arms = [
            [np.asarray(value_SP, dtype=np.float64) for value_SP in arm]
            for arm in (self.baseline, self.candidate)
        ]
        shapes = [[value.shape[0 if self.is_paired else 1 :] for value in arm] for arm in arms]
        if shapes[0] != shapes[1]:
            seeds = ", seeds" if self.is_paired else ""
            raise ValueError(f"both arms must have the same benchmarks{seeds} and problems")
        if any(np.any((value < 0.0) | (value > 1.0)) for arm in arms for value in arm):
            raise ValueError("values must be between 0 and 1")
        if not self.is_paired:
            return unpaired_difference(*arms, clusters=self.clusters, family=self.family)
        gaps = [after - before for before, after in zip(*arms, strict=True)]
        return crossed_mean(gaps, clusters=self.clusters, family=self.family, spread=self.spread)

    def compared(self, *, seed: int = 0) -> Comparison:
        """Return all estimates of the arms.

        `seed` is the random seed of the bootstrap and of the permutation test.
        """
        difference = self.difference()
        arms, is_paired = (self.baseline, self.candidate), self.is_paired
        means = [crossed_mean(arm, clusters=self.clusters, limits=SHARES) for arm in arms]
        scores = [mean_scores([np.asarray(value) for value in arm]) for arm in arms]
        is_known = min(map(len, scores)) >= MIN_SEEDS_BOOTSTRAP
        has_iqm = min(map(len, scores)) >= MIN_SEEDS_IQM
        return Comparison(
            difference=difference,
            baseline=means[0],
            candidate=means[1],
            is_paired=is_paired,
            improvement=float(probability_of_improvement(scores[1], scores[0])) if is_known else None,
            improvement_interval=bootstrap_interval(
                scores, lambda s: probability_of_improvement(s[1], s[0]), seed=seed
            ),
            iqm_baseline=float(interquartile_mean(scores[0])) if has_iqm else None,
            iqm_candidate=float(interquartile_mean(scores[1])) if has_iqm else None,
            iqm_difference_interval=bootstrap_interval(
                scores,
                lambda s: interquartile_mean(s[1]) - interquartile_mean(s[0]),
                seed=seed,
                paired=is_paired,
            ),
            permutation_p=permutation_p_value(difference.value_S, seed=seed),
            family=self.family,
        )


def verdict(
    comparison: Comparison, baseline_name: str, candidate_name: str, *, same_method: bool = False
) -> Verdict:
    """Return the verdict on a comparison. `same_method` says whether both names denote one method."""
    names = baseline_name, candidate_name
    if same_method:
        return wording.same_method()
    return verdict_on(comparison.difference, comparison.num_seeds, names=names)


def verdict_on(difference: CrossedMean, num_seeds: tuple[int, int], *, names: tuple[str, str]) -> Verdict:
    """Return the verdict on a difference, based on its interval for new seeds and new problems.

    `num_seeds` and `names` list the baseline first.
    """
    another, this = difference.new_seeds_and_problems, difference.new_seeds
    return judged(
        difference.value,
        names=names,
        num_seeds=num_seeds,
        interval=None if another is None else another.interval,
        differs_on_same_problems=this is not None and not this.interval.low <= 0.0 <= this.interval.high,
    )

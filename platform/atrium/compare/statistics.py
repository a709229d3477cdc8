"""Two arms compared, and what may be said about them: `compare_arms` and `verdict`.

An arm is a list of arrays `value_SP`, one per benchmark: what each seed's checkpoint did on each problem, a
share in [0, 1] (Mean@K or Pass@k of the problem). Both arms have the same seeds and problems in the same
order; values are subtracted cell by cell before anything is averaged, so that what makes a problem hard, and
what a seed shares between arms, cancels. See `crossed` for the two intervals, `simultaneous` for those of
several candidates, `robust` for what needs many seeds. A verdict is read off the interval that is shown for
another exam: it names a difference where the interval leaves out 0, and elsewhere says which differences the
interval excludes. Differences are candidate minus baseline; one point is 0.01.

Axes: S seeds, P problems, B benchmarks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from atrium.compare import verdicts
from atrium.compare.crossed import SHARES, CrossedMean, SamplingNoise, crossed_mean
from atrium.compare.power import Exam
from atrium.compare.robust import (
    MIN_SEEDS_IQM,
    bootstrap_interval,
    interquartile_mean,
    mean_scores,
    permutation_p_value,
    probability_of_improvement,
)
from atrium.compare.simultaneous import SINGLE, Family
from atrium.compare.verdicts import Verdict, judged
from atrium.evaluation.estimates import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A candidate against a baseline. What cannot be estimated is None.

    `difference` holds both intervals. `rho_another_exam` is the correlation that pairing makes use of,
    1 - SE_paired^2 / (SE_baseline^2 + SE_candidate^2): pairing multiplies the standard error by
    sqrt(1 - rho), and a negative one says that it did harm; `rho_this_exam` likewise over seeds.
    `improvement` is the probability that a seed of the candidate scores higher (two seeds or more); IQMs need
    4 seeds, `permutation_p` 6, the intervals of an improvement and of an IQM 10. `family` is what the two
    intervals hold together with.
    """

    difference: CrossedMean
    baseline: CrossedMean
    candidate: CrossedMean
    rho_another_exam: float | None
    rho_this_exam: float | None
    improvement: float | None
    improvement_interval: Interval | None
    iqm_baseline: float | None
    iqm_candidate: float | None
    iqm_difference_interval: Interval | None
    permutation_p: float | None
    family: Family


def compare_arms(
    baseline: Sequence[ArrayLike],
    candidate: Sequence[ArrayLike],
    sampling: SamplingNoise | None = None,
    *,
    family: Family = SINGLE,
    seed: int = 0,
) -> Comparison:
    """Compare two arms, lists of `value_SP` by benchmark with the same seeds and problems in the same order.

    `sampling` is the noise of the difference, for one seed (see `crossed.sampling_noise`); `family` holds the
    differences that are judged together with this one; `seed` starts the bootstrap. Raises `ValueError` where
    shapes differ or values are not shares.
    """
    arms = [[np.asarray(value_SP, dtype=np.float64) for value_SP in arm] for arm in (baseline, candidate)]
    if [value.shape for value in arms[0]] != [value.shape for value in arms[1]]:
        raise ValueError("both arms need the same benchmarks, seeds and problems")
    if any(np.any((value < 0.0) | (value > 1.0)) for arm in arms for value in arm):
        raise ValueError("values are shares and lie in [0, 1]")
    means = [crossed_mean(arm, limits=SHARES) for arm in arms]
    gaps = [after - before for before, after in zip(*arms, strict=True)]
    difference = crossed_mean(gaps, sampling=sampling, family=family)
    scores = [mean_scores(arm) for arm in arms]
    improvement_interval = bootstrap_interval(
        scores, lambda s: probability_of_improvement(s[1], s[0]), seed=seed
    )
    iqm_interval = bootstrap_interval(
        scores,
        lambda s: interquartile_mean(s[1]) - interquartile_mean(s[0]),
        seed=seed,
        paired=True,
    )
    has_seeds, has_iqm = difference.num_seeds > 1, difference.num_seeds >= MIN_SEEDS_IQM
    return Comparison(
        difference=difference,
        baseline=means[0],
        candidate=means[1],
        rho_another_exam=_rho(difference, means, "another"),
        rho_this_exam=_rho(difference, means, "this") if has_seeds else None,
        improvement=float(probability_of_improvement(scores[1], scores[0])) if has_seeds else None,
        improvement_interval=improvement_interval,
        iqm_baseline=float(interquartile_mean(scores[0])) if has_iqm else None,
        iqm_candidate=float(interquartile_mean(scores[1])) if has_iqm else None,
        iqm_difference_interval=iqm_interval,
        permutation_p=permutation_p_value(difference.value_S, seed=seed),
        family=family,
    )


def verdict(
    comparison: Comparison, *, baseline_name: str, candidate_name: str, same_method: bool = False
) -> Verdict:
    """What may be claimed about new seeds and new problems."""
    difference = comparison.difference
    another, this = difference.another_exam, difference.this_exam
    found = judged(
        difference.value,
        names=(baseline_name, candidate_name),
        num_seeds=(comparison.baseline.num_seeds, comparison.candidate.num_seeds),
        interval=None if another is None else another.interval,
        is_more_than_noise_here=this is not None and not this.interval.low <= 0.0 <= this.interval.high,
    )
    return verdicts.same_method(found) if same_method else found


def _rho(difference: CrossedMean, arms: Sequence[CrossedMean], exam: Exam) -> float | None:
    """What share of the unpaired variance pairing removes."""
    known = [mean.another_exam if exam == "another" else mean.this_exam for mean in (difference, *arms)]
    paired, *unpaired = [0.0 if item is None else item.standard_error**2 for item in known]
    return 1.0 - paired / sum(unpaired) if paired and any(unpaired) else None

"""Estimators of an evaluation's scores: Mean@K, Pass@k, Pass^k, and their intervals.

All functions are pure functions of counts: `num_correct_P[p]` of the `num_samples` independent samples of
problem p are correct.

Two intervals answer two questions. The interval *over problems* shows which scores are plausible on other
problems of this kind. The problems are the sample, so the spread of the problems' values matters. The
interval of *sampling noise* shows which scores are plausible for other completions. The problems are fixed
and the completions are the sample. A binomial interval over problems times samples answers neither question,
because the samples of one problem share its difficulty.

Both are t intervals whose ends are computed as if one more outcome had been observed. An outcome is a
problem, or, for sampling noise, k samples. The additional outcome counts as wrong for the lower end, and as
correct for the upper end. Near 0 and 1, a few problems account for all of the variance, or no observed
problem contributes any, and a t interval alone covers as little as 40 %. Elsewhere, the additional outcome is
one of n + 1 and widens the interval only slightly, and the interval does not shrink when a first failure
appears. `make bench-coverage` measures coverage and width.

Sources: Pass@k is the unbiased estimator of arXiv 2107.03374, eq. 1; Pass^k is that of arXiv 2406.12045,
section 4. Both are U-statistics, whose variance has an unbiased estimator if two disjoint sets of k samples
exist (Hoeffding 1948). Degrees of freedom of a sum of variances: Satterthwaite 1946.

Axes: P problems, K samples per problem, B benchmarks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from atrium.stats.arrays import Floats

Counts = NDArray[np.int64]


class Interval(NamedTuple):
    """The two ends of a confidence interval."""

    low: float
    high: float


class Estimate(NamedTuple):
    """A value and its interval, which is None if the data cannot support an interval."""

    value: float
    interval: Interval | None


def mean_at_k(num_correct_P: ArrayLike, num_samples: int) -> Floats:
    """Return Mean@K of each problem [P]: the share of its K = `num_samples` samples that are correct."""
    return _checked(num_correct_P, num_samples) / num_samples


def pass_at_k(num_correct_P: ArrayLike, num_samples: int) -> Floats:
    """Return Pass@k of each problem for all k [P, K]; column k - 1 is 1 - C(n-c, k) / C(n, k).

    This is an unbiased estimate of the probability that at least one of k samples is correct, from c correct
    samples of n = `num_samples`. It is exactly 0 if c = 0 and exactly 1 if n - c < k. The quotient of
    binomial coefficients is computed as a running product of ratios, so that nothing overflows.
    """
    num_correct_P = _checked(num_correct_P, num_samples)
    return 1.0 - _share_of_subsets(num_samples - num_correct_P, num_samples)


def pass_hat_k(num_correct_P: ArrayLike, num_samples: int) -> Floats:
    """Return Pass^k of each problem for all k [P, K]; column k - 1 is C(c, k) / C(n, k).

    This is an unbiased estimate of the probability that all of k samples are correct, from c correct samples
    of n = `num_samples`.
    """
    return _share_of_subsets(_checked(num_correct_P, num_samples), num_samples)


def interval_over_problems(value_P: ArrayLike, confidence: float = 0.95) -> Interval | None:
    """Return the t interval of the mean of `value_P`, for new problems of the same kind.

    The lower end is computed with an additional value of 0, and the upper end with an additional value of 1.
    Both ends are truncated to [0, 1]. The width is never zero, even if all values are equal. Returns None for
    a single problem. Raises `ValueError` for no problems or for values outside [0, 1].
    """
    value_P = np.asarray(value_P, dtype=np.float64)
    return macro_average([value_P], confidence).interval


def sampling_interval(
    num_correct_P: ArrayLike, num_samples: int, k: int = 1, confidence: float = 0.95
) -> Interval | None:
    """Return the interval of Pass@k (Mean@K if k = 1) for new samples of the same problems.

    Returns None unless n = `num_samples` is at least 2k. An unbiased estimate of the variance of a problem's
    Pass@k is f_k^2 - f_2k, where f_j = C(n-c, j) / C(n, j) is the share of j-subsets without a correct
    sample. For k = 1 the estimate is p (1 - p) / (n - 1). A problem has floor(n / k) disjoint blocks of k
    samples and adds floor(n / k) - 1 degrees of freedom.

    Each end is computed as if one more block had been observed. Problems whose estimate is exactly 1 or 0
    appear to have no sampling noise. A binomial bound on their error therefore limits how close the lower end
    (estimates of 1) or the upper end (estimates of 0) can be to the mean. For greedy decoding, which has no
    sampling noise, the interval is too wide.
    """
    num_correct_P = _checked(num_correct_P, num_samples)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if num_samples < 2 * k:
        return None
    none_correct_PK = _share_of_subsets(num_samples - num_correct_P, num_samples)
    none_in_k_P, none_in_2k_P = none_correct_PK[:, k - 1], none_correct_PK[:, 2 * k - 1]
    num_blocks = num_samples // k
    value_P = 1.0 - none_in_k_P
    num_outcomes = len(value_P) * num_blocks
    margin = _Margin(
        # Unbiased estimates of a variance may be negative, and so may their sum.
        max(float((none_in_k_P**2 - none_in_2k_P).sum()), 0.0) / len(value_P) ** 2,
        degrees_of_freedom=len(value_P) * (num_blocks - 1),
        confidence=confidence,
    )
    mean = float(value_P.mean())
    below = margin.with_outcome_at(mean / (num_outcomes + 1))
    above = margin.with_outcome_at((1.0 - mean) / (num_outcomes + 1))
    below = max(below, _bound_of_run(value_P == 1.0, num_blocks, margin.tail))
    above = max(above, _bound_of_run(value_P == 0.0, num_blocks, margin.tail))
    return Interval(max(mean - below, 0.0), min(mean + above, 1.0))


def macro_average(values_by_benchmark: Sequence[ArrayLike], confidence: float = 0.95) -> Estimate:
    """Return the mean over benchmarks of their means over problems, with its interval over problems.

    Each benchmark has the same weight, whatever its size. The benchmarks are fixed and their problems are the
    sample: SE^2 is the sum of the benchmarks' SE^2 over B^2, with Satterthwaite's degrees of freedom. Each
    end of the interval includes the effect of one additional problem, with value 0 for the lower end and 1
    for the upper end, in the benchmark where it changes the mean most. The interval is None if any benchmark
    has a single problem. Raises `ValueError` for a benchmark without problems, for no benchmarks, or for
    values outside [0, 1].
    """
    values = [np.asarray(value_P, dtype=np.float64) for value_P in values_by_benchmark]
    if not values or any(value_P.ndim != 1 or not value_P.size for value_P in values):
        raise ValueError("each benchmark must have the values of at least one problem")
    if any(not np.all((value_P >= 0.0) & (value_P <= 1.0)) for value_P in values):
        raise ValueError("values of problems must be between 0 and 1")
    mean_B = np.array([value_P.mean() for value_P in values])
    num_problems_B = np.array([len(value_P) for value_P in values])
    if num_problems_B.min() < 2:
        return Estimate(float(mean_B.mean()), None)
    variance_B = np.array([value_P.var(ddof=1) for value_P in values]) / num_problems_B / len(values) ** 2
    variance = float(variance_B.sum())
    pooled = float((variance_B**2 / (num_problems_B - 1)).sum())
    margin = _Margin(
        variance,
        degrees_of_freedom=variance**2 / pooled if pooled else float(num_problems_B.sum() - len(values)),
        confidence=confidence,
    )
    mean = float(mean_B.mean())
    weight_B = 1.0 / (num_problems_B + 1) / len(values)
    below = margin.with_outcome_at(float((weight_B * mean_B).max()))
    above = margin.with_outcome_at(float((weight_B * (1.0 - mean_B)).max()))
    return Estimate(mean, Interval(max(mean - below, 0.0), min(mean + above, 1.0)))


def _checked(num_correct_P: ArrayLike, num_samples: int) -> Counts:
    """Return the counts as integers; raise `ValueError` if they cannot be counts out of `num_samples`."""
    counts_P = np.asarray(num_correct_P)
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {num_samples}")
    if counts_P.ndim != 1 or not counts_P.size or not np.issubdtype(counts_P.dtype, np.integer):
        raise ValueError("num_correct_P must be a non-empty list with one integer per problem")
    if counts_P.min() < 0 or counts_P.max() > num_samples:
        raise ValueError(f"each count must be between 0 and num_samples={num_samples}")
    return counts_P.astype(np.int64)


def _share_of_subsets(size_P: Counts, num_samples: int) -> Floats:
    """Return C(m, k) / C(n, k) for k = 1..n [P, n], where m is `size_P` and n is `num_samples`.

    This is the share of the k-subsets of n samples whose elements all belong to m given samples.
    """
    drawn_K = np.arange(num_samples)
    left_PK = np.maximum(size_P[:, None] - drawn_K, 0)
    return np.cumprod(left_PK / (num_samples - drawn_K), axis=1)


class _Margin:
    """The distance of an interval's ends from a mean with an estimated variance."""

    def __init__(self, variance: float, *, degrees_of_freedom: float, confidence: float) -> None:
        if not 0.0 < confidence < 1.0:
            raise ValueError(f"confidence must be greater than 0 and less than 1, got {confidence}")
        self.tail = (1.0 - confidence) / 2.0
        self.standard_error = variance**0.5
        self.t = -float(stdtrit(degrees_of_freedom, self.tail))

    def with_outcome_at(self, shift: float) -> float:
        """Return the margin after an additional outcome has moved the mean by `shift`.

        The outcome adds shift^2 to the variance of the mean, since `shift` is its deviation from the old mean
        divided by the new number of outcomes.
        """
        return shift + self.t * math.hypot(self.standard_error, shift)


def _bound_of_run(is_in_run: NDArray[np.bool_], num_trials: int, tail: float) -> float:
    """Return a bound on the error that unobserved variation at the marked problems causes in the mean.

    `is_in_run` marks the problems whose trials all succeeded, or those whose trials all failed. The bound is
    binomial, with `num_trials` trials per problem. The error exceeds it with a probability of at most `tail`.
    """
    num = int(np.count_nonzero(is_in_run))
    return num / len(is_in_run) * (1.0 - tail ** (1.0 / (num * num_trials))) if num else 0.0

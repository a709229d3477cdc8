"""Estimators over the outcomes of an evaluation: Mean@K, Pass@k, Pass^k, and their intervals.

Pure functions of counts: `num_correct_P[p]` of the `num_samples` independent samples of problem p were
correct. Nothing here draws, reads or writes.

Two questions have two intervals, and neither answers the other. *Over problems*: what would another exam
of such problems say? The problems are the sample, so the spread of the problems' values decides. *Sampling
noise*: what would the same exam say, sampled again? The problems are fixed and the completions are the
sample. A binomial over problems times samples answers neither, because the samples of one problem share
its difficulty.

Sources: Pass@k is the unbiased estimator of arXiv 2107.03374, eq. 1; Pass^k is that of arXiv 2406.12045,
section 4. Both are U-statistics, whose variance has an unbiased estimator where two disjoint sets of k
samples exist (Hoeffding 1948). Degrees of freedom of a sum of variances: Satterthwaite 1946.

Axes: P problems, K samples per problem, B benchmarks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

Counts = NDArray[np.int64]
Values = NDArray[np.float64]


class Interval(NamedTuple):
    """A two-sided confidence interval for a share, within [0, 1]."""

    low: float
    high: float


class Estimate(NamedTuple):
    """A value and its interval; None where the data cannot support one."""

    value: float
    interval: Interval | None


def mean_at_k(num_correct_P: ArrayLike, num_samples: int) -> Values:
    """Mean@K of each problem [P]: the share of its K = `num_samples` samples that are correct."""
    return _checked(num_correct_P, num_samples) / num_samples


def pass_at_k(num_correct_P: ArrayLike, num_samples: int) -> Values:
    """Pass@k of each problem for all k at once [P, K]; column k - 1 holds 1 - C(n-c, k) / C(n, k).

    The probability that at least one of k samples is correct, estimated without bias from the
    n = `num_samples` at hand. Exactly 0 where c = 0 and exactly 1 where n - c < k. The quotient of
    binomials is a running product of ratios, so nothing overflows.
    """
    num_correct_P = _checked(num_correct_P, num_samples)
    return 1.0 - _share_of_subsets(num_samples - num_correct_P, num_samples)


def pass_hat_k(num_correct_P: ArrayLike, num_samples: int) -> Values:
    """Pass^k of each problem for all k at once [P, K]; column k - 1 holds C(c, k) / C(n, k).

    The probability that all of k samples are correct, estimated without bias.
    """
    return _share_of_subsets(_checked(num_correct_P, num_samples), num_samples)


def interval_over_problems(value_P: ArrayLike, confidence: float = 0.95) -> Interval | None:
    """What another exam of such problems would say: t on the problems' values, cut to [0, 1].

    None for fewer than two problems. Where every value is 0, or every value is 1, the spread says
    nothing and the bound that holds for any values in [0, 1] is used: at most 1 - (alpha / 2)^(1 / P),
    or at least (alpha / 2)^(1 / P). Zero width where all values are equal and strictly between.
    """
    value_P = np.asarray(value_P, dtype=np.float64)
    return macro_average([value_P], confidence).interval


def sampling_interval(
    num_correct_P: ArrayLike, num_samples: int, k: int = 1, confidence: float = 0.95
) -> Interval | None:
    """What the same exam would say, sampled again: the noise of Pass@k; with k = 1, of Mean@K.

    None ("not estimable") unless n >= 2k. The variance of a problem's estimate is estimated without
    bias by f_k^2 - f_2k, where f_j = C(n-c, j) / C(n, j) is the share of j-subsets with nothing correct:
    the square of the estimate, less the average over two disjoint k-subsets. For k = 1 this is
    p (1 - p) / (n - 1). Its degrees of freedom are taken as those of floor(n / k) disjoint blocks of k
    samples, less one. Where the samples of every problem agree, the bound for runs of that many equal
    outcomes is used (it is then too wide for greedy decoding, which has no noise).
    """
    num_correct_P = _checked(num_correct_P, num_samples)
    if k < 1:
        raise ValueError(f"k is at least 1, not {k}")
    if num_samples < 2 * k:
        return None
    none_correct_PK = _share_of_subsets(num_samples - num_correct_P, num_samples)
    none_in_k_P, none_in_2k_P = none_correct_PK[:, k - 1], none_correct_PK[:, 2 * k - 1]
    num_blocks = num_samples // k
    return _interval_of_mean(
        1.0 - none_in_k_P,
        variance=none_in_k_P**2 - none_in_2k_P,
        degrees_of_freedom=np.full(len(num_correct_P), num_blocks - 1.0),
        trials_per_value=num_blocks,
        confidence=confidence,
    )


def macro_average(values_by_benchmark: Sequence[ArrayLike], confidence: float = 0.95) -> Estimate:
    """The mean over benchmarks of their means over problems, with its interval over problems.

    Each benchmark weighs the same, whatever its size. The benchmarks are fixed and their problems are
    the sample: SE^2 is the sum of the benchmarks' SE^2 over B^2, with Satterthwaite's degrees of
    freedom. The interval is None where any benchmark has fewer than two problems.
    """
    values = [np.asarray(value_P, dtype=np.float64) for value_P in values_by_benchmark]
    if not values or any(value_P.ndim != 1 or not value_P.size for value_P in values):
        raise ValueError("each benchmark needs a list of at least one problem's value")
    if any(not np.all((value_P >= 0.0) & (value_P <= 1.0)) for value_P in values):
        raise ValueError("values of problems are shares and lie in [0, 1]")
    mean_B = np.array([value_P.mean() for value_P in values])
    num_problems_B = np.array([len(value_P) for value_P in values])
    if num_problems_B.min() < 2:
        return Estimate(float(mean_B.mean()), None)
    interval = _interval_of_mean(
        mean_B,
        variance=np.array([value_P.var(ddof=1) / len(value_P) for value_P in values]),
        degrees_of_freedom=num_problems_B - 1.0,
        trials_per_value=int(num_problems_B.min()),
        confidence=confidence,
    )
    return Estimate(float(mean_B.mean()), interval)


def _checked(num_correct_P: ArrayLike, num_samples: int) -> Counts:
    """The counts as integers, or `ValueError` where they cannot be counts out of `num_samples`."""
    counts_P = np.asarray(num_correct_P)
    if num_samples < 1:
        raise ValueError(f"num_samples is at least 1, not {num_samples}")
    if counts_P.ndim != 1 or not counts_P.size or not np.issubdtype(counts_P.dtype, np.integer):
        raise ValueError("num_correct_P is a list of one integer per problem, for at least one")
    if counts_P.min() < 0 or counts_P.max() > num_samples:
        raise ValueError(f"each count lies between 0 and num_samples = {num_samples}")
    return counts_P.astype(np.int64)


def _share_of_subsets(size_P: Counts, num_samples: int) -> Values:
    """C(m, k) / C(n, k) for k = 1..n [P, n]: the share of k-subsets of n that lie within m of them."""
    drawn_K = np.arange(num_samples)
    left_PK = np.maximum(size_P[:, None] - drawn_K, 0)
    return np.cumprod(left_PK / (num_samples - drawn_K), axis=1)


def _interval_of_mean(
    value: Values,
    *,
    variance: Values,
    degrees_of_freedom: Values,
    trials_per_value: int,
    confidence: float,
) -> Interval:
    """The interval of the mean of independent estimates, each with its estimated variance.

    Where no variance is left, t would claim certainty from a run of equal outcomes. The values at 0 are
    then events that did not happen in `trials_per_value` trials each, those at 1 events that always did,
    and the binomial bound for such runs stands in. It holds for unequal probabilities too, since a
    product with a given sum is largest when its factors are equal.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence lies strictly between 0 and 1, not {confidence}")
    tail = (1.0 - confidence) / 2.0
    mean, total = float(value.mean()), float(variance.sum())
    if total > 0.0:
        pooled = total**2 / float((variance**2 / degrees_of_freedom).sum())
        below = above = -float(stdtrit(pooled, tail)) * total**0.5 / len(value)
    else:
        above = _bound_of_run(value == 0.0, trials_per_value, tail)
        below = _bound_of_run(value == 1.0, trials_per_value, tail)
    return Interval(max(mean - below, 0.0), min(mean + above, 1.0))


def _bound_of_run(is_in_run: NDArray[np.bool_], num_trials: int, tail: float) -> float:
    """By how much the mean may lie beyond values whose trials all ended alike."""
    num = int(np.count_nonzero(is_in_run))
    return num / len(is_in_run) * (1.0 - tail ** (1.0 / (num * num_trials))) if num else 0.0

"""Statistics over seeds that assume no normal distribution: IQM, bootstrap, permutation, improvement.

These statistics require many seeds. A permutation test of three seeds cannot reach a p value of 0.05, and a
bootstrap of five has far less than its nominal coverage. With fewer seeds than `MIN_SEEDS_PERMUTATION` or
`MIN_SEEDS_BOOTSTRAP`, the functions return None. On one benchmark, an interquartile mean (IQM) of fewer than
`MIN_SEEDS_IQM` seeds trims nothing. With four to seven seeds, it trims one seed at each end and hides a
single collapse, so the rate of collapses is reported with it. All randomness comes from the given `seed`.

Sources: interquartile mean, stratified bootstrap and probability of improvement, arXiv 2108.13264 (rliable).
rliable resamples the runs of every task separately. Here one checkpoint answers all benchmarks, so a seed is
drawn with all its scores. Seeds are drawn within each arm or, for the difference of the IQMs of paired arms,
for both arms at once.

Axes: S seeds, B benchmarks. Statistics accept additional leading axes, such as an axis of resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from atrium.stats.arrays import Floats
from atrium.stats.estimates import Interval

MIN_SEEDS_IQM = 4
MIN_SEEDS_PERMUTATION = 6
MIN_SEEDS_BOOTSTRAP = 10
_MAX_ENUMERATED_SEEDS = 14
_RESAMPLES_AT_ONCE = 200
Statistic = Callable[[Sequence[Floats]], Floats]


def interquartile_mean(score_SB: ArrayLike) -> Floats:
    """Return the mean of the middle half of the scores, pooled over seeds and benchmarks.

    At each end, a quarter of the scores is trimmed, rounded down to a whole number of scores.
    """
    score = np.asarray(score_SB, dtype=np.float64)
    ordered = np.sort(score.reshape(*score.shape[:-2], -1), axis=-1)
    num = ordered.shape[-1]
    middle: Floats = ordered[..., num // 4 : num - num // 4].mean(axis=-1)
    return middle


def interquartile_of(score_S: ArrayLike) -> float | None:
    """Return the interquartile mean over seeds, or None for fewer than four seeds."""
    score_S1 = np.asarray(score_S, dtype=np.float64)[:, None]
    return float(interquartile_mean(score_S1)) if len(score_S1) >= MIN_SEEDS_IQM else None


def probability_of_improvement(candidate_SB: ArrayLike, baseline_SB: ArrayLike) -> Floats:
    """Return the probability that a run of the candidate scores higher than one of the baseline.

    The estimate is the share of pairs of runs in which the candidate scores higher, averaged over benchmarks
    (Mann and Whitney's U). A tie counts as half, so 0.5 means no difference. The arms may have different
    numbers of seeds.
    """
    candidate, baseline = (np.asarray(score, dtype=np.float64) for score in (candidate_SB, baseline_SB))
    from scipy.stats import rankdata  # imported only if needed, since it takes 0.4 s

    num, num_others = candidate.shape[-2], baseline.shape[-2]
    # By ranks, in S log S instead of S^2 operations: U is the candidate's rank sum minus its minimum value.
    rank_SB = rankdata(np.concatenate([candidate, baseline], axis=-2), axis=-2)
    u_B = rank_SB[..., :num, :].sum(axis=-2) - num * (num + 1) / 2
    better: Floats = (u_B / (num * num_others)).mean(axis=-1)
    return better


def bootstrap_interval(
    scores: Sequence[ArrayLike],
    statistic: Statistic,
    *,
    seed: int,
    paired: bool = False,
    num_resamples: int = 2000,
    confidence: float = 0.95,
) -> Interval | None:
    """Return a statistic's percentile interval over resampled seeds, or None for fewer than 10 seeds.

    `scores` contains one array `score_SB` per arm. Seeds are drawn separately in each arm, or, if `paired`,
    once for all arms. The statistic receives R resamples of each arm at once, as an array [R, S, B], and
    returns R values.
    """
    arms = [np.asarray(score_SB, dtype=np.float64) for score_SB in scores]
    if min(len(arm) for arm in arms) < MIN_SEEDS_BOOTSTRAP:
        return None
    if paired and len({len(arm) for arm in arms}) > 1:
        raise ValueError("paired arms must have equal numbers of seeds")
    generator = np.random.default_rng(seed)
    values = []
    for start in range(0, num_resamples, _RESAMPLES_AT_ONCE):
        num = min(_RESAMPLES_AT_ONCE, num_resamples - start)
        drawn = [generator.integers(len(arm), size=(num, len(arm))) for arm in (arms[:1] if paired else arms)]
        rows = drawn * len(arms) if paired else drawn
        values.append(statistic([arm[row_RS] for arm, row_RS in zip(arms, rows, strict=True)]))
    low, high = np.quantile(np.concatenate(values), [0.5 - confidence / 2.0, 0.5 + confidence / 2.0])
    return Interval(float(low), float(high))


def permutation_p_value(difference_S: ArrayLike, *, seed: int, num_resamples: int = 10_000) -> float | None:
    """Return the two-sided p value of a sign-flip test on paired differences, or None for fewer than 6 seeds.

    With up to 14 seeds, all combinations of signs are enumerated. With more, they are drawn at random, and
    the observed signs are counted among them.
    """
    difference_S = np.asarray(difference_S, dtype=np.float64)
    num_seeds = len(difference_S)
    if num_seeds < MIN_SEEDS_PERMUTATION:
        return None
    if num_seeds <= _MAX_ENUMERATED_SEEDS:
        sign_RS = 1.0 - 2.0 * (np.arange(2**num_seeds)[:, None] >> np.arange(num_seeds) & 1)
    else:
        draws_RS = np.random.default_rng(seed).integers(0, 2, size=(num_resamples, num_seeds))
        sign_RS = np.vstack([np.ones(num_seeds), 1.0 - 2.0 * draws_RS])
    size_R = np.abs(sign_RS @ difference_S)
    observed = abs(float(difference_S.sum()))
    return float(np.mean(size_R >= observed - 1e-12 * max(observed, 1.0)))


def mean_scores(values_by_benchmark: Sequence[Floats]) -> Floats:
    """Return scores [S, B] from values [S, P] of each benchmark."""
    return np.stack([np.asarray(value_SP).mean(axis=1) for value_SP in values_by_benchmark], axis=1)

"""Statistics over seeds without a normal distribution: IQM, bootstrap, permutation, improvement.

They need several seeds: a permutation test of three seeds cannot reach 0.05, and a bootstrap of five has far
less than its nominal coverage. Below `MIN_SEEDS_PERMUTATION` and `MIN_SEEDS_BOOTSTRAP` the functions return
None. An IQM of fewer than `MIN_SEEDS_IQM` seeds trims nothing. Of four to seven seeds it trims one at each
end: a single collapse vanishes from it, so the rate of collapse is reported with it. All randomness comes
from the given `seed`.

Sources: interquartile mean, stratified bootstrap and probability of improvement, arXiv 2108.13264 (rliable).
Differs: rliable resamples the runs of every task separately. Here one checkpoint answers all benchmarks, so a
seed is drawn with all its scores; the arms are the strata, or seeds are drawn for both arms at once.

Axes: S seeds, B benchmarks. Statistics take any axes before these two, such as one of resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atrium.stats.crossed import Values
from atrium.stats.estimates import Interval

MIN_SEEDS_IQM = 4
MIN_SEEDS_PERMUTATION = 6
MIN_SEEDS_BOOTSTRAP = 10
_MAX_ENUMERATED_SEEDS = 14
_RESAMPLES_AT_ONCE = 200
Statistic = Callable[[Sequence[Values]], Values]


def interquartile_mean(score_SB: ArrayLike) -> Values:
    """Return the mean of the middle half of all scores; a quarter is trimmed at each end, rounded down."""
    score = np.asarray(score_SB, dtype=np.float64)
    ordered = np.sort(score.reshape(*score.shape[:-2], -1), axis=-1)
    num = ordered.shape[-1]
    middle: Values = ordered[..., num // 4 : num - num // 4].mean(axis=-1)
    return middle


def interquartile_of(score_S: ArrayLike) -> float | None:
    """Return the interquartile mean over seeds; None if there are too few to trim any."""
    score_S1 = np.asarray(score_S, dtype=np.float64)[:, None]
    return float(interquartile_mean(score_S1)) if len(score_S1) >= MIN_SEEDS_IQM else None


def probability_of_improvement(candidate_SB: ArrayLike, baseline_SB: ArrayLike) -> Values:
    """Return the probability that a run of the candidate scores higher than the baseline's, ties half.

    Over all pairs of seeds, averaged over benchmarks (Mann and Whitney's U); 0.5 means no difference. The
    arms may have different numbers of seeds.
    """
    candidate, baseline = (np.asarray(score, dtype=np.float64) for score in (candidate_SB, baseline_SB))
    num, num_others = candidate.shape[-2], baseline.shape[-2]
    # By ranks, which takes S log S and not S^2: U is the candidate's rank sum minus its minimum value.
    rank_SB = _mean_ranks(np.concatenate([candidate, baseline], axis=-2))
    u_B = rank_SB[..., :num, :].sum(axis=-2) - num * (num + 1) / 2
    better: Values = (u_B / (num * num_others)).mean(axis=-1)
    return better


def _mean_ranks(value_SB: Values) -> Values:
    """Return the ranks over seeds, from 1; ties share their mean rank. Importing `scipy.stats` takes 1 s."""
    value = value_SB.swapaxes(-1, -2)
    order = value.argsort(axis=-1)
    ascending = np.take_along_axis(value, order, axis=-1)
    place = np.broadcast_to(np.arange(value.shape[-1]), value.shape)
    is_new = np.ones(value.shape, dtype=bool)
    is_new[..., 1:] = ascending[..., 1:] != ascending[..., :-1]
    is_last = np.ones(value.shape, dtype=bool)
    is_last[..., :-1] = is_new[..., 1:]
    first = np.maximum.accumulate(np.where(is_new, place, 0), axis=-1)
    last = np.where(is_last, place, value.shape[-1])[..., ::-1]
    last = np.minimum.accumulate(last, axis=-1)[..., ::-1]
    ranks = np.empty(value.shape)
    np.put_along_axis(ranks, order, (first + last) / 2.0 + 1.0, axis=-1)
    return ranks.swapaxes(-1, -2)


def bootstrap_interval(
    scores: Sequence[ArrayLike],
    statistic: Statistic,
    *,
    seed: int,
    paired: bool = False,
    num_resamples: int = 2000,
    confidence: float = 0.95,
) -> Interval | None:
    """Return a statistic's percentile interval over resampled seeds of `score_SB`; None below 10 seeds.

    Every arm is a separate stratum, or, if `paired`, the same seeds are drawn from all arms. The statistic
    receives many resamples at once, arms [R, S, B], and returns its values [R].
    """
    arms = [np.asarray(score_SB, dtype=np.float64) for score_SB in scores]
    if min(len(arm) for arm in arms) < MIN_SEEDS_BOOTSTRAP:
        return None
    if paired and len({len(arm) for arm in arms}) > 1:
        raise ValueError("paired arms need equal numbers of seeds")
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
    """Return the two-sided p value of paired seed differences by flipping signs; None below 6 seeds.

    Exact by enumeration up to 14 seeds; beyond, random flips with the observed one counted among them.
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


def mean_scores(values_by_benchmark: Sequence[NDArray[np.float64]]) -> Values:
    """Return scores [S, B] from values [S, P] of each benchmark."""
    return np.stack([np.asarray(value_SP).mean(axis=1) for value_SP in values_by_benchmark], axis=1)

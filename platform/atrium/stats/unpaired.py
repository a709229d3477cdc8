"""The difference of two arms whose seeds are not paired.

Both arms, A and B, answer the same P problems. For an arm X with S_X seeds, let v_X be the variance of the
arm's mean due to its seeds, and r_X the arm's residual mean square divided by S_X P. Let v_P be the variance
over problems of each problem's mean difference, divided by P. Then SE^2 = max(v_A + v_B + v_P - r_A - r_B,
v_A + v_B, v_P), with Satterthwaite's degrees of freedom over the terms used.

The variance over seeds in v_X is the arm's own or the one pooled over both arms, whichever is larger, with
the arm's own S_X - 1 degrees of freedom. Welch's test always uses the arm's own variance. It gives 9.5 to 23
% false verdicts if one arm has 2 or 3 seeds and the score of a seed takes one of two values, because so few
scores are often all equal.

Axes: S seeds, P problems, B benchmarks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from atrium.stats.arrays import Floats
from atrium.stats.crossed import (
    CrossedMean,
    Squares,
    VarianceComponents,
    checked,
    components_of,
    mean_from_squares,
    pooled_degrees,
    squares_of,
)
from atrium.stats.simultaneous import SINGLE, Family, SeedSpread


def unpaired_difference(
    baseline: Sequence[ArrayLike],
    candidate: Sequence[ArrayLike],
    *,
    clusters: Sequence[ArrayLike | None] | None = None,
    family: Family = SINGLE,
) -> CrossedMean:
    """Return candidate minus baseline, from `value_SP` arrays by benchmark.

    Both arms have the same problems in the same order. If an arm has one seed, there is no interval for new
    seeds, and only `new_problems` is given: the uncertainty of these checkpoints' difference on new problems.
    """
    arms = [checked(baseline), checked(candidate)]
    before, after = ([value_SP.mean(axis=0) for value_SP in arm] for arm in arms)
    gap_P_B = [two - one for one, two in zip(before, after, strict=True)]
    score_S_A = [np.mean([value_SP.mean(axis=1) for value_SP in arm], axis=0) for arm in arms]
    squares = squares_of(arms, gap_P_B, clusters)._replace(by_seed=unpaired_spread(*score_S_A))
    return mean_from_squares(
        float(np.mean([gap_P.mean() for gap_P in gap_P_B])),
        squares,
        components=_components(squares, arms, score_S_A, clusters),
        family=family,
    )


def unpaired_spread(baseline_S: ArrayLike, candidate_S: ArrayLike) -> SeedSpread | None:
    """Return the variance over seeds of a difference of unpaired means, or None if an arm has one seed."""
    arms = [np.asarray(score_S, dtype=np.float64) for score_S in (baseline_S, candidate_S)]
    degrees = np.array([len(score_S) - 1.0 for score_S in arms])
    if degrees.min() < 1.0:
        return None
    own = np.array([score_S.var(ddof=1) for score_S in arms])
    pooled = float((degrees * own).sum() / degrees.sum())
    by_arm = np.maximum(own, pooled) / (degrees + 1.0)
    return SeedSpread(float(by_arm.sum()), pooled_degrees(by_arm, degrees))


def _components(
    squares: Squares,
    arms: Sequence[list[Floats]],
    score_S_A: Sequence[Floats],
    clusters: Sequence[ArrayLike | None] | None,
) -> VarianceComponents | None:
    """Return the variance components of the difference.

    The components `seed` and `residual` are sums over both arms.
    """
    seed = residual = 0.0
    for arm, score_S in zip(arms if squares.by_seed else (), score_S_A, strict=False):
        by_residual = squares_of([arm], [value_SP.mean(axis=0) for value_SP in arm], clusters).by_residual
        residual += len(score_S) * by_residual
        seed += max(float(score_S.var(ddof=1)) - len(score_S) * by_residual, 0.0)
    return components_of(squares, seed=seed, residual=residual)

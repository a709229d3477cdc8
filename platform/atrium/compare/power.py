"""What a design can show: power, the smallest difference it detects, and the seeds that an effect needs.

Everything follows from the design: numbers of seeds and problems, and the components of variance. The
observed difference plays no part, since power computed from it only restates the p value (Hoenig and Heisey
2001). Components that come from few seeds are themselves uncertain, and so is what is said here. Seeds added
after a look at the result need fresh data or a sequential bound.

Source: power of Student's t by the noncentral t distribution, e.g. Cohen 1988, ch. 2.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.special import nctdtr, ndtr

from atrium.compare.crossed import VarianceComponents, t_quantile

Exam = Literal["another", "this"]
_MAX_SEEDS = 1000
_LARGE = 30.0
"""Noncentrality beyond which scipy's series is slow; power is then 1 for any sensible degrees of freedom."""
_NEVER_BELOW = 5.0
"""Noncentrality beyond which a t as far on the other side is too rare to count (and scipy's has gaps)."""


def standard_error(
    components: VarianceComponents, num_seeds: int, exam: Exam = "another"
) -> tuple[float, float]:
    """The standard error that `num_seeds` >= 2 seeds would have, and its degrees of freedom.

    On another exam: seed / S + problem + residual / S, with Satterthwaite's degrees of freedom of the
    mean squares expected; on this one (seed + residual) / S with S - 1. As in `crossed`, another exam takes
    those of this one where they make the wider interval.
    """
    if num_seeds < 2:
        raise ValueError("one seed cannot show how seeds vary; num_seeds is at least 2")
    df_S = num_seeds - 1.0
    by_residual = components.residual / num_seeds
    by_seed = components.seed / num_seeds + by_residual
    if exam == "this":
        return by_seed**0.5, df_S
    by_problem, df_P = components.problem + by_residual, components.problem_degrees_of_freedom
    total = by_seed + by_problem - by_residual
    spread = by_seed**2 / df_S + by_problem**2 / df_P + by_residual**2 / (df_S * df_P)
    other = (total**0.5, total**2 / spread if spread > 0.0 else df_S)
    return max(other, (by_seed**0.5, df_S), key=lambda known: known[0] * t_quantile(0.975, known[1]))


def power(effect: float, standard_error: float, degrees_of_freedom: float, alpha: float = 0.05) -> float:
    """The probability that the two-sided t test of level `alpha` rejects when the difference is `effect`."""
    if standard_error <= 0.0:
        raise ValueError("standard_error is above 0")
    noncentrality = abs(effect) / standard_error
    critical = t_quantile(1.0 - alpha / 2.0, degrees_of_freedom)
    if noncentrality - critical > _LARGE or degrees_of_freedom > 1e4:
        return float(ndtr(noncentrality - critical) + ndtr(-noncentrality - critical))
    beyond = 1.0 - float(nctdtr(degrees_of_freedom, noncentrality, critical))
    if noncentrality > _NEVER_BELOW:
        return beyond
    return beyond + float(nctdtr(degrees_of_freedom, noncentrality, -critical))


def minimum_detectable_difference(
    standard_error: float, degrees_of_freedom: float, *, alpha: float = 0.05, target: float = 0.8
) -> float:
    """The smallest difference that the test of level `alpha` finds with probability `target`."""
    low, high = 0.0, 2.0 * standard_error
    while power(high, standard_error, degrees_of_freedom, alpha) < target:
        low, high = high, 2.0 * high
    for _ in range(50):
        middle = 0.5 * (low + high)
        if power(middle, standard_error, degrees_of_freedom, alpha) < target:
            low = middle
        else:
            high = middle
    return high


def num_seeds_needed(
    components: VarianceComponents,
    effect: float,
    *,
    exam: Exam = "another",
    alpha: float = 0.05,
    target: float = 0.8,
) -> int | None:
    """The fewest seeds (2 or more) per arm with which `effect` is found with probability `target`.

    None where 1000 are too few: for another exam the problems' own variance remains whatever the number of
    seeds, and only more problems help.
    """

    def suffices(num_seeds: int) -> bool:
        error, degrees = standard_error(components, num_seeds, exam)
        return error == 0.0 or power(effect, error, degrees, alpha) >= target

    if effect == 0.0:
        raise ValueError("an effect of 0 needs no seeds and is never shown")
    if not suffices(_MAX_SEEDS):
        return None
    low, high = 1, 2
    while not suffices(high):
        low, high = high, min(2 * high, _MAX_SEEDS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return int(np.int64(high))

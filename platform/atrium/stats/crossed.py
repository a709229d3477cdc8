"""Means of scores that depend on seeds and problems, with intervals for new and for the same problems.

`value_SP[s, p]` is the score of the run with seed s on problem p: a share correct, or the difference of two
arms' shares on paired seeds (`unpaired` has the difference of arms without common seeds). Every seed answers
every problem, so seeds are a random factor *crossed* with problems. They are never a fixed factor: an
interval for fixed seeds is about these checkpoints, and says nothing about the methods.

The interval for *new problems* is about new seeds and new problems of the same kind. With the mean squares of
the two-way table, SE^2 = max(MS_seed + MS_problem - MS_resid, MS_seed, MS_problem) / (S P), with
Satterthwaite's degrees of freedom. The interval for the *same problems* is about new seeds only. It is a t
interval over the means of the seeds, with S - 1 degrees of freedom.

The first interval is never narrower than the second: if Satterthwaite's t would make it narrower, it uses the
second's standard error and degrees of freedom. With this rule, 95 % intervals cover 94.2 to 97.8 % with 3 or
more seeds if seeds vary, and up to 98.7 % if they do not. Without it, intervals of 3 seeds cover as little as
92 %. A single seed has neither interval, since it contains no information about other seeds. It has
`new_problems`, a t interval over problems: how this checkpoint would score on other problems.

Near the ends of the scale, a few problems account for all of the variance, or the values do not vary at all.
For new problems, the ends of an interval for a share are therefore computed as if one more problem had been
observed, as in `stats.estimates`. The same is done for a difference whose values do not vary, so that two
checkpoints that are always wrong have an interval too.

Problems may have clusters (see `clusters`). With six or more clusters, "new problems" means problems of new
clusters: the mean squares of problems and of the residual are computed from the totals of clusters. With
fewer clusters, problems count individually, and the interval does not apply to other clusters.

Several benchmarks have equal weights, whatever their sizes. They share seeds but not problems. With one
benchmark, the formulas reduce to those above. All functions are pure.

Sources: mean squares and their expectations for a two-way table without replication, Scheffe 1959, ch. 7;
degrees of freedom of a sum of mean squares, Satterthwaite 1946.

Axes: S seeds, P problems, B benchmarks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from atrium.stats.arrays import Floats
from atrium.stats.clusters import MIN_CLUSTERS, degrees_of_freedom, num_clusters, variance_of_mean
from atrium.stats.estimates import Interval
from atrium.stats.simultaneous import SINGLE, Family, SeedSpread

NO_SPREAD = 1e-24
DIFFERENCES = Interval(-1.0, 1.0)
"""The range of differences of shares."""
SHARES = Interval(0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """The uncertainty of a mean: SE, degrees of freedom, interval, two-sided p value of no difference.

    The p value is the smallest alpha at which the interval excludes 0. Like the interval, it is corrected for
    the family.
    """

    standard_error: float
    degrees_of_freedom: float
    interval: Interval
    p_value: float


def interval_of(known: Uncertainty | None) -> Interval | None:
    """Return the interval of an uncertainty, or None if the uncertainty is None."""
    return None if known is None else known.interval


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceComponents:
    """Variance components of a mean over S seeds: seed / S + problem + residual / S.

    `seed` is the variance due to effects of a seed that are the same for all problems. `problem` is the
    variance of the benchmark's mean due to the choice of problems, and `residual` the variance due to
    sampling and to the interaction of seeds and problems, for a benchmark of this size. All are at least 0.
    `seed_degrees_of_freedom` is S - 1 for one arm or paired arms, S if a moderated variance over seeds is
    used, and Satterthwaite's value for unpaired arms. `problem_degrees_of_freedom` is P - 1 for one benchmark
    (with clusters, see `clusters.degrees_of_freedom`), and Satterthwaite's value for several.
    """

    seed: float
    problem: float
    residual: float
    seed_degrees_of_freedom: float
    problem_degrees_of_freedom: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossedMean:
    """A mean over benchmarks of means over seeds and problems.

    `value_S` has the seeds' means, and is empty for a difference of unpaired seeds. `new_seeds_and_problems`
    is the uncertainty for new seeds and new problems, and `new_seeds` is the uncertainty for new seeds and
    the same problems. With one seed, both are None, and `new_problems` is the uncertainty of this checkpoint
    on new problems. With several seeds, `new_problems` is None.

    `new_seeds` is also None if the estimated variance over seeds is 0, which would give an interval of zero
    width. `new_seeds_and_problems` and `new_problems` are also None if a benchmark has fewer than two
    problems. `components` is None for one seed, or if a benchmark has fewer than two problems.
    """

    value: float
    value_S: tuple[float, ...]
    num_problems: int
    new_seeds_and_problems: Uncertainty | None
    new_seeds: Uncertainty | None
    new_problems: Uncertainty | None
    components: VarianceComponents | None

    @property
    def num_seeds(self) -> int:
        """The number of seeds, or 0 for a difference of unpaired seeds."""
        return len(self.value_S)


class _Known(NamedTuple):
    """A variance of the mean, its degrees of freedom, and the weight of one additional outcome.

    The ends of an interval are computed as if one more outcome, with weight `further` in the mean, had been
    observed. If `further` is 0, no outcome is added.
    """

    variance: float
    degrees_of_freedom: float
    further: float


class Squares(NamedTuple):
    """Estimated variances of a mean over B benchmarks, with their degrees of freedom, by source.

    `residual_spread` is the sum of variance^2 / degrees of freedom over the terms of the residual. `by_seed`
    is None for one seed.
    """

    by_seed: SeedSpread | None
    by_problem_B: Floats
    problem_degrees_of_freedom_B: Floats
    by_residual: float
    residual_spread: float
    num_problems_B: Floats


def crossed_mean(
    values_by_benchmark: Sequence[ArrayLike],
    *,
    clusters: Sequence[ArrayLike | None] | None = None,
    limits: Interval = DIFFERENCES,
    family: Family = SINGLE,
    spread: SeedSpread | None = None,
) -> CrossedMean:
    """Return the mean of `value_SP` arrays, one per benchmark, all with the same seeds in the same order.

    `clusters` names, for each benchmark, the cluster of every problem [P], or None. Intervals have 95 %
    confidence over the `family`, and are truncated to `limits`: `SHARES` or `DIFFERENCES`. `spread` replaces
    the variance over seeds (`simultaneous.moderated_spreads`). Raises `ValueError` for values that are not
    finite, or arrays that are empty or differ in their numbers of seeds.
    """
    value_SP_B = checked(values_by_benchmark)
    value_S = np.mean([value_SP.mean(axis=1) for value_SP in value_SP_B], axis=0)
    num_seeds = len(value_S)
    own = SeedSpread(float(value_S.var(ddof=1)) / num_seeds, num_seeds - 1.0) if num_seeds > 1 else None
    squares = squares_of([value_SP_B], [value_SP.mean(axis=0) for value_SP in value_SP_B], clusters)
    by_seed = spread if spread and own else own
    squares = squares._replace(by_seed=by_seed)
    seed = num_seeds * max(by_seed.variance - squares.by_residual, 0.0) if by_seed else 0.0
    return mean_from_squares(
        float(value_S.mean()),
        squares,
        components=components_of(squares, seed=seed, residual=num_seeds * squares.by_residual),
        value_S=tuple(value_S.tolist()),
        limits=limits,
        family=family,
    )


def squares_of(
    arms: Sequence[Sequence[Floats]],
    value_P_B: Sequence[Floats],
    clusters: Sequence[ArrayLike | None] | None = None,
) -> Squares:
    """Return the variances that the problems and the residual contribute to a mean.

    `by_seed` is left as None. `value_P_B` has one array per benchmark, with each problem's mean over seeds.
    The residual is summed over `arms`, each of which is a list of `value_SP` by benchmark.
    """
    num_benchmarks = len(value_P_B)
    num_problems_B = np.array([len(value_P) for value_P in value_P_B], dtype=np.float64)
    by_problem_B, degrees_B = np.zeros(num_benchmarks), np.ones(num_benchmarks)
    by_residual = residual_spread = 0.0
    cluster_B = clusters or [None] * num_benchmarks
    for benchmark, (value_P, own) in enumerate(zip(value_P_B, cluster_B, strict=True)):
        if len(value_P) < 2:
            continue
        cluster_P = own if own is not None and num_clusters(own) >= MIN_CLUSTERS else None
        by_problem_B[benchmark] = variance_of_mean(value_P, cluster_P)
        degrees_B[benchmark] = degrees_of_freedom(len(value_P), cluster_P)
        for arm in arms:
            value_SP = arm[benchmark]
            df_S = len(value_SP) - 1.0
            if df_S > 0.0:
                by_seed_S = variance_of_mean(value_SP - value_SP.mean(axis=0), cluster_P)
                variance = float(by_seed_S.sum()) / df_S / len(value_SP) / num_benchmarks**2
                by_residual += variance
                residual_spread += variance**2 / (df_S * degrees_B[benchmark])
    return Squares(
        by_seed=None,
        by_problem_B=by_problem_B / num_benchmarks**2,
        problem_degrees_of_freedom_B=degrees_B,
        by_residual=by_residual,
        residual_spread=residual_spread,
        num_problems_B=num_problems_B,
    )


def mean_from_squares(
    value: float,
    squares: Squares,
    *,
    components: VarianceComponents | None,
    value_S: tuple[float, ...] = (),
    limits: Interval = DIFFERENCES,
    family: Family = SINGLE,
) -> CrossedMean:
    """Return a mean with the intervals that follow from its estimated variances.

    The interval for new problems is never narrower than that for the same problems.
    """
    new_seeds = new_seeds_and_problems = new_problems = None
    if squares.by_seed and squares.by_seed.variance > NO_SPREAD:
        new_seeds = _Known(*squares.by_seed, 0.0)
    if squares.num_problems_B.min() > 1:
        further = float(1.0 / (squares.num_problems_B + 1.0).min() / len(squares.num_problems_B))
        known = _Known(*_variance_for_new_problems(squares), further)
        new_seeds_and_problems, new_problems = (known, None) if squares.by_seed else (None, known)
    if new_seeds and new_seeds_and_problems:
        wider = new_seeds._replace(further=new_seeds_and_problems.further)
        new_seeds_and_problems = max(
            new_seeds_and_problems,
            wider,
            key=lambda one: family.quantile(one.degrees_of_freedom) * one.variance**0.5,
        )
    return CrossedMean(
        value=value,
        value_S=value_S,
        num_problems=int(squares.num_problems_B.sum()),
        new_seeds_and_problems=_uncertainty(value, new_seeds_and_problems, limits, family),
        new_seeds=_uncertainty(value, new_seeds, limits, family),
        new_problems=_uncertainty(value, new_problems, limits, family),
        components=components,
    )


def checked(values_by_benchmark: Sequence[ArrayLike]) -> list[Floats]:
    """Return the values as float64 arrays [S, P], one per benchmark.

    Raises `ValueError` for an empty array, numbers of seeds that differ, and values that are not finite.
    """
    value_SP_B = [np.asarray(values, dtype=np.float64) for values in values_by_benchmark]
    if not value_SP_B or any(value_SP.ndim != 2 or not value_SP.size for value_SP in value_SP_B):
        raise ValueError("each benchmark must have values [seeds, problems], with at least one of each")
    if len({len(value_SP) for value_SP in value_SP_B}) > 1:
        raise ValueError("all benchmarks must have the same seeds")
    if not all(np.isfinite(value_SP).all() for value_SP in value_SP_B):
        raise ValueError("values must be finite")
    return value_SP_B


def _variance_for_new_problems(squares: Squares) -> tuple[float, float]:
    """Return the variance of the mean for new seeds and problems, with its degrees of freedom.

    The variance is the largest of the three estimates in the formula of SE^2 for new problems. For one seed,
    it is the variance due to problems.
    """
    by_problem, by_residual = float(squares.by_problem_B.sum()), squares.by_residual
    degrees = pooled_degrees(squares.by_problem_B, squares.problem_degrees_of_freedom_B)
    if squares.by_seed is None:
        return by_problem, degrees
    by_seed, df_S = squares.by_seed
    if by_problem >= by_residual and by_seed >= by_residual:
        total = by_seed + by_problem - by_residual
        of_problems = float((squares.by_problem_B**2 / squares.problem_degrees_of_freedom_B).sum())
        spread = by_seed**2 / df_S + of_problems + squares.residual_spread
        return total, total**2 / spread if spread > 0.0 else degrees
    return (by_seed, df_S) if by_seed > by_problem else (by_problem, degrees)


def pooled_degrees(variances: Floats, degrees_of_freedom: Floats) -> float:
    """Return Satterthwaite's degrees of freedom of a sum of variances.

    If all variances are 0, returns the sum of `degrees_of_freedom`.
    """
    spread = float((variances**2 / degrees_of_freedom).sum())
    return float(variances.sum()) ** 2 / spread if spread > 0.0 else float(degrees_of_freedom.sum())


def components_of(squares: Squares, *, seed: float, residual: float) -> VarianceComponents | None:
    """Return the variance components, given the components `seed` and `residual`.

    The component of problems is computed from `squares`. Returns None for one seed, or if a benchmark has
    fewer than two problems.
    """
    if squares.by_seed is None or squares.num_problems_B.min() < 2:
        return None
    return VarianceComponents(
        seed=seed,
        problem=max(float(squares.by_problem_B.sum()) - squares.by_residual, 0.0),
        residual=residual,
        seed_degrees_of_freedom=squares.by_seed.degrees_of_freedom,
        problem_degrees_of_freedom=pooled_degrees(squares.by_problem_B, squares.problem_degrees_of_freedom_B),
    )


def _uncertainty(value: float, known: _Known | None, limits: Interval, family: Family) -> Uncertainty | None:
    if known is None:
        return None
    is_spread = known.variance > NO_SPREAD
    further = 0.0 if limits == DIFFERENCES and is_spread else known.further
    standard_error = known.variance**0.5 if is_spread else 0.0
    quantile = family.quantile(known.degrees_of_freedom)
    # One more outcome at the scale's end shifts the mean, and adds the square of its shift to the variance.
    shifts = (further * (value - limits.low), further * (limits.high - value))
    below, above = (shift + quantile * math.hypot(standard_error, shift) for shift in shifts)
    shift = shifts[0] if value > 0.0 else shifts[1]
    spread = math.hypot(standard_error, shift)
    num_errors = max(abs(value) - shift, 0.0) / spread if spread else 0.0
    return Uncertainty(
        standard_error=standard_error,
        degrees_of_freedom=known.degrees_of_freedom,
        interval=Interval(max(value - below, limits.low), min(value + above, limits.high)),
        p_value=family.p_value(num_errors, known.degrees_of_freedom),
    )

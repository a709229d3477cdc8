"""Preparation of curves for figures: x-axis, smoothing, and means over runs with a band. Pure functions.

Axes: N points of one run, S runs of a group, G points of their common grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from atrium.base.metrics import NUM_TOKENS, STEP_S
from atrium.base.records import Floats

_MAX_GRID = 4000


class XAxis(StrEnum):
    """The quantity on the x-axis of a curve."""

    STEP = "step"
    TOKENS = "tokens"
    WALL_CLOCK = "wall_clock"


class Band(StrEnum):
    """The meaning of the band around a group's mean."""

    NONE = "none"
    RANGE = "range"
    DEVIATION = "deviation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points of one run: x [N] in ascending order, finite y [N], and the bounds of y's intervals or None.

    The bounds are `low` and `high` [N]. For a curve of evaluations, `step` [N] contains the training step of
    each evaluation. Such a curve is not interpolated, since evaluations are rare. For other curves, `step` is
    None.
    """

    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None
    step: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCurve:
    """The mean of S curves on a grid [G], the ends of its band or None, and the number of runs per point."""

    x: Floats
    mean: Floats
    low: Floats | None
    high: Floats | None
    num_runs: NDArray[np.int64]


def axis_values(columns: Mapping[str, Floats], axis: XAxis) -> Floats | None:
    """Return the x-values [N] of a run's steps, or None if the run did not record the quantity.

    Tokens and seconds are cumulative sums over steps. The time between the end of a run and its resumption
    does not count. A step that did not record the quantity adds 0.
    """
    match axis:
        case XAxis.STEP:
            return columns.get("step")
        case XAxis.TOKENS:
            added = columns.get(NUM_TOKENS.name)
        case XAxis.WALL_CLOCK:
            added = columns.get(STEP_S.name)
    if added is None:
        return None
    summed: Floats = np.cumsum(np.nan_to_num(added))
    return summed


def at_steps(steps: Floats, columns: Mapping[str, Floats], axis: XAxis) -> Floats | None:
    """Return the x-values of the given steps [N], such as those of evaluations, by linear interpolation.

    The x-value of step 0 is 0. Returns None if the run did not record the quantity.
    """
    if axis is XAxis.STEP:
        return steps
    recorded, values = columns.get("step"), axis_values(columns, axis)
    if recorded is None or values is None or not len(recorded):
        return None
    reached: Floats = np.interp(steps, np.concatenate([[0.0], recorded]), np.concatenate([[0.0], values]))
    return reached


def at_exact(steps: Floats, x: Floats, y: Floats) -> Floats:
    """Return the value of `y` at each of the given steps [N] that occurs in `x`, and NaN at all others.

    `x` contains the steps of the values `y`, in ascending order.
    """
    found = np.full(len(steps), np.nan)
    place = np.minimum(np.searchsorted(x, steps), len(x) - 1)
    known = x[place] == steps
    found[known] = y[place[known]]
    return found


def curve(x: Floats, y: Floats, *, smoothing: int = 1) -> Curve:
    """Return the finite points of a run, with y smoothed by a moving mean over `smoothing` values.

    The mean is over at most a quarter of the points, since a longer window would flatten the curve.
    """
    known = np.isfinite(y) & np.isfinite(x)
    if not known.all():
        x, y = x[known], y[known]
    return Curve(x=x, y=moving_mean(y, min(smoothing, max(len(y) // 4, 1))))


def moving_mean(values: Floats, width: int) -> Floats:
    """Return the mean of the `width` values around each of N values, with fewer values at the ends.

    NaNs are ignored.
    """
    num = len(values)
    if width <= 1 or num == 0:
        return values
    known = np.isfinite(values)
    sums, counts = np.zeros((2, num + 1))
    np.cumsum(np.where(known, values, 0.0), out=sums[1:])
    np.cumsum(known, out=counts[1:])
    place = np.arange(num)
    start = np.maximum(place - (width - 1) // 2, 0)
    stop = np.minimum(place + width // 2 + 1, num)
    means = np.full(num, np.nan)
    num_known = counts[stop] - counts[start]
    np.divide(sums[stop] - sums[start], num_known, out=means, where=num_known > 0)
    return means


def group_curve(curves: Sequence[Curve], band: Band) -> GroupCurve | None:
    """Return the mean of several runs' curves on a common grid, or None if no curve has points.

    The mean at a grid point is over the runs that reach this point. If the runs share their x-values, these
    form the grid. Otherwise each run is interpolated linearly between its first and last point. Evaluations
    are not interpolated: the mean at a step is over the runs that were evaluated at this step, and its
    x-value is the mean of these runs' x-values. The band `deviation` is the standard deviation over runs
    (with S - 1 in the denominator).
    """
    curves = [one for one in curves if len(one.x)]
    if not curves:
        return None
    grid, value_SG = _on_one_grid(curves) if curves[0].step is None else _at_evaluated_steps(curves)
    num_G = np.isfinite(value_SG).sum(axis=0)
    is_whole = bool((num_G == len(curves)).all())
    total_G = (value_SG if is_whole else np.nan_to_num(value_SG)).sum(axis=0)
    mean_G = total_G / np.maximum(num_G, 1)
    low, high = _band(value_SG, mean_G, num_G, band) if len(curves) > 1 else (None, None)
    kept = num_G > 0
    return GroupCurve(
        x=grid[kept],
        mean=mean_G[kept],
        low=None if low is None else low[kept],
        high=None if high is None else high[kept],
        num_runs=num_G[kept],
    )


def _band(
    value_SG: Floats, mean_G: Floats, num_G: NDArray[np.int64], band: Band
) -> tuple[Floats | None, Floats | None]:
    match band:
        case Band.NONE:
            return None, None
        case Band.RANGE:  # fmin and fmax ignore NaN
            return np.fmin.reduce(value_SG, axis=0), np.fmax.reduce(value_SG, axis=0)
        case Band.DEVIATION:
            squared = np.nan_to_num(value_SG - mean_G) ** 2
            deviation = np.sqrt(squared.sum(axis=0) / np.maximum(num_G - 1, 1))
            return mean_G - deviation, mean_G + deviation


def _on_one_grid(curves: Sequence[Curve]) -> tuple[Floats, Floats]:
    """Return the common grid [G] and the values [S, G] on it, with NaN outside a run's range."""
    longest = max((one.x for one in curves), key=len)
    if all(one.x is longest or np.array_equal(one.x, longest[: len(one.x)]) for one in curves):
        value_SG = np.full((len(curves), len(longest)), np.nan)
        for row, one in enumerate(curves):
            value_SG[row, : len(one.y)] = one.y
        return longest, value_SG
    grid = np.unique(np.concatenate([one.x for one in curves]))
    if len(grid) > _MAX_GRID:
        grid = np.linspace(grid[0], grid[-1], _MAX_GRID)
    return grid, np.stack([np.interp(grid, one.x, one.y, left=np.nan, right=np.nan) for one in curves])


def _at_evaluated_steps(curves: Sequence[Curve]) -> tuple[Floats, Floats]:
    """Return the runs' mean x-value [G] at each evaluated step, and their y-values [S, G] at these steps.

    The steps are in ascending order of the mean x-value. A y-value is NaN if the run was not evaluated at the
    step.
    """
    columns = [(one.step if one.step is not None else one.x, one.x, one.y) for one in curves]
    steps = np.unique(np.concatenate([step for step, _, _ in columns]))
    x_SG, value_SG = np.full((2, len(curves), len(steps)), np.nan)
    for row, (step, x, y) in enumerate(columns):
        place = np.searchsorted(steps, step)
        x_SG[row, place], value_SG[row, place] = x, y
    grid: Floats = np.nanmean(x_SG, axis=0)
    order = np.argsort(grid, kind="stable")
    return grid[order], value_SG[:, order]

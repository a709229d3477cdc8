"""Curves as figures show them: chosen x-axis, smoothing, groups of runs with a band, few points. Pure.

Axes: N points of one run, S runs of a group, G points of their common grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from atrium.base.metrics import NUM_TOKENS, STEP_S

Column = NDArray[np.float64]
_MAX_GRID = 4000


class Axis(StrEnum):
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
    """Points of one run: x [N] increases, y [N] is finite; low and high [N] where points have intervals.

    `step` [N] says where evaluations were made: they are rare, and nothing is known between two of them.
    """

    x: Column
    y: Column
    low: Column | None = None
    high: Column | None = None
    step: Column | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCurve:
    """The mean of S curves on a grid [G], its band (None without), and how many runs are in each mean."""

    x: Column
    mean: Column
    low: Column | None
    high: Column | None
    num_runs: NDArray[np.int64]


def axis_values(columns: Mapping[str, Column], axis: Axis) -> Column | None:
    """The x-axis [N] of a run's steps; None where the run did not record what it takes.

    Tokens and seconds are sums over the steps so far; hours a run stood still do not count. A step that
    recorded neither adds nothing.
    """
    match axis:
        case Axis.STEP:
            return columns.get("step")
        case Axis.TOKENS:
            added = columns.get(NUM_TOKENS.name)
        case Axis.WALL_CLOCK:
            added = columns.get(STEP_S.name)
    if added is None:
        return None
    summed: Column = np.cumsum(np.nan_to_num(added))
    return summed


def at_steps(steps: Column, columns: Mapping[str, Column], axis: Axis) -> Column | None:
    """The x-axis at steps between or before the recorded ones, where evaluations lie; 0 at step 0."""
    if axis is Axis.STEP:
        return steps
    recorded, values = columns.get("step"), axis_values(columns, axis)
    if recorded is None or values is None or not len(recorded):
        return None
    reached: Column = np.interp(steps, np.concatenate([[0.0], recorded]), np.concatenate([[0.0], values]))
    return reached


def at_exact(steps: Column, x: Column, y: Column) -> Column:
    """The values y of x at steps [N] that are among x, NaN at others."""
    found = np.full(len(steps), np.nan)
    place = np.minimum(np.searchsorted(x, steps), len(x) - 1)
    known = x[place] == steps
    found[known] = y[place[known]]
    return found


def curve(x: Column, y: Column, *, smoothing: int = 1) -> Curve:
    """The finite points, each the mean of the `smoothing` values around it, at most a quarter of them all."""
    known = np.isfinite(y) & np.isfinite(x)
    if not known.all():
        x, y = x[known], y[known]
    # A window as long as the run would leave nothing of its course.
    return Curve(x=x, y=moving_mean(y, min(smoothing, max(len(y) // 4, 1))))


def moving_mean(values: Column, width: int) -> Column:
    """The mean of the `width` values around each of N, without NaNs; at the ends of those that there are."""
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
    """The mean over runs at each point of a common grid, over the runs that reach it; None without points.

    Where the runs share their x values these are the grid; else each run is interpolated linearly
    between its first and last point. Evaluations are not: the mean at a step is over the runs that were
    evaluated there, and stands at their mean x. The deviation is the standard deviation over runs (ddof 1).
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
    value_SG: Column, mean_G: Column, num_G: NDArray[np.int64], band: Band
) -> tuple[Column | None, Column | None]:
    match band:
        case Band.NONE:
            return None, None
        case Band.RANGE:  # these pass over NaN
            return np.fmin.reduce(value_SG, axis=0), np.fmax.reduce(value_SG, axis=0)
        case Band.DEVIATION:
            squared = np.nan_to_num(value_SG - mean_G) ** 2
            deviation = np.sqrt(squared.sum(axis=0) / np.maximum(num_G - 1, 1))
            return mean_G - deviation, mean_G + deviation


def _on_one_grid(curves: Sequence[Curve]) -> tuple[Column, Column]:
    """The common grid [G] and the values [S, G] on it, NaN where a run does not reach."""
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


def _at_evaluated_steps(curves: Sequence[Curve]) -> tuple[Column, Column]:
    """The mean x [G] of every step with an evaluation, and the values [S, G], NaN where a run has none."""
    columns = [(one.step if one.step is not None else one.x, one.x, one.y) for one in curves]
    steps = np.unique(np.concatenate([step for step, _, _ in columns]))
    x_SG, value_SG = np.full((2, len(curves), len(steps)), np.nan)
    for row, (step, x, y) in enumerate(columns):
        place = np.searchsorted(steps, step)
        x_SG[row, place], value_SG[row, place] = x, y
    grid: Column = np.nanmean(x_SG, axis=0)
    order = np.argsort(grid, kind="stable")
    return grid[order], value_SG[:, order]

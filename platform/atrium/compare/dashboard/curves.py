"""Curves as figures show them: chosen x-axis, smoothing, groups of runs with a band, few points. Pure.

Axes: N points of one run, S runs of a group, G points of their common grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from atrium.metrics import NUM_TOKENS, STEP_S

Column = NDArray[np.float64]
_MAX_GRID = 4000


class Axis(StrEnum):
    """What a curve is drawn against."""

    STEP = "step"
    TOKENS = "tokens"
    WALL_CLOCK = "wall_clock"


class Band(StrEnum):
    """What the band around a group's mean shows."""

    NONE = "none"
    RANGE = "range"
    DEVIATION = "deviation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points of one run: x [N] increases, y [N] is finite; low and high [N] where points have intervals."""

    x: Column
    y: Column
    low: Column | None = None
    high: Column | None = None


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


def curve(x: Column, y: Column, *, smoothing: int = 1) -> Curve:
    """The finite points, each the mean of the `smoothing` values around it."""
    known = np.isfinite(y) & np.isfinite(x)
    return Curve(x=x[known], y=moving_mean(y[known], smoothing))


def moving_mean(values: Column, width: int) -> Column:
    """The mean of the `width` values around each of N; at the ends of those that there are."""
    num = len(values)
    if width <= 1 or num == 0:
        return values
    sums = np.concatenate([[0.0], np.cumsum(values)])
    place = np.arange(num)
    start = np.maximum(place - (width - 1) // 2, 0)
    stop = np.minimum(place + width // 2 + 1, num)
    means: Column = (sums[stop] - sums[start]) / (stop - start)
    return means


def group_curve(curves: Sequence[Curve], band: Band) -> GroupCurve | None:
    """The mean over runs at each point of a common grid, over the runs that reach it; None without points.

    Where the runs share their x values these are the grid; else each run is interpolated linearly
    between its first and last point. The deviation is the standard deviation over runs (ddof 1).
    """
    curves = [one for one in curves if len(one.x)]
    if not curves:
        return None
    grid = _grid([one.x for one in curves])
    value_SG = np.stack([np.interp(grid, one.x, one.y, left=np.nan, right=np.nan) for one in curves])
    is_there_SG = np.isfinite(value_SG)
    num_G = is_there_SG.sum(axis=0)
    mean_G = np.where(is_there_SG, value_SG, 0.0).sum(axis=0) / np.maximum(num_G, 1)
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
    is_there_SG = np.isfinite(value_SG)
    match band:
        case Band.NONE:
            return None, None
        case Band.RANGE:
            low = np.where(is_there_SG, value_SG, np.inf).min(axis=0)
            high = np.where(is_there_SG, value_SG, -np.inf).max(axis=0)
            return low, high
        case Band.DEVIATION:
            squared = np.where(is_there_SG, value_SG - mean_G, 0.0) ** 2
            deviation = np.sqrt(squared.sum(axis=0) / np.maximum(num_G - 1, 1))
            return mean_G - deviation, mean_G + deviation


def _grid(xs: Sequence[Column]) -> Column:
    longest = max(xs, key=len)
    if all(np.array_equal(x, longest[: len(x)]) for x in xs):
        return longest
    joined = np.unique(np.concatenate(list(xs)))
    if len(joined) <= _MAX_GRID:
        return joined
    even: Column = np.linspace(joined[0], joined[-1], _MAX_GRID)
    return even


def chosen_points(x: Column, y: Column, num_points: int) -> NDArray[np.int64]:
    """The places of at most about `num_points` points that look like all of them, the ends among them."""
    if num_points <= 2 or len(x) <= num_points:
        return np.arange(len(x))
    from tsdownsample import MinMaxLTTBDownsampler  # costs 0.1 s at start, which short runs never need

    downsampler = MinMaxLTTBDownsampler()  # type: ignore[no-untyped-call]
    chosen = downsampler.downsample(np.ascontiguousarray(x), np.ascontiguousarray(y), n_out=num_points)
    return np.unique(chosen.astype(np.int64))

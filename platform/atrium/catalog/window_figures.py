"""Figures of windows as data: D(w) with its budget and feasible ratios, and the (l, u) plane.

The first figure generalizes Figure 1 of arXiv 2602.05494 from KL3 to all divergences of the ratio. In the
second one, a divergence is a curve parameterized by its budget, and equal windows are the same point.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from atrium.catalog.windows import Arm
from atrium.document.document import Axis, Lines, Mark, Pair, Picture, Plane, Point, Series
from atrium.document.formatting import value_text
from atrium.method.windows import DIVERGENCES, RatioDivergence, Window, divergence

_CURVE_UPPERS = tuple((1.0 + np.geomspace(1e-4, 12.0, 200)).tolist())
_HIGHEST = 6.0
"""Largest upper bound in the plane."""


def window_pictures(arms: Sequence[Arm], clip: Window) -> list[Picture]:
    """Return a picture with one panel per arm, and a picture of the (l, u) plane with the arms' windows.

    Only an arm whose divergence is a function of the ratio with a budget gets a panel. The plane shows each
    arm whose window is the same for all tokens. If no arm has a panel, only the plane is returned.
    """
    panels = {
        arm.name: (arm.config.of_ratio, arm.delta)
        for arm in arms
        if arm.config.of_ratio is not None and arm.delta is not None
    }
    windows = {arm.name: arm.window for arm in arms if arm.window is not None}
    return [*([windows_picture(panels)] if panels else []), plane_picture(windows, clip)]


def windows_picture(panels: Mapping[str, tuple[RatioDivergence, float]]) -> Picture:
    """Return a picture with one panel per divergence: D(w), the budget and the feasible ratios.

    `panels` contains each panel's divergence and budget, keyed by the panel's title.
    """
    windows = [function.window(delta) for function, delta in panels.values()]
    uppers = [window.upper for window in windows if math.isfinite(window.upper)]
    low = max(1e-3, min(window.lower for window in windows) - 0.12)
    high = max([*uppers, 1.2]) + 0.2
    return Picture(
        name="windows",
        title="Windows of divergences: D(w) ≤ δ is equivalent to l ≤ w ≤ u",
        figures=tuple(
            _panel(title, function, delta, low, high) for title, (function, delta) in panels.items()
        ),
        num_columns=4,
    )


def _panel(title: str, function: RatioDivergence, delta: float, low: float, high: float) -> Lines:
    window = function.window(delta)
    ratios = tuple(np.linspace(low, high, 400).tolist())
    bounds = tuple(bound for bound in (window.lower, window.upper) if low <= bound <= high)
    lower, upper = (value_text(bound, "ratio") for bound in (window.lower, window.upper))
    return Lines(
        key=f"window/{title}",
        title=title,
        caption=f"l = {lower}, u = {upper}",
        x=Axis(title="ratio w", low=low, high=high),
        y=Axis(title="D(w)", low=0.0, high=2.6 * delta),
        series=(
            Series(name="", x=ratios, y=tuple(function.value(ratio) for ratio in ratios)),
            Series(name="", x=bounds, y=(delta,) * len(bounds), is_line=False),
        ),
        marks=(
            Mark(x=max(window.lower, low), end=min(window.upper, high), place=0),
            Mark(x=1.0),
            Mark(name=f"δ = {delta:g}", y=delta, place=1),
        ),
    )


def plane_picture(points: Mapping[str, Window], clip: Window) -> Picture:
    """Return the (l, u) plane with the named windows, in full and enlarged around the clip range `clip`."""
    lows = (max(0.0, 1.0 - 1.7 * (1.0 - clip.lower)), 1.0 - 0.35 * (1.0 - clip.lower))
    highs = (1.0 + 0.45 * (clip.upper - 1.0), 1.0 + 1.4 * (clip.upper - 1.0))
    finite = [window.upper for window in points.values() if math.isfinite(window.upper)]
    top = min(max([2.2, *(1.08 * upper for upper in finite)]), _HIGHEST)
    closer, whole = _inside(points, lows, highs), _inside(points, (0.0, 1.0), (1.0, top))
    unnamed = [("" if name in closer else name, window) for name, window in whole.items()]
    around = f"around the clip range [{clip.lower:g}, {clip.upper:g}]"
    marks = (Mark(name=f"l = {clip.lower:g}", x=clip.lower), Mark(name=f"u = {clip.upper:g}", y=clip.upper))
    return Picture(
        name="plane",
        title="Windows in the (l, u) plane: equal points are the same window",
        figures=(
            _plane("all windows", unnamed, (0.0, 1.0), (1.0, top)),
            _plane(around, closer.items(), lows, highs, marks),
        ),
        num_columns=2,
    )


def _plane(
    title: str, points: Iterable[tuple[str, Window]], lows: Pair, highs: Pair, marks: tuple[Mark, ...] = ()
) -> Plane:
    return Plane(
        key=f"plane/{title}",
        title=title,
        caption="Each curve is a divergence at all budgets.",
        x=Axis(title="lower bound l", unit="ratio", low=lows[0], high=lows[1]),
        y=Axis(title="upper bound u", unit="ratio", low=highs[0], high=highs[1]),
        points=tuple(Point(name=name, x=window.lower, y=window.upper) for name, window in points),
        curves=tuple(_family(name, function, at) for at, (name, function) in enumerate(_distinct().items())),
        marks=marks,
    )


def _inside(points: Mapping[str, Window], lows: Pair, highs: Pair) -> dict[str, Window]:
    return {
        name: window
        for name, window in points.items()
        if lows[0] <= window.lower <= lows[1] and highs[0] <= window.upper <= highs[1]
    }


def _family(name: str, function: RatioDivergence, place: int) -> Series:
    windows = [function.window(function.value(upper)) for upper in _CURVE_UPPERS]
    x, y = tuple(window.lower for window in windows), tuple(window.upper for window in windows)
    return Series(name=name, x=x, y=y, place=place)


def _distinct() -> dict[str, RatioDivergence]:
    """Return the distinct divergences whose windows have an upper bound.

    Divergences whose windows have the same lower bound at each upper bound share one entry, and its key lists
    their names.
    """
    found: dict[tuple[str, ...], tuple[str, RatioDivergence]] = {}
    for name, function in {**DIVERGENCES, "alpha = 1": divergence("alpha", alpha=1.0)}.items():
        if function.binds_above:
            lowers = (function.window(function.value(upper)).lower for upper in (1.1, 1.3, 1.7))
            key = tuple(f"{lower:.9f}" for lower in lowers)
            found[key] = (f"{found[key][0]}, {name}" if key in found else name, function)
    return dict(found.values())

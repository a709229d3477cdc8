"""The figures of windows as data: D(w) with its budget and the ratios it allows, and the (l, u) plane.

The first generalizes Figure 1 of arXiv 2602.05494 from KL3 to every divergence of the ratio; the second
shows each of them as a curve that its budget runs along, so that equal windows are the same point.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from atrium.catalog.windows import Arm
from atrium.document.document import Axis, Lines, Mark, Picture, Plane, Point, Series
from atrium.document.formatting import value_text
from atrium.method.windows import DIVERGENCES, RatioDivergence, Window, divergence

_CURVE_UPPERS = tuple((1.0 + np.geomspace(1e-4, 12.0, 200)).tolist())
_HIGHEST = 6.0
"""The largest upper bound that the plane shows."""


def window_pictures(arms: Sequence[Arm], clip: Window) -> list[Picture]:
    """The arms, and the plane of windows; divergences without a window on the ratio are on neither."""
    panels = {
        arm.name: (arm.config.of_ratio, arm.delta)
        for arm in arms
        if arm.config.of_ratio is not None and arm.delta is not None
    }
    families = {**DIVERGENCES, "alpha = 1": divergence("alpha", alpha=1.0)}
    windows = {arm.name: arm.window for arm in arms if arm.window is not None}
    return [*([windows_picture(panels)] if panels else []), plane_picture(families, windows, clip)]


def windows_picture(panels: Mapping[str, tuple[RatioDivergence, float]]) -> Picture:
    """D(w), the budget and the feasible ratios of every divergence with its budget, by title."""
    windows = [function.window(delta) for function, delta in panels.values()]
    uppers = [window.upper for window in windows if math.isfinite(window.upper)]
    low = max(1e-3, min(window.lower for window in windows) - 0.12)
    high = max([*uppers, 1.2]) + 0.2
    return Picture(
        name="windows",
        title="Windows of divergences: D(w) ≤ δ is the same as l ≤ w ≤ u",
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


def plane_picture(
    families: Mapping[str, RatioDivergence], points: Mapping[str, Window], clip: Window
) -> Picture:
    """The plane of windows, whole and around a clip range.

    `families` are divergences whose budgets run along a curve; `points` are windows by name.
    """
    lows = (max(0.0, 1.0 - 1.7 * (1.0 - clip.lower)), 1.0 - 0.35 * (1.0 - clip.lower))
    highs = (1.0 + 0.45 * (clip.upper - 1.0), 1.0 + 1.4 * (clip.upper - 1.0))
    finite = [window.upper for window in points.values() if math.isfinite(window.upper)]
    top = min(max([2.2, *(1.08 * upper for upper in finite)]), _HIGHEST)
    curves = tuple(
        _family(name, function, place) for place, (name, function) in enumerate(_distinct(families).items())
    )
    closer = _inside(points, lows, highs)
    around = f"around the clip range [{clip.lower:g}, {clip.upper:g}]"
    whole = [
        Point(name="" if name in closer else name, x=window.lower, y=window.upper, place=0)
        for name, window in _inside(points, (0.0, 1.0), (1.0, top)).items()
    ]
    near = [Point(name=name, x=window.lower, y=window.upper) for name, window in closer.items()]
    marks = (Mark(name=f"l = {clip.lower:g}", x=clip.lower), Mark(name=f"u = {clip.upper:g}", y=clip.upper))
    caption = "Curves: a budget runs along."
    return Picture(
        name="plane",
        title="The plane of windows: methods with equal (l, u) are the same",
        figures=(
            _plane("all windows", caption, curves, whole, (0.0, 1.0), (1.0, top)),
            _plane(around, caption, curves, near, lows, highs, marks),
        ),
        num_columns=2,
    )


def _plane(
    title: str,
    caption: str,
    curves: tuple[Series, ...],
    points: Sequence[Point],
    lows: tuple[float, float],
    highs: tuple[float, float],
    marks: tuple[Mark, ...] = (),
) -> Plane:
    return Plane(
        key=f"plane/{title}",
        title=title,
        caption=caption,
        x=Axis(title="lower bound l", unit="ratio", low=lows[0], high=lows[1]),
        y=Axis(title="upper bound u", unit="ratio", low=highs[0], high=highs[1]),
        points=tuple(points),
        curves=curves,
        marks=marks,
    )


def _inside(
    points: Mapping[str, Window], lows: tuple[float, float], highs: tuple[float, float]
) -> dict[str, Window]:
    return {
        name: window
        for name, window in points.items()
        if lows[0] <= window.lower <= lows[1] and highs[0] <= window.upper <= highs[1]
    }


def _family(name: str, function: RatioDivergence, place: int) -> Series:
    windows = [function.window(function.value(upper)) for upper in _CURVE_UPPERS]
    x, y = tuple(window.lower for window in windows), tuple(window.upper for window in windows)
    return Series(name=name, x=x, y=y, place=place)


def _distinct(families: Mapping[str, RatioDivergence]) -> dict[str, RatioDivergence]:
    """Families by all their names: those that give the same lower bound at equal upper bounds are one."""
    found: dict[tuple[str, ...], tuple[str, RatioDivergence]] = {}
    for name, function in families.items():
        if not function.binds_above:
            continue
        lowers = (function.window(function.value(upper)).lower for upper in (1.1, 1.3, 1.7))
        key = tuple(f"{lower:.9f}" for lower in lowers)
        known = found.get(key)
        found[key] = (f"{known[0]}, {name}" if known else name, function)
    return dict(found.values())

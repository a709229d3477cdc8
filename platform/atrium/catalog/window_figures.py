"""The figures of windows as data: D(w) with its budget and the ratios it allows, and the (l, u) plane.

The first generalizes Figure 1 of arXiv 2602.05494 from KL3 to every divergence of the ratio; the second
shows each of them as a curve that its budget runs along, so that equal windows are the same point.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atrium.document.document import Axis, Lines, Mark, Picture, Plane, Point, Series
from atrium.document.formatting import value_text
from atrium.method.windows import RatioDivergence, Window

_CURVE_UPPERS = tuple((1.0 + np.geomspace(1e-4, 12.0, 200)).tolist())
_HIGHEST = 6.0
"""The largest upper bound that the plane shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetedDivergence:
    """D(w) under a title, at a budget."""

    title: str
    function: RatioDivergence
    delta: float


def windows_picture(panels: Sequence[BudgetedDivergence]) -> Picture:
    """D(w), the budget and the feasible ratios of every divergence."""
    windows = [panel.function.window(panel.delta) for panel in panels]
    uppers = [window.upper for window in windows if math.isfinite(window.upper)]
    low = max(1e-3, min(window.lower for window in windows) - 0.12)
    high = max([*uppers, 1.2]) + 0.2
    return Picture(
        name="windows",
        title="Windows of divergences: D(w) ≤ δ is the same as l ≤ w ≤ u",
        figures=tuple(
            _panel(panel, window, low, high) for panel, window in zip(panels, windows, strict=True)
        ),
        num_columns=4,
    )


def _panel(panel: BudgetedDivergence, window: Window, low: float, high: float) -> Lines:
    ratios = tuple(np.linspace(low, high, 400).tolist())
    bounds = tuple(bound for bound in (window.lower, window.upper) if low <= bound <= high)
    lower, upper = (value_text(bound, "ratio") for bound in (window.lower, window.upper))
    return Lines(
        key=f"window/{panel.title}",
        title=panel.title,
        caption=f"l = {lower}, u = {upper}",
        x=Axis(title="ratio w", low=low, high=high),
        y=Axis(title="D(w)", low=0.0, high=2.6 * panel.delta),
        series=(
            Series(name="", x=ratios, y=tuple(panel.function.value(ratio) for ratio in ratios)),
            Series(name="", x=bounds, y=(panel.delta,) * len(bounds), is_line=False),
        ),
        marks=(
            Mark(x=max(window.lower, low), end=min(window.upper, high), place=0),
            Mark(x=1.0),
            Mark(name=f"δ = {panel.delta:g}", y=panel.delta, place=1),
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

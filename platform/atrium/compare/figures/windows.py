"""Pictures of windows: D(w) with its budget and the ratios it allows, and the (l, u) plane.

The first generalises Figure 1 of arXiv 2602.05494 from KL3 to every divergence of the ratio; the second
shows each of them as a curve that its budget runs along, so that equal windows are the same point.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atrium.method.windows import RatioDivergence, Window
from atrium.views.figures.style import (
    BLACK,
    BLUE,
    GREY,
    ON_WHITE,
    ORANGE,
    line_style,
    merged,
    new_figure,
    save_both,
    spread,
    style,
    use_cache,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NUM_COLUMNS = 4
_CURVE_UPPERS = 1.0 + np.geomspace(1e-4, 12.0, 200)
_PANEL_INCHES = (3.2, 2.35)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetedDivergence:
    """D(w) under a title, at a budget."""

    title: str
    function: RatioDivergence
    delta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """The content of the (l, u) plane.

    `families` are divergences whose budgets run along a curve; `points` windows by name; `clip` is the clip
    range around which the second panel looks closer.
    """

    families: Mapping[str, RatioDivergence]
    points: Mapping[str, Window]
    clip: Window


def draw_windows(panels: Sequence[BudgetedDivergence], folder: Path, cache_dir: Path) -> tuple[Path, Path]:
    """Draw D(w), the budget and the feasible ratios of every divergence; the PNG and the SVG."""
    num_rows = -(-len(panels) // _NUM_COLUMNS)
    width, height = _PANEL_INCHES
    use_cache(cache_dir)
    figure = new_figure((_NUM_COLUMNS * width, num_rows * height + 0.75))
    total = num_rows * height + 0.75
    grid = figure.subplots(
        num_rows,
        _NUM_COLUMNS,
        squeeze=False,
        gridspec_kw={
            "left": 0.055,
            "right": 0.99,
            "top": 1.0 - 0.85 / total,
            "bottom": 0.5 / total,
            "wspace": 0.32,
            "hspace": 0.55,
        },
    )
    windows = [panel.function.window(panel.delta) for panel in panels]
    uppers = [window.upper for window in windows if math.isfinite(window.upper)]
    low = max(0.0, min([window.lower for window in windows]) - 0.12)
    high = max([*uppers, 1.2]) + 0.2
    for axes, panel, window in zip(grid.flat, panels, windows, strict=False):
        _draw_panel(axes, panel, window, (low, high))
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    figure.suptitle(
        "Windows of divergences: D(w) ≤ δ is the same as l ≤ w ≤ u",
        fontsize=13,
        fontweight="bold",
        y=1.0 - 0.1 / total,
    )
    return save_both(figure, folder, "windows")


def _draw_panel(axes: Axes, panel: BudgetedDivergence, window: Window, span: tuple[float, float]) -> None:
    style(axes, title=panel.title, x="ratio w", y="D(w)")
    ratios = np.linspace(max(span[0], 1e-3), span[1], 400)
    axes.plot(ratios, [panel.function.value(w) for w in ratios], color=BLUE, linewidth=1.9)
    shown = (max(window.lower, span[0]), min(window.upper, span[1]))
    axes.axvspan(*shown, color=BLUE, alpha=0.12, linewidth=0)
    axes.axhline(panel.delta, color=ORANGE, linestyle="--", linewidth=1.3)
    axes.axvline(1.0, color=GREY, linewidth=0.7)
    top = 2.6 * panel.delta
    axes.set_ylim(0.0, top)
    axes.set_xlim(*span)
    axes.text(
        span[1], panel.delta, f"δ = {panel.delta:g} ", color=ORANGE, fontsize=8, ha="right", va="bottom"
    )
    for bound in (window.lower, window.upper):
        if span[0] <= bound <= span[1]:
            axes.plot([bound], [panel.delta], marker="o", color=BLUE, markersize=4)
            axes.plot([bound, bound], [0.0, panel.delta], color=BLUE, linewidth=0.9, linestyle=":")
    upper = "∞" if math.isinf(window.upper) else f"{window.upper:.3f}"
    axes.set_title(f"l = {window.lower:.3f}, u = {upper}", fontsize=8.5, loc="right", color=BLUE)


def draw_plane(plane: Plane, folder: Path, cache_dir: Path) -> tuple[Path, Path]:
    """Draw the plane of windows, whole and around a clip range; the PNG and the SVG."""
    use_cache(cache_dir)
    figure = new_figure((13.2, 6.0))
    margins = {"left": 0.05, "right": 0.99, "top": 0.87, "bottom": 0.1, "wspace": 0.12}
    whole, near = figure.subplots(1, 2, gridspec_kw=margins)
    clip = plane.clip
    lows = (max(0.0, 1.0 - 1.7 * (1.0 - clip.lower)), 1.0 - 0.35 * (1.0 - clip.lower))
    highs = (1.0 + 0.45 * (clip.upper - 1.0), 1.0 + 1.4 * (clip.upper - 1.0))
    closer = _inside(plane.points, lows, highs)
    finite = [window.upper for window in plane.points.values() if math.isfinite(window.upper)]
    top = min(max([2.2, *(1.08 * upper for upper in finite)]), 6.0)

    _draw_families(whole, plane, (0.0, 1.0), (1.0, top))
    everywhere = _inside(plane.points, (0.0, 1.0), (1.0, top))
    _draw_points(whole, everywhere, named=everywhere.keys() - closer.keys(), gap=0.04 * (top - 1.0))
    style(whole, title="all windows", x="lower bound l", y="upper bound u")
    whole.legend(frameon=False, fontsize=8, loc="upper right", title="a budget runs along")

    _draw_families(near, plane, lows, highs)
    near.axvline(clip.lower, color=GREY, linewidth=0.9, linestyle=(0, (1, 2)))
    near.axhline(clip.upper, color=GREY, linewidth=0.9, linestyle=(0, (1, 2)))
    quiet: dict[str, Any] = {"fontsize": 8, "color": GREY, "bbox": ON_WHITE}
    near.text(clip.lower, highs[1], f" l = {clip.lower:g}", ha="left", va="top", **quiet)
    near.text(lows[0], clip.upper, f" u = {clip.upper:g}", ha="left", va="bottom", **quiet)
    _draw_points(near, closer, named=closer.keys(), gap=0.034 * (highs[1] - highs[0]))
    style(near, title=f"around the clip range [{clip.lower:g}, {clip.upper:g}]", x="lower bound l")
    figure.suptitle(
        "The plane of windows: methods with equal (l, u) are the same", fontsize=13, weight="bold"
    )
    return save_both(figure, folder, "plane")


def _inside(
    points: Mapping[str, Window], lows: tuple[float, float], highs: tuple[float, float]
) -> dict[str, Window]:
    return {
        name: window
        for name, window in points.items()
        if lows[0] <= window.lower <= lows[1] and highs[0] <= window.upper <= highs[1]
    }


def _draw_families(axes: Axes, plane: Plane, lows: tuple[float, float], highs: tuple[float, float]) -> None:
    for index, (name, function) in enumerate(_distinct(plane.families).items()):
        windows = [function.window(function.value(float(upper))) for upper in _CURVE_UPPERS]
        colour, dashes = line_style(index)
        axes.plot(
            [window.lower for window in windows],
            [window.upper for window in windows],
            color=colour,
            linestyle=dashes,
            linewidth=1.6,
            label=name,
        )
    axes.set_xlim(*lows)
    axes.set_ylim(*highs)


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


def _draw_points(axes: Axes, points: Mapping[str, Window], *, named: Set[str], gap: float) -> None:
    """Points, with names beside some of them that are at least `gap` apart; above points far right."""
    for window in points.values():
        axes.plot([window.lower], [window.upper], "o", color=BLACK, markersize=5, clip_on=False, zorder=5)
    low, high = axes.get_xlim()
    labels = _close_together({name: points[name] for name in points if name in named}, (high - low, gap))
    bottom = axes.get_ylim()[0]
    heights = spread([window.upper for window in labels.values()], gap=gap, least=bottom)
    for (name, window), height in zip(labels.items(), heights, strict=True):
        is_far_right = window.lower > low + 0.9 * (high - low)
        away = 0.0 if is_far_right else 0.05 * (high - low)
        axes.annotate(
            name,
            (window.lower, window.upper),
            (window.lower + away, height + (4.0 * gap if is_far_right else 0.0)),
            fontsize=8.5,
            va="center",
            ha="right" if is_far_right else "left",
            bbox=ON_WHITE,
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.7},
            zorder=4,
        )


def _close_together(points: Mapping[str, Window], scale: tuple[float, float]) -> dict[str, Window]:
    """The points with one name for those that a picture of this width and line height cannot tell apart."""
    return merged(
        points,
        lambda one, other: (
            abs(one.lower - other.lower) < 0.01 * scale[0] and abs(one.upper - other.upper) < 0.2 * scale[1]
        ),
        ", ",
    )

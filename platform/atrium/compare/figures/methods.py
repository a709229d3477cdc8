"""Figures of what a method does to one token: the gradient it gets, and the window it may move in.

Every function takes the findings of `atrium.theory` as plain numbers and writes one PNG and one SVG.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from atrium.compare.figures.style import (
    BLACK,
    BLUE,
    GREY,
    ON_WHITE,
    ORANGE,
    line_style,
    new_figure,
    save_both,
    style,
    use_cache,
)
from atrium.theory.results import (
    CoefficientCurves,
    Numbers,
)
from atrium.windows import Window

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Paths = tuple[Path, Path]
_REACH, _LOG_REACH = (0.0, 2.0), (-0.9, 0.9)  # of the axes of w and log w
WITH_LEGEND = 1.1  # inches above the panels
_NAMES = 1.5  # inches before them


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodWindow:
    """A method's window: for all tokens, or by the token's behavior probability, where it has one."""

    name: str
    constant: Window | None
    probabilities: Numbers = ()
    by_probability: tuple[Window, ...] = ()


@dataclass(frozen=True, slots=True)
class Canvas:
    """Where pictures go, and where matplotlib keeps its caches."""

    folder: Path
    cache_dir: Path

    def panels(
        self,
        inches: tuple[float, float],
        num_rows: int,
        num_columns: int,
        *,
        above: float = 0.8,
        before: float = 0.75,
    ) -> tuple[Figure, list[Axes]]:
        """A figure with a grid of panels, row by row; `above` and `before` are margins in inches."""
        use_cache(self.cache_dir)
        figure = new_figure(inches)
        margins = {
            "left": before / inches[0],
            "right": 1.0 - 0.15 / inches[0],
            "bottom": 0.55 / inches[1],
            "top": 1.0 - above / inches[1],
            "wspace": 0.24,
            "hspace": 0.42,
        }
        grid = figure.subplots(num_rows, num_columns, squeeze=False, gridspec_kw=margins)
        return figure, list(grid.flat)

    def save(self, figure: Figure, name: str, title: str) -> Paths:
        """The figure under its title."""
        figure.suptitle(title, fontsize=13, fontweight="bold", y=1.0 - 0.1 / figure.get_figheight())
        return save_both(figure, self.folder, name)


def draw_gradients(curves: Sequence[CoefficientCurves], canvas: Canvas) -> Paths:
    """Each method's coefficient on a token's gradient against the ratio, relative to that at w = 1."""
    figure, panels = canvas.panels((12.6, 5.2), 1, 2, above=WITH_LEGEND)
    for axes, title, side in zip(panels, ("advantage above 0", "advantage below 0"), (0, 1), strict=True):
        for index, curve in enumerate(curves):
            colour, dashes = line_style(index)
            values = (curve.raised, curve.lowered)[side]
            scale = abs(curve.at_one[side]) or 1.0
            relative = [value / scale for value in values]
            axes.plot(curve.ratio, relative, color=colour, linestyle=dashes, linewidth=1.9, label=curve.name)
        axes.axvline(1.0, color=GREY, linewidth=0.7)
        axes.axhline(0.0, color=GREY, linewidth=0.7)
        style(axes, title=title, x="ratio w", y="coefficient / |coefficient at w = 1|" if side == 0 else "")
    panels[0].set_ylim(-0.6, 2.6)
    panels[1].set_ylim(-2.6, 0.6)
    draw_legend(figure, panels[0], len(curves))
    return canvas.save(figure, "theory-gradients", "What a token's gradient is multiplied by")


def draw_method_windows(windows: Sequence[MethodWindow], canvas: Canvas) -> Paths:
    """Each method's window, on a linear and a log axis; by the token's probability where that matters."""
    by_token = any(method.by_probability for method in windows)
    height = 1.4 + max(0.36 * len(windows), 2.6)
    figure, panels = canvas.panels((16.8 if by_token else 12.6, height), 1, 2 + by_token, before=_NAMES)
    for axes, is_log in zip(panels, (False, True), strict=False):
        for row, method in enumerate(windows):
            _draw_bar(axes, row, method, is_log=is_log)
        axes.set_yticks(range(len(windows)), [] if is_log else [method.name for method in windows])
        axes.set_ylim(len(windows) - 0.4, -0.6)
        axes.axvline(0.0 if is_log else 1.0, color=GREY, linewidth=0.8)
        axes.set_xlim(*(_LOG_REACH if is_log else _REACH))
        title = (
            "log w: how far it reaches on either side" if is_log else "w: how far it reaches on either side"
        )
        style(axes, title=title, x="log w" if is_log else "ratio w")
    if by_token:
        _draw_by_probability(panels[2], windows)
    return canvas.save(figure, "theory-windows", "Windows and their asymmetry")


def _draw_bar(axes: Axes, row: int, method: MethodWindow, *, is_log: bool) -> None:
    window, centre = method.constant, 0.0 if is_log else 1.0
    if window is None or window.is_unbounded:
        text = "by the token's probability" if method.by_probability else "no window on the ratio"
        axes.text(centre, row, f"  {text}", va="center", fontsize=8, color=GREY)
        return
    bounds = [window.lower, window.upper]
    if is_log:
        bounds = [-math.inf if window.lower == 0.0 else math.log(window.lower), math.log(window.upper)]
    reach = _LOG_REACH if is_log else _REACH
    for bound, colour, side in zip(bounds, (ORANGE, BLUE), ("right", "left"), strict=True):
        end = min(max(bound, reach[0]), reach[1])
        axes.barh(row, end - centre, left=centre, color=colour, height=0.5)
        text = f"{bound - centre:+.4g}" if math.isfinite(bound) else "no bound"
        is_cut = end != bound or abs(end - reach[0]) < 0.1
        gap = 0.012 * (reach[1] - reach[0]) * (1.0 if (side == "left") != is_cut else -1.0)
        alignment = {"left": "right", "right": "left"}[side] if is_cut else side
        axes.text(end + gap, row, text, va="center", ha=alignment, fontsize=8, color=BLACK, bbox=ON_WHITE)


def _draw_by_probability(axes: Axes, windows: Sequence[MethodWindow]) -> None:
    for index, method in enumerate(windows):
        _draw_bounds(axes, method, index)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(0.2, 12.0)
    axes.set_yticks([0.25, 0.5, 1.0, 2.0, 4.0, 8.0], ["0.25", "0.5", "1", "2", "4", "8"])
    axes.axhline(1.0, color=GREY, linewidth=0.8)
    style(axes, title="both bounds, by the token's behavior probability", x="behavior probability q", y="w")
    axes.legend(frameon=False, fontsize=8, loc="upper right")


def _draw_bounds(axes: Axes, method: MethodWindow, index: int) -> None:
    colour, dashes = line_style(index)
    probabilities = method.probabilities
    windows = method.by_probability or (method.constant,) * len(probabilities)
    if not probabilities or any(window is None or window.is_unbounded for window in windows):
        return
    for side, name in enumerate(("lower", "upper")):
        values = [getattr(window, name) for window in windows]
        if all(value == 0.0 or math.isinf(value) for value in values):
            continue
        label = method.name if side == 1 else None
        axes.plot(probabilities, values, color=colour, linestyle=dashes, linewidth=1.7, label=label)


def draw_legend(figure: Figure, axes: Axes, num_entries: int) -> None:
    """One legend for all panels, under the title."""
    handles, labels = axes.get_legend_handles_labels()
    top = 1.0 - 0.4 / figure.get_figheight()
    figure.legend(
        handles,
        labels,
        loc="upper center",
        ncols=min(num_entries, 8),
        frameon=False,
        fontsize=9,
        bbox_to_anchor=(0.5, top),
    )

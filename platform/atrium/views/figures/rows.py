"""Figures with named rows: intervals with observations, bars, and heat maps of shares."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from atrium.base.records import Floats
from atrium.document.document import Axis, Bars, Bounds, Grid, Intervals, Pair
from atrium.document.formatting import value_text
from atrium.views.figures.lines import draw_marks, set_scale, shown
from atrium.views.figures.style import BLACK, BLUE, line_style, literal, tip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

_MAX_COLUMNS = 600
_ROOM = 0.05
"""The margin on each side of the values, as a share of their range."""


def draw_intervals(axes: Axes, figure: Intervals, name_width: int) -> None:
    """Draw each row: a thin outer interval, a thick inner interval, and a dot per observation."""
    draw_marks(axes, figure.marks, figure.x, figure.y)
    for place, row in enumerate(figure.rows):
        _draw_bounds(axes, place, row, figure.x)
    axes.margins(x=_ROOM)
    set_scale(axes, "x", figure.x)
    name_rows(axes, [row.name for row in figure.rows], name_width)


def draw_bars(axes: Axes, figure: Bars, name_width: int) -> None:
    """Draw a bar for each row.

    The bar is pale over the row's outer interval and strong over its inner interval.
    """
    for place, row in enumerate(figure.rows):
        colour = line_style(row.place)[0]
        for interval, alpha in ((row.outer, 0.35), (row.inner, 1.0)):
            if interval is not None:
                low, high = shown(interval, figure.x)
                axes.barh(place, high - low, left=low, color=colour, alpha=alpha, height=0.5)
    set_scale(axes, "x", figure.x)
    draw_marks(axes, figure.marks, figure.x, figure.y)
    name_rows(axes, [row.name for row in figure.rows], name_width)


def draw_grid(axes: Axes, figure: Grid, name_width: int) -> None:
    """Draw a heat map of the shares in each row.

    If there are more than 600 columns, they are averaged to 600 columns.
    """
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("shares", [(BLUE, 0.04), (BLUE, 1.0)])
    for row, values in enumerate(figure.values):
        share_C = _columns(np.array(values, dtype=np.float64))
        edges = np.arange(len(share_C) + 1)
        axes.pcolormesh(edges, [row - 0.42, row + 0.42], share_C[None], cmap=colours, vmin=0.0, vmax=1.0)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    name_rows(axes, figure.rows, name_width)


def name_rows(axes: Axes, names: Sequence[str], width: int) -> None:
    """Label the y-axis with row names from top to bottom. Names are wrapped after `width` characters."""
    axes.set_yticks(range(len(names)), [literal(textwrap.fill(name, width)) for name in names])
    for text, name in zip(axes.get_yticklabels(), names, strict=True):
        text.set(color=BLACK, gid=tip(name))
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _draw_bounds(axes: Axes, place: int, row: Bounds, axis: Axis) -> None:
    colour = line_style(row.place)[0]

    def draw_span(interval: Pair | None, linewidth: float, alpha: float) -> None:
        if interval is not None:
            ends = shown(interval, axis)
            axes.plot(
                ends, [place] * 2, color=colour, linewidth=linewidth, alpha=alpha, solid_capstyle="butt"
            )

    draw_span(row.outer, 1.6, 1.0)
    draw_span(row.inner, 5.0, 0.45)
    names = row.dot_names or (row.name,) * len(row.dots)
    for name, dot in zip(names, row.dots, strict=True):
        fill = "none" if row.is_open else colour
        text = tip(f"{name}: {value_text(dot, axis.unit)}")
        at = shown((dot,), axis)
        axes.plot(at, [place], "o", color=colour, markerfacecolor=fill, alpha=0.7, markersize=5.0, gid=text)
    if row.value is not None:
        text = tip(f"{row.name}: {value_text(row.value, axis.unit, is_signed=axis.unit == 'points')}")
        at = shown((row.value,), axis)
        if row.dots:
            axes.plot(at, [place], "|", color=BLACK, markersize=12, markeredgewidth=1.4, gid=text)
        else:
            axes.plot(at, [place], "o", color=colour, markersize=6.0, gid=text)


def _columns(share_P: Floats) -> Floats:
    if len(share_P) <= _MAX_COLUMNS:
        return share_P
    starts = np.arange(_MAX_COLUMNS) * len(share_P) // _MAX_COLUMNS
    means: Floats = np.add.reduceat(share_P, starts) / np.diff(starts, append=len(share_P))
    return means

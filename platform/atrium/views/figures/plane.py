"""Figures of named points and curves in a plane, such as windows given by their two bounds."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atrium.document.document import Plane, Point
from atrium.document.formatting import value_text
from atrium.views.figures.lines import draw_marks, draw_series, set_scale, shown
from atrium.views.figures.style import BLACK, FAINT, LABEL_SIZE, line_style, literal, spread, tip

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_EQUAL = 1e-9
_ROOM, _LEAST_ROOM = 0.15, 0.02
_LINE = 0.2
"""The smallest vertical distance between the names of two points, in inches."""


def draw_plane(axes: Axes, figure: Plane, inches: float, name_width: int) -> None:
    """Draw points on top of curves, with the names of the points to the right of the axes.

    `inches` is the approximate height of the axes. Names are wrapped after `name_width` characters.
    """
    draw_marks(axes, figure.marks, figure.x, figure.y)
    for curve in figure.curves:
        draw_series(axes, curve, figure.x, figure.y)
    points = [
        replace(point, x=float(shown((point.x,), figure.x)[0]), y=float(shown((point.y,), figure.y)[0]))
        for point in merged(figure.points)
    ]
    _set_ends(axes, figure, points)
    set_scale(axes, "x", figure.x)
    set_scale(axes, "y", figure.y)
    for point in points:
        look: dict[str, Any] = {"color": line_style(point.place)[0], "gid": tip(_text(point))}
        axes.plot(point.x, point.y, "o", markersize=6.0, clip_on=False, zorder=4, **look)
    _name(axes, [point for point in points if point.name], gap=_LINE / inches, width=name_width)


def merged(points: Sequence[Point]) -> list[Point]:
    """Return the points, with named points at the same position merged into one point named `a = b`."""
    found: list[Point] = []
    for point in points:
        twin = next((one for one in found if math.dist((one.x, one.y), (point.x, point.y)) < _EQUAL), None)
        if twin is None or not (twin.name and point.name):
            found.append(point)
        else:
            found[found.index(twin)] = replace(twin, name=f"{twin.name} = {point.name}")
    return found


def _set_ends(axes: Axes, figure: Plane, points: Sequence[Point]) -> None:
    """Set axis limits with space around the points, unless the figure has fixed limits or curves.

    A lower limit is negative only if one of the values is negative.
    """
    for axis, values, set_ends in (
        (figure.x, [point.x for point in points], axes.set_xlim),
        (figure.y, [point.y for point in points], axes.set_ylim),
    ):
        if values and axis.low is None and not figure.curves:
            room = max(_ROOM * (max(values) - min(values)), _LEAST_ROOM)
            set_ends(max(min(values) - room, min(0.0, *values, 0.0)), max(values) + room)


def _name(axes: Axes, points: Sequence[Point], *, gap: float, width: int) -> None:
    """Write the points' names to the right of the axes, each connected to its point by a line.

    `gap` is the height of a line of text, as a share of the axes' height. Names are wrapped after `width`
    characters.
    """
    gap *= max((len(textwrap.wrap(point.name, width)) for point in points), default=1)
    bottom, top = axes.get_ylim()
    gap *= top - bottom
    upwards = spread([point.y for point in points], gap=gap, least=bottom)
    heights = spread([-height for height in upwards], gap=gap, least=-top)
    for point, height in zip(points, heights, strict=True):
        axes.annotate(
            literal(textwrap.fill(point.name, width)),
            (point.x, point.y),
            (1.03, -height),
            textcoords=axes.get_yaxis_transform(),
            color=BLACK,
            fontsize=LABEL_SIZE,
            va="center",
            arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 0.8},
        )


def _text(point: Point) -> str:
    return f"{point.name}: [{value_text(point.x, 'ratio')}, {value_text(point.y, 'ratio')}]"

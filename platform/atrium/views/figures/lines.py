"""Line figures: curves with bands or whiskers, reference lines, and the scales of axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from atrium.base.records import Floats
from atrium.document.document import Axis, Lines, Mark, Series
from atrium.views.figures.style import GREY, LABEL_SIZE, line_style, literal, tip

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DASHES = {"solid": "-", "dashed": "--", "dotted": ":"}
_PERCENT = ("share", "points")


def draw_lines(axes: Axes, figure: Lines) -> None:
    """Draw a line figure: its reference lines, and its series on top of them."""
    draw_marks(axes, figure.marks, figure.x, figure.y)
    for series in figure.series:
        draw_series(axes, series, figure.x, figure.y)
    if not figure.series:
        axes.text(0.5, 0.5, "not recorded", color=GREY, ha="center", transform=axes.transAxes)
    set_scale(axes, "x", figure.x)
    set_scale(axes, "y", figure.y)


def draw_series(axes: Axes, series: Series, x: Axis, y: Axis) -> None:
    """Draw one curve with its band or whiskers."""
    colour, dashes = line_style(series.place)
    x_N, y_N = shown(series.x, x), shown(series.y, y)
    look: dict[str, Any] = {
        "color": colour,
        "linestyle": (_DASHES[series.dash] if series.dash else dashes) if series.is_line else "",
        "linewidth": 0.9 if series.is_faint else 1.4,
        "alpha": 0.35 if series.is_faint else 1.0,
        "marker": "o" if series.has_points or not series.is_line else "",
        "markersize": 3.0,
        "fillstyle": "none" if series.dash == "dashed" else "full",  # tells points without a line apart
        "drawstyle": "steps-post" if series.is_step else "default",
    }
    [drawn] = axes.plot(x_N, y_N, **look)
    if series.name:
        drawn.set(label=literal(series.name), gid=tip(series.name))
    if not series.low:
        return
    low_N, high_N = shown(series.low, y), shown(series.high, y)
    if series.has_whiskers:
        # For equal values, a one-sided bound may replace the interval, so one whisker may have length 0.
        errors = np.nan_to_num(np.maximum([y_N - low_N, high_N - y_N], 0.0))
        axes.errorbar(x_N, y_N, yerr=errors, fmt="none", color=colour, capsize=2.5, elinewidth=0.9)
    else:
        axes.fill_between(x_N, low_N, high_N, color=colour, alpha=0.14, linewidth=0)


def draw_marks(axes: Axes, marks: Sequence[Mark], x: Axis, y: Axis) -> None:
    """Draw reference lines with their names at the ends, and shaded ranges of x."""
    for mark in marks:
        colour = GREY if mark.place is None else line_style(mark.place)[0]
        look: dict[str, Any] = {"color": colour, "linewidth": 1.0, "linestyle": ":"}
        text: dict[str, Any] = {"color": colour, "fontsize": LABEL_SIZE - 1}
        if mark.y is not None:
            at = shown((mark.y,), y)[0]
            axes.axhline(at, **look)
            axes.text(1.0, at, literal(mark.name), **text, ha="right", va="bottom",
                      transform=axes.get_yaxis_transform())  # fmt: skip
        elif mark.x is not None and mark.end is not None:
            axes.axvspan(*shown((mark.x, mark.end), x), color=colour, alpha=0.12, linewidth=0)
        elif mark.x is not None:
            at = shown((mark.x,), x)[0]
            axes.axvline(at, **look)
            axes.text(at, 1.0, literal(mark.name), **text, va="top", transform=axes.get_xaxis_transform())


def shown(values: Sequence[float | None], axis: Axis) -> Floats:
    """Return the values to plot. Shares and points are multiplied by 100, and None becomes NaN."""
    return np.array(values, dtype=np.float64) * (100.0 if axis.unit in _PERCENT else 1.0)


def set_scale(axes: Axes, which: Literal["x", "y"], axis: Axis) -> None:
    """Set the scale, the ticks and the limits of the x-axis or y-axis."""
    from matplotlib.ticker import MaxNLocator

    drawn, set_kind, set_ends = (
        (axes.xaxis, axes.set_xscale, axes.set_xlim)
        if which == "x"
        else (axes.yaxis, axes.set_yscale, axes.set_ylim)
    )
    if axis.scale == "log2":
        most = drawn.get_data_interval()[1]
        ticks = sorted({2.0**power for power in range(int(np.log2(max(most, 1.0))) + 1)} | {most})
        set_kind("log", base=2)
        drawn.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        drawn.set_ticks([], minor=True)
    elif axis.scale == "log":
        set_kind("log")
    elif axis.labels:
        drawn.set_ticks(range(len(axis.labels)), [literal(label) for label in axis.labels])
    elif axis.unit == "count":
        drawn.set_major_locator(MaxNLocator(integer=True))
    if axis.low is not None or axis.high is not None:
        set_ends(*(None if end is None else shown((end,), axis)[0] for end in (axis.low, axis.high)))

"""Figures of a sweep with planned contrasts: the curves behind its outcomes, one batch, families."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from atrium.base.metrics import WORKED_FRAC
from atrium.document import palette as method_colours
from atrium.method.windows import Window, share_after_batch
from atrium.views.figures.style import BLACK, GREY, MARKERS, line_style, literal, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Report = Mapping[str, Any]
_SHARES = np.linspace(0.0, 1.0, 101)
_PANEL_INCHES = (3.2, 2.7)
_NUM_COLUMNS = 4


def draw_outcomes(figure: Figure, report: Report) -> bool:
    """The metric behind each outcome by step: each arm's mean over seeds, with its 95 % interval."""
    curves = report["contrasts"]["curves"] if report["contrasts"] is not None else {}
    drawn = {metric: [arm for arm in arms if arm["means"]] for metric, arms in curves.items()}
    drawn = {metric: arms for metric, arms in drawn.items() if arms}
    if not drawn:
        return False
    figure.set_size_inches(4.6 * len(drawn) + 2.2, 4.4)
    panels = figure.subplots(1, len(drawn), squeeze=False)[0]
    for axes, (metric, arms) in zip(panels, drawn.items(), strict=True):
        for place, arm in enumerate(arms):
            step_N, mean_N, low_N, high_N = zip(*arm["means"], strict=True)
            colour, dashes = line_style(place)
            axes.plot(step_N, mean_N, color=colour, linestyle=dashes, label=literal(arm["arm"]))
            axes.fill_between(step_N, low_N, high_N, color=colour, alpha=0.1, linewidth=0)
        axes.xaxis.get_major_locator().set_params(integer=True)
        style(axes, x="training step", y=metric)
    figure.legend(*axes.get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside right upper")
    _title(figure, report, "mean over seeds, with its 95 % interval")
    return True


def draw_batches(figure: Figure, report: Report) -> bool:
    """The good answer's share after each batch against that before it, beside the law of the arm's window."""
    curves = report["contrasts"]["curves"] if report["contrasts"] is not None else {}
    arms = [arm for arm in curves.get(WORKED_FRAC.name, []) if _window(arm) is not None and arm["means"]]
    if not arms:
        return False
    num_rows, num_columns = -(-len(arms) // _NUM_COLUMNS), min(len(arms), _NUM_COLUMNS)
    width, height = _PANEL_INCHES
    figure.set_size_inches(num_columns * width, num_rows * height + 0.4)
    grid = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True, sharey=True)
    for place, (axes, arm) in enumerate(zip(grid.flat, arms, strict=False)):
        _draw_batches_of(axes, arm, colour=line_style(place)[0])
    for axes in grid.flat[len(arms) :]:
        axes.set_axis_off()
    figure.supxlabel("share of worked answers before a batch", fontsize=9, color=GREY)
    figure.supylabel("after it", fontsize=9, color=GREY)
    _title(figure, report, "a point for each seed and step; the line is the window's law for one batch")
    return True


def draw_families(figure: Figure, report: Report) -> bool:
    """Each family's arms, y against x: means over seeds joined by lines, with intervals; every seed a dot."""
    found = report["families"]
    if found is None:
        return False
    axes, curves = figure.add_subplot(), found["curves"]
    ends = [arm["x"] for curve in curves for arm in curve["arms"]]
    apart = 0.012 * (max(ends) - min(ends)) if found["x_is_setting"] else 0.0
    places = method_colours.places({curve["family"]: curve["family"] for curve in curves})
    for number, curve in enumerate(curves):
        aside = apart * (number - (len(curves) - 1) / 2)
        x_W = [arm["x"] + aside for arm in curve["arms"]]
        y_W = np.array([arm["y"] for arm in curve["arms"]])
        low_W, high_W = np.array([arm["interval"] for arm in curve["arms"]]).T
        colour, dashes = line_style(places[curve["family"]])
        looks: dict[str, Any] = {"color": colour, "marker": MARKERS[number % len(MARKERS)]}
        whiskers: dict[str, Any] = {"yerr": (y_W - low_W, high_W - y_W), "elinewidth": 0.8, "capsize": 2}
        axes.errorbar(x_W, y_W, **whiskers, **looks, linestyle=dashes, label=literal(curve["family"]))
        for arm in curve["arms"]:
            x_S, y_S = arm["seeds"]
            axes.plot(np.add(x_S, aside), y_S, **looks, linestyle="", markersize=3, alpha=0.3)
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    style(axes, x=literal(found["x"]), y=literal(found["y"]))
    _title(figure, report, f"mean and 95 % interval over {found['num_seeds']} seeds, each seed a dot")
    return True


def _draw_batches_of(axes: Axes, arm: Mapping[str, Any], *, colour: str) -> None:
    for points, marker in zip(arm["seeds"].values(), cycle(MARKERS), strict=False):
        values = [value for _, value in points]
        axes.plot(values[:-1], values[1:], marker, color=colour, markersize=3.5)
    window = _window(arm)
    assert window is not None
    after = [share_after_batch(float(share), window) for share in _SHARES]
    axes.plot(_SHARES, after, color=BLACK, linewidth=1.1)
    axes.plot(_SHARES, _SHARES, color=GREY, linewidth=0.7, linestyle=":")
    style(axes, title=literal(f"{arm['arm']} [{window.lower:.3g}, {window.upper:.3g}]"))


def _window(arm: Mapping[str, Any]) -> Window | None:
    """The window of an arm that has one which binds."""
    if arm["window"] is None:
        return None
    lower, upper = arm["window"]
    window = Window(lower, math.inf if upper is None else upper)
    return None if window.is_unbounded else window


def _title(figure: Figure, report: Report, note: str) -> None:
    figure.suptitle(literal(f"{report['state']['name']} ({note})"), fontsize=10, color=GREY)

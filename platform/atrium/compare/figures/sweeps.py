"""Figures of a sweep as PNG and SVG, drawn from its `report.json`.

Curve, plane, ranking, front, learning; for planned contrasts those of `figures.designs`.
Whiskers are 95 % t intervals over seeds, on the validation problems that settings were chosen on. What
a sweep has no data for (a curve without a numeric setting, a plane without windows) is not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atrium.compare.figures.designs import draw_batches, draw_families, draw_outcomes
from atrium.views.figures.style import (
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    line_style,
    literal,
    new_figure,
    save_both,
    style,
    use_cache,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Report = Mapping[str, Any]
_INCHES = (7.2, 4.4)
_MAX_RANKED, _MAX_LEARNING = 20, 8
_INFINITE_UPPER = 3.0
"""Where windows without an upper bound are drawn."""


def draw_sweep_figures(report: Report, folder: Path, cache_dir: Path) -> list[Path]:
    """Draw the figures that a report has data for into `folder`; their PNG files, the main one first.

    Raises `RunFolderError` where they cannot be written.
    """
    use_cache(cache_dir)
    drawn = []
    for name, draw in FIGURES.items():
        figure = new_figure(_INCHES, layout="constrained")
        if draw(figure, report):
            drawn.append(save_both(figure, folder, name)[0])
    return drawn


def draw_curve(figure: Figure, report: Report) -> bool:
    """Mean@K and Pass@K against the setting, the baseline's beside them, and where training began."""
    curves = [curve for curve in report["curves"] if _known(curve["points"])]
    if not any(curve["stage"] == "search" for curve in curves):
        return False
    places = figure.subplots(1, len(curves), squeeze=False, sharey=True)[0]
    for axes, curve in zip(places, curves, strict=True):
        points = _known(curve["points"])
        k = points[0]["k"]
        x = [float(point["x"]) for point in points]
        for score, colour, label in (
            ("pass_at_k", ORANGE, f"Pass@{k}"),
            ("mean_at_k", BLUE, f"Mean@{k}"),
        ):
            _whiskers(axes, x, [point[score] for point in points], colour, label)
            if report["start"] is not None:
                axes.axhline(100 * report["start"][score], color=colour, linewidth=1.0, linestyle=":")
        if curve["log"]:
            axes.set_xscale("log")
            axes.set_xticks(x, [f"{value:.2g}" for value in x], rotation=45)
            axes.minorticks_off()
        title = "search" if curve["stage"] == "search" else "the baseline's own search"
        style(axes, title=title, x=literal(curve["key"]), y="% of validation problems")
    places[0].legend(frameon=False, fontsize=8)
    note = "dotted: before training" if report["start"] is not None else ""
    _title(figure, report, note)
    return True


def draw_plane(figure: Figure, report: Report) -> bool:
    """Every constant window as a point of the (l, u) plane, coloured by Mean@K or by the primary outcome."""
    if report["contrasts"] is None:
        trials = [one for one in _known(report["ranking"]) if one["window"] is not None]
        points = [(one["window"], 100 * one["mean_at_k"]["value"]) for one in trials]
        label = f"Mean@{trials[0]['k']}, % of validation problems" if trials else ""
    else:
        arms = report["contrasts"]["arms"]
        points = [(arm["window"], arm["value"]) for arm in arms if None not in (arm["window"], arm["value"])]
        label = literal(next(iter(report["contrasts"]["outcomes"])))
    if len({tuple(window) for window, _ in points}) < 3:
        return False
    axes = figure.add_subplot()
    windows, value = zip(*points, strict=True)
    lower = [low for low, _ in windows]
    upper = [_INFINITE_UPPER if high is None else high for _, high in windows]
    drawn = axes.scatter(lower, upper, c=value, cmap="viridis", s=70, edgecolor="white", zorder=3)
    figure.colorbar(drawn, ax=axes, label=label)
    # A window without a lower bound has no partner on either line.
    edge = np.linspace(max(min(*lower, 0.95), 1.0 / _INFINITE_UPPER), 1.0)
    axes.plot(edge, 2.0 - edge, color=GREY, linewidth=1.0, label="|w - 1| = constant")
    axes.plot(edge, 1.0 / edge, color=GREY, linewidth=1.0, linestyle="--", label="u = 1/l")
    axes.legend(frameon=False, fontsize=8)
    style(axes, title="Windows of the ratio", x="lower bound l", y="upper bound u")
    unbounded = "no upper bound: drawn at 3" if any(high is None for _, high in windows) else ""
    _title(figure, report, unbounded)
    return True


def draw_ranking(figure: Figure, report: Report) -> bool:
    """The settings from best to worst, each seed a dot."""
    trials = _known(report["ranking"])[:_MAX_RANKED]
    if not trials:
        return False
    axes = figure.add_subplot()
    seeds = {
        one["number"]: [seed["mean_at_k"] for seed in one["seeds"] if seed["mean_at_k"] is not None]
        for one in report["state"]["trials"]
        if one["stage"] == "search"
    }
    names = []
    for place, one in enumerate(trials):
        colour = BLUE if one["state"] == "complete" else PURPLE
        marks = [100 * value for value in seeds.get(one["number"], [])]
        axes.scatter(marks, [place] * len(marks), color=colour, alpha=0.35, s=18, zorder=2)
        _horizontal_whisker(axes, place, one["mean_at_k"], colour)
        suffix = "" if one["state"] == "complete" else f" ({one['state']})"
        names.append(literal(_shortened(" = ".join(one["labels"])) + suffix))
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    style(axes, title="Settings, best first", x=f"Mean@{trials[0]['k']}, % of validation problems")
    figure.set_figheight(max(3.0, 1.6 + 0.32 * len(names)))
    _title(figure, report, "dots: seeds; bars: 95 % over seeds")
    return True


def draw_front(figure: Figure, report: Report) -> bool:
    """Two objectives against each other, and the trials that no other beats in both."""
    objectives = report["state"]["objectives"]
    trials = [one for one in report["ranking"] if one["values"] is not None]
    if len(objectives) != 2 or not trials:
        return False
    axes = figure.add_subplot()
    front = set(report["pareto"] or ())
    scale = [100.0 if one["metric"].endswith("_at_k") else 1.0 for one in objectives]
    for one in trials:
        x, y = (value * factor for value, factor in zip(one["values"][::-1], scale[::-1], strict=True))
        colour = ORANGE if one["number"] in front else BLUE
        axes.scatter([x], [y], color=colour, s=45, zorder=3)
        axes.annotate(str(one["number"]), (x, y), xytext=(5, 4), textcoords="offset points", fontsize=7)
    names = [f"{one['metric']} ({one['direction']})" for one in objectives]
    style(axes, title="Two objectives", x=names[1], y=names[0])
    _title(figure, report, "orange: no other trial is better in both")
    return True


def draw_learning(figure: Figure, report: Report) -> bool:
    """Mean@K over training, the mean of each setting's seeds; planned contrasts have their own curves."""
    if report["contrasts"] is not None:
        return False
    order = [one["number"] for one in _known(report["ranking"])][:_MAX_LEARNING]
    trials = {one["number"]: one for one in report["state"]["trials"] if one["stage"] == "search"}
    axes = figure.add_subplot()
    for place, number in enumerate(order):
        curves = [seed["curve"] for seed in trials[number]["seeds"] if seed["curve"]]
        steps = sorted({point[0] for curve in curves for point in curve})
        means = [
            100 * _average([point[1] for curve in curves for point in curve if point[0] == step])
            for step in steps
        ]
        label = literal(_shortened(" = ".join(trials[number]["labels"])))
        colour, dashes = line_style(place)
        axes.plot(steps, means, marker="o", markersize=3, color=colour, linestyle=dashes, label=label)
    if not order:
        return False
    axes.legend(frameon=False, fontsize=7)
    title = f"Learning, the best {len(order)} settings"
    style(axes, title=title, x="training step", y="Mean@K, % of validation problems")
    _title(figure, report, "mean over seeds")
    return True


def _known(points: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [point for point in points if point["mean_at_k"]["value"] is not None]


def _whiskers(
    axes: Axes, x: Sequence[float], scores: Sequence[Mapping[str, Any]], colour: str, label: str
) -> None:
    values = [math.nan if one["value"] is None else 100 * one["value"] for one in scores]
    spans = [_span(one) for one in scores]
    low = [value - span[0] for value, span in zip(values, spans, strict=True)]
    high = [span[1] - value for value, span in zip(values, spans, strict=True)]
    axes.errorbar(x, values, yerr=[low, high], color=colour, marker="o", markersize=5, capsize=3, label=label)


def _horizontal_whisker(axes: Axes, place: int, score: Mapping[str, Any], colour: str) -> None:
    value = 100 * score["value"]
    low, high = _span(score)
    axes.errorbar(
        [value], [place], xerr=[[value - low], [high - value]], color=colour, marker="D", capsize=3, zorder=3
    )


def _span(score: Mapping[str, Any]) -> tuple[float, float]:
    """The interval in per cent, within what a share can be; the value itself without one."""
    if score["value"] is None:
        return math.nan, math.nan
    low, high = score["interval"] or (score["value"], score["value"])
    return max(100 * low, 0.0), min(100 * high, 100.0)


def _title(figure: Figure, report: Report, note: str) -> None:
    figure.suptitle(
        literal(f"{report['state']['name']}" + (f" ({note})" if note else "")), fontsize=10, color=GREY
    )


def _average(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _shortened(text: str) -> str:
    return text if len(text) <= 48 else text[:45] + "..."


FIGURES: Mapping[str, Callable[[Figure, Report], bool]] = {
    "curve": draw_curve,
    "plane": draw_plane,
    "ranking": draw_ranking,
    "front": draw_front,
    "learning": draw_learning,
    "outcomes": draw_outcomes,
    "batches": draw_batches,
    "families": draw_families,
}

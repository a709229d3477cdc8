"""Figures of one run as PNG, drawn from its run folder: reward, entropy, length, clip shares, evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from atrium.base.atomic import explained
from atrium.base.metrics import CLIP_HIGH_FRAC, CLIP_LOW_FRAC, ENTROPY, LENGTH_MEAN, REWARD, Quantity
from atrium.base.nested import setting
from atrium.base.recorded import read_object
from atrium.compare.curves import moving_mean
from atrium.runs.reader import EvaluationPoint, MetricTable, read_evaluations, read_metrics
from atrium.runs.run_folder import RunFolder
from atrium.views.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    literal,
    new_figure,
    save_png,
    style,
    use_cache,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BENCHMARK_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY)
_SINGLE_INCHES, _COMBINED_INCHES = (6.4, 3.6), (12.0, 6.2)
_FEW_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCurves:
    """The curves in the figures of a run."""

    title: str
    metrics: MetricTable
    evaluations: Mapping[str, tuple[EvaluationPoint, ...]]


def draw_figures(folder: RunFolder) -> tuple[Path, ...]:
    """Draw all figures of a run into its `figures/`, and return their paths, `curves.png` first.

    A quantity that the run did not record is named as missing in its place. Raises `RunFolderError` where
    the files cannot be read or written.
    """
    use_cache(folder.cache_dir)
    with explained("draw the figures of", folder.path):
        folder.figures_dir.mkdir(exist_ok=True)
        curves = read_curves(folder)
        drawn = [save_png(draw_combined(curves), folder.figures_dir, "curves")]
        for name, draw in PANELS.items():
            drawn.append(save_png(draw_single(curves, draw), folder.figures_dir, name))
    return tuple(drawn)


def read_curves(folder: RunFolder) -> RunCurves:
    """The curves that a run folder holds for its figures. Raises `OSError` where a file cannot be read."""
    config, _ = read_object(folder.config_file)
    names = [setting(config, key) for key in ("algorithm.name", "divergence.kind")]
    parts = [str(name) for name in names if name is not None]
    if (seed := setting(config, "seed")) is not None:
        parts.append(f"seed {seed}")
    title = f"{folder.path.absolute().parent.name}: {', '.join(parts) or folder.path.name}"
    return RunCurves(title=title, metrics=read_metrics(folder), evaluations=read_evaluations(folder))


def draw_combined(curves: RunCurves) -> Figure:
    """All panels in one figure, as a README shows them."""
    figure = new_figure(_COMBINED_INCHES)
    places = figure.subplot_mosaic(
        [["e", "e", "r"], ["n", "l", "c"]],
        gridspec_kw={
            "left": 0.055,
            "right": 0.985,
            "bottom": 0.08,
            "top": 0.88,
            "wspace": 0.22,
            "hspace": 0.42,
        },
    )
    for place, draw in zip("ernlc", _COMBINED_ORDER, strict=True):
        draw(places[place], curves)
    figure.suptitle(literal(curves.title), fontsize=13, fontweight="bold")
    return figure


def draw_single(curves: RunCurves, draw: Callable[[Axes, RunCurves], None]) -> Figure:
    """One panel as a figure of its own."""
    figure = new_figure(_SINGLE_INCHES)
    # Fixed margins: matplotlib's automatic layouts take half of the time that a figure takes.
    figure.subplots_adjust(left=0.11, right=0.97, bottom=0.14, top=0.84)
    draw(figure.add_subplot(), curves)
    figure.suptitle(literal(curves.title), fontsize=9, color=GREY)
    return figure


def _of_one_curve(
    title: str, unit: str, quantity: Quantity, colour: str, floor: float | None = 0.0
) -> Callable[[Axes, RunCurves], None]:
    """A panel of one quantity; its axis begins at `floor`, or where the curve does."""

    def draw(axes: Axes, curves: RunCurves) -> None:
        style(axes, title=title, x="training step", y=unit)
        _draw_curve(axes, curves.metrics, quantity.name, colour)
        if not axes.lines:
            _say_missing(axes)
        axes.set_ylim(bottom=floor)

    return draw


def _draw_clip_shares(axes: Axes, curves: RunCurves) -> None:
    style(axes, title="Clipped tokens", x="training step", y="% whose gradient is cut")
    for quantity, colour, text in (
        (CLIP_HIGH_FRAC, ORANGE, "high side (A > 0)"),
        (CLIP_LOW_FRAC, BLUE, "low side (A < 0)"),
    ):
        _draw_curve(axes, curves.metrics, quantity.name, colour, scale=100.0, label=text)
    if not axes.lines:
        _say_missing(axes)
    axes.set_ylim(bottom=0.0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)


def _draw_evaluation(axes: Axes, curves: RunCurves) -> None:
    ks = {point.k for points in curves.evaluations.values() for point in points}
    k = "K" if len(ks) != 1 or None in ks else str(ks.pop())
    style(axes, title=f"Held-out problems: Mean@{k} and Pass@{k}", x="training step", y="%")
    if not curves.evaluations:
        _say_missing(axes)
        return
    for index, (benchmark, points) in enumerate(curves.evaluations.items()):
        colour = _BENCHMARK_COLOURS[index % len(_BENCHMARK_COLOURS)]
        name = literal(benchmark)
        _draw_mean(axes, points, colour, f"{name}, Mean@{k} with 95 % over problems")
        # Between two points nothing was measured, so no line joins them.
        marks = "--o" if len(points) > 2 else "o"
        steps, passed = [p.step for p in points], [_percent(p.pass_at_k) for p in points]
        axes.plot(
            steps,
            passed,
            marks,
            color=colour,
            markerfacecolor="white",
            markersize=4.5,
            linewidth=1.1,
            label=f"{name}, Pass@{k}",
        )
    axes.set_ylim(0.0, 103.0)
    by_label = sorted(zip(*axes.get_legend_handles_labels()[::-1], strict=True), key=itemgetter(0))
    labels, handles = zip(*by_label, strict=True)
    axes.legend(handles, labels, frameon=False, fontsize=8, loc="best")


def _draw_mean(axes: Axes, points: Sequence[EvaluationPoint], colour: str, label: str) -> None:
    """Mean@K with its interval: a band along a curve, whiskers where there are only two points."""
    steps, means = [p.step for p in points], [_percent(p.mean_at_k) for p in points]
    spans = [point.interval_over_problems or (None, None) for point in points]
    low, high = ([_percent(bounds[side]) for bounds in spans] for side in (0, 1))
    if len(points) > 2:
        axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(steps, means, "-o", color=colour, markersize=4.5, linewidth=1.8, label=label)
        return
    errors = np.nan_to_num(np.abs(np.array([low, high]) - np.array(means)))
    axes.errorbar(steps, means, yerr=errors, fmt="o", color=colour, markersize=5.5, capsize=3.5, label=label)


def _draw_curve(
    axes: Axes,
    metrics: MetricTable,
    name: str,
    colour: str,
    *,
    scale: float = 1.0,
    label: str | None = None,
) -> None:
    """A quantity per step, faint, under its moving mean where there are many steps."""
    values = metrics.columns.get(name)
    if values is None or not np.isfinite(values).any():
        return
    values = values * scale
    if len(values) < _FEW_STEPS:
        axes.plot(metrics.steps, values, color=colour, marker=".", linewidth=1.6, label=label)
        return
    width = max(len(values) // 20, 3) | 1  # odd, so that the mean is centred
    axes.plot(metrics.steps, values, color=colour, alpha=0.3, linewidth=0.9)
    smooth = moving_mean(values, width)
    axes.plot(metrics.steps, smooth, color=colour, linewidth=1.9, label=label)
    axes.set_title(f"thick: mean of {width} steps", fontsize=7.5, loc="right", color=GREY)


def _say_missing(axes: Axes) -> None:
    axes.text(0.5, 0.5, "not recorded", color=GREY, ha="center", transform=axes.transAxes)


def _percent(value: float | None) -> float:
    return float("nan") if value is None else 100.0 * value


PANELS: dict[str, Callable[[Axes, RunCurves], None]] = {
    "evaluation": _draw_evaluation,
    "reward": _of_one_curve("Reward", "mean per completion", REWARD, BLUE, floor=None),
    "entropy": _of_one_curve("Policy entropy", "nats per token", ENTROPY, PURPLE),
    "completion_length": _of_one_curve("Completion length", "tokens", LENGTH_MEAN, GREEN),
    "clip_shares": _draw_clip_shares,
}
_COMBINED_ORDER = tuple(PANELS.values())

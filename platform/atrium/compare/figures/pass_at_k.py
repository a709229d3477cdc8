"""Mean@k, Pass@k and Pass^k of one evaluation against the number of samples k, as PNG and SVG.

Mean@k of more samples is the same quantity with less noise; Pass@k grows with k, and Pass^k falls. Drawn from
the record of a run folder; nothing is estimated here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from atrium.base.nested import mapping_at, setting
from atrium.base.recorded import as_finite, as_interval
from atrium.document.formatting import counted
from atrium.runs.layout import step_name
from atrium.runs.reader import EvaluationPoint, read_evaluations
from atrium.runs.run_folder import RunFolder
from atrium.views.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    literal,
    new_figure,
    save_both,
    style,
    use_cache,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INCHES = (6.4, 4.0)


def draw_pass_at_k(folder: RunFolder) -> tuple[Path, ...]:
    """Draw the latest evaluation of each benchmark into `figures/`; the files, each PNG before its SVG.

    Evaluations of one sample per problem have no curve and are left out. Raises `RunFolderError` where
    files cannot be read or written.
    """
    use_cache(folder.cache_dir)
    drawn: list[Path] = []
    for benchmark, points in read_evaluations(folder).items():
        point = points[-1]
        if point.k is None or point.k < 2 or not _numbers(point.results, "curve.pass_at_k"):
            continue
        figure = pass_at_k_figure(point)
        name = f"pass_at_k-{benchmark}-{step_name(point.step)}"
        drawn += save_both(figure, folder.figures_dir, name)
    return tuple(drawn)


def pass_at_k_figure(point: EvaluationPoint) -> Figure:
    """The curves of one evaluation over k = 1..K, with 95 % intervals over problems where recorded."""
    figure = new_figure(_INCHES)
    figure.subplots_adjust(left=0.11, right=0.97, bottom=0.13, top=0.88)
    axes = figure.add_subplot()
    results = point.results
    num = "" if point.num_problems is None else f", {counted(point.num_problems, 'problem')}"
    title = literal(f"{point.benchmark}{num}, {counted(point.k, 'sample')} each")
    style(axes, title=title, x="number of samples k", y="%")
    curves = (("Pass@k", "pass_at_k", "pass_at", BLUE), ("Pass^k", "pass_hat_k", "pass_hat", GREEN))
    for label, curve, by_k, colour in curves:
        _draw_curve(axes, _numbers(results, f"curve.{curve}"), colour, label)
        _draw_intervals(axes, results, by_k, colour)
    _draw_curve(axes, _numbers(results, "curve.mean_at_k"), ORANGE, "Mean@k of the first k samples")
    _draw_mean_and_majority(axes, point)
    # A figure of one k has no ticks to choose from; powers of two are what people compare at.
    axes.set_xscale("log", base=2)
    axes.set_ylim(-2.0, 102.0)
    ks = [k for k in sorted({2**power for power in range(11)} | {point.k or 1}) if k <= (point.k or 1)]
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8, loc="best")
    return figure


def _draw_curve(axes: Axes, shares: Sequence[float], colour: str, label: str) -> None:
    axes.plot(range(1, len(shares) + 1), [100 * s for s in shares], color=colour, linewidth=1.8, label=label)


def _draw_intervals(axes: Axes, results: Mapping[str, object], by_k: str, colour: str) -> None:
    """Whiskers over problems at the k that have them."""
    name = "pass_at_intervals" if by_k == "pass_at" else "pass_hat_intervals"
    for k, value in mapping_at(results, by_k).items():
        share, bounds = as_finite(value), as_interval(setting(results, f"{name}.{k}.over_problems"))
        if share is not None and bounds is not None:
            _draw_whisker(axes, int(k), share, bounds, colour)


def _draw_whisker(axes: Axes, k: int, value: float, bounds: Sequence[float], colour: str) -> None:
    # The bound that stands in where all values are equal need not lie on both sides of them.
    errors = [[max(100 * (value - bounds[0]), 0.0)], [max(100 * (bounds[1] - value), 0.0)]]
    axes.errorbar([k], [100 * value], yerr=errors, fmt="o", color=colour, markersize=3.5, capsize=2.5)


def _draw_mean_and_majority(axes: Axes, point: EvaluationPoint) -> None:
    k = point.k or 1
    if point.mean_at_k is not None and point.interval_over_problems is not None:
        _draw_whisker(axes, k, point.mean_at_k, point.interval_over_problems, ORANGE)
    majority = as_finite(point.results.get("maj_at_k"))
    if majority is not None:
        axes.plot([k], [100 * majority], "D", color=BLACK, markersize=5, label=f"Maj@{k}")


def _numbers(results: Mapping[str, object], key: str) -> list[float]:
    """The list of numbers under a dotted key, empty where there is none."""
    value = setting(results, key)
    if not isinstance(value, list | tuple):
        return []
    return [float(number) for number in value if isinstance(number, int | float)]

"""Figures that stand in a paper as they are: one or two columns wide, with labels, units and legend."""

from __future__ import annotations

import io
import textwrap
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atrium.base.errors import ConfigError
from atrium.compare.arm_pairs import MACRO, MEAN
from atrium.compare.curves import GroupCurve
from atrium.compare.figures.reports import draw_differences, draw_grid, draw_rewards, draw_scores
from atrium.compare.figures.style import BLACK, MARKERS, FileKind, line_style, literal, new_figure, style
from atrium.compare.run_comparison import RunsComparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCHES = {1: 3.35, 2: 6.9}
"""The width of one column (85 mm) and of two (175 mm)."""
_CHARACTERS = {1: 54, 2: 115}
"""That a line of small text holds at these widths."""
_NAME = {1: 20, 2: 36}
"""Characters of a line of a row's name."""
_AXES = {1: 2.3, 2: 3.2}
"""Inches of height of a figure of curves without its legend."""
_MOST_SAID = 2
"""Sentences above a picture."""
_LINE = 0.155
"""Inches of height of a line of small text."""
_X_LABELS = {"step": "training step", "tokens": "generated tokens", "wall_clock": "training time (s)"}
_BANDS = {"range": "from least to greatest run", "deviation": "one standard deviation over runs"}
_LARGE, _SMALL = 8, 7
MEDIA_TYPES: Mapping[FileKind, str] = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
}
drawing = threading.Lock()
"""Matplotlib's settings belong to the process, and the dashboard answers from several threads."""


def curves_figure(
    panels: Sequence[Mapping[str, Any]],
    *,
    axis: str,
    band: str,
    columns: int,
    is_log: bool = False,
    title: str = "",
    labels: Mapping[str, str] | None = None,
) -> Figure:
    """The curves of a query's answer (`curve_queries.curves_answer`), those of several quantities together.

    `labels` are what quantities are called where there are several, by default their names. Raises
    `ConfigError` where there is no curve.
    """
    shown = [(panel, one) for panel in panels for one in panel["series"]]
    if not shown:
        raise ConfigError("there are no curves to draw: none of these runs recorded the quantity")
    first = panels[0]
    unit = "%" if first["is_share"] else first["unit"]
    is_single, known = len(panels) == 1, labels or {}
    above = title or " and ".join(panel["name"].removeprefix("evaluation/") for panel in panels)
    has_band = any(one.get("low") for _, one in shown) and not is_log
    together = "share" if first["is_share"] else "value"
    meaning = first["meaning"] if is_single else together
    names = [_label(one, "" if is_single else known.get(p["name"], p["name"]), panels) for p, one in shown]
    figure, axes = _figure(
        f"{above}\n(band: {_BANDS[band]})" if has_band and band in _BANDS else above,
        x=_X_LABELS[axis],
        y=f"{meaning} ({unit})" if unit else meaning,
        columns=columns,
        inches=_with_legend(names, columns),
    )
    for number, (panel, one) in enumerate(shown):
        look = line_style(one["place"] if is_single else number)
        _draw_series(axes, one, 100.0 if panel["is_share"] else 1.0, look, names[number], has_band=has_band)
    if is_log:
        axes.set_yscale("log")
    if axis == "step":
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, axes, columns)
    return figure


def _draw_series(
    axes: Axes, one: Mapping[str, Any], scale: float, look: tuple[str, str], name: str, *, has_band: bool
) -> None:
    """One curve with its band; few points are marked."""
    colour, dashes = look
    x_N, y_N = (np.array(one[column], dtype=np.float64) for column in ("x", "y"))
    marker = "o" if len(x_N) < 12 else ""
    num_N = np.broadcast_to(one.get("num", 1), x_N.shape)
    if (num_N < num_N.max()).any():  # where a seed has ended the mean is of fewer: dotted, and no jump
        rest_N = np.where(num_N < num_N.max(), y_N, np.nan)
        axes.plot(x_N, scale * rest_N, color=colour, linestyle=":", linewidth=1.1)
        y_N = np.where(num_N < num_N.max(), np.nan, y_N)
    [drawn] = axes.plot(x_N, scale * y_N, color=colour, linestyle=dashes, linewidth=1.3, marker=marker)
    drawn.set(label=literal(name), markersize=2.5)
    if has_band and one.get("low"):
        low_N, high_N = (scale * np.array(one[column], dtype=np.float64) for column in ("low", "high"))
        axes.fill_between(x_N, low_N, high_N, color=colour, alpha=0.14, linewidth=0)


def comparison_figure(
    comparison: RunsComparison, kind: str, *, measure: str, benchmark: str | None, columns: int
) -> Figure:
    """A figure of a comparison: `difference`, `plane`, `over_k` or `grid`; the latter two of a benchmark.

    Raises `ConfigError` for another kind or benchmark, or where there is nothing to draw.
    """
    draws: Mapping[str, Callable[[], Figure]] = {
        "difference": lambda: _differences(comparison, measure, columns),
        "plane": lambda: _plane(comparison, columns),
        "over_k": lambda: _over_k(comparison, benchmark or comparison.benchmarks[0], columns),
        "grid": lambda: _grid(comparison, benchmark or comparison.benchmarks[0], columns),
    }
    if kind not in draws or (benchmark is not None and benchmark not in comparison.benchmarks):
        raise ConfigError(f"figures are {', '.join(draws)}, of {', '.join(comparison.benchmarks)}")
    return draws[kind]()


def comparison_picture(
    comparison: RunsComparison, rewards: Mapping[str, GroupCurve | None], sentences: Sequence[str]
) -> Figure:
    """A whole comparison in one picture of two columns' width: what may be said, rewards, every seed."""
    names = [one.arm.name for one in comparison.arms]
    said = sentences if len(sentences) <= _MOST_SAID else [f"{len(sentences)} methods against {names[0]}"]
    whole = [one.replace(" %", "\N{NO-BREAK SPACE}%") for one in said]
    lines = [line for one in whole for line in textwrap.wrap(one, _CHARACTERS[2] - 15)]
    inches = max(2.2, _row_inches(names, 1) + 0.5) + _LINE * (len(lines) + len(names))
    figure = new_figure((INCHES[2], inches), layout="constrained")
    left, right = figure.subplots(1, 2)
    figure.suptitle(
        literal("\n".join(lines)), x=0.01, ha="left", fontsize=_LARGE, fontweight="bold", color=BLACK
    )
    draw_rewards(left, rewards, comparison.places)
    draw_scores(right, comparison, [(one, MEAN) for one in comparison.arms])
    lines_mean = "; line: 95 %, new problems too" if comparison.has_intervals else ""
    title = f"{comparison.title(MEAN)}, {comparison.headline} (%)\ndots: seeds{lines_mean}"
    for axes, above, x, y in (
        (left, "Training reward\nmean and range over seeds", "training step", "mean reward"),
        (right, title, "", ""),
    ):
        _style(axes, above, x, y)
    _name_rows(right, names, 1)
    _legend(figure, left, 2)
    return figure


def saved(figure: Figure, kind: FileKind) -> bytes:
    """The figure as a file; equal figures give equal files. Fonts are in it, as outlines in SVG."""
    from matplotlib import rc_context

    dates = {"svg": "Date", "pdf": "CreationDate"}
    settings: Any = {"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "atrium"}
    file = io.BytesIO()
    with rc_context(settings):
        metadata = {dates[kind]: None} if kind in dates else None
        figure.savefig(file, format=kind, dpi=300, metadata=metadata)
    return file.getvalue()


def _differences(comparison: RunsComparison, measure: str, columns: int) -> Figure:
    names = [arm.arm.name for arm in comparison.arms[1:]]
    title = comparison.title(measure)
    where = MACRO if len(comparison.benchmarks) > 1 else comparison.headline
    meaning = "\n(thick: 95 % over seeds; thin: and over problems)" if comparison.has_intervals else ""
    figure, axes = _figure(
        f"Difference in {title}, {where}{meaning}",
        x=f"points of {title} against {comparison.arms[0].arm.name}",
        columns=columns,
        inches=1.1 + _row_inches(names, columns),
    )
    draw_differences(axes, comparison, measure)
    _name_rows(axes, names, columns)
    return figure


def _grid(comparison: RunsComparison, benchmark: str, columns: int) -> Figure:
    names = [one.arm.name for one in comparison.arms]
    num = comparison.num_problems[benchmark]
    figure, axes = _figure(
        f"Who solves what, {benchmark}\n(darker: more answers are correct)",
        x=f"{num} problems, the easiest on the left",
        columns=columns,
        inches=0.8 + _row_inches(names, columns),
    )
    draw_grid(axes, comparison, benchmark)
    _name_rows(axes, names, columns)
    return figure


def _over_k(comparison: RunsComparison, benchmark: str, columns: int) -> Figure:
    figure, axes = _figure(
        f"Pass@k, {benchmark}\n(dotted: Mean@K)",
        x="samples per problem k",
        y="problems solved by one of k (%)",
        columns=columns,
        inches=_with_legend(list(comparison.outcomes[benchmark]), columns),
    )
    places = comparison.places
    for name, table in comparison.outcomes[benchmark].items():
        colour, dashes = line_style(places[name])
        pass_k = 100.0 * table.pass_up_to(comparison.k).mean(axis=(0, 1))
        axes.plot(
            range(1, comparison.k + 1), pass_k, color=colour, linestyle=dashes, linewidth=1.3, marker="o",
            markersize=2.5, label=literal(name),
        )  # fmt: skip
        axes.axhline(100.0 * table.mean_at_k().mean(), color=colour, linewidth=0.8, linestyle=":")
    axes.set_xscale("log", base=2)
    ks = sorted({2**power for power in range(comparison.k.bit_length())} | {comparison.k})
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.minorticks_off()
    _legend(figure, axes, columns)
    return figure


def _plane(comparison: RunsComparison, columns: int) -> Figure:
    windows = {one.arm.name: one.arm.window for one in comparison.arms}
    points = {name: one for name, one in windows.items() if one is not None and np.isfinite(one.upper)}
    if not points:
        raise ConfigError("none of these methods has a constant window of two sides")
    labels = [f"{name}: [{one.lower:.3f}, {one.upper:.3f}]" for name, one in points.items()]
    figure, axes = _figure(
        "Windows [l, u] of the ratio",
        x="lower bound l",
        y="upper bound u",
        columns=columns,
        inches=_with_legend(labels, columns),
    )
    places = comparison.places
    for number, (label, (name, window)) in enumerate(zip(labels, points.items(), strict=True)):
        colour, _ = line_style(places[name])
        axes.plot(
            window.lower, window.upper, color=colour, marker=MARKERS[number % len(MARKERS)], markersize=5,
            linestyle="", label=literal(label),
        )  # fmt: skip
    _legend(figure, axes, columns)
    return figure


def _figure(title: str, *, x: str, y: str = "", columns: int, inches: float) -> tuple[Figure, Axes]:
    """An empty figure of so many columns and inches of height. Long texts take several lines."""
    figure = new_figure((INCHES[columns], inches), layout="constrained")
    axes = figure.add_subplot()
    most = _CHARACTERS[columns] * _SMALL // _LARGE - 6
    above, below, beside = (
        literal("\n".join(textwrap.fill(line, length) for line in text.splitlines()))
        for text, length in ((title, most), (x, most), (y, 34))
    )
    _style(axes, above, below, beside)
    return figure, axes


def _style(axes: Axes, title: str, x: str, y: str) -> None:
    """Texts in the sizes of papers, black."""
    style(axes)
    axes.set_title(title, fontsize=_LARGE, loc="left", color=BLACK)
    axes.set_xlabel(x, fontsize=_LARGE, color=BLACK)
    axes.set_ylabel(y, fontsize=_LARGE, color=BLACK)
    axes.tick_params(labelsize=_SMALL, colors=BLACK)


def _folded(name: str, columns: int) -> str:
    return textwrap.fill(name, _NAME[columns])


def _row_inches(names: Sequence[str], columns: int) -> float:
    """The height of rows of these names, as tall as the longest name."""
    num_lines = max(1 + _folded(name, columns).count("\n") for name in names)
    return len(names) * max(num_lines * _LINE, 0.24)


def _name_rows(axes: Axes, names: Sequence[str], columns: int) -> None:
    axes.set_yticks(range(len(names)), [literal(_folded(name, columns)) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _legend_columns(labels: Sequence[str], columns: int) -> int:
    longest = max(map(len, labels)) + 8
    return max(min(_CHARACTERS[columns] // longest, len(labels)), 1)


def _with_legend(labels: Sequence[str], columns: int) -> float:
    """The height of a figure of curves with a legend of these labels."""
    return _AXES[columns] + _LINE * -(-len(labels) // _legend_columns(labels, columns))


def _legend(figure: Figure, axes: Axes, columns: int) -> None:
    """The legend below the axes, in as many columns as the labels leave room for."""
    handles, labels = axes.get_legend_handles_labels()
    ncols = _legend_columns(labels, columns)
    figure.legend(handles, labels, loc="outside lower center", ncols=ncols, frameon=False, fontsize=_SMALL)


def _label(one: Mapping[str, Any], quantity: str, panels: Sequence[Mapping[str, Any]]) -> str:
    """A group's name with its number of runs; of several quantities theirs, alone for a single group."""
    num = one["num"] if isinstance(one["num"], int) else max(one["num"])
    label = f"{one['label']} (n = {num})" if num > 1 else str(one["label"])
    if not quantity:
        return label
    return quantity if all(len(panel["series"]) < 2 for panel in panels) else f"{quantity}, {label}"

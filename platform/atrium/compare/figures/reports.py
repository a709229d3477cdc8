"""Figures of a comparison as inline SVG: differences and scores by arm, Pass@k, windows, who solves what.

`inline_svg` escapes all text, and lets neutral colours follow the page's light or dark look.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from atrium.compare.curves import GroupCurve
from atrium.compare.figures.style import (
    BLACK,
    BLUE,
    FAINT,
    GREY,
    inline_svg,
    line_style,
    literal,
    merged,
    new_figure,
    spread,
    style,
    tip,
)
from atrium.compare.run_comparison import MEASURES, ArmScores, RunsComparison
from atrium.compare.verdicts import signed
from atrium.method.windows import Window
from atrium.stats.crossed import Values, interval_of
from atrium.stats.estimates import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _ROW, _BELOW = 8.6, 0.4, 0.5  # inches
_MAX_NAME, _MAX_LEGEND, _MAX_COLUMNS = 34, 26, 600
_SAME = 1e-9


def differences_svg(comparison: RunsComparison) -> str:
    """Each arm's difference from the baseline: thick for this exam, thin for another exam."""
    label = f"points of {comparison.title('mean')} against {comparison.arms[0].arm.name}"
    figure, axes = _rows([arm.arm.name for arm in comparison.arms[1:]], label)
    draw_differences(axes, comparison, "mean")
    return inline_svg(figure, "Differences from the baseline with their intervals")


def draw_differences(axes: Axes, comparison: RunsComparison, measure: str) -> list[str]:
    """Draw the differences by a measure on what verdicts rest on, a row each; the candidates' names."""
    names = [arm.arm.name for arm in comparison.arms[1:]]
    pairs = [comparison.pair(name, measure, comparison.headline) for name in names]
    ends = [0.0]
    places = comparison.places
    for row, pair in enumerate(pairs):
        found, (colour, _) = pair.comparison.difference, line_style(places[pair.candidate])
        ends += [found.value, *_bar(axes, row, pair.another_exam, linewidth=1.6, colour=colour)]
        ends += _bar(axes, row, pair.this_exam, linewidth=5.0, alpha=0.45, colour=colour)
        text = f"{pair.candidate}: {signed(found.value)} points, {pair.design}"
        axes.plot(100 * found.value, row, "o", color=colour, markersize=6.5, gid=tip(text))
    axes.axvline(0.0, color=GREY, linewidth=0.8, linestyle="--")
    axes.set_xlim(*(100 * end for end in _with_room(ends)))
    return names


def scores_svg(comparison: RunsComparison) -> str:
    """Each arm's scores, every seed a dot: Mean@K filled, Pass@K open, with the interval for another exam."""
    rows = [(a, m) for a in comparison.arms for m in MEASURES if m == "mean" or comparison.k > 1]
    names = [f"{arm.arm.name}, {comparison.title(measure)}" for arm, measure in rows]
    figure, axes = _rows(names, f"percent correct, {comparison.headline}")
    draw_scores(axes, comparison, rows)
    return inline_svg(figure, "Scores of every seed")


def draw_scores(
    axes: Axes,
    comparison: RunsComparison,
    rows: Sequence[tuple[ArmScores, str]],
) -> None:
    """Draw a row for each arm and measure: every seed, the mean, and the interval for another exam."""
    ends: list[float] = []
    places = comparison.places
    for row, (arm, measure) in enumerate(rows):
        mean = arm.scores[measure][comparison.headline]
        colour, _ = line_style(places[arm.arm.name])
        ends += [
            *mean.value_S,
            *_bar(axes, row, interval_of(mean.another_exam), linewidth=1.6, colour=colour),
        ]
        for seed, value in zip(arm.arm.seeds, mean.value_S, strict=True):
            text = tip(f"seed {seed}: {100 * value:.1f} %")
            fill = colour if measure == "mean" else "none"
            axes.plot(100 * value, row, "o", color=colour, markerfacecolor=fill, alpha=0.7, gid=text)
        axes.plot(100 * mean.value, row, "|", color=BLACK, markersize=15, markeredgewidth=1.4)
    low, high = _with_room(ends)
    axes.set_xlim(100 * max(low, -0.01), 100 * min(high, 1.01))


def pass_at_k_svg(comparison: RunsComparison) -> str:
    """Pass@k against k, one curve per arm, k on a logarithmic axis; empty for a single sample.

    Mean@K, which more samples only make surer, is dotted.
    """
    if comparison.k < 2:
        return ""
    figure, axes = _beside_legend([arm.arm.name for arm in comparison.arms])
    style(axes, x="k", y="%")
    places = comparison.places
    for arm in comparison.arms:
        colour, dashes = line_style(places[arm.arm.name])
        values = [100 * value for value in arm.pass_at]
        [curve] = axes.plot(range(1, comparison.k + 1), values, color=colour, linestyle=dashes, linewidth=1.7)
        curve.set(label=literal(_folded(arm.arm.name, _MAX_LEGEND)), gid=tip(arm.arm.name))
        mean = 100 * arm.scores["mean"][comparison.headline].value
        axes.axhline(mean, color=colour, linewidth=1.0, linestyle=":")
    axes.set_xscale("log", base=2)
    ks = sorted({2**power for power in range(comparison.k.bit_length())} | {comparison.k})
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.minorticks_off()
    figure.legend(loc="upper left", frameon=False, fontsize=9, labelcolor=BLACK)
    return inline_svg(figure, "Pass@k against k")


def rewards_svg(rewards: Mapping[str, GroupCurve | None], places: Mapping[str, int]) -> str:
    """Each arm's mean reward by step, with the range over its seeds, in the colours of its place."""
    figure, axes = _beside_legend(list(rewards))
    style(axes, x="training step", y="mean reward")
    draw_rewards(axes, rewards, places)
    figure.legend(loc="upper left", frameon=False, fontsize=9, labelcolor=BLACK)
    return inline_svg(figure, "Training reward by step")


def draw_rewards(axes: Axes, rewards: Mapping[str, GroupCurve | None], places: Mapping[str, int]) -> None:
    """Draw each arm's mean reward by step, with the range over its seeds, in the colours of its place."""
    from matplotlib.ticker import MaxNLocator

    for name, mean in rewards.items():
        if mean is None:
            continue
        colour, dashes = line_style(places[name])
        [drawn] = axes.plot(mean.x, mean.mean, color=colour, linestyle=dashes, linewidth=1.7)
        drawn.set(label=literal(_folded(name, _MAX_LEGEND)), gid=tip(name))
        if mean.low is not None and mean.high is not None:
            axes.fill_between(mean.x, mean.low, mean.high, color=colour, alpha=0.13, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def plane_svg(comparison: RunsComparison) -> str:
    """Each arm's window as a point (l, u), arms with equal windows as one; empty where none has two sides."""
    points = _points(comparison)
    if not points:
        return ""
    height = max(3.6, 0.17 * len(points) + _BELOW + 0.2)
    figure = new_figure((_WIDTH, height))
    axes = figure.add_axes((0.08, _BELOW / height, 0.52, 1.0 - (_BELOW + 0.15) / height))
    style(axes, x="lower bound l", y="upper bound u")
    lows, highs = (
        _with_room([getattr(window, side) for window in points.values()], share=0.15, least=0.02)
        for side in ("lower", "upper")
    )
    axes.set_xlim(max(lows[0], 0.0), lows[1])
    axes.set_ylim(max(highs[0], 0.0), highs[1])
    bottom, top = axes.get_ylim()
    gap = 0.17 / (height - _BELOW - 0.15) * (top - bottom)
    upwards = spread([window.upper for window in points.values()], gap=gap, least=bottom)
    places = spread([-place for place in upwards], gap=gap, least=-top)
    for (name, window), place in zip(points.items(), places, strict=True):
        at = tip(f"{name}: [{window.lower:.5g}, {window.upper:.5g}]")
        axes.plot(window.lower, window.upper, "o", color=BLUE, markersize=7, clip_on=False, zorder=4, gid=at)
        axes.annotate(
            literal(_shortened(name, 46)),
            (window.lower, window.upper),
            (1.03, -place),
            textcoords=axes.get_yaxis_transform(),
            color=BLACK,
            fontsize=9,
            va="center",
            arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 0.8},
        )
    return inline_svg(figure, "Arms on the (l, u) plane")


def without_point(comparison: RunsComparison) -> list[str]:
    """The arms that `plane_svg` leaves out, which have no constant window of two sides."""
    return [one.arm.name for one in comparison.arms if not _has_point(one.arm.window)]


def grid_svg(comparison: RunsComparison, benchmark: str) -> str:
    """The share of correct answers by arm and problem, over seeds and samples, the easiest problem first.

    Beyond 600 problems a column is the mean of neighbours.
    """
    label = f"{comparison.num_problems[benchmark]} problems, the easiest on the left"
    figure, axes = _rows(list(comparison.outcomes[benchmark]), label, row=0.25)
    draw_grid(axes, comparison, benchmark)
    return inline_svg(figure, f"Who solves what, {benchmark}")


def draw_grid(axes: Axes, comparison: RunsComparison, benchmark: str) -> None:
    """Draw the share of correct answers by arm, a row each, and problem."""
    from matplotlib.colors import LinearSegmentedColormap

    by_arm = comparison.outcomes[benchmark]
    share_AP = np.stack([table.mean_at_k().mean(axis=0) for table in by_arm.values()])
    share_AP = share_AP[:, np.argsort(-share_AP.mean(axis=0), kind="stable")]
    colours = LinearSegmentedColormap.from_list("shares", [(BLUE, 0.04), (BLUE, 1.0)])
    for row, share_C in enumerate(_columns(share_AP)):
        edges = np.arange(len(share_C) + 1)
        axes.pcolormesh(edges, [row - 0.42, row + 0.42], share_C[None], cmap=colours, vmin=0.0, vmax=1.0)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)


def _beside_legend(names: Sequence[str]) -> tuple[Figure, Axes]:
    """A figure with room for a legend of these names on the left of its axes."""
    num_lines = sum(1 + _folded(name, _MAX_LEGEND).count("\n") for name in names)
    height = max(3.2, 0.15 * num_lines + 0.09 * len(names) + 0.2)
    figure = new_figure((_WIDTH, height))
    return figure, figure.add_axes((0.33, 0.5 / height, 0.64, 1.0 - 0.65 / height))


def _rows(names: Sequence[str], label: str, row: float = _ROW) -> tuple[Figure, Axes]:
    """A figure with a named row for each entry, the first on top."""
    names = [_folded(name, _MAX_NAME) for name in names]
    row = max(row, 0.17 * max(1 + name.count("\n") for name in names))
    height = row * len(names) + _BELOW + 0.1
    figure = new_figure((_WIDTH, height))
    figure.subplots_adjust(left=0.27, right=0.97, bottom=_BELOW / height, top=1.0 - 0.1 / height)
    axes = figure.add_subplot()
    style(axes, x=literal(label))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_yticks(range(len(names)), [literal(name) for name in names], fontsize=9)
    for text, name in zip(axes.get_yticklabels(), names, strict=True):
        text.set(color=BLACK, gid=tip(name.replace("\n", " ")))
    axes.set_ylim(len(names) - 0.5, -0.5)
    return figure, axes


def _bar(
    axes: Axes,
    row: int,
    interval: Interval | None,
    *,
    linewidth: float,
    alpha: float = 1.0,
    colour: str,
) -> tuple[float, ...]:
    """Draw an interval, if it is known, and give its ends."""
    if interval is None:
        return ()
    ends = [100 * end for end in interval]
    axes.plot(ends, [row, row], color=colour, linewidth=linewidth, alpha=alpha, solid_capstyle="butt")
    return interval


def _with_room(values: Sequence[float], share: float = 0.06, least: float = 0.002) -> Interval:
    room = max(share * (max(values) - min(values)), least)
    return Interval(min(values) - room, max(values) + room)


def _folded(name: str, width: int) -> str:
    """A name in as many lines as it takes, broken between words."""
    return "\n".join(textwrap.wrap(name, width))


def _shortened(text: str, width: int) -> str:
    """The text, its end cut off where it is too long."""
    return text if len(text) <= width else text[: width - 1] + "…"


def _points(comparison: RunsComparison) -> dict[str, Window]:
    windows = {one.arm.name: one.arm.window for one in comparison.arms}
    points = {name: window for name, window in windows.items() if window is not None and _has_point(window)}

    def are_same(one: Window, other: Window) -> bool:
        return max(abs(one.lower - other.lower), abs(one.upper - other.upper)) < _SAME

    return merged(points, are_same, " = ")


def _has_point(window: Window | None) -> bool:
    return window is not None and math.isfinite(window.upper)


def _columns(share_AP: Values) -> Values:
    num_problems = share_AP.shape[1]
    if num_problems <= _MAX_COLUMNS:
        return share_AP
    starts = np.arange(_MAX_COLUMNS) * num_problems // _MAX_COLUMNS
    sizes = np.diff(starts, append=num_problems)
    means: Values = np.add.reduceat(share_AP, starts, axis=1) / sizes
    return means

"""Figures of a comparison as inline SVG: differences with both intervals, scores by seed, Pass@k by k.

Colours come from the page's style sheet, so that figures follow its light or dark look; text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from atrium.compare.crossed import Bounds, Uncertainty
from atrium.compare.report_tables import headline_pair, signed
from atrium.compare.run_comparison import MEASURES, RunsComparison

WIDTH, LEFT, RIGHT, _ROW, _TOP, _BOTTOM = 860.0, 230.0, 30.0, 44.0, 12.0, 46.0
_NUM_TICKS = 6
_MAX_NAME = 34
_NUM_HUES = 6


def differences_svg(comparison: RunsComparison) -> str:
    """Each arm's difference from the baseline: thick for this exam, thin for another exam.

    The band around zero is what the design cannot detect.
    """
    pairs = [headline_pair(comparison, arm) for arm in comparison.arms[1:]]
    found = [pair.comparison for pair in pairs]
    ends = [0.0, *(one.difference.value for one in found)]
    for one in found:
        for known in (one.difference.another_exam, one.difference.this_exam):
            ends += [] if known is None else list(known.interval)
    scale = _Scale(ends, num_rows=len(pairs))
    parts = [scale.axis("points of " + comparison.title("mean") + f" against {comparison.arms[0].arm.name}")]
    for row, (pair, one) in enumerate(zip(pairs, found, strict=True)):
        y = scale.y(row)
        if one.detectable_another_exam is not None:
            low, high = (scale.x(sign * one.detectable_another_exam) for sign in (-1.0, 1.0))
            parts.append(
                f'<rect class="undetected" x="{low:.1f}" y="{y - 15:.1f}" '
                f'width="{high - low:.1f}" height="30"/>'
            )
        parts.append(scale.name(row, pair.candidate))
        parts.append(_bar(scale, y, one.difference.another_exam, "thin"))
        parts.append(_bar(scale, y, one.difference.this_exam, "thick"))
        x = scale.x(one.difference.value)
        parts.append(
            f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="5">'
            f"<title>{escape(pair.candidate)}: {signed(one.difference.value)} points</title></circle>"
        )
    zero = scale.x(0.0)
    parts.append(
        f'<line class="zero" x1="{zero:.1f}" x2="{zero:.1f}" y1="{_TOP}" y2="{scale.height - _BOTTOM:.1f}"/>'
    )
    return scale.figure(parts, "Differences from the baseline with their intervals")


def scores_svg(comparison: RunsComparison) -> str:
    """Each arm's scores, every seed a dot: Mean@K filled, Pass@K open, with the interval for another exam."""
    measures = [m for m in MEASURES if m == "mean" or comparison.k > 1]
    rows = [
        (arm, arm.scores[measure][comparison.headline], measure)
        for arm in comparison.arms
        for measure in measures
    ]
    ends: list[float] = []
    for _, mean, _ in rows:
        ends += [*mean.value_S, *(mean.another_exam.interval if mean.another_exam else ())]
    scale = _Scale(ends, num_rows=len(rows), limits=Bounds(0.0, 1.0))
    parts = [scale.axis(f"percent correct, {comparison.headline}")]
    for row, (arm, mean, measure) in enumerate(rows):
        y = scale.y(row)
        parts.append(scale.name(row, f"{arm.arm.name}, {comparison.title(measure)}"))
        parts.append(_bar(scale, y, mean.another_exam, "thin"))
        for seed, value in zip(arm.arm.seeds, mean.value_S, strict=True):
            parts.append(
                f'<circle class="seed {measure}" cx="{scale.x(value):.1f}" cy="{y:.1f}" r="4.5">'
                f"<title>seed {seed}: {100 * value:.1f} %</title></circle>"
            )
        parts.append(
            f'<line class="mean" x1="{scale.x(mean.value):.1f}" x2="{scale.x(mean.value):.1f}" '
            f'y1="{y - 11:.1f}" y2="{y + 11:.1f}"/>'
        )
    return scale.figure(parts, "Scores of every seed")


def pass_at_k_svg(comparison: RunsComparison) -> str:
    """Pass@k against k, one curve per arm, k on a logarithmic axis; empty for a single sample.

    Mean@K, which more samples only make surer, is dotted.
    """
    if comparison.k < 2:
        return ""
    height, bottom = 320.0, 320.0 - _BOTTOM
    means = [arm.scores["mean"][comparison.headline].value for arm in comparison.arms]
    values = [*means, *(value for arm in comparison.arms for value in arm.pass_at)]
    room = max(0.06 * (max(values) - min(values)), 0.002)
    low, high = max(min(values) - room, 0.0), min(max(values) + room, 1.0)

    def x(k: int) -> float:
        return LEFT + math.log(k) / math.log(comparison.k) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - _TOP)

    parts = []
    for tick in ticks(100.0 * low, 100.0 * high):
        at = y(tick / 100.0)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="name" x="{LEFT - 10}" y="{at + 4:.1f}">{tick:g} %</text>'
        )
    shown_k = sorted({2**power for power in range(comparison.k.bit_length())} | {comparison.k})
    parts += [f'<text class="tick" x="{x(k):.1f}" y="{bottom + 17:.1f}">{k}</text>' for k in shown_k]
    for number, arm in enumerate(comparison.arms):
        points = " ".join(f"{x(k):.1f},{y(value):.1f}" for k, value in enumerate(arm.pass_at, start=1))
        hue, name, place = number % _NUM_HUES, escape(arm.arm.name), _TOP + 14.0 + 20.0 * number
        parts.append(
            f'<polyline class="curve hue{hue}" points="{points}"><title>{name}</title></polyline>'
            f'<line class="curve dotted hue{hue}" x1="{LEFT}" x2="{WIDTH - RIGHT}" '
            f'y1="{y(means[number]):.1f}" y2="{y(means[number]):.1f}"/>'
            f'<line class="curve hue{hue}" x1="8" x2="30" y1="{place - 4:.1f}" y2="{place - 4:.1f}"/>'
            f'<text x="36" y="{place:.1f}">{escape(shortened(arm.arm.name, 22))}</text>'
        )
    parts.append(f'<text class="label" x="{(LEFT + WIDTH) / 2:.1f}" y="{bottom + 38:.1f}">k</text>')
    return svg(parts, height, "Pass@k against k")


class _Scale:
    """Values to places: one row per arm, one linear axis with round ticks."""

    def __init__(self, values: Sequence[float], *, num_rows: int, limits: Bounds | None = None) -> None:
        low, high = min(values), max(values)
        room = max(0.06 * (high - low), 0.002)
        low, high = low - room, high + room
        if limits is not None:
            low, high = max(low, limits.low - 0.01), min(high, limits.high + 0.01)
        self._low, self._high = low, high
        self.height = _TOP + num_rows * _ROW + _BOTTOM

    def x(self, value: float) -> float:
        share = (min(max(value, self._low), self._high) - self._low) / (self._high - self._low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, row: int) -> float:
        return _TOP + (row + 0.5) * _ROW

    def name(self, row: int, text: str) -> str:
        shown = shortened(text, _MAX_NAME)
        return (
            f'<text class="name" x="{LEFT - 14:.0f}" y="{self.y(row) + 4:.1f}">'
            f"{escape(shown)}<title>{escape(text)}</title></text>"
        )

    def axis(self, label: str) -> str:
        bottom = self.height - _BOTTOM
        parts = []
        for tick in ticks(100.0 * self._low, 100.0 * self._high):
            x = self.x(tick / 100.0)
            parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom:.1f}"/>')
            parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 17:.1f}">{tick:g}</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2.0
        parts.append(f'<text class="label" x="{middle:.1f}" y="{bottom + 38:.1f}">{escape(label)}</text>')
        return "".join(parts)

    def figure(self, parts: Sequence[str], label: str) -> str:
        return svg(parts, self.height, label)


def svg(parts: Sequence[str], height: float, label: str) -> str:
    """A figure of the report's width."""
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def shortened(text: str, width: int) -> str:
    """The text, its end cut off where it is too long."""
    return text if len(text) <= width else text[: width - 1] + "…"


def _bar(scale: _Scale, y: float, known: Uncertainty | None, kind: str) -> str:
    if known is None:
        return ""
    low, high = (scale.x(end) for end in known.interval)
    return f'<line class="{kind}" x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'


def ticks(low: float, high: float) -> list[float]:
    """Round numbers between two ends."""
    raw = (high - low) / _NUM_TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= raw)
    first = math.ceil(low / step)
    found = [round(step * index, 10) for index in range(first, first + 2 * _NUM_TICKS + 2)]
    return [tick for tick in found if low <= tick <= high]

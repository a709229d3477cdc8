"""Figures of a comparison as inline SVG: the arms on the (l, u) plane, and which arm solves which problem.

As in `report_figures`, colours come from the page's style sheet and text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import pairwise

import numpy as np

from atrium.compare.crossed import Values
from atrium.compare.report_figures import LEFT, RIGHT, WIDTH, shortened, svg, ticks
from atrium.compare.run_comparison import RunsComparison
from atrium.windows import Window

_HEIGHT, _TOP, _BOTTOM = 360.0, 16.0, 46.0
_PLANE_LEFT, _PLANE_RIGHT, _LABEL_GAP = 60.0, WIDTH - 250.0, 17.0
_SAME = 1e-9
_ROW, _MAX_COLUMNS = 26.0, 600


def plane_svg(comparison: RunsComparison) -> str:
    """Each arm's window as a point (l, u), arms with equal windows as one; empty where none has two sides."""
    points = _points(comparison)
    if not points:
        return ""
    height = max(_HEIGHT, len(points) * _LABEL_GAP + _TOP + _BOTTOM)
    lows, highs = (
        _reach([getattr(window, side) for window in points.values()]) for side in ("lower", "upper")
    )
    x, y = _axis(lows, _PLANE_LEFT, _PLANE_RIGHT), _axis(highs, height - _BOTTOM, _TOP)
    parts = [*_frame(lows, highs, x, y, height - _BOTTOM)]
    places = _apart([y(window.upper) for window in points.values()], height - 6.0)
    for (name, window), place in zip(points.items(), places, strict=True):
        at = f"{name}: [{window.lower:.5g}, {window.upper:.5g}]"
        cx, cy = x(window.lower), y(window.upper)
        parts.append(
            f'<line class="grid" x1="{cx:.1f}" y1="{cy:.1f}" x2="{_PLANE_RIGHT + 12}" y2="{place:.1f}"/>'
            f'<circle class="mark" cx="{cx:.1f}" cy="{cy:.1f}" r="6"><title>{escape(at)}</title></circle>'
            f'<text x="{_PLANE_RIGHT + 16}" y="{place + 4:.1f}">{escape(shortened(name, 32))}</text>'
        )
    return svg(parts, height, "Arms on the (l, u) plane")


def without_point(comparison: RunsComparison) -> list[str]:
    """The arms that `plane_svg` leaves out, which have no constant window of two sides."""
    return [one.arm.name for one in comparison.arms if not _has_point(one.arm.window)]


def grid_svg(comparison: RunsComparison, benchmark: str) -> str:
    """The share of correct answers by arm and problem, over seeds and samples, the easiest problem first.

    Beyond 600 problems a column is the mean of neighbours.
    """
    by_arm = comparison.outcomes[benchmark]
    share_AP = np.stack([table.mean_at_k().mean(axis=0) for table in by_arm.values()])
    share_AP = share_AP[:, np.argsort(-share_AP.mean(axis=0), kind="stable")]
    share_AC = _columns(share_AP)
    width = (WIDTH - LEFT - RIGHT) / share_AC.shape[1]
    parts = []
    for row, name in enumerate(by_arm):
        y = _TOP + row * _ROW
        parts.append(
            f'<text class="name" x="{LEFT - 14:.0f}" y="{y + 16:.1f}">{escape(shortened(name, 34))}'
            f"<title>{escape(name)}</title></text>"
        )
        parts += [
            f'<rect class="cell" x="{LEFT + column * width:.2f}" y="{y:.1f}" width="{width:.2f}" '
            f'height="{_ROW - 4:.0f}" fill-opacity="{max(share, 0.04):.2f}"/>'
            for column, share in enumerate(share_AC[row])
        ]
    bottom = _TOP + len(by_arm) * _ROW
    middle = (LEFT + WIDTH - RIGHT) / 2.0
    parts.append(
        f'<text class="label" x="{middle:.1f}" y="{bottom + 16:.1f}">{share_AP.shape[1]} problems, the '
        "easiest on the left</text>"
    )
    return svg(parts, bottom + 26.0, f"Who solves what, {benchmark}")


def _points(comparison: RunsComparison) -> dict[str, Window]:
    found: dict[str, Window] = {}
    for one in comparison.arms:
        window = one.arm.window
        if window is None or not _has_point(window):
            continue
        for name, known in found.items():
            if abs(known.lower - window.lower) < _SAME and abs(known.upper - window.upper) < _SAME:
                found = {f"{name} = {one.arm.name}" if key == name else key: w for key, w in found.items()}
                break
        else:
            found[one.arm.name] = window
    return found


def _has_point(window: Window | None) -> bool:
    return window is not None and math.isfinite(window.upper)


def _reach(values: Sequence[float]) -> tuple[float, float]:
    room = max(0.15 * (max(values) - min(values)), 0.02)
    return max(min(values) - room, 0.0), max(values) + room


def _axis(values: tuple[float, float], start: float, end: float) -> Callable[[float], float]:
    low, high = values
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _frame(
    lows: tuple[float, float],
    highs: tuple[float, float],
    x: Callable[[float], float],
    y: Callable[[float], float],
    bottom: float,
) -> Iterator[str]:
    """Grid lines, ticks and names of both axes."""
    for tick in ticks(*lows):
        yield f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_TOP}" y2="{bottom}"/>'
        yield f'<text class="tick" x="{x(tick):.1f}" y="{bottom + 17}">{tick:g}</text>'
    for tick in ticks(*highs):
        at = f"{y(tick):.1f}"
        yield f'<line class="grid" x1="{_PLANE_LEFT}" x2="{_PLANE_RIGHT}" y1="{at}" y2="{at}"/>'
        yield f'<text class="name" x="{_PLANE_LEFT - 10}" y="{y(tick) + 4:.1f}">{tick:g}</text>'
    middle = (_PLANE_LEFT + _PLANE_RIGHT) / 2.0
    yield f'<text class="label" x="{middle}" y="{bottom + 38}">lower bound l; upwards: upper bound u</text>'


def _apart(heights: Sequence[float], lowest: float) -> list[float]:
    """The heights of labels, moved down where they would cover the one above, and up from the lower edge."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed = list(heights)
    for above, place in pairwise(order):
        placed[place] = max(placed[place], placed[above] + _LABEL_GAP)
    for place in reversed(order):
        placed[place] = min(placed[place], lowest)
        lowest = placed[place] - _LABEL_GAP
    return placed


def _columns(share_AP: Values) -> Values:
    num_problems = share_AP.shape[1]
    if num_problems <= _MAX_COLUMNS:
        return share_AP
    starts = np.arange(_MAX_COLUMNS) * num_problems // _MAX_COLUMNS
    sizes = np.diff(starts, append=num_problems)
    means: Values = np.add.reduceat(share_AP, starts, axis=1) / sizes
    return means

"""The figures of a sweep as data: curve, ranking, planned contrasts and families.

Whiskers are 95 % t intervals over seeds. Scores are those on the validation problems that selected the
settings. Figures without data, such as a curve of a sweep that varies two settings, are left out. For
optimization histories and Pareto fronts, use optuna-dashboard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from atrium.base.metrics import WORKED_FRAC
from atrium.document.document import (
    Axis,
    Bounds,
    Figure,
    Intervals,
    Lines,
    Mark,
    Picture,
    Series,
)
from atrium.document.formatting import value_text
from atrium.document.palette import places
from atrium.method.windows import Window, share_after_batch
from atrium.stats.seeds import Score
from atrium.sweep.analysis import Setting, SettingCurve, Start, SweepReport
from atrium.sweep.contrasts import ArmCurve
from atrium.sweep.families import FamilyCurve

_STEPS = Axis(title="training step", unit="count")
_VALIDATION = Axis(title="score on validation problems, %", unit="share")
_SHARES = tuple(np.linspace(0.0, 1.0, 101).tolist())
_MAX_RANKED = 20
_BLUE, _ORANGE, _PURPLE = 0, 1, 3


def sweep_pictures(report: SweepReport) -> list[Picture]:
    """Return the pictures for which the report has data. The most important picture comes first."""
    makers: Iterable[Callable[[SweepReport], Picture | None]] = (
        curve_picture,
        ranking_picture,
        outcome_picture,
        batch_picture,
        family_picture,
    )
    return [picture for make in makers if (picture := make(report)) is not None]


def curve_picture(report: SweepReport) -> Picture | None:
    """Return the picture of scores against the only varied setting, or None without such a curve.

    There is a curve only if the search varies exactly one setting, over a range, and has scores. Dotted lines
    show the scores before training.
    """
    curves = [curve for curve in report.curves if _known(curve.points)]
    if not any(curve.stage == "search" for curve in curves):
        return None
    start = report.start
    note = "Means with 95 % intervals over seeds" + ("" if start is None else "; dotted: before training")
    return _picture(report, "curve", note, [_setting_curve(report, curve, start) for curve in curves])


def _setting_curve(report: SweepReport, curve: SettingCurve, start: Start | None) -> Lines:
    points = _known(curve.points)
    x = tuple(map(curve.x, points))
    k = points[0].k
    marks = () if start is None else ((start.pass_at_k, _ORANGE), (start.mean_at_k, _BLUE))
    return Lines(
        key=f"curve/{curve.stage}",
        title=_label(report, curve.stage),
        x=Axis(title=_label(report, curve.key), scale="log" if curve.log else "linear"),
        y=_VALIDATION,
        series=(
            _whiskers(f"Pass@{k}", x, [point.pass_at_k for point in points], _ORANGE),
            _whiskers(f"Mean@{k}", x, [point.mean_at_k for point in points], _BLUE),
        ),
        marks=tuple(Mark(y=value, place=place) for value, place in marks),
    )


def _whiskers(name: str, x: tuple[float, ...], scores: Sequence[Score], place: int) -> Series:
    spans = [one.interval or (one.value, one.value) for one in scores]
    return Series(
        name=name,
        x=x,
        y=tuple(one.value for one in scores),
        low=tuple(low for low, _ in spans),
        high=tuple(high for _, high in spans),
        place=place,
        has_points=True,
        has_whiskers=True,
    )


def ranking_picture(report: SweepReport) -> Picture | None:
    """Return the picture of the best 20 settings, from best to worst, or None without scores.

    Each seed is a dot.
    """
    settings = _known(report.ranking)[:_MAX_RANKED]
    if not settings:
        return None
    rows = tuple(
        Bounds(
            name=_label(report, one.name) + ("" if one.trial.is_complete else f" ({one.trial.state_name})"),
            place=_BLUE if one.trial.is_complete else _PURPLE,
            value=one.mean_at_k.value,
            outer=one.mean_at_k.interval,
            dots=tuple(seed.mean_at_k for seed in one.trial.results.values() if seed.mean_at_k is not None),
        )
        for one in settings
    )
    axis = Axis(title=f"Mean@{settings[0].k} on validation problems, %", unit="share")
    figure = Intervals(key="ranking", title="Settings, best first", x=axis, rows=rows)
    return _picture(report, "ranking", "Means with 95 % intervals over seeds; dots: seeds", [figure])


def outcome_picture(report: SweepReport) -> Picture | None:
    """Return the picture of each outcome's metric by step, or None without curves.

    It shows means over seeds with 95 % intervals.
    """
    curves = {} if report.contrasts is None else report.contrasts.curves
    figures = []
    for metric, arms in curves.items():
        series = []
        for place, arm in enumerate(one for one in arms if one.means):
            x, y, low, high = zip(*arm.means, strict=True)
            name = _label(report, arm.planned.name)
            series.append(Series(name=name, x=x, y=y, low=low, high=high, place=place))
        if series:
            axis = Axis(title=_label(report, metric))
            figures.append(Lines(key=metric, title="", x=_STEPS, y=axis, series=tuple(series)))
    return _picture(report, "outcomes", "Means with 95 % intervals over seeds", figures)


def batch_picture(report: SweepReport) -> Picture | None:
    """Return the picture of the shares of worked answers before and after each batch, or None without data.

    Each panel shows one arm with a constant, bounded window. Its solid line is the share after a batch that
    this window predicts (`share_after_batch`).
    """
    curves = {} if report.contrasts is None else report.contrasts.curves
    figures = []
    for place, arm in enumerate(one for one in curves.get(WORKED_FRAC.name, ()) if one.means):
        window = arm.planned.bounds
        if window is not None and not window.is_unbounded:
            figures.append(_batches(report, arm, window, place))
    return _picture(
        report,
        "batches",
        "One point per seed and step; the line is the change that the window predicts",
        figures,
    )


def _batches(report: SweepReport, arm: ArmCurve, window: Window, place: int) -> Lines:
    before = [value for points in arm.seeds.values() for _, value in points[:-1]]
    after = [value for points in arm.seeds.values() for _, value in points[1:]]
    law = tuple(share_after_batch(share, window) for share in _SHARES)
    lower, upper = (value_text(bound) for bound in (window.lower, window.upper))
    return Lines(
        key=f"batches/{arm.planned.name}",
        title=f"{_label(report, arm.planned.name)} [{lower}, {upper}]",
        x=Axis(title="share of worked answers before a batch"),
        y=Axis(title="share after the batch"),
        series=(
            Series(name="", x=tuple(before), y=tuple(after), place=place, is_line=False),
            Series(name="", x=_SHARES, y=law, place=place, dash="solid"),
            Series(name="", x=_SHARES, y=_SHARES, place=place, dash="dotted", is_faint=True),
        ),
    )


def family_picture(report: SweepReport) -> Picture | None:
    """Return the picture of y against x for each family, or None without families.

    It shows means with 95 % intervals, and a dot for each seed.
    """
    found = report.families
    if found is None:
        return None
    ends = [arm.x for curve in found.curves for arm in curve.arms]
    apart = 0.012 * (max(ends) - min(ends)) if found.x_is_setting else 0.0
    place = places({curve.family: curve.family for curve in found.curves})
    series: list[Series] = []
    for number, curve in enumerate(found.curves):
        aside = apart * (number - (len(found.curves) - 1) / 2)
        series += _family(_label(report, curve.family), curve, place[curve.family], aside)
    x, y = (Axis(title=_label(report, name)) for name in (found.x, found.y))
    figure = Lines(key="families", title="", x=x, y=y, series=tuple(series))
    note = f"Means with 95 % intervals over {found.num_seeds} seeds; pale dots: seeds"
    return _picture(report, "families", note, [figure])


def _family(name: str, curve: FamilyCurve, place: int, aside: float) -> list[Series]:
    x = tuple(value + aside for arm in curve.arms for value in arm.seeds[0])
    y = tuple(value for arm in curve.arms for value in arm.seeds[1])
    return [
        Series(
            name=name,
            x=tuple(arm.x + aside for arm in curve.arms),
            y=tuple(arm.y for arm in curve.arms),
            low=tuple(arm.interval[0] for arm in curve.arms),
            high=tuple(arm.interval[1] for arm in curve.arms),
            place=place,
            has_points=True,
            has_whiskers=True,
        ),
        Series(name="", x=x, y=y, place=place, is_line=False, is_faint=True),
    ]


def _known(settings: Sequence[Setting]) -> list[Setting]:
    return [one for one in settings if one.mean_at_k.value is not None]


def _label(report: SweepReport, name: str) -> str:
    """Return the display name of an arm, family, outcome, metric, setting or stage in figures."""
    return report.definition.labels.get(name, name)


def _picture(report: SweepReport, name: str, note: str, figures: Sequence[Figure]) -> Picture | None:
    """Return the picture `name`, or None without figures.

    Its title is the label of `name` in the sweep's definition, or else the sweep's question. The note is on
    the next line.
    """
    if not figures:
        return None
    title = f"{report.definition.labels.get(name, report.definition.question)}\n{note}"
    return Picture(name=name, title=title, figures=tuple(figures), num_columns=min(len(figures), 4))

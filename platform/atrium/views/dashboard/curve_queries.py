"""Read-only queries about curves: available quantities, and the curves of runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atrium.base.metrics import CATALOGUE, quantity_of
from atrium.base.recorded import as_finite
from atrium.base.records import Floats
from atrium.compare.arm_names import NamedArm, name_arms
from atrium.compare.curves import (
    Band,
    Curve,
    GroupCurve,
    XAxis,
    at_exact,
    at_steps,
    axis_values,
    curve,
    group_curve,
)
from atrium.document.palette import places
from atrium.runs.reader import EvaluationPoint
from atrium.views.dashboard.runs_scan import RunEntry
from atrium.views.dashboard.watcher import Watcher

Answer = dict[str, Any]

WITHOUT_SETTINGS = "runs without settings"
EACH, METHODS = "run", "method"
"""Values of `CurveRequest.group_by` other than settings: a group per run, or a group per method."""
_EVALUATION = "evaluation/"
_AXES = tuple(map(str, XAxis))
MOST_NAMED = 8
"""The largest number of runs that an answer names per group."""
_MOST_SEARCHED = 60
"""The largest number of curves per panel for which thinning of points keeps local extremes."""
MOST_BANDS = 4
"""The largest number of curves per panel for which bands and unsmoothed curves are drawn."""
_MEAN, _PASS, _LENGTH, _TRUNCATED = "mean_at_k", "pass_at_k", "completion_length", "truncated_frac"
_MEANINGS = {
    _MEAN: "mean over problems of the share of correct answers",
    _PASS: "share of problems with a correct answer among the samples",
    _LENGTH: "mean length of the answers",
    _TRUNCATED: "share of answers cut off by the length limit",
}

_TITLES = {_MEAN: "Mean@k", _PASS: "Pass@k", _LENGTH: "answer length", _TRUNCATED: "truncated"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveRequest:
    """A request for the curves of `metrics`, one panel per metric and one curve per group of runs.

    `group_by` is `EACH`, `METHODS`, or settings joined by commas. `axis` is an `XAxis`, or a quantity for a
    scatter plot. The curves of a panel have common x-values. `zoom` is a range (low, high) of x-values, or
    None for the whole panel. `num_points` is the approximate maximum number of x-values in this range; 0
    means no limit.
    """

    runs: tuple[str, ...]
    metrics: tuple[str, ...]
    axis: str = XAxis.STEP
    group_by: str = METHODS
    band: Band = Band.RANGE
    smoothing: int | None = None
    """The number of steps in the moving mean; None means 1/50 of the longest run."""
    num_points: int = 400
    zoom: tuple[float, float] | None = None
    is_chosen: bool = False
    """Whether the user chose each run by name; single runs with deviating settings are then groups, too."""


def quantities_answer(watcher: Watcher, names: Iterable[str]) -> Answer:
    """Return the quantities that at least one of the runs recorded, with title, unit and meaning.

    Their order is fixed. The answer also names the runs whose curves are not indexed yet.
    """
    recorded: dict[str, None] = {}
    pending = []
    for entry in _entries(watcher, names):
        table = watcher.index.read(entry.folder)
        if table is not None:
            recorded.update(dict.fromkeys(table.columns))
        elif watcher.is_pending(entry.name):
            pending.append(entry.name)
        for benchmark in watcher.scan.evaluations(entry):
            recorded.update(dict.fromkeys(f"{_EVALUATION}{benchmark}/{kind}" for kind in _MEANINGS))
    order = {name: place for place, name in enumerate(CATALOGUE)}
    shown = sorted(recorded.keys() - {"step", "time"}, key=lambda name: (order.get(name, len(order)), name))
    return {"quantities": [_about(name) for name in shown], "pending": pending}


def curves_answer(watcher: Watcher, request: CurveRequest) -> Answer:
    """Return the curves of each requested quantity; raise `RunFolderError` for an unknown run."""
    entries = list(_entries(watcher, request.runs))
    state = tuple((entry.signature, watcher.indexed(entry)) for entry in entries)
    return _drawn(watcher, request, state)


@lru_cache(maxsize=64)
def _drawn(watcher: Watcher, request: CurveRequest, _state: tuple[object, ...]) -> Answer:
    """Compute the answer of `curves_answer`.

    The answer is cached until a run, or the index of its curves, changes. `_state` is only part of the
    cache key.
    """
    entries = list(_entries(watcher, request.runs))
    pending = [entry.name for entry in entries if watcher.is_pending(entry.name)]
    watcher.want(pending)
    arms = method_arms(entries, is_chosen=request.is_chosen) if request.group_by == METHODS else ()
    groups = groups_of(entries, request.group_by, arms)
    place = places_of(entries, groups)
    recorded = {entry.name: _recorded(watcher, entry, request) for entry in entries}
    longest = max((len(one.x) for one in recorded.values() if one.x is not None), default=0)
    width = request.smoothing or max(longest // 50, 1) | 1
    request = replace(request, smoothing=width)
    panels = []
    for metric in request.metrics:
        members = {label: [recorded[name] for name in names] for label, names in groups.items()}
        found = {label: made for label, own in members.items() if (made := _group(request, metric, own))}
        grid = _grid(tuple(found.values()), request)
        series = [
            {"label": label, "place": place[label], **_sampled(made, grid)} for label, made in found.items()
        ]
        if len(series) <= MOST_BANDS and width > 1 and not metric.startswith(_EVALUATION):
            rough = replace(request, smoothing=1, band=Band.NONE)
            for one in series:
                raw = _group(rough, metric, members[one["label"]])
                one["raw"] = _sampled(raw, grid)["y"] if raw else []
        panels.append({**_about(metric), "series": series})
    others = [arm.name for arm in arms if arm.is_other]
    return {
        "panels": panels,
        "pending": pending,
        "groups": _about_groups(entries, groups, place, others),
        "axis": str(request.axis),
        "smoothing": width,
    }


def _about_groups(
    entries: Sequence[RunEntry],
    groups: Mapping[str, Sequence[str]],
    place: Mapping[str, int],
    others: Collection[str],
) -> list[Answer]:
    """Return the data that the page shows about each group, sorted by last score.

    The best score comes first. The groups named in `others` come last.
    """
    members = {entry.name: entry for entry in entries}
    own = {label: [members[name] for name in names] for label, names in groups.items()}
    return [
        {
            "label": label,
            "num": len(groups[label]),
            "runs": groups[label][:MOST_NAMED],
            "place": place[label],
            "is_other": label in others,
            "is_live": any(entry.overview.state.is_live for entry in own[label]),
        }
        for label in sorted(own, key=lambda label: (label in others, -_last_score(own[label])))
    ]


def _last_score(entries: Iterable[RunEntry]) -> float:
    """Return the mean of the last Mean@K over runs and benchmarks (0 to 1), or -1 if none is known."""
    scores = [one.last.mean_at_k for entry in entries for one in entry.overview.scores.values() if one.last]
    known = [score for score in scores if score is not None]
    return sum(known) / len(known) if known else -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """Data of a run with N recorded steps: metrics by name [N], x-axis values [N], and evaluations."""

    columns: Mapping[str, Floats]
    x: Floats | None
    evaluations: Mapping[str, Sequence[EvaluationPoint]]


def _recorded(watcher: Watcher, entry: RunEntry, request: CurveRequest) -> _Recorded:
    table = watcher.index.read(entry.folder)
    columns = {} if table is None else table.columns
    x = axis_values(columns, XAxis(request.axis)) if request.axis in _AXES else columns.get(request.axis)
    return _Recorded(columns=columns, x=x, evaluations=watcher.scan.evaluations(entry))


def _curve(recorded: _Recorded, metric: str, request: CurveRequest) -> Curve | None:
    """Return a run's curve of one quantity, or None if the run has not recorded the quantity."""
    if request.axis not in _AXES:
        return _points(recorded, metric, request.num_points)
    if metric.startswith(_EVALUATION):
        return _evaluation_curve(recorded.evaluations, metric, recorded.columns, XAxis(request.axis))
    values = recorded.columns.get(metric)
    if values is None or recorded.x is None:
        return None
    made = curve(recorded.x, values, smoothing=request.smoothing or 1)
    return made if len(made.x) else None


def _points(recorded: _Recorded, metric: str, num_points: int) -> Curve | None:
    """Return a run's points of a scatter plot, or None if there are no points.

    At most `num_points` points are returned (0 means all), at evenly spaced steps. They are not sorted by x.
    """
    steps, x, y = recorded.columns.get("step"), recorded.x, recorded.columns.get(metric)
    if steps is None or x is None:
        return None
    if metric.startswith(_EVALUATION):
        found = _evaluation_curve(recorded.evaluations, metric, recorded.columns, XAxis.STEP)
        y = None if found is None else at_exact(steps, found.x, found.y)
    if y is None:
        return None
    known = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    kept = known[_even(len(known), num_points or len(known))]  # 0 keeps all points
    return Curve(x=x[kept], y=y[kept]) if len(kept) else None


def _group(request: CurveRequest, metric: str, members: Sequence[_Recorded]) -> GroupCurve | None:
    """Return a group's mean curve with its band, or the points of a scatter plot.

    Returns None if the group has no data.
    """
    found = [made for one in members if (made := _curve(one, metric, request))]
    if not found:
        return None
    if request.axis not in _AXES:
        x, y = (np.concatenate([getattr(one, name) for one in found]) for name in ("x", "y"))
        return GroupCurve(x=x, mean=y, low=None, high=None, num_runs=np.ones(len(x), dtype=np.int64))
    if len(found) > 1:
        return group_curve(found, request.band)
    [one] = found
    num_runs = np.ones(len(one.x), dtype=np.int64)
    return GroupCurve(x=one.x, mean=one.y, low=one.low, high=one.high, num_runs=num_runs)


def _grid(found: Collection[GroupCurve], request: CurveRequest) -> Floats | None:
    """Return the x-values at which a panel's curves are sampled, or None to keep all of their points."""
    if request.axis not in _AXES or not found:
        return None
    x, num = np.unique(np.concatenate([made.x for made in found])), request.num_points
    if num <= 2 or len(x) <= num:
        return None
    low, high = (x[0], x[-1]) if request.zoom is None else request.zoom
    is_inside = (x >= low) & (x <= high)
    inside, outside = x[is_inside], x[~is_inside]
    kept = (_extremes(inside, found, num), outside[_even(len(outside), num // 4)], x[[0, -1]])
    return np.unique(np.concatenate(kept))


def _extremes(x: Floats, found: Collection[GroupCurve], num: int) -> Floats:
    """Return at most `num` of the x-values, chosen so that the extremes of the curves are kept.

    The x-values are split into num / 2 equal parts. In each part, the positions of the largest and the
    smallest value among all curves are kept. If there are more than `_MOST_SEARCHED` curves, the x-values are
    evenly spaced instead.
    """
    if len(x) <= num or len(found) > _MOST_SEARCHED:
        return x[_even(len(x), num)]
    y_SN = np.stack([np.interp(x, made.x, made.mean, left=np.nan, right=np.nan) for made in found])
    upper, lower = np.fmax.reduce(y_SN, axis=0), np.fmin.reduce(y_SN, axis=0)
    parts = np.array_split(np.arange(len(x)), num // 2)
    kept = [place for part in parts for place in (part[upper[part].argmax()], part[lower[part].argmin()])]
    return np.unique(x[kept])


def _even(num: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` (at least 2) evenly spaced indices below `num`, including both ends."""
    return np.unique(np.linspace(0, max(num - 1, 0), min(num, max(most, 2))).round().astype(np.int64))[:num]


def _sampled(made: GroupCurve, grid: Floats | None) -> Answer:
    """Return a curve as JSON data.

    If `grid` is given, the curve is interpolated at the x-values of `grid` that are within its range.
    """
    columns = {"x": made.x, "y": made.mean, "low": made.low, "high": made.high}
    num_runs = made.num_runs
    if grid is not None:
        x = grid[(grid >= made.x[0]) & (grid <= made.x[-1])]
        num_runs = num_runs[np.searchsorted(made.x, x)]
        columns = {
            name: None if column is None else np.interp(x, made.x, column) for name, column in columns.items()
        }
    numbers = {name: _numbers(column) for name, column in columns.items() if column is not None}
    is_same = len(num_runs) > 0 and bool((num_runs == num_runs[0]).all())
    return {**numbers, "num": int(num_runs[0]) if is_same else num_runs.tolist()}


def _evaluation_curve(
    evaluations: Mapping[str, Sequence[EvaluationPoint]],
    metric: str,
    columns: Mapping[str, Floats],
    axis: XAxis,
) -> Curve | None:
    benchmark, _, kind = metric.removeprefix(_EVALUATION).rpartition("/")
    rows = [(point.step, *_value(point, kind)) for point in evaluations.get(benchmark, ())]
    rows = [row for row in rows if row[1] is not None]
    if not rows:
        return None
    step, value, low, high = np.array(rows, dtype=np.float64).T
    x = at_steps(step, columns, axis)
    return None if x is None else Curve(x=x, y=value, low=low, high=high, step=step)


def _value(point: EvaluationPoint, kind: str) -> tuple[float | None, float, float]:
    """Return a value of an evaluation, and the ends of its 95 % interval over problems.

    `kind` is `mean_at_k`, `pass_at_k` or another recorded result, for which no interval is known. If the
    interval is unknown, both ends are equal to the value. If the value is unknown, it is None and the ends
    are NaN.
    """
    span: tuple[float, float] | None = None
    match kind:
        case "mean_at_k":
            value, span = point.mean_at_k, point.interval_over_problems
        case "pass_at_k":
            value, span = point.pass_at_k, point.pass_interval_over_problems
        case _:
            value = as_finite(point.results.get(kind))
    if value is None:
        return None, math.nan, math.nan
    low, high = span or (value, value)
    return value, low, high


def method_arms(entries: Sequence[RunEntry], *, is_chosen: bool = False) -> tuple[NamedArm, ...]:
    """Return the arms of the runs with readable settings, sorted by name.

    "Other runs" (see `arm_names`) come last. If `is_chosen` is true, the user chose each run, and no run
    counts as an "other run".
    """
    settings = {entry.name: entry.trained_settings for entry in entries if entry.settings}
    arms = name_arms(settings, chosen=settings if is_chosen else ())
    return tuple(sorted(arms, key=lambda arm: (arm.is_other, arm.name)))


def groups_of(
    entries: Sequence[RunEntry], group_by: str, arms: Sequence[NamedArm] = ()
) -> dict[str, list[str]]:
    """Return the names of the runs in each group, as a dict from the label of a group to its runs.

    `group_by` is as in `CurveRequest`. If it is `METHODS`, the groups are `arms`. Runs without settings form
    a group of their own, except with `EACH`.
    """
    if group_by == EACH:
        return {entry.name: [entry.name] for entry in entries}
    if group_by != METHODS:
        settings = {entry.name: entry.settings for entry in entries if entry.settings}
        arms = sorted(name_arms(settings, by=group_by.split(",")), key=lambda arm: arm.name)
    without = [entry.name for entry in entries if not entry.settings]
    return {arm.name: list(arm.runs) for arm in arms} | ({WITHOUT_SETTINGS: without} if without else {})


def places_of(entries: Sequence[RunEntry], groups: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the color index of each group.

    A group has the usual color of its algorithm, or a color derived from its label if its runs have several
    algorithms. If another group has already taken this color, the next free color is used.
    """
    began = {entry.name: entry.started for entry in entries}
    named = {entry.name: entry.settings.get("algorithm.name", "") for entry in entries}
    methods = {}
    for label in sorted(groups, key=lambda one: (min(began[name] for name in groups[one]), one)):
        own = {named[name] for name in groups[label]}
        methods[label] = own.pop() if len(own) == 1 else label
    return places(methods)


def _entries(watcher: Watcher, names: Iterable[str]) -> Iterable[RunEntry]:
    return (watcher.scan.entry(name) for name in dict.fromkeys(names))


def _about(name: str) -> Answer:
    """Return a quantity's title, unit and meaning, and whether it is a share."""
    quantity, is_share = quantity_of(name), name.endswith("_frac")
    unit, meaning = (quantity.unit, quantity.meaning) if quantity else ("", "unknown to this version")
    title = f"{meaning[0].upper()}{meaning[1:]}"
    if name.startswith(_EVALUATION):
        benchmark, _, kind = name.removeprefix(_EVALUATION).rpartition("/")
        unit, is_share = "tokens" if kind == _LENGTH else "", is_share or kind in (_MEAN, _PASS)
        meaning = f"{_MEANINGS.get(kind, kind)}, on {benchmark}"
        title = f"{_TITLES.get(kind, kind)}, {benchmark}"
    shown = "%" if is_share else unit
    title = f"{title}, {shown}" if shown else title
    return {"name": name, "title": title, "unit": unit, "meaning": meaning, "is_share": is_share}


def _numbers(values: Floats) -> list[float | None]:
    """Return numbers for JSON with six significant digits, and None for non-finite values."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist()]

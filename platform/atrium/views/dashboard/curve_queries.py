"""Queries about curves: which quantities there are, and the curves of some runs. Pure reading."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atrium.base.metrics import CATALOGUE, quantity_of
from atrium.base.recorded import as_finite
from atrium.compare.arm_names import NamedArm, name_arms
from atrium.compare.curves import (
    Axis,
    Band,
    Column,
    Curve,
    at_steps,
    axis_values,
    chosen_points,
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
"""Groups that are not settings: every run by itself, and runs that differ in seed only."""
_EVALUATION = "evaluation/"
_MEAN, _PASS, _LENGTH, _TRUNCATED = "mean_at_k", "pass_at_k", "completion_length", "truncated_frac"
_MEANINGS = {
    _MEAN: "mean over problems of the share of correct answers",
    _PASS: "share of problems with a correct answer among the samples",
    _LENGTH: "mean length of the answers",
    _TRUNCATED: "share of answers cut off by the length limit",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveRequest:
    """Curves to draw. `group_by` is `EACH`, `METHODS` or settings joined by commas; 0 points are all.

    With `is_even` the points of a run are evenly spread steps, the same for all metrics, so that these can be
    set against each other; otherwise each curve's points are those that look like all of them.
    """

    runs: tuple[str, ...]
    metrics: tuple[str, ...]
    axis: Axis = Axis.STEP
    group_by: str = METHODS
    band: Band = Band.RANGE
    smoothing: int = 1
    num_points: int = 400
    is_even: bool = False
    is_chosen: bool = False
    """Whether the user named the runs one by one, so that none of them is one of the other runs."""


def quantities_answer(watcher: Watcher, names: Iterable[str]) -> Answer:
    """The quantities that any of the runs recorded, with unit and meaning, in the catalogue's order."""
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
    """The curves of each quantity asked for. Raises `RunFolderError` for an unknown run."""
    entries = list(_entries(watcher, request.runs))
    state = tuple((entry.signature, watcher.indexed(entry)) for entry in entries)
    return _drawn(watcher, request, state)


@lru_cache(maxsize=64)
def _drawn(watcher: Watcher, request: CurveRequest, _state: tuple[object, ...]) -> Answer:
    """The answer, kept until one of its runs changes or more of it is indexed."""
    entries = list(_entries(watcher, request.runs))
    pending = [entry.name for entry in entries if watcher.is_pending(entry.name)]
    watcher.want(pending)
    arms = method_arms(entries, is_chosen=request.is_chosen) if request.group_by == METHODS else ()
    groups = groups_of(entries, request.group_by, arms)
    place = places_of(entries, groups)
    recorded = {entry.name: _recorded(watcher, entry, request) for entry in entries}
    panels = []
    for metric in request.metrics:
        series = [
            {**made, "place": place[label], **_unsmoothed(request, metric, label, own)}
            for label, members in groups.items()
            for own in [{name: recorded[name] for name in members}]
            if (made := _series(request, metric, label, own))
        ]
        panels.append({**_about(metric), "series": series})
    return {
        "panels": panels,
        "pending": pending,
        "groups": groups,
        "others": [arm.name for arm in arms if arm.is_other],
        "places": place,
        "axis": str(request.axis),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """The numbers behind one run's curves: columns [N], rows of them [M], the x-axis [M], evaluations."""

    columns: Mapping[str, Column]
    rows: NDArray[np.int64] | slice
    x: Column | None
    evaluations: Mapping[str, Sequence[EvaluationPoint]]


def _recorded(watcher: Watcher, entry: RunEntry, request: CurveRequest) -> _Recorded:
    table = watcher.index.read(entry.folder)
    columns = {} if table is None else table.columns
    x = axis_values(columns, request.axis)
    rows: NDArray[np.int64] | slice = slice(None)
    if request.is_even and x is not None and len(x) > request.num_points > 1:
        rows = np.linspace(0, len(x) - 1, request.num_points).round().astype(np.int64)
    return _Recorded(
        columns=columns,
        rows=rows,
        x=None if x is None else x[rows],
        evaluations=watcher.scan.evaluations(entry),
    )


def _curve(recorded: _Recorded, metric: str, axis: Axis, smoothing: int) -> Curve | None:
    """One quantity of one run, or None where it has none (yet)."""
    if metric.startswith(_EVALUATION):
        return _evaluation_curve(recorded.evaluations, metric, recorded.columns, axis)
    values = recorded.columns.get(metric)
    if values is None or recorded.x is None:
        return None
    made = curve(recorded.x, values[recorded.rows], smoothing=smoothing)
    return made if len(made.x) else None


def _series(
    request: CurveRequest, metric: str, label: str, members: Mapping[str, _Recorded]
) -> Answer | None:
    found = [
        made
        for recorded in members.values()
        if (made := _curve(recorded, metric, request.axis, request.smoothing))
    ]
    if not found:
        return None
    about = {"label": label, "runs": list(members)}
    if len(found) == 1:
        single = found[0]
        kept = chosen_points(single.x, single.y, request.num_points)
        return {**about, **_points(kept, x=single.x, y=single.y, low=single.low, high=single.high), "num": 1}
    mean = group_curve(found, request.band)
    if mean is None:
        return None
    kept = chosen_points(mean.x, mean.mean, request.num_points)
    num = mean.num_runs[kept]
    points = _points(kept, x=mean.x, y=mean.mean, low=mean.low, high=mean.high)
    return {**about, **points, "num": int(num[0]) if (num == num[0]).all() else num.tolist()}


def _unsmoothed(request: CurveRequest, metric: str, label: str, members: Mapping[str, _Recorded]) -> Answer:
    """The curve before smoothing, which stays in sight behind the smoothed one."""
    if request.smoothing == 1 or metric.startswith(_EVALUATION):
        return {}
    raw = _series(replace(request, smoothing=1, band=Band.NONE), metric, label, members)
    return {"raw": {"x": raw["x"], "y": raw["y"]}} if raw else {}


def _points(
    kept: NDArray[np.int64],
    *,
    x: Column,
    y: Column,
    low: Column | None,
    high: Column | None,
) -> Answer:
    columns = {"x": x, "y": y, "low": low, "high": high}
    return {name: _numbers(column[kept]) for name, column in columns.items() if column is not None}


def _evaluation_curve(
    evaluations: Mapping[str, Sequence[EvaluationPoint]],
    metric: str,
    columns: Mapping[str, Column],
    axis: Axis,
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
    """A point's value and its 95 % interval over problems; where that is unknown, the value itself."""
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
    """The arms that the runs with settings form, by name, the other runs last (`arm_names`)."""
    settings = {entry.name: entry.trained_settings for entry in entries if entry.settings}
    arms = name_arms(settings, chosen=settings if is_chosen else ())
    return tuple(sorted(arms, key=lambda arm: (arm.is_other, arm.name)))


def groups_of(
    entries: Sequence[RunEntry], group_by: str, arms: Sequence[NamedArm] = ()
) -> dict[str, list[str]]:
    """The names of runs by group: `EACH`, `METHODS` (`arms`), or settings joined by commas."""
    if group_by == EACH:
        return {entry.name: [entry.name] for entry in entries}
    if group_by != METHODS:
        settings = {entry.name: entry.settings for entry in entries if entry.settings}
        arms = sorted(name_arms(settings, by=group_by.split(",")), key=lambda arm: arm.name)
    without = [entry.name for entry in entries if not entry.settings]
    return {arm.name: list(arm.runs) for arm in arms} | ({WITHOUT_SETTINGS: without} if without else {})


def places_of(entries: Sequence[RunEntry], groups: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The place of each group's colour, by its method where it has but one; the earliest choose first."""
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
    if name.startswith(_EVALUATION):
        benchmark, _, kind = name.removeprefix(_EVALUATION).rpartition("/")
        unit = "tokens" if kind == _LENGTH else ""
        meaning = f"{_MEANINGS.get(kind, kind)}, on {benchmark}"
        is_share = kind in (_MEAN, _PASS)
        return {"name": name, "unit": unit, "meaning": meaning, "is_share": is_share}
    quantity = quantity_of(name)
    unit, meaning = (quantity.unit, quantity.meaning) if quantity else ("", "not in this version's catalogue")
    return {"name": name, "unit": unit, "meaning": meaning, "is_share": name.endswith("_frac")}


def _numbers(values: Column) -> list[float | None]:
    """Plain numbers for JSON, None where a value is not finite."""
    if np.isfinite(values).all():
        plain: list[float | None] = values.tolist()
        return plain
    return [value if math.isfinite(value) else None for value in values.tolist()]

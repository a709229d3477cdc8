"""Readers of run directories in any state: running, killed, damaged, empty, or of a newer version.

Damaged content raises no error: the readers return what is readable. `RunOverview.problems` and
`MetricTable.num_unreadable` report most of the content that is not readable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from atrium.base.errors import reason_of
from atrium.base.json_lines import Record, read_json_lines
from atrium.base.nested import mapping_at, setting
from atrium.base.recorded import Interval, as_finite, as_integer, as_interval, number_or_nan, read_object
from atrium.base.records import Floats
from atrium.runs.diagnosis import Finding, Step, diagnose
from atrium.runs.run_facts import RunFacts
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import (
    FORMAT_VERSION,
    RunState,
    RunStatus,
    StatusUnreadableError,
    concluded_state,
    read_status,
)

_TAIL_BYTES = 64_000
_SCORES = (
    "step",
    "k",
    "mean_at_k",
    "pass_at_k",
    "interval_over_problems",
    "interval_sampling",
    "num_problems",
)
_BESIDE_SCORES = ("maj_at_k", "completion_length", "truncated_frac")
"""Values recorded with the scores if available, since scores depend on length and truncation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPoint:
    """One evaluation's main results; a value is None if it was not recorded or could not be estimated.

    Shares are in [0, 1]. `interval_*` are 95 % intervals of Mean@k, and `pass_interval_*` of Pass@k.
    `results` is the full record.
    """

    benchmark: str
    step: int
    k: int | None
    mean_at_k: float | None
    pass_at_k: float | None
    interval_over_problems: Interval | None
    interval_sampling: Interval | None
    pass_interval_over_problems: Interval | None
    num_problems: int | None
    results: Mapping[str, object]

    def as_record(self) -> dict[str, object]:
        """Return the point's scores in the form in which `summary.json` records them."""
        found = {**self.results, **{name: getattr(self, name) for name in _SCORES}}
        return {name: found[name] for name in (*_SCORES, *_BESIDE_SCORES) if name in found}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The first, best and last evaluation of one benchmark in a run; `best` has the highest Mean@k."""

    first: EvaluationPoint
    best: EvaluationPoint
    last: EvaluationPoint

    def as_record(self) -> dict[str, dict[str, object]]:
        """Return the first, best and last evaluation in the form in which `summary.json` records them."""
        return {place: getattr(self, place).as_record() for place in ("first", "best", "last")}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricTable:
    """The metrics of a run: `steps` [N], `times` [N] in seconds since 1970, and a column [N] per metric.

    A column is NaN at steps that did not record the metric. `num_unreadable` counts the lines that are not in
    the table: damaged lines, lines without a step, and lines replaced by a later line for the same step.
    """

    steps: NDArray[np.int64]
    times: Floats
    columns: Mapping[str, Floats]
    num_unreadable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverview:
    """A run as shown in a list of runs. `problems` describes the problems of its run directory, if any."""

    folder: RunFolder
    state: RunState
    status: RunStatus
    config: Mapping[str, object]
    scores: Mapping[str, Scores]
    problems: tuple[str, ...]


def read_overview(folder: RunFolder) -> RunOverview:
    """Read the overview of a run from the small files of its run directory.

    If the run is in progress, killed or lost, the end of `metrics.jsonl` is read too, since its last step may
    be later than the step in `status.json`. Unreadable files raise no error.
    """
    problems: list[str] = []
    status, state = RunStatus(), RunState.UNKNOWN
    try:
        status = read_status(folder.status_file)
        state = concluded_state(status)
        if state in (RunState.STARTING, RunState.RUNNING, RunState.KILLED, RunState.LOST):
            status = replace(status, step=max(status.step, _last_recorded_step(folder.metrics_file)))
        if state is RunState.UNKNOWN:
            problems.append(f"its state {status.state!r} is unknown")
    except StatusUnreadableError as error:
        problems.append(str(error) if _holds_anything(folder.path) else "the folder is empty")
    if status.format_version > FORMAT_VERSION:
        problems.append(
            f"it was written by a newer Atrium (format {status.format_version}, this one knows "
            f"{FORMAT_VERSION}), so some of it may be missing here"
        )
    config, problem = read_object(folder.config_file)
    if problem and problems != ["the folder is empty"]:
        problems.append(problem)
    scores = _read_scores(folder, problems)
    return RunOverview(
        folder=folder,
        state=state,
        status=status,
        config=config,
        scores=scores,
        problems=tuple(problems),
    )


def read_metrics(folder: RunFolder) -> MetricTable:
    """Read the metrics of all steps in order. If a step was recorded twice, the later record counts.

    Raises `OSError` if `metrics.jsonl` exists but cannot be read.
    """
    lines = read_json_lines(folder.metrics_file)
    by_step = _by_step(lines.records)
    steps = list(by_step)
    names = dict.fromkeys(name for step in steps for name in by_step[step])
    columns = {
        name: np.array([number_or_nan(by_step[step].get(name)) for step in steps], dtype=np.float64)
        for name in names
        if name not in ("step", "time")
    }
    return MetricTable(
        steps=np.array(steps, dtype=np.int64),
        times=np.array([number_or_nan(by_step[step].get("time")) for step in steps], dtype=np.float64),
        columns=columns,
        num_unreadable=lines.num_unreadable + len(lines.records) - len(by_step),
    )


def read_findings(folder: RunFolder, *, is_over: bool = True) -> tuple[Finding, ...]:
    """Return the problems that `diagnosis.diagnose` finds in a run's metrics.

    If `is_over` is not set, the run counts as in progress, and rules wait for their full number of steps.
    Raises `OSError` if `metrics.jsonl` exists but cannot be read.
    """
    return diagnose(read_steps(folder), is_over=is_over, facts=read_facts(folder))


def read_facts(folder: RunFolder) -> RunFacts:
    """Return the facts for a run's diagnosis, or the defaults if its configuration cannot be read."""
    return RunFacts.of(read_object(folder.config_file)[0])


def read_steps(folder: RunFolder) -> list[Step]:
    """Read the steps of `metrics.jsonl` in order, each with its metrics by name.

    A value that is not a number becomes NaN. Raises `OSError` if the file exists but cannot be read.
    """
    by_step = _by_step(read_json_lines(folder.metrics_file).records)
    return [
        (step, {name: number_or_nan(value) for name, value in record.items() if name not in ("step", "time")})
        for step, record in by_step.items()
    ]


def _by_step(records: Iterable[Record]) -> dict[int, Record]:
    """Return the records by step, in order. If a step was recorded twice, the later record counts."""
    found = {step: record for record in records if (step := as_integer(record.get("step"))) is not None}
    return dict(sorted(found.items()))


def read_evaluations(folder: RunFolder) -> dict[str, tuple[EvaluationPoint, ...]]:
    """Read all evaluations of a run: by benchmark, in the order of steps.

    Raises `OSError` if `evaluations.jsonl` exists but cannot be read.
    """
    found: dict[str, dict[int, EvaluationPoint]] = {}
    for record in read_json_lines(folder.evaluations_file).records:
        point = _point_of(record)
        if point is not None:
            found.setdefault(point.benchmark, {})[point.step] = point
    return {benchmark: tuple(points[step] for step in sorted(points)) for benchmark, points in found.items()}


def scores_of(points: Iterable[EvaluationPoint]) -> Scores:
    """Return the first, best and last of one benchmark's evaluations, which must be in the order of steps.

    The best is the earliest with the highest Mean@k.
    """
    points = tuple(points)
    best = max(points, key=lambda one: (-1.0 if one.mean_at_k is None else one.mean_at_k, -one.step))
    return Scores(first=points[0], best=best, last=points[-1])


def _read_scores(folder: RunFolder, problems: list[str]) -> dict[str, Scores]:
    """Read scores from `summary.json` if it contains them, else from `evaluations.jsonl`.

    If `evaluations.jsonl` cannot be read, append a message to `problems` and return no scores.
    """
    summary, _ = read_object(folder.summary_file)
    if recorded := mapping_at(summary, "evaluations"):
        scores = {str(name): _scores_from_summary(str(name), entry) for name, entry in recorded.items()}
        if all(scores.values()):
            return {name: entry for name, entry in scores.items() if entry is not None}
    try:
        evaluations = read_evaluations(folder)
    except OSError as error:
        problems.append(f"evaluations.jsonl cannot be read: {reason_of(error)}")
        return {}
    return {benchmark: scores_of(points) for benchmark, points in evaluations.items()}


def _scores_from_summary(benchmark: str, entry: object) -> Scores | None:
    points = {}
    for place in ("first", "best", "last"):
        content = entry.get(place) if isinstance(entry, Mapping) else None
        step = as_integer(content.get("step")) if isinstance(content, Mapping) else None
        if step is None or not isinstance(content, Mapping):
            return None
        points[place] = _point(benchmark, step, content)
    return Scores(**points)


def _point_of(record: Record) -> EvaluationPoint | None:
    step, benchmark, results = (record.get(key) for key in ("step", "benchmark", "results"))
    number = as_integer(step)
    if number is None or not isinstance(benchmark, str) or not isinstance(results, Mapping):
        return None
    return _point(benchmark, number, results)


def _point(benchmark: str, step: int, results: Mapping[str, object]) -> EvaluationPoint:
    k = as_integer(results.get("k"))
    return EvaluationPoint(
        benchmark=benchmark,
        step=step,
        k=k,
        mean_at_k=as_finite(results.get("mean_at_k")),
        pass_at_k=as_finite(results.get("pass_at_k")),
        interval_over_problems=as_interval(results.get("interval_over_problems")),
        interval_sampling=as_interval(results.get("interval_sampling")),
        pass_interval_over_problems=as_interval(setting(results, f"pass_at_intervals.{k}.over_problems")),
        num_problems=as_integer(results.get("num_problems")),
        results=results,
    )


def _last_recorded_step(path: Path) -> int:
    """Return the step of the last complete line of a JSON Lines file, or 0 if there is none.

    The file may have a later step than the run's status.
    """
    try:
        start = max(path.stat().st_size - _TAIL_BYTES, 0)
        records = read_json_lines(path, start).records
    except OSError:
        return 0
    steps = [step for record in records if (step := as_integer(record.get("step"))) is not None]
    return steps[-1] if steps else 0


def _holds_anything(path: Path) -> bool:
    try:
        return any(path.iterdir())
    except OSError:
        return True

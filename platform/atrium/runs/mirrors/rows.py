"""A run's records as rows for trackers: all metrics of one step together, each step once.

Training writes the metrics of a step before its evaluations. A step is therefore delivered only after a later
step has been recorded or the run is over. An evaluation added to a step that was already delivered becomes a
late row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from atrium.base.json_lines import Record, read_json_lines
from atrium.base.metric_names import renamed
from atrium.base.metrics import NUM_TOKENS
from atrium.base.recorded import as_finite, as_integer, as_number
from atrium.runs.mirrors.names import evaluation_numbers
from atrium.runs.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The metrics of one step, by name; `time` is in seconds since 1970.

    `num_tokens` is the number of completion tokens that the run has sampled up to this step, or 0 in a late
    row. `evaluations` names the evaluations in `values` as `benchmark@step`. A late row has evaluations of a
    step that was delivered before.
    """

    step: int
    time: float
    values: Mapping[str, float]
    num_tokens: int = 0
    is_late: bool = False
    evaluations: tuple[str, ...] = ()


@dataclass(slots=True)
class _Tail:
    """A reader of the new lines of a growing JSON Lines file; a replaced file is read from its start."""

    path: Path
    offset: int = 0
    identity: int = 0

    def read(self) -> tuple[Record, ...]:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return ()
        if status.st_ino != self.identity or status.st_size < self.offset:
            self.identity, self.offset = status.st_ino, 0
        lines = read_json_lines(self.path, self.offset)
        self.offset = lines.next_offset
        return lines.records


@dataclass(slots=True)
class RowReader:
    """A reader that creates rows from the records in a run directory.

    The tracker already has the steps up to `delivered_step`, and the evaluations in `delivered_evaluations`
    (`benchmark@step`). These are not returned again, even if the files change. Steps that a resumed run
    repeats thus keep the values that were delivered first. `names` selects the naming scheme of metrics.
    """

    folder: RunFolder
    delivered_step: int = -1
    delivered_evaluations: set[str] = field(default_factory=set)
    names: str = "atrium"
    _metrics: _Tail = field(init=False)
    _evaluations: _Tail = field(init=False)
    _waiting: dict[int, Row] = field(default_factory=dict)
    _sampled: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._metrics = _Tail(self.folder.metrics_file)
        self._evaluations = _Tail(self.folder.evaluations_file)

    def read(self, *, is_over: bool) -> list[Row]:
        """Return the rows completed since the previous call, in the order of steps, then late rows.

        If `is_over` is set, the last step is complete too. Raises `OSError` if a file cannot be read.
        """
        late = []
        for record in self._metrics.read():
            step = as_integer(record.get("step"))
            if step is not None:
                self._sampled[step] = int(as_finite(record.get(NUM_TOKENS.name)) or 0)
            if step is not None and step > self.delivered_step:
                values = {
                    name: as_number(value) for name, value in record.items() if name not in ("step", "time")
                }
                numbers = {name: value for name, value in values.items() if value is not None}
                self._add(step, record, renamed(numbers, self.names))
        for record in self._evaluations.read():
            step, key = as_integer(record.get("step")), f"{record.get('benchmark')}@{record.get('step')}"
            scores = evaluation_numbers(record)
            if step is None or not scores or key in self.delivered_evaluations:
                continue
            if step > self.delivered_step:
                self._add(step, record, scores, key)
            else:
                time = as_number(record.get("time")) or 0.0
                late.append(Row(step=step, time=time, values=scores, is_late=True, evaluations=(key,)))
        newest = max(self._waiting, default=-1)
        ready = sorted(step for step in self._waiting if is_over or step < newest)
        rows = [self._waiting.pop(step) for step in ready]
        return [*(replace(row, num_tokens=self._sampled_until(row.step)) for row in rows), *late]

    def _sampled_until(self, last: int) -> int:
        return sum(num_tokens for step, num_tokens in self._sampled.items() if step <= last)

    def was_delivered(self, row: Row) -> None:
        """Mark a row's step and evaluations as delivered."""
        self.delivered_step = max(self.delivered_step, row.step)
        self.delivered_evaluations.update(row.evaluations)

    def _add(
        self, step: int, record: Record, values: Mapping[str, float], evaluation: str | None = None
    ) -> None:
        before = self._waiting.get(step)
        known = dict(before.values) if before else {}
        evaluations = before.evaluations if before else ()
        self._waiting[step] = Row(
            step=step,
            time=before.time if before else as_number(record.get("time")) or 0.0,
            values=known | dict(values),
            evaluations=evaluations if evaluation is None else (*evaluations, evaluation),
        )

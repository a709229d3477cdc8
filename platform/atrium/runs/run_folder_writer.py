"""The listener that writes the run directory: metrics, rollouts, evaluations, status, and the summary.

If the disk is full, `sync`, which precedes every checkpoint, raises an error, and so do `begin` and
`progress`, which write `status.json`. Apart from these, a full disk does not stop training: unwritten lines
are kept in memory and written later, files of samples are skipped, and both are reported once. If the run
directory is removed or moved, the run ends with an error, since its later output would be lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from atrium.base.atomic import explained, write_json
from atrium.base.errors import RunFolderError, reason_of
from atrium.base.json_lines import JsonLinesWriter, Record, keep_lines, read_json_lines
from atrium.base.records import BenchmarkResult, RatioHistogram, RolloutGroup, TokenTrace
from atrium.runs.layout import check_name, steps_in
from atrium.runs.listener import Listener
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, StatusWriter
from atrium.runs.summary import summarize

_BYTES_PER_MB = 1_000_000


class RunFolderWriter(Listener):
    """A listener that writes a run's events into its run directory.

    The rollouts of the first and of every `rollouts_every_num_steps`-th step are recorded; None records no
    rollouts. When the rollouts exceed `rollouts_max_mb`, the files of some steps are deleted so that the
    remaining steps stay evenly spread over the run. `log` receives one message per kind of failed write; by
    default it appends to `log.txt`. The entries of `summary` are added to `summary.json` at the end. The
    constructor raises `RunFolderError` if the directory is not writable.
    """

    name = "the run directory"
    may_stop = True

    def __init__(
        self,
        folder: RunFolder,
        log: Callable[[str], None] | None = None,
        *,
        rollouts_every_num_steps: int | None = 10,
        rollouts_max_mb: float = 256.0,
        summary: Mapping[str, object] | None = None,
    ) -> None:
        self.folder = folder
        self._summary = {} if summary is None else summary
        self._rollouts_every_num_steps = rollouts_every_num_steps
        self._rollouts_max_mb = rollouts_max_mb
        self._log = log or self.folder.append_log
        self._told: set[str] = set()
        with explained("write into", folder.path):
            self._metrics = JsonLinesWriter(folder.metrics_file)
            self._evaluations = JsonLinesWriter(folder.evaluations_file)
            self._ratios = JsonLinesWriter(folder.ratios_file)
            self._last_step = _last_step(read_json_lines(folder.metrics_file).records)
            self._evaluated = {
                (record.get("benchmark"), record.get("step"))
                for record in read_json_lines(folder.evaluations_file).records
            }
        self._status = StatusWriter(folder.status_file)
        self._status.keep_beating()

    def begin(self, *, step: int, num_steps: int, title: str = "") -> None:
        """Record in `status.json` that training continues after `step` (0 for a new run)."""
        self.progress(step=step, num_steps=num_steps)

    def progress(self, *, step: int, num_steps: int) -> None:
        """Record `step` of `num_steps` in `status.json`."""
        self._require_folder()
        with explained("write", self.folder.status_file):
            self._status.begin(step=step, num_steps=num_steps)

    def wants_rollouts(self, step: int) -> bool:
        """Return whether this step's rollouts will be recorded, which requires their per-token traces."""
        every = self._rollouts_every_num_steps
        return every is not None and every > 0 and (step == 1 or step % every == 0)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step; raises `ValueError` if this or a later step is already recorded."""
        if step <= self._last_step:
            raise ValueError(
                f"step must be greater than {self._last_step}, the last recorded step, got {step}"
            )
        self._require_folder()
        self._last_step = step
        values = {name: float(value) for name, value in metrics.items()}
        with self._reported("metrics"):
            self._metrics.append({"step": step, "time": _now(), **values})
        with self._reported("status.json"):
            self._status.advance(step)

    def ratios(self, step: int, histogram: RatioHistogram) -> None:
        """Append the histogram of one step's importance ratios to `ratios.jsonl`."""
        record: Record = {
            "step": step,
            "edges": [round(edge, 7) for edge in histogram.edges],
            "positive": list(histogram.positive),
            "negative": list(histogram.negative),
            "zero": list(histogram.zero),
        }
        with self._reported("the distribution of ratios"):
            self._ratios.append(record)

    def rollouts(self, step: int, groups: Sequence[RolloutGroup], traces: Sequence[TokenTrace]) -> None:
        """Write a step's rollouts to a Parquet file if `wants_rollouts` returns True for the step.

        `traces` contains the per-token values of each rollout, in the order of the groups, or is empty.
        """
        if not self.wants_rollouts(step):
            return
        self._require_folder()
        from atrium.runs.sample_files import write_rollouts  # importing pyarrow takes 0.3 s

        with self._reported("rollouts"):
            write_rollouts(self.folder.rollouts_path(step), step, groups, traces)
            self._thin_rollouts(step)

    def evaluation(self, result: BenchmarkResult) -> None:
        """Record a benchmark's samples and scores, replacing an earlier evaluation at the same step."""
        from atrium.runs.sample_files import write_evaluation  # importing pyarrow takes 0.3 s

        step, benchmark = result.step, result.benchmark
        check_name(benchmark, "the benchmark's name")
        self._require_folder()
        with self._reported("evaluations"):
            write_evaluation(self.folder.evaluation_path(benchmark, step), step, result.samples)
            if (benchmark, step) in self._evaluated:
                self._forget_evaluation(benchmark, step)
        record: Record = {"step": step, "time": _now(), "benchmark": benchmark, "results": result.results}
        with self._reported("evaluations"):
            self._evaluations.append(record)
        self._evaluated.add((benchmark, step))
        with self._reported("status.json"):
            self._status.record_start()

    def sync(self) -> None:
        """Flush all lines to disk, so that a checkpoint written afterwards is not ahead of its metrics.

        Raises `RunFolderError` if the disk is full or if the run directory is missing.
        """
        self._require_folder()
        with explained("write the metrics of", self.folder.path):
            self._sync_files()

    def end(self, state: RunState, error: str | None = None, cause: str | None = None) -> None:
        """Record the run's final state, write the summary, and close all files.

        Raises `RunFolderError` if `state` is finished but the run directory is missing.
        """
        if not self._metrics.is_in_place():
            if state is RunState.FINISHED:
                self._require_folder()
            self.close()
            return
        with self._reported("the end of the run"):
            self._sync_files()
            self._status.end(state, error, cause)
            write_json(self.folder.summary_file, {**summarize(self.folder), **self._summary})
        self.close()

    def close(self) -> None:
        """Close the files without recording a final state. Harmless when called twice."""
        self._status.stop_beating()
        for file in (self._metrics, self._evaluations, self._ratios):
            file.close()

    def _sync_files(self) -> None:
        for file in (self._metrics, self._evaluations, self._ratios):
            file.sync()

    def _require_folder(self) -> None:
        if not self._metrics.is_in_place():
            raise RunFolderError(
                f"{self.folder.metrics_file} was removed or moved during the run, so the run ended; "
                "restore its folder and resume with `atrium train --resume`"
            )

    def _forget_evaluation(self, benchmark: str, step: int) -> None:
        self._evaluations.flush()
        self._evaluations.close()
        keep_lines(
            self.folder.evaluations_file,
            lambda record: (record.get("benchmark"), record.get("step")) != (benchmark, step),
        )
        self._evaluations = JsonLinesWriter(self.folder.evaluations_file)

    def _thin_rollouts(self, newest: int) -> None:
        """Delete files of rollouts, in the order of `step_to_drop`, until the rest fit in `rollouts_max_mb`.

        The file of step `newest` is deleted only if it alone exceeds the limit. A message then says so, once.
        """
        files = dict(steps_in(self.folder.rollouts_dir))
        sizes = {step: path.stat().st_size for step, path in files.items()}
        limit = self._rollouts_max_mb * _BYTES_PER_MB
        while sizes and sum(sizes.values()) > limit:
            step = newest if sizes.get(newest, 0) > limit else step_to_drop(tuple(sizes))
            files[step].unlink()
            del sizes[step]
        if newest not in sizes:
            self._log_once("rollouts", f"rollouts of one step exceed {self._rollouts_max_mb} MB")

    @contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        """Log an `OSError` of the `with` block instead of raising it; `what` names the file or record."""
        try:
            yield
        except OSError as error:
            self._log_once(what, f"{what} cannot be written: {reason_of(error)}; training continues")

    def _log_once(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._log(text)


def step_to_drop(steps: tuple[int, ...]) -> int:
    """Return the step whose removal leaves the smallest gap, or the first step if there are at most two.

    `steps` are in increasing order. The first and the last of more than two steps are never returned.
    """
    if len(steps) <= 2:
        return steps[0]
    gaps = [steps[i + 1] - steps[i - 1] for i in range(1, len(steps) - 1)]
    return steps[1 + gaps.index(min(gaps))]


def _last_step(records: Sequence[Record]) -> int:
    return max((step for record in records if isinstance(step := record.get("step"), int)), default=0)


def _now() -> float:
    return round(time.time(), 3)

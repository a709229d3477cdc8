"""The listener that writes the run folder: metrics, rollouts, evaluations, status, and the summary.

A full disk does not stop training: unwritten lines are kept in memory and written later, files of samples are
skipped, and both are reported once. Only `sync`, which a checkpoint waits for, insists. A run whose folder is
removed or moved ends, since its later output would be lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from atrium.base.atomic import explained, write_json
from atrium.base.errors import RunFolderError
from atrium.base.json_lines import JsonLinesWriter, Record, keep_lines, read_json_lines
from atrium.base.records import BenchmarkResult, RatioHistogram, RolloutGroup, TokenTrace
from atrium.runs.layout import check_name, steps_in
from atrium.runs.listener import Listener
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, StatusWriter
from atrium.runs.summary import summarize

_BYTES_PER_MB = 1_000_000


class RunFolderWriter(Listener):
    """Writes a run's events into its folder.

    The rollouts of every `rollouts_every_num_steps`-th step are recorded, and the first step's; None records
    none. When `rollouts_max_mb` is reached, steps in between are dropped so that the remaining ones span the
    run evenly. `log`, by default `log.txt`, reports failed writes, once per kind. summary.json also contains
    the entries of `summary` at the end. Raises `RunFolderError` if the folder cannot be written at the start.
    """

    name = "the run folder"
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
        self._reported: set[str] = set()
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
        """Record in the status that training continues after `step` (0 at the start) up to `num_steps`."""
        del title
        self.progress(step=step, num_steps=num_steps)

    def progress(self, *, step: int, num_steps: int) -> None:
        """Record the progress in the status."""
        self._require_folder()
        with explained("write", self.folder.status_file):
            self._status.begin(step=step, num_steps=num_steps)

    def wants_rollouts(self, step: int) -> bool:
        """Return whether this step's rollouts are recorded, so that traces are needed."""
        every = self._rollouts_every_num_steps
        return every is not None and every > 0 and (step == 1 or step % every == 0)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step; `ValueError` unless steps increase."""
        if step <= self._last_step:
            raise ValueError(f"step {step} is not after step {self._last_step}, which is already recorded")
        self._require_folder()
        self._last_step = step
        values = {name: float(value) for name, value in metrics.items()}
        self._append(self._metrics, {"step": step, "time": _now(), **values}, "metrics")
        try:
            self._status.advance(step)
        except OSError as error:
            self._report("status.json", error)

    def ratios(self, step: int, histogram: RatioHistogram) -> None:
        """Record the distribution of one step's ratios, in `ratios.jsonl`."""
        record: Record = {
            "step": step,
            "edges": [round(edge, 7) for edge in histogram.edges],
            "positive": list(histogram.positive),
            "negative": list(histogram.negative),
            "zero": list(histogram.zero),
        }
        self._append(self._ratios, record, "the distribution of ratios")

    def rollouts(
        self,
        step: int,
        groups: Sequence[RolloutGroup],
        traces: Mapping[tuple[str, int], TokenTrace],
    ) -> None:
        """Record a step's rollouts if they are due (see `wants_rollouts`)."""
        if not self.wants_rollouts(step):
            return
        self._require_folder()
        from atrium.runs.sample_files import write_rollouts  # importing pyarrow takes 0.3 s

        try:
            write_rollouts(self.folder.rollouts_path(step), step, groups, traces)
            self._thin_rollouts(step)
        except OSError as error:
            self._report("rollouts", error)

    def evaluation(self, result: BenchmarkResult) -> None:
        """Record one evaluation; a second one of the same benchmark and step replaces the first."""
        from atrium.runs.sample_files import write_evaluation  # importing pyarrow takes 0.3 s

        step, benchmark = result.step, result.benchmark
        check_name(benchmark, "the benchmark's name")
        self._require_folder()
        try:
            write_evaluation(self.folder.evaluation_path(benchmark, step), step, result.samples)
            if (benchmark, step) in self._evaluated:
                self._forget_evaluation(benchmark, step)
        except OSError as error:
            self._report("evaluations", error)
        record: Record = {"step": step, "time": _now(), "benchmark": benchmark, "results": result.results}
        self._append(self._evaluations, record, "evaluations")
        self._evaluated.add((benchmark, step))
        try:
            self._status.has_started()
        except OSError as error:
            self._report("status.json", error)

    def sync(self) -> None:
        """Flush all lines to disk, which a checkpoint of the same step waits for.

        Raises `RunFolderError` if the disk is full: a checkpoint must not be ahead of its metrics.
        """
        self._require_folder()
        with explained("write the metrics of", self.folder.path):
            self._sync_files()

    def end(self, state: RunState, error: str | None = None, cause: str | None = None) -> None:
        """Write how the run ended and the summary, and close all files.

        Raises `RunFolderError` if a run would end as finished but its folder is missing.
        """
        if not self._metrics.is_in_place():
            if state is RunState.FINISHED:
                self._require_folder()
            self.close()
            return
        try:
            self._sync_files()
            self._status.end(state, error, cause)
            write_json(self.folder.summary_file, {**summarize(self.folder), **self._summary})
        except OSError as problem:
            self._report("the end of the run", problem)
        self.close()

    def close(self) -> None:
        """Close the files without recording how the run ended. Harmless when called twice."""
        self._status.stop_beating()
        for file in (self._metrics, self._evaluations, self._ratios):
            file.close()

    def _sync_files(self) -> None:
        for file in (self._metrics, self._evaluations, self._ratios):
            file.sync()

    def _require_folder(self) -> None:
        if not self._metrics.is_in_place():
            raise RunFolderError(
                f"{self.folder.metrics_file} was removed or moved during the run, so it ends; if its "
                "folder was moved, move it back, and resume with `atrium train --resume`"
            )

    def _append(self, writer: JsonLinesWriter, record: Record, what: str) -> None:
        try:
            writer.append(record)
        except OSError as error:
            self._report(what, error)

    def _forget_evaluation(self, benchmark: str, step: int) -> None:
        self._evaluations.flush()
        self._evaluations.close()
        keep_lines(
            self.folder.evaluations_file,
            lambda record: (record.get("benchmark"), record.get("step")) != (benchmark, step),
        )
        self._evaluations = JsonLinesWriter(self.folder.evaluations_file)

    def _thin_rollouts(self, newest: int) -> None:
        """Delete recorded steps until the rest fits, first the one whose absence leaves the smallest gap."""
        files = dict(steps_in(self.folder.rollouts_dir))
        sizes = {step: path.stat().st_size for step, path in files.items()}
        limit = self._rollouts_max_mb * _BYTES_PER_MB
        while sizes and sum(sizes.values()) > limit:
            step = step_to_drop(tuple(sizes))
            files[step].unlink()
            del sizes[step]
        if newest not in sizes:
            self._log_once("rollouts", f"rollouts of one step exceed {self._rollouts_max_mb} MB")

    def _report(self, what: str, error: OSError) -> None:
        self._log_once(what, f"{what} cannot be written: {error.strerror or error}; training continues")

    def _log_once(self, what: str, text: str) -> None:
        if what in self._reported:
            return
        self._reported.add(what)
        self._log(text)


def step_to_drop(steps: tuple[int, ...]) -> int:
    """Return the least important of the recorded steps: never the first or last of several."""
    if len(steps) <= 2:
        return steps[-1]
    gaps = [steps[i + 1] - steps[i - 1] for i in range(1, len(steps) - 1)]
    return steps[1 + gaps.index(min(gaps))]


def _last_step(records: Sequence[Record]) -> int:
    return max((step for record in records if isinstance(step := record.get("step"), int)), default=0)


def _now() -> float:
    return round(time.time(), 3)

"""A trace of one step by torch's profiler, for Perfetto (ui.perfetto.dev), and the costliest operations.

`step-N.txt` contains torch's table of the costliest operations, and `step-N.operations.json` contains the
step's duration and the operations (on a GPU, the kernels), sorted by self time, which excludes nested
operations. Trace and list cover everything that this process does on its CPU and GPU, but not the separate
processes of an engine. The profiler slows the step down, so the step's times and rates are not
representative.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.autograd.profiler_util import EventList, FunctionEventAvg
from torch.profiler import ProfilerActivity, profile

from atrium.base.errors import reason_of

_NUM_SHOWN = 10
_NUM_LISTED = 100


@dataclass(frozen=True, kw_only=True)
class StepProfiler:
    """A profiler that writes the trace of step `step` to `folder`.

    The operations of the step are written to `folder` too, and the costliest of them also to `log`.
    """

    step: int
    folder: Path
    log: Callable[[str], None]

    @contextmanager
    def watch(self, step: int) -> Iterator[None]:
        """Trace the block if `step` is the chosen step. If the block fails, no trace is written."""
        if step != self.step:
            yield
            return
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities, record_shapes=True, acc_events=True) as profiler:
            started = time.perf_counter()
            yield
            seconds = time.perf_counter() - started
        self._write(profiler, seconds)

    def _write(self, profiler: profile, seconds: float) -> None:
        path = self.folder / f"step-{self.step:06d}.json.gz"
        averages = profiler.key_averages()
        on_cuda = torch.cuda.is_available()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(path))
            table = averages.table(
                sort_by="self_cuda_time_total" if on_cuda else "self_cpu_time_total", row_limit=_NUM_LISTED
            )
            path.with_name(f"step-{self.step:06d}.txt").write_text(table, encoding="utf-8")
            found = {"seconds": seconds, "operations": _operations(averages, on_cuda=on_cuda)}
            path.with_name(f"step-{self.step:06d}.operations.json").write_text(json.dumps(found), "utf-8")
        except OSError as error:
            self.log(f"the profile of step {self.step} could not be written to {path} ({reason_of(error)})")
            return
        self.log(f"step {self.step} was profiled: {path} opens in ui.perfetto.dev")
        for line in top_operations(averages, on_cuda=on_cuda):
            self.log(line)


def top_operations(averages: EventList, *, on_cuda: bool) -> list[str]:
    """Return lines with the self time, share, calls and name of the operations with the most self time."""
    found = _operations(averages, on_cuda=on_cuda)
    total = sum(seconds for _, seconds, _ in found) or 1.0
    return [
        f"  {seconds * 1e3:9.1f} ms  {seconds / total:6.1%}  {count:8,} x  {name[:60]}"
        for name, seconds, count in found[:_NUM_SHOWN]
    ]


def _operations(averages: EventList, *, on_cuda: bool) -> list[tuple[str, float, int]]:
    """Return (name, self time in seconds, calls) of each operation or GPU kernel, longest self time first."""

    def own_us(event: FunctionEventAvg) -> float:
        return float(event.self_device_time_total if on_cuda else event.self_cpu_time_total)

    found = sorted(averages, key=own_us, reverse=True)
    return [(event.key, own_us(event) / 1e6, event.count) for event in found if own_us(event) > 0.0]

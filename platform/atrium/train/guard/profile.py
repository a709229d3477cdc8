"""A trace of one step by torch's profiler, for Perfetto (ui.perfetto.dev), and the costliest operations.

It contains everything that this process does on its CPU and GPU, but not an engine's separate processes. The
profiler slows the step down, so its times and rates are no measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.autograd.profiler_util import EventList, FunctionEventAvg
from torch.profiler import ProfilerActivity, profile

_NUM_SHOWN = 10
_NUM_LISTED = 100


@dataclass(frozen=True, kw_only=True)
class StepProfiler:
    """Traces the step with the number `step` into `folder`; the operations go to `log`."""

    step: int
    folder: Path
    log: Callable[[str], None]

    @contextmanager
    def watch(self, step: int) -> Iterator[None]:
        """Trace the block if it is the chosen step; a step that fails leaves no trace."""
        if step != self.step:
            yield
            return
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities, record_shapes=True, acc_events=True) as profiler:
            yield
        self._write(profiler)

    def _write(self, profiler: profile) -> None:
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
        except OSError as error:
            self.log(f"the profile of step {self.step} could not be written to {path} ({error})")
            return
        self.log(f"step {self.step} was profiled: {path} opens in ui.perfetto.dev")
        for line in top_operations(averages, on_cuda=on_cuda):
            self.log(line)


def top_operations(averages: EventList, *, on_cuda: bool) -> list[str]:
    """Return a line for each of the costliest operations by own time: time, share, calls and name."""

    def own_us(event: FunctionEventAvg) -> float:
        return float(event.self_device_time_total if on_cuda else event.self_cpu_time_total)

    total = sum(own_us(event) for event in averages) or 1.0
    highest = sorted(averages, key=own_us, reverse=True)[:_NUM_SHOWN]
    return [
        f"  {own_us(event) / 1e3:9.1f} ms  {own_us(event) / total:6.1%}  {event.count:8,} x  {event.key[:60]}"
        for event in highest
        if own_us(event) > 0.0
    ]

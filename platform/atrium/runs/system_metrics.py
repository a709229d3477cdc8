"""Recording of the machine's state during a run: CPU, memory, disk, GPUs and the engine's queue.

A listener samples these values every ten seconds in a separate thread, so steps do not wait, and appends them
to `system.jsonl`. GPU values come from NVML (the package `nvidia-ml-py`); without NVML or a GPU they are
missing. Only rank 0 of a run records values, and only of its own machine.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import psutil

from atrium.base.json_lines import JsonLinesWriter
from atrium.base.metrics import (
    CPU_CORES,
    CPU_FRAC,
    DISK_FREE_MB,
    MEMORY_FRAC,
    MEMORY_MB,
    gpu_quantities,
)
from atrium.runs.layout import RunLayout
from atrium.runs.listener import Listener
from atrium.runs.status import RunState

_BYTES_PER_MB = 1e6
_EVERY_S = 10.0
_FIRST_AFTER_S = 1.0
"""Seconds before the first sample, since CPU time is measured over an interval."""


class SystemMetrics(Listener):
    """A listener that appends the machine's state to `system.jsonl` every `every_s` seconds.

    `gauges` maps the names of further values, such as the length of the engine's queue, to functions that
    return them. The sampling thread calls these functions; entries may be added during the run. A value that
    cannot be read is left out. If the disk is full, lines are kept in memory and written with a later sample;
    lines that are still unwritten at the end are lost.
    """

    name = "the system metrics"

    def __init__(
        self,
        run: RunLayout,
        gauges: Mapping[str, Callable[[], float]],
        *,
        every_s: float = _EVERY_S,
        first_after_s: float = _FIRST_AFTER_S,
    ) -> None:
        self._run = run
        self._gauges = gauges
        self._every_s, self._first_after_s = every_s, first_after_s
        self._step = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="system-metrics", daemon=True)
        self._thread.start()

    def begin(self, *, step: int, num_steps: int, title: str = "") -> None:
        """Set the last finished step, with which later records are labeled, to `step` (0 for a new run)."""
        self._step = step

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Set the last finished step, with which later records are labeled."""
        self._step = step

    def end(self, state: RunState, error: str | None = None, cause: str | None = None) -> None:
        """Stop the sampling thread."""
        self._ended.set()
        self._thread.join(timeout=1.0)

    def _sample(self) -> None:
        machine, wait_s = Machine(self._run), self._first_after_s
        file: JsonLinesWriter | None = None
        while not self._ended.wait(wait_s):
            wait_s = self._every_s
            with suppress(OSError):
                file = file or JsonLinesWriter(self._run.system_file)
                row = {"step": self._step, "time": round(time.time(), 3)}
                file.append({**row, **machine.values(), **self._gauge_values()})
        if file is not None:
            file.close()

    def _gauge_values(self) -> dict[str, float]:
        found = {}
        for name, gauge in tuple(self._gauges.items()):
            with suppress(Exception):  # an engine that is starting or lost
                found[name] = float(gauge())
        return found


class Machine:
    """A reader of the load of the machine, and of this process with its descendants.

    CPU use is measured since the previous call of `values`.
    """

    def __init__(self, run: RunLayout) -> None:
        self._run = run
        self._process = psutil.Process()
        self._nvml, self._gpus = _open_gpus()
        self._clock = time.monotonic()
        self._spent_s, _ = self._processes()
        psutil.cpu_percent()

    def values(self) -> dict[str, float]:
        """Return the current values by quantity name (see `atrium.base.metrics`)."""
        now = time.monotonic()
        spent_s, resident = self._processes()
        own_s = sum(spent - self._spent_s.get(pid, 0.0) for pid, spent in spent_s.items())
        found = {
            CPU_FRAC.name: psutil.cpu_percent() / 100,
            CPU_CORES.name: max(own_s, 0.0) / max(now - self._clock, 1e-3),
            MEMORY_FRAC.name: psutil.virtual_memory().percent / 100,
            MEMORY_MB.name: resident / _BYTES_PER_MB,
        }
        self._clock, self._spent_s = now, spent_s
        with suppress(OSError):
            found[DISK_FREE_MB.name] = psutil.disk_usage(str(self._run.path)).free / _BYTES_PER_MB
        for index, handle in self._gpus:
            found |= self._gpu_values(index, handle)
        return {name: round(value, 3) for name, value in found.items()}

    def _processes(self) -> tuple[dict[int, float], int]:
        """Return the CPU seconds by process id, and the total resident memory in bytes.

        The processes are this process and its descendants.
        """
        spent_s, resident = {}, 0
        for process in (self._process, *self._process.children(recursive=True)):
            with suppress(psutil.Error):
                times = process.cpu_times()
                spent_s[process.pid] = times.user + times.system
                resident += process.memory_info().rss
        return spent_s, resident

    def _gpu_values(self, index: int, handle: object) -> dict[str, float]:
        nvml, (used, memory, power, temperature) = self._nvml, gpu_quantities(str(index))
        readings: tuple[tuple[str, Callable[[], float]], ...] = (
            (used.name, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
            (memory.name, lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / _BYTES_PER_MB),
            (power.name, lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            (temperature.name, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        )
        found = {}
        for name, read in readings:
            with suppress(nvml.NVMLError):  # for example, the utilization of a MIG slice is unknown
                found[name] = float(read())
        return found


def _open_gpus() -> tuple[Any, Sequence[tuple[int, object]]]:
    """Return NVML, and the index and handle of each GPU that this process may use.

    Returns (None, ()) if NVML or its driver is missing.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        names = [(str(index), str(pynvml.nvmlDeviceGetUUID(one))) for index, one in enumerate(handles)]
    except Exception:  # not installed, no driver, or a version without these functions
        return None, ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = None if visible is None else [part.strip() for part in visible.split(",")]
    is_used = [wanted is None or not {index, uuid}.isdisjoint(wanted) for index, uuid in names]
    return pynvml, [(index, one) for index, one in enumerate(handles) if is_used[index]]

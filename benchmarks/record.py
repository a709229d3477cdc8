"""Timers for the phases of a step, and the JSON records of the benchmarks.

Wall-clock seconds are the time that a user waits. CPU seconds of the process are comparable even on a machine
with other load. Fields ending in `_med` are medians over the steps after the warm-up.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

WALL_PHASES = ("generate", "reward", "rollout", "loss_fwd", "logprob_fwd", "backward", "optimizer")
CPU_PHASES = ("generate", "loss_fwd", "backward", "optimizer")
_DISJOINT = ("rollout", "loss_fwd", "backward", "optimizer")


class StepTimes:
    """Wall-clock and CPU seconds of each phase of each step.

    `rollout` includes `generate`, `reward` and everything else before the update; `logprob_fwd` is the
    part of `loss_fwd` (or of `rollout`) in which the model computes log-probabilities.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.first_step_done: float | None = None
        self._current: dict[str, float] = defaultdict(float)
        self.restart()

    def restart(self) -> None:
        """Start the clocks of the next step."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the wall-clock and CPU time of the `with` block to a phase of the current step."""
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self._current[name] += time.perf_counter() - wall
            self._current[f"cpu_{name}"] += time.process_time() - cpu

    def add(self, name: str, wall_s: float) -> None:
        """Add wall-clock seconds, measured elsewhere, to a phase of the current step."""
        self._current[name] += wall_s

    def wrap(self, owner: object, method: str, name: str) -> None:
        """Replace an object's method by one that adds the time of each call to phase `name`."""
        original: Callable[..., Any] = getattr(owner, method)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name):
                return original(*args, **kwargs)

        setattr(owner, method, timed)

    def end_step(self) -> None:
        """End the current step and start the next one."""
        step = dict(self._current)
        self._current.clear()
        step["wall"] = time.perf_counter() - self._wall
        step["cpu_step"] = time.process_time() - self._cpu
        self.steps.append(step)
        if self.first_step_done is None:
            self.first_step_done = time.time()
        self.restart()

    def summary(self, *, num_warmup: int, tokens_per_step: float) -> dict[str, float]:
        """Return medians and rates over the steps after the first `num_warmup`; over all if none are left."""
        steps = self.steps[num_warmup:] or self.steps

        def median(key: str) -> float:
            return round(statistics.median(step.get(key, 0.0) for step in steps), 5)

        walls = [step["wall"] for step in steps]
        others = [step["wall"] - sum(step.get(name, 0.0) for name in _DISJOINT) for step in steps]
        generate, wall = median("generate"), median("wall")
        return {
            "wall_med": wall,
            "wall_min": round(min(walls), 5),
            "wall_max": round(max(walls), 5),
            **{f"{name}_med": median(name) for name in WALL_PHASES},
            "other_med": round(statistics.median(others), 5),
            "cpu_step_med": median("cpu_step"),
            **{f"cpu_{name}_med": median(f"cpu_{name}") for name in CPU_PHASES},
            "gen_tokens_per_step": tokens_per_step,
            "gen_tokens_per_s": round(tokens_per_step / generate, 1) if generate else 0.0,
            "e2e_tokens_per_s": round(tokens_per_step / wall, 1),
            "first_step_wall": round(self.steps[0]["wall"], 3),
        }


class StartUp:
    """The times of the stages of a program's start, in seconds since the process began."""

    def __init__(self) -> None:
        self._began = psutil.Process().create_time()
        self._marks: dict[str, float] = {}
        self._rss_after_import_mb = 0

    def imported(self) -> None:
        """Record the time and the memory after all libraries are imported."""
        self._marks["t_import"] = time.time() - self._began
        self._rss_after_import_mb = round(psutil.Process().memory_info().rss / 2**20)

    def ready(self) -> None:
        """Record the time at which the trainer is ready."""
        self._marks["t_trainer_ready"] = time.time() - self._began

    def summary(self, times: StepTimes) -> dict[str, float]:
        """Return the recorded times, the time of the first finished step, and the memory in MB."""
        assert times.first_step_done is not None, "no step was finished"
        marks = self._marks | {"t_first_step_done": times.first_step_done - self._began}
        return {
            **{name: round(seconds, 3) for name, seconds in marks.items()},
            "rss_after_import_mb": self._rss_after_import_mb,
            "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        }


def versions(*packages: str) -> str:
    """Return the versions of packages as text, such as `trl 1.16.0 / torch 2.13.0`."""
    return " / ".join(f"{package} {_version(package)}" for package in packages)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # Atrium in a checkout, without an installation
        return "from source"


def machine(device: str = "cpu") -> dict[str, Any]:
    """Describe the machine, without host name and paths."""
    if device != "cpu":
        import torch

        return {**machine(), "device": torch.cuda.get_device_name()}
    return {
        "processor": _processor(),
        "num_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "load1": round(os.getloadavg()[0], 2),
    }


def print_record(**fields: Any) -> None:
    """Print the fields as one JSON line on standard output."""
    print(json.dumps(fields), flush=True)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()

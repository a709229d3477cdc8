"""Time per phase of a step, and the one JSON line in which a step benchmark reports.

Wall-clock seconds say what a user waits for; CPU seconds of the process are what compares two programs on a
machine that others use too. Fields ending in `_med` are medians over the steps after the warm-up.
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
    """Seconds of wall clock and of CPU per phase, step by step.

    `rollout` holds `generate`, `reward` and whatever else comes before the update; `logprob_fwd` is the
    part of `loss_fwd` (or of `rollout`) in which the model runs forward for log-probabilities.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.first_step_done: float | None = None
        self._current: dict[str, float] = defaultdict(float)
        self.restart()

    def restart(self) -> None:
        """Begin the first step now."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the block's time to a phase of the current step."""
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self._current[name] += time.perf_counter() - wall
            self._current[f"cpu_{name}"] += time.process_time() - cpu

    def add(self, name: str, wall_s: float) -> None:
        """Add wall-clock seconds, which the program measured itself, to a phase of the current step."""
        self._current[name] += wall_s

    def wrap(self, owner: object, method: str, name: str) -> None:
        """Make each call of an object's method count as the phase."""
        original: Callable[..., Any] = getattr(owner, method)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name):
                return original(*args, **kwargs)

        setattr(owner, method, timed)

    def end_step(self) -> None:
        """Close the current step; the next begins."""
        step = dict(self._current)
        self._current.clear()
        step["wall"] = time.perf_counter() - self._wall
        step["cpu_step"] = time.process_time() - self._cpu
        self.steps.append(step)
        if self.first_step_done is None:
            self.first_step_done = time.time()
        self.restart()

    def summary(self, *, num_warmup: int, tokens_per_step: float) -> dict[str, float]:
        """Medians over the steps after the warm-up (over all, where there are no more), and rates."""
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
    """Seconds since the process began, at the moments that a user waits for."""

    def __init__(self) -> None:
        self._began = psutil.Process().create_time()
        self._marks: dict[str, float] = {}
        self._rss_after_import_mb = 0

    def imported(self) -> None:
        """All libraries are loaded."""
        self._marks["t_import"] = time.time() - self._began
        self._rss_after_import_mb = round(psutil.Process().memory_info().rss / 2**20)

    def ready(self) -> None:
        """The trainer is built."""
        self._marks["t_trainer_ready"] = time.time() - self._began

    def summary(self, times: StepTimes) -> dict[str, float]:
        """The marks, the time of the first finished step, and memory."""
        assert times.first_step_done is not None, "no step was finished"
        marks = self._marks | {"t_first_step_done": times.first_step_done - self._began}
        return {
            **{name: round(seconds, 3) for name, seconds in marks.items()},
            "rss_after_import_mb": self._rss_after_import_mb,
            "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        }


def versions(*packages: str) -> str:
    """`trl 1.16.0 / torch 2.13.0` for the packages named."""
    return " / ".join(f"{package} {_version(package)}" for package in packages)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # Atrium where it runs from a checkout alone
        return "from source"


def machine(device: str = "cpu") -> dict[str, Any]:
    """What the numbers were measured on: no name of a host, no path."""
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
    """One JSON line on standard output."""
    print(json.dumps(fields), flush=True)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()

"""Paired, interleaved repeats: several arms timed in turns in one process, and their ratios.

Each repeat runs every arm once, in a rotating order. Arms are compared within repeats, so that a temporary
slowdown of the machine affects all arms. On a CPU the time is CPU seconds of the process, which other
processes hardly affect; on a GPU it is wall-clock seconds after synchronization.
"""

from __future__ import annotations

import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_PEAK_RESET = Path("/proc/self/clear_refs")


def seconds_of(work: Callable[[], object], device: str = "cpu") -> float:
    """Time `work`: CPU seconds of the process on a CPU, synchronized wall-clock seconds on a GPU."""
    if device == "cpu":
        started = time.process_time()
        work()
        return time.process_time() - started
    import torch

    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def in_turns(
    arms: Mapping[str, Callable[[], float]], num_repeats: int, *, name: str = ""
) -> dict[str, list[float]]:
    """Run all arms in turns and return each arm's values by repeat; a first repeat only warms up."""
    names = list(arms)
    found: dict[str, list[float]] = {arm: [] for arm in names}
    for repeat in range(num_repeats + 1):
        turn = repeat % len(names)
        for arm in names[turn:] + names[:turn]:
            value = arms[arm]()
            if repeat > 0:
                found[arm].append(value)
        progress(f"{name} {repeat} of {num_repeats}" if repeat else f"{name} warmed up")
    return found


def ratio_of(values: Sequence[float], others: Sequence[float]) -> dict[str, Any]:
    """Return the median of the paired ratios `values / others`, and its 95 % sign interval."""
    ratios = [one / other for one, other in zip(values, others, strict=True)]
    low, high = median_interval(ratios)
    return {"ratio": round(statistics.median(ratios), 4), "interval": [round(low, 4), round(high, 4)]}


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the sign interval of the median: the closest two order statistics that cover at least 95 %.

    With fewer than six values it is their whole range, which covers less: 94 % for five, 75 % for three.
    """
    ordered, num = sorted(values), len(values)
    below, rank = 0.0, 0
    while (below := below + math.comb(num, rank) / 2**num) <= 0.025:
        rank += 1
    rank = max(rank - 1, 0)
    return ordered[rank], ordered[num - 1 - rank]


def peak_mb(work: Callable[[], object], device: str = "cpu") -> float | None:
    """Return how far memory rises during `work`, in MB above its start; None if it cannot be measured.

    On a CPU it is the resident memory, whose recorded peak can be reset on Linux only.
    """
    gc.collect()
    if device != "cpu":
        import torch

        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    try:
        _PEAK_RESET.write_text("5", encoding="utf-8")
    except OSError:
        return None
    before_kb = _status_kb("VmRSS")
    work()
    return (_status_kb("VmHWM") - before_kb) / 1024


def progress(text: str) -> None:
    """Print a line on standard error, since standard output contains only records."""
    print(f"  {text}", file=sys.stderr, flush=True)


def _status_kb(key: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))

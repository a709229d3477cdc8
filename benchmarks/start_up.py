"""Time `atrium --help`, and the start of `atrium train` until its first finished step.

Both commands run in turns, each in a new process. The run is the smallest one (`debug=tiny_steps`) on the
built-in task, including the evaluation before training. Its warmed-up policy is already cached, as for every
run except the first one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

import pairs
import record

COMMAND = [sys.executable, "-m", "atrium"]


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument(
        "--repeats", type=int, default=5, help="repeats of each measurement (default %(default)s)"
    )
    options.add_argument("--overrides", nargs="*", default=[], help="settings of the run")
    return options


def time_help() -> tuple[float, float]:
    """Return the wall-clock and CPU seconds of `atrium --help`."""
    started = time.perf_counter()
    process = psutil.Popen([*COMMAND, "--help"], stdout=subprocess.DEVNULL)
    cpu = _cpu_until_end(process)
    return time.perf_counter() - started, cpu


def time_first_step(runs_dir: Path, overrides: list[str]) -> tuple[float, float]:
    """Return the wall-clock and CPU seconds until a new run has recorded its first step."""
    arguments = ["debug=tiny_steps", f"runs_dir={runs_dir}", "tracking=none", "tracking.progress=off"]
    before = set(runs_dir.glob("*/*/metrics.jsonl"))
    started = time.perf_counter()
    process = psutil.Popen([*COMMAND, "train", *arguments, *overrides], stdout=subprocess.DEVNULL)
    wall = cpu = None
    while process.poll() is None and wall is None:
        time.sleep(0.01)
        if any(path.stat().st_size for path in set(runs_dir.glob("*/*/metrics.jsonl")) - before):
            wall, times = time.perf_counter() - started, process.cpu_times()
            cpu = times.user + times.system
    if process.wait() != 0 or wall is None or cpu is None:
        raise SystemExit(f"the run ended with exit code {process.returncode} before its start was measured")
    return wall, cpu


def _cpu_until_end(process: psutil.Popen) -> float:
    cpu = 0.0
    while process.poll() is None:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            break
        cpu = times.user + times.system
        time.sleep(0.01)
    return cpu


def main() -> None:
    """Time both commands in turns and print a record for each."""
    args = parser().parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ["ATRIUM_MIRRORS"] = "off"
    found: dict[str, list[tuple[float, float]]] = {"atrium --help": [], "to the first step": []}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(args.repeats + 1):
            times = time_help(), time_first_step(Path(folder), args.overrides)
            if repeat > 0:  # the first repeat fills the caches of policies, files and bytecode
                for name, one in zip(found, times, strict=True):
                    found[name].append(one)
            pairs.progress(f"start-up, repeat {repeat} of {args.repeats}" if repeat else "warmed up")
    for name, times in found.items():
        wall, cpu = ([one[place] for one in times] for place in (0, 1))
        record.print_record(
            impl=record.versions("atrium-rl", "transformers", "torch"),
            what=name,
            wall_s_med=round(statistics.median(wall), 3),
            wall_interval=[round(bound, 3) for bound in pairs.median_interval(wall)],
            cpu_s_med=round(statistics.median(cpu), 3),
            repeats=args.repeats,
            **record.machine(),
        )


if __name__ == "__main__":
    main()

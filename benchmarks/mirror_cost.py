"""Measure the cost of mirroring a run to MLflow: step times with and without it, and waiting times.

    python benchmarks/mirror_cost.py [--repeats 6] [--steps 60] [--overrides ...]

Runs alternate between `tracking=none` and `tracking=mlflow` (with a new SQLite database each). They have the
same settings and seed, and each runs in a separate process. A run yields the median and the sum of the
wall-clock seconds of its steps after the first, and the CPU seconds of its process, which include the mirror.
The waiting times are those of training's calls of the mirror.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pairs
import record

ARMS = {"none": "tracking=none", "mlflow": "tracking=mlflow"}
_INNER = "--inner"


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--repeats", type=int, default=6, help="pairs of runs (default %(default)s)")
    options.add_argument("--steps", type=int, default=60, help="steps per run (default %(default)s)")
    options.add_argument("--overrides", nargs="*", default=[], help="settings of the runs")
    return options


def train(arguments: list[str]) -> int:
    """Train in this process with the settings `arguments[1:]`; return the exit code.

    The seconds of each call of a mirror are written to the file `arguments[0]`.
    """
    from atrium.cli.app import main as atrium
    from atrium.runs.mirrors.delivery import Mirrors

    spent: dict[str, list[float]] = {"step": [], "end": [], "close": []}

    def timed(name: str) -> None:
        original = getattr(Mirrors, name)

        def call(self: Mirrors, *arguments: object) -> None:
            began = time.perf_counter()
            try:
                original(self, *arguments)
            finally:
                spent[name].append(time.perf_counter() - began)

        setattr(Mirrors, name, call)

    for name in spent:
        timed(name)
    code = atrium(["train", *arguments[1:]])
    Path(arguments[0]).write_text(json.dumps(spent), encoding="utf-8")
    return code


def run(arm: str, steps: int, overrides: list[str]) -> dict[str, float]:
    """Run an arm once; return its step time, the CPU seconds of training, and the waiting times."""
    with tempfile.TemporaryDirectory() as folder:
        runs_dir, spent_file = Path(folder) / "runs", Path(folder) / "spent.json"
        settings = [f"num_steps={steps}", ARMS[arm], f"runs_dir={runs_dir}", "tracking.progress=off"]
        command = [sys.executable, __file__, _INNER, str(spent_file), "debug=tiny_steps", *settings]
        with (Path(folder) / "errors.txt").open("w+b") as errors:
            process = subprocess.Popen([*command, *overrides], stdout=subprocess.DEVNULL, stderr=errors)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            said = (Path(folder) / "errors.txt").read_text(encoding="utf-8", errors="replace")[-2000:]
            raise SystemExit(f"a run with {ARMS[arm]} ended with exit code {process.returncode}: {said}")
        [metrics] = runs_dir.glob("*/*/metrics.jsonl")
        rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
        spent = json.loads(spent_file.read_text(encoding="utf-8"))
        calls = spent["step"]
        return {
            "step_s": statistics.median(row["time/step_s"] for row in rows[1:]),
            "steps_s": sum(row["time/step_s"] for row in rows[1:]),
            "cpu_s": used.ru_utime + used.ru_stime,
            "start_s": calls[0] if calls else 0.0,
            "per_step_s": statistics.median(calls[1:]) if calls[1:] else 0.0,
            "end_s": sum(spent["end"]) + sum(spent["close"]),
            "is_delivered": float(_is_delivered(metrics.parent)),
        }


def _is_delivered(folder: Path) -> bool:
    try:
        known = json.loads((folder / ".mirrors" / "mlflow.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    return bool(known["final_state"] == "finished")


def main() -> None:
    """Run both arms in turns and print one record."""
    if sys.argv[1:2] == [_INNER]:
        raise SystemExit(train(sys.argv[2:]))
    args = parser().parse_args()
    found: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}

    def repeat(arm: str) -> float:
        found[arm].append(run(arm, args.steps, args.overrides))
        pairs.progress(f"{arm}: {found[arm][-1]}")
        return found[arm][-1]["step_s"]

    step_s = pairs.in_turns({arm: lambda arm=arm: repeat(arm) for arm in ARMS}, args.repeats, name="pair")
    steps_s, cpu_s = (
        {arm: [one[key] for one in runs[1:]] for arm, runs in found.items()} for key in ("steps_s", "cpu_s")
    )

    def median(key: str) -> float:
        return round(statistics.median(one[key] for one in found["mlflow"][1:]), 6)

    record.print_record(
        impl=record.versions("atrium-rl", "mlflow"),
        step_s_med={arm: round(statistics.median(values), 5) for arm, values in step_s.items()},
        step_ratio=pairs.ratio_of(step_s["mlflow"], step_s["none"]),
        all_steps_ratio=pairs.ratio_of(steps_s["mlflow"], steps_s["none"]),
        cpu_ratio=pairs.ratio_of(cpu_s["mlflow"], cpu_s["none"]),
        mirror_start_s_med=median("start_s"),
        mirror_per_step_s_med=median("per_step_s"),
        mirror_end_s_med=median("end_s"),
        delivered_share=statistics.mean(one["is_delivered"] for one in found["mlflow"]),
        steps=args.steps,
        repeats=args.repeats,
        **record.machine(),
    )


if __name__ == "__main__":
    main()

"""Apply the collapse rules of `atrium.runs.diagnosis` to recorded runs, and print them beside the scores.

The rules see each run step by step, as during training; the number after a rule is the first step at which
it matches. `ess` and `norm` are two candidate signs that did not become rules (docs/collapse.md): the lowest
mean of the effective sample fraction over ten steps, and the largest ratio of a step's gradient norm to the
median of all earlier steps.

    python benchmarks/collapse_rules.py runs/healthy runs/stress_none
    python benchmarks/collapse_rules.py runs/stress_none --write tests/runs/recorded_curves.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from statistics import median

from atrium.base.metrics import EFFECTIVE_SAMPLE_FRAC, GRAD_NORM_MAX, Quantity
from atrium.runs import diagnosis
from atrium.runs.diagnosis import NUM_STEPS, Course, Step, diagnose
from atrium.runs.find import list_runs
from atrium.runs.reader import read_evaluations, read_steps
from atrium.runs.run_folder import RunFolder

KEPT = [value.name for value in vars(diagnosis).values() if isinstance(value, Quantity)]
"""Names of the metrics that the rules read."""


def first_said(steps: list[Step]) -> dict[str, int]:
    """Return the first step at which each rule matches during the run."""
    course, said = Course(), dict[str, int]()
    for step, metrics in steps:
        course.add(step, metrics)
        for found in diagnose(course.steps, is_over=False):
            said.setdefault(found.rule, step)
    return said


def lowest_mean(steps: list[Step], name: str) -> float:
    """Return the lowest mean over `NUM_STEPS` consecutive steps; NaN for a shorter run."""
    values = [metrics.get(name, math.nan) for _, metrics in steps]
    windows = [values[end - NUM_STEPS : end] for end in range(NUM_STEPS, len(values) + 1)]
    return min((sum(window) / NUM_STEPS for window in windows), default=math.nan)


def largest_jump(steps: list[Step], name: str) -> float:
    """Return the largest ratio of a value to the median of all earlier values, from step 11 on."""
    values = [metrics.get(name, math.nan) for _, metrics in steps]
    return max(
        (value / (median(values[:end]) or math.inf) for end, value in enumerate(values) if end >= NUM_STEPS),
        default=math.nan,
    )


def scores(folder: RunFolder) -> str:
    """Return the first and last score on each benchmark, as text."""
    return ", ".join(
        f"{points[0].mean_at_k:.3f} to {points[-1].mean_at_k:.3f}"
        for name, points in read_evaluations(folder).items()
        if "validation" not in name and points[0].mean_at_k is not None and points[-1].mean_at_k is not None
    )


def curve(folder: RunFolder, steps: list[Step]) -> dict[str, object]:
    """Return the metrics that the rules read, with three digits; None for a value that was not recorded."""
    columns = {
        name: [float(f"{metrics[name]:.3g}") if name in metrics else None for _, metrics in steps]
        for name in KEPT
    }
    return {"run": folder.name, "columns": columns}


def main() -> None:
    """Print a line for each run in the folders; with `--write`, also write their curves to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="folders of runs, such as runs/EXPERIMENT")
    parser.add_argument("--write", type=Path, help="JSONL file to write the curves to")
    arguments = parser.parse_args()
    curves = []
    for one in arguments.folders:
        for folder in list_runs(one.parent):
            steps = read_steps(folder)
            if folder.path.parent.name != one.name or len(steps) < NUM_STEPS:
                continue
            said = ", ".join(f"{rule} ({step})" for rule, step in first_said(steps).items()) or "nothing"
            ess = lowest_mean(steps, EFFECTIVE_SAMPLE_FRAC.name)
            norm = largest_jump(steps, GRAD_NORM_MAX.name)
            print(f"{folder.name}: test {scores(folder)}; ess {ess:.2f}, norm {norm:.1f}; {said}", flush=True)
            curves.append(json.dumps(curve(folder, steps)))
    if arguments.write:
        arguments.write.write_text("\n".join(curves) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

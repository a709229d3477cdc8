"""Seconds of a step with `rollout.lag=1`, sampled before or beside the update (`rollout.overlap`), as JSON.

Whole runs of equal settings in turns, in one process; the ratio compares the median step of neighbours. With
`--engine vllm_cpu`, run it with the Python of an environment that has vLLM, e.g. .venv-vllm/bin/python.
Both need a core of their own to gain anything: compare on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

_TIMES = ("time/step_s", "time/rollout_s", "time/update_s", "time/overlap_s")


def parse() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__)
    add = options.add_argument
    add("--engine", default="transformers", choices=("transformers", "vllm_cpu", "vllm"))
    add(
        "--steps",
        type=int,
        default=10,
        help="steps of a run (default %(default)s); the first two do not count",
    )
    add("--rounds", type=int, default=3, help="runs of each kind (default %(default)s)")
    add("settings", nargs="*", help="anything else for the run, e.g. rollout.num_prompts=32")
    return options.parse_args()


def run(args: argparse.Namespace, runs_dir: Path, *, overlap: bool) -> dict[str, float]:
    """The median of each time over the steps of a run."""
    from atrium.assemble.graders import build_grader
    from atrium.assemble.training import run_training
    from atrium.config.compose import compose
    from atrium.tracking.json_lines import read_json_lines
    from atrium.tracking.run_folder import RunFolder

    lines = [
        f"rollout={args.engine}",
        "model.head_dim=32",
        "model.warmup.num_clean_steps=0",
        "model.warmup.num_imperfect_steps=0",
        "reward=random",
        "rollout.lag=1",
        f"rollout.overlap={str(overlap).lower()}",
        f"num_steps={args.steps}",
        "dataset.num_validation=8",
        "dataset.num_test=8",
        "evaluation.num_samples=1",
        "evaluation.every_num_steps=null",
        "checkpoint.keep_best=false",
        "checkpoint.every_num_steps=1000",
        "tracking=none",
        "tracking.figures=false",
        "tracking.progress=off",
        f"runs_dir={runs_dir}",
        *args.settings,
    ]
    config = compose(lines)
    with build_grader(config.grader, config.model) as grader:
        folder = RunFolder(run_training(config, grader, lines))
    # The first step begins with two batches, the last samples none.
    steps = list(read_json_lines(folder.metrics_file).records)[2:-1]
    return {name: statistics.median(step.get(name, 0.0) for step in steps) for name in _TIMES}


def main() -> None:
    args = parse()
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.rounds):
            for overlap in (False, True) if turn % 2 == 0 else (True, False):
                found[overlap].append(run(args, Path(folder), overlap=overlap))
    pairs = zip(found[True], found[False], strict=True)
    report: dict[str, Any] = {
        "engine": args.engine,
        "step_ratio": round(statistics.median(a[_TIMES[0]] / b[_TIMES[0]] for a, b in pairs), 3),
    }
    for overlap, name in ((False, "before"), (True, "beside")):
        report[name] = {key: round(statistics.median(r[key] for r in found[overlap]), 4) for key in _TIMES}
    print(json.dumps(report))


if __name__ == "__main__":
    main()

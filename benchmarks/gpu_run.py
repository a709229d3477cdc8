"""Train a short run and print one JSON line: memory, times, kernels, rewards and scores.

The predicted memory comes from `planning/memory.py`, which training uses to refuse runs that do not fit; it
is computed for the settings that the run recorded. The measured memory is the peak that torch allocated in
the same phase; it is unknown on a CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import record

NUM_KERNELS = 12
PROMPT_TOKENS = 32
"""The approximate length of the longest prompt of the arithmetic task."""


def memory(config: Any, steps: Sequence[Mapping[str, float]], device: str) -> dict[str, Any]:
    """Return the predicted and the measured megabytes by phase; measured values on a CPU are None."""
    import torch

    from atrium.assemble.memory import known_shape, planned_memory
    from atrium.base import metrics
    from atrium.base.records import Phase
    from atrium.planning.memory import peak_by_phase

    size = int(torch.cuda.mem_get_info()[1]) if device == "cuda" else None
    shape = known_shape(config)
    assert shape is not None
    peaks = peak_by_phase(planned_memory(config, shape, num_prompt_tokens=PROMPT_TOKENS, device_bytes=size))
    update = max(peaks[Phase.UPDATE], peaks[Phase.OPTIMIZER])
    predicted = {"sampling": peaks[Phase.SAMPLING], "update": update, "evaluation": peaks[Phase.EVALUATION]}
    names = {
        "sampling": metrics.ROLLOUT_PEAK_MB.name,
        "update": metrics.UPDATE_PEAK_MB.name,
        "evaluation": metrics.EVALUATE_PEAK_MB.name,
    }
    measured = {
        phase: max((step[name] for step in steps if name in step), default=None)
        for phase, name in names.items()
    }
    return {
        "predicted_mb": {phase: round(value / 2**20, 1) for phase, value in predicted.items()},
        "measured_mb": measured,
    }


def num_parameters(config: Any) -> int:
    """Return the number of the model's parameters; the trainer sends each to the engine as float32."""
    from atrium.assemble.memory import known_shape

    shape = known_shape(config)
    assert shape is not None
    return int(shape.num_parameters)


def kernels(folder: Any) -> dict[str, Any]:
    """Return the profiled step's costliest operations and its idle share; empty if no step was profiled.

    The profiler slows down the host's part of a step, so the idle share is an upper bound.
    """
    files = sorted((folder.path / "profile").glob("*.operations.json"))
    if not files:
        return {}
    found = json.loads(files[-1].read_text(encoding="utf-8"))
    busy_s = sum(seconds for _, seconds, _ in found["operations"])
    return {
        "profiled_s": round(found["seconds"], 4),
        "idle_frac": round(max(0.0, 1.0 - busy_s / found["seconds"]), 4),
        "kernels": [
            {
                "name": name[:80],
                "seconds": round(seconds, 6),
                "frac": round(seconds / busy_s, 4),
                "calls": num,
            }
            for name, seconds, num in found["operations"][:NUM_KERNELS]
        ],
    }


def checkpoint(folder: Any, steps: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return the seconds and gigabytes of a checkpoint; both are None if the run wrote none.

    Training records the time with the step after the checkpoint.
    """
    sizes = [
        sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        for path in folder.checkpoints_dir.glob("step-*")
    ]
    if not sizes:
        return {"checkpoint_s": None, "checkpoint_gb": None}
    seconds = max(step.get("time/checkpoint_s", 0.0) for step in steps)
    return {"checkpoint_s": round(seconds, 3), "checkpoint_gb": round(max(sizes) / 1e9, 3)}


def evaluations(folder: Any) -> dict[str, list[dict[str, Any]]]:
    """Return each benchmark's score before and after training, with the interval over problems."""
    from atrium.runs.reader import read_evaluations

    return {
        name: [
            {"step": one.step, "k": one.k, "mean": one.mean_at_k, "interval": one.interval_over_problems}
            for one in (points[0], points[-1])
        ]
        for name, points in read_evaluations(folder).items()
    }


def train(args: argparse.Namespace, lines: Sequence[str], runs_dir: Path) -> Any:
    """Train the run in this process, at most to step `--stop-after`, and return its folder."""
    from atrium.assemble.graders import build_grader
    from atrium.assemble.training import run_training
    from atrium.base.errors import Pruned
    from atrium.config.compose import compose
    from atrium.runs.listener import Listener
    from atrium.runs.run_folder import RunFolder

    class Stop(Listener):
        """A listener that ends the run after a step, without a final checkpoint of tens of GB."""

        may_stop = True

        def step(self, step: int, metrics: Mapping[str, float]) -> None:
            if step == args.stop_after:
                raise Pruned("the measurement is complete")

    config = compose(lines)
    config.rollout.prepare_environment(args.device, runs_dir / ".cache")
    with build_grader(config.grader, config.model) as grader, contextlib.suppress(Pruned):
        run_training(config, grader, lines, Stop())
    (config_file,) = runs_dir.glob("*/*/config.json")
    return RunFolder(config_file.parent)


def print_measured(folder: Any, model: str, device: str) -> None:
    """Print the record of a run: its settings, and medians over its steps."""
    from atrium.base.json_lines import read_json_lines
    from atrium.base.metrics import MISMATCH_MEAN
    from atrium.config.compose import from_json

    steps = list(read_json_lines(folder.metrics_file).records)
    found = from_json(folder.config_file.read_text(encoding="utf-8"))

    def median(name: str) -> float:
        return round(statistics.median(step[name] for step in steps if name in step), 6)

    record.print_record(
        impl=record.versions("atrium-rl", "transformers", "torch"),
        model=model,
        num_steps=len(steps),
        engine=found.rollout.engine,
        micro_batch_tokens=found.compute.micro_batch_tokens,
        recompute_activations=found.compute.recompute_activations,
        **memory(found, steps, device),
        rollout_tokens_per_s=median("rollout/tokens_per_s"),
        update_tokens_per_s=median("optimizer/tokens_per_s"),
        weights_s=median("time/weights_s"),
        hand_over_gb_per_s=round(4e-9 * num_parameters(found) / max(median("time/weights_s"), 1e-9), 2),
        kv_cache_dtype=getattr(found.rollout, "kv_cache_dtype", "auto"),
        **checkpoint(folder, steps),
        **kernels(folder),
        step_s=median("time/step_s"),
        phases_s={
            name: median(f"time/{name}_s")
            for name in ("rollout", "score", "update", "weights")
            if any(f"time/{name}_s" in step for step in steps)
        },
        mismatch=median(MISMATCH_MEAN.name),
        rewards=[round(step["rollout/reward"], 4) for step in steps],
        evaluations=evaluations(folder),
        **record.machine(device),
    )


def main() -> None:
    """Train the run and print the record."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options.add_argument(
        "--stop-after", type=int, metavar="N", help="stop after N steps, without a checkpoint"
    )
    options.add_argument("settings", nargs="*", help="settings, as for `atrium train`")
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as runs_dir:
        lines = [
            f"compute={args.device}",
            "tracking=none",
            "tracking.figures=false",
            "tracking.progress=off",
            f"runs_dir={runs_dir}",
            *args.settings,
        ]
        model = next((line.partition("=")[2] for line in lines if line.startswith("model=")), "built-in")
        print_measured(train(args, lines, Path(runs_dir)), model, args.device)


if __name__ == "__main__":
    main()

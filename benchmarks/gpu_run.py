"""A short run of `atrium train` as one JSON line: its memory, predicted and measured, and what it learned.

Memory is predicted by the plan that refuses runs (`planning/memory.py`), for the settings that the run ended
with; measured is what torch allocated in the same phase, which a CPU does not say.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import record

PROMPT_TOKENS = 32
"""The longest prompt of the arithmetic task, about."""


def memory(config: Any, steps: Sequence[Mapping[str, float]], device: str) -> dict[str, Any]:
    """Megabytes by phase: predicted, and measured where the device says."""
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


def evaluations(folder: Any) -> dict[str, list[dict[str, Any]]]:
    """The score of each benchmark before training and at the end, with its interval over problems."""
    from atrium.runs.reader import read_evaluations

    return {
        name: [
            {"step": one.step, "k": one.k, "mean": one.mean_at_k, "interval": one.interval_over_problems}
            for one in (points[0], points[-1])
        ]
        for name, points in read_evaluations(folder).items()
    }


def main() -> None:
    """Run, and print the record."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options.add_argument(
        "--stop-after", type=int, metavar="N", help="end after N steps, without a checkpoint"
    )
    options.add_argument("settings", nargs="*", help="as for `atrium train`")
    args = options.parse_args()
    from atrium.assemble.graders import build_grader
    from atrium.assemble.training import run_training
    from atrium.base.errors import Pruned
    from atrium.base.json_lines import read_json_lines
    from atrium.base.metrics import MISMATCH_MEAN
    from atrium.config.compose import compose, from_json
    from atrium.runs.listener import Listener
    from atrium.runs.run_folder import RunFolder

    class Stop(Listener):
        """Ends a run whose checkpoint, of tens of GB, nobody needs."""

        may_stop = True

        def __init__(self, last: int | None) -> None:
            self._last = last

        def step(self, step: int, metrics: Mapping[str, float]) -> None:
            if step == self._last:
                raise Pruned("enough was measured")

    with tempfile.TemporaryDirectory() as runs_dir:
        lines = [
            f"compute={args.device}",
            "tracking=none",
            "tracking.figures=false",
            "tracking.progress=off",
            f"runs_dir={runs_dir}",
            *args.settings,
        ]
        config = compose(lines)
        config.rollout.prepare_environment(args.device, Path(runs_dir) / ".cache")
        stop = Stop(args.stop_after)
        with build_grader(config.grader, config.model) as grader, contextlib.suppress(Pruned):
            run_training(config, grader, lines, stop)
        (config_file,) = Path(runs_dir).glob("*/*/config.json")
        folder = RunFolder(config_file.parent)
        steps = list(read_json_lines(folder.metrics_file).records)
        found = from_json(folder.config_file.read_text(encoding="utf-8"))

        def median(name: str) -> float:
            return round(statistics.median(step[name] for step in steps if name in step), 6)

        record.print_record(
            impl=record.versions("atrium-rl", "transformers", "torch"),
            model=next((line.partition("=")[2] for line in lines if line.startswith("model=")), "built-in"),
            num_steps=len(steps),
            engine=found.rollout.engine,
            micro_batch_tokens=found.compute.micro_batch_tokens,
            recompute_activations=found.compute.recompute_activations,
            **memory(found, steps, args.device),
            rollout_tokens_per_s=median("rollout/tokens_per_s"),
            update_tokens_per_s=median("optimizer/tokens_per_s"),
            weights_s=median("time/weights_s"),
            step_s=median("time/step_s"),
            phases_s={
                name: median(f"time/{name}_s")
                for name in ("rollout", "score", "update", "weights")
                if any(f"time/{name}_s" in step for step in steps)
            },
            mismatch=median(MISMATCH_MEAN.name),
            rewards=[round(step["rollout/reward"], 4) for step in steps],
            evaluations=evaluations(folder),
            **record.machine(args.device),
        )


if __name__ == "__main__":
    main()

"""The time that a run takes: predictions, as text and for JSON, and the measured times of a resumed run."""

from __future__ import annotations

from math import isfinite, nan
from statistics import fmean

from atrium.assemble.memory import PROMPT_TOKENS
from atrium.base import metrics
from atrium.config.schema import RunConfig
from atrium.document.formatting import counted, duration, share
from atrium.models.shape import ModelShape
from atrium.planning.duration import Duration, planned_run
from atrium.runs.reader import read_steps
from atrium.runs.run_folder import RunFolder


def time_lines(
    config: RunConfig, shape: ModelShape | None, gpu_name: str, num_tokens: int = PROMPT_TOKENS
) -> list[str]:
    """Return lines with the predicted times of a step, its phases and the run.

    Phases of less than 0.5 s are not listed. If no prediction is possible, the only line says why.
    `num_tokens` is the assumed length of a prompt in tokens.
    """
    if config.compute.device == "cpu":
        return ["time is not predicted on a CPU; measured times follow after the first steps"]
    planned = None if shape is None else planned_run(config, shape, gpu_name, num_tokens)
    if planned is None:
        engine = f"rollout.engine={config.rollout.engine} on {gpu_name or 'a GPU without a name'}"
        return [
            f"time is not predicted, since the speed of {engine} is unknown; measured times follow after the "
            "first steps"
        ]
    phases = {
        "sampling": planned.sampling_s,
        "log-probabilities": planned.passes_s,
        "update": planned.update_s,
        "hand-over": planned.hand_over_s,
    }
    parts = ", ".join(f"{name} {duration(seconds)}" for name, seconds in phases.items() if seconds >= 0.5)
    parts += "; sampling and training overlap" if parts and planned.overlaps else ""
    step = duration(planned.step_s) if planned.step_s >= 0.5 else "less than 0.5 s"
    tokens = planned.num_steps * planned.tokens_per_step
    return [
        f"predicted, not measured: {step} per step" + (f" ({parts})" if parts else ""),
        f"predicted: {planned.run_s / 3600:.1f} h for {counted(planned.num_steps, 'step')}, "
        f"{share(planned.evaluation_frac)} of it evaluations, {tokens / 1e6:,.0f} million sampled tokens; "
        f"computed from the data sheet of {gpu_name}, for answers of half the length limit on average",
    ]


def seconds_record(planned: Duration | None) -> dict[str, float] | None:
    """Return the predicted seconds of a step, its phases, the evaluations and the run, for `--json`.

    Returns None if `planned` is None, which means that no prediction is possible.
    """
    if planned is None:
        return None
    return {
        "step": planned.step_s,
        "sampling": planned.sampling_s,
        "log_probabilities": planned.passes_s,
        "update": planned.update_s,
        "hand_over": planned.hand_over_s,
        "evaluations": planned.evaluation_s,
        "run": planned.run_s,
    }


def measured_line(folder: RunFolder, num_steps: int) -> str | None:
    """Return a line with the measured time per step and the remaining time of a run.

    The first step is not counted. Returns None if no later step has recorded times.
    """
    steps = read_steps(folder)
    seconds = {
        quantity: fmean(values)
        for quantity in (metrics.STEP_S, metrics.ROLLOUT_S, metrics.UPDATE_S)
        if (values := [value for _, one in steps[1:] if isfinite(value := one.get(quantity.name, nan))])
    }
    if len(seconds) < 3:
        return None
    left = max(0, num_steps - steps[-1][0])
    return (
        f"measured in this run: {duration(seconds[metrics.STEP_S])} per step (sampling "
        f"{duration(seconds[metrics.ROLLOUT_S])}, update {duration(seconds[metrics.UPDATE_S])}), "
        f"{duration(left * seconds[metrics.STEP_S])} for {counted(left, 'step')} more, evaluations included"
    )

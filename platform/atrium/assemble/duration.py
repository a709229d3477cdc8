"""From a configuration to the time that its run takes on GPUs, which need not be here. Never torch."""

from __future__ import annotations

from math import isfinite, nan
from statistics import fmean

from atrium.assemble.memory import PROMPT_TOKENS
from atrium.base import metrics
from atrium.config.schema import RunConfig
from atrium.config.tasks import BenchmarkConfig, ProblemsBenchmarkConfig, SuiteBenchmarkConfig
from atrium.document.formatting import counted, duration, share
from atrium.models.shape import ModelShape
from atrium.planning.devices import find_gpu
from atrium.planning.duration import Duration, Work, planned_duration
from atrium.runs.reader import read_steps
from atrium.runs.run_folder import RunFolder


def planned_run(
    config: RunConfig,
    shape: ModelShape,
    gpu_name: str,
    num_tokens: int,
    num_bytes: int | None = None,
) -> Duration | None:
    """The time of a run whose processes each have such a GPU, with prompts of `num_tokens`.

    `num_bytes` is the GPU's memory, by default that of its data sheet. None for a GPU or an engine whose
    speed is not known here.
    """
    rollout, compute = config.rollout, config.compute
    if (gpu := find_gpu(gpu_name)) is None or compute.device != "cuda":
        return None
    engine = rollout.concurrency(shape, compute.dtype, num_bytes or gpu.gigabytes * 10**9)
    if engine is None or not engine.cache_tokens:
        return None
    is_apart = rollout.placement == "server"
    inside = compute.world_size // rollout.ranks_per_engine
    work = Work(
        num_steps=config.num_steps,
        num_prompts=rollout.num_prompts,
        group_size=rollout.group_size,
        prompt_tokens=num_tokens,
        max_new_tokens=rollout.max_new_tokens,
        max_answer_tokens=config.evaluation.max_new_tokens,
        num_answers=_num_evaluated(config) * config.evaluation.num_samples,
        num_engines=rollout.num_outside if is_apart else inside,
        is_apart=is_apart,
        overlaps=rollout.overlaps,
        weights_moved=2 if rollout.sleeps else 0,
        num_trainers=compute.world_size,
        num_nodes=compute.num_nodes,
        micro_batch_tokens=compute.max_micro_batch_tokens,
        num_epochs=config.optimizer.num_epochs,
        num_updates=config.optimizer.num_epochs * config.optimizer.num_minibatches,
        num_passes=_num_passes(config),
        recomputes=compute.recompute_activations is True,
        compiles=compute.compile,
        adapts=config.model.lora is not None,
        offloads=compute.offload,
    )
    return planned_duration(shape, work, engine, gpu)


def _num_passes(config: RunConfig) -> int:
    """Passes of a step over its batch without a gradient."""
    needs = config.method.needs
    return sum(
        (
            config.compute.behavior_logprobs != "engine",
            config.use.is_stale and "proximal" in config.method.anchors,
            needs.prepare_pass,
            config.algorithm.reference.kind != "none",
        )
    )


def _num_evaluated(config: RunConfig) -> int:
    """Problems of all evaluations of a run: validation at its times, tests before and after training."""
    every = config.evaluation.every_num_steps
    num_validations = 1 + (0 if every is None else config.num_steps // every)
    return num_validations * (config.dataset.num_validation or 0) + 2 * _num_problems(config)


def _num_problems(config: RunConfig) -> int:
    """Return the number of test problems, as far as files give it."""
    benchmark: BenchmarkConfig = config.benchmark
    if isinstance(benchmark, SuiteBenchmarkConfig):
        return sum(_declared(member) for member in benchmark.members.values())
    if isinstance(benchmark, ProblemsBenchmarkConfig):
        return _declared(benchmark)
    return config.dataset.num_test


def _declared(benchmark: ProblemsBenchmarkConfig) -> int:
    return benchmark.num_problems or benchmark.expected_num_problems or 0


def time_lines(
    config: RunConfig, shape: ModelShape | None, gpu_name: str, num_tokens: int = PROMPT_TOKENS
) -> list[str]:
    """The predicted time of a run by phase on such GPUs, or why none is predicted, for the user."""
    if config.compute.device == "cpu":
        return ["no prediction of time on a CPU; the first steps tell"]
    planned = None if shape is None else planned_run(config, shape, gpu_name, num_tokens)
    if planned is None:
        engine = f"rollout.engine={config.rollout.engine} on {gpu_name or 'a GPU without a name'}"
        return [f"no prediction of time: the speed of {engine} is not known; the first steps tell"]
    phases = {
        "sampling": planned.sampling_s,
        "log-probabilities": planned.passes_s,
        "update": planned.update_s,
        "hand-over": planned.hand_over_s,
    }
    parts = ", ".join(f"{name} {duration(seconds)}" for name, seconds in phases.items() if seconds >= 0.5)
    tokens = planned.num_steps * planned.tokens_per_step
    return [
        f"predicted, not measured: {duration(planned.step_s)} per step ({parts}"
        + (", both sides at once)" if planned.overlaps else ")"),
        f"predicted: {planned.run_s / 3600:.1f} h for {counted(planned.num_steps, 'step')}, "
        f"{share(planned.evaluation_frac)} of it evaluations, {tokens / 1e6:,.0f} million sampled tokens; "
        f"by the data sheet of {gpu_name}, for answers of half their limit on average",
    ]


def seconds_record(planned: Duration | None) -> dict[str, float] | None:
    """Predicted seconds in the content of `--json`; None where nothing is predicted."""
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
    """The time that the rest of a run takes by its own steps, the first one left out; None without two."""
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

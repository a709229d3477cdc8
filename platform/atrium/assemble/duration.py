"""From a configuration to the time that its run would take on a GPU, which need not be here. Never torch."""

from __future__ import annotations

from atrium.assemble.memory import PROMPT_TOKENS
from atrium.config.schema import RunConfig
from atrium.config.tasks import BenchmarkConfig, ProblemsBenchmarkConfig, SuiteBenchmarkConfig
from atrium.models.shape import ModelShape
from atrium.planning.devices import Gpu
from atrium.planning.duration import Duration, Work, planned_duration

MEAN_FRAC = 0.5
"""The mean length of an answer, as a share of its limit, which only a run tells."""


def planned_run(config: RunConfig, shape: ModelShape, gpu: Gpu) -> Duration:
    """The time of a run on one such GPU, with answers of half their limit and prompts of 256 tokens."""
    rollout, evaluation = config.rollout, config.evaluation
    every = evaluation.every_num_steps
    num_validations = 1 + (0 if every is None else config.num_steps // every)
    num_problems = num_validations * (config.dataset.num_validation or 0) + 2 * _num_problems(config)
    needs = config.method.needs
    work = Work(
        num_steps=config.num_steps,
        num_prompts=rollout.num_prompts,
        group_size=rollout.group_size,
        prompt_tokens=PROMPT_TOKENS,
        completion_tokens=MEAN_FRAC * rollout.max_new_tokens,
        answer_tokens=MEAN_FRAC * evaluation.max_new_tokens,
        num_answers=num_problems * evaluation.num_samples,
        num_epochs=config.optimizer.num_epochs,
        num_passes=sum(
            (
                config.compute.behavior_logprobs != "engine",
                config.use.is_stale and "proximal" in config.method.anchors,
                needs.prepare_pass,
                config.algorithm.reference.kind != "none",
            )
        ),
        recomputes=config.compute.recompute_activations is True,
    )
    return planned_duration(shape, work, gpu)


def _num_problems(config: RunConfig) -> int:
    """Test problems, as far as files say how many there are."""
    benchmark: BenchmarkConfig = config.benchmark
    if isinstance(benchmark, SuiteBenchmarkConfig):
        return sum(_declared(member) for member in benchmark.members.values())
    if isinstance(benchmark, ProblemsBenchmarkConfig):
        return _declared(benchmark)
    return config.dataset.num_test


def _declared(benchmark: ProblemsBenchmarkConfig) -> int:
    return benchmark.num_problems or benchmark.expected_num_problems or 0

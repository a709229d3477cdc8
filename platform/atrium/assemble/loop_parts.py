"""From configuration to parts of the loop: its settings, what it collects, and what it evaluates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from atrium.assemble.evaluated_policy import wave_size
from atrium.assemble.graders import BenchmarkGraders
from atrium.assemble.policies import mismatch_bound
from atrium.assemble.recording import EvaluationPlan, JudgedBenchmark, Recorder
from atrium.assemble.task import Task, evaluated_benchmark
from atrium.config.schema import RunConfig
from atrium.config.tasks import CorrectnessRewardConfig
from atrium.data.problems import ProblemStream
from atrium.data.prompts import prompt_encoder
from atrium.grading.grader import Grader
from atrium.models.policy import Policy
from atrium.records import Problem, TokenIds
from atrium.rollout.engine import Engine, SamplingParams
from atrium.train.collect import RolloutCollector
from atrium.train.loop import LoopSettings
from atrium.train.ranks.ranks import Ranks


def loop_settings(config: RunConfig, policy: Policy) -> LoopSettings:
    """When the loop does what."""
    return LoopSettings(
        num_steps=config.num_steps,
        evaluate_every_num_steps=config.evaluation.every_num_steps,
        checkpoint_every_num_steps=config.checkpoint.every_num_steps,
        pad_token_id=policy.pad_token_id,
        device=config.compute.device,
        seed=config.seed,
        lag=config.rollout.lag,
        max_mismatch=mismatch_bound(config),
    )


def evaluation_plan(
    config: RunConfig,
    task: Task,
    policy: Policy,
    graders: BenchmarkGraders,
    *,
    engine: Engine,
    recorder: Recorder,
    ranks: Ranks,
) -> EvaluationPlan:
    """The validation problems and the benchmarks, each with what grades it."""
    validation, *tests = (
        JudgedBenchmark(evaluated_benchmark(loaded, config.evaluation), graders.of(loaded))
        for loaded in (task.validation, *task.benchmarks)
    )
    return EvaluationPlan(
        validation=validation,
        tests=tuple(tests),
        engine=engine,
        encode=prompt_encoder(policy.tokenizer, task.template),
        seed=config.evaluation.seed,
        run_seed=config.seed,
        wave_size=wave_size(config, policy),
        recorder=recorder,
        ranks=ranks,
    )


def collector(
    config: RunConfig,
    task: Task,
    problems: Sequence[Problem],
    encode: Callable[[Problem], TokenIds],
    *,
    engine: Engine,
    grader: Grader,
    ranks: Ranks,
) -> RolloutCollector:
    """What turns problems into graded groups."""
    rollout = config.rollout
    return RolloutCollector(
        stream=ProblemStream(problems, config.seed),
        encode=encode,
        engine=engine,
        grader=grader,
        reward=task.reward,
        group_filter=config.algorithm.group_filter,
        sampling=SamplingParams(max_new_tokens=rollout.max_new_tokens, temperature=rollout.temperature),
        num_prompts=rollout.num_prompts,
        group_size=rollout.group_size,
        seed=config.seed,
        ranks=ranks,
        require_stop=isinstance(config.reward, CorrectnessRewardConfig) and config.reward.require_stop,
    )

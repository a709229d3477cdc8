"""The policy of an evaluation, its prompts, and how much of it an engine gets at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from atrium.assemble.policies import build_policy, copy_out_of_mmap
from atrium.config.models import TinyModelConfig
from atrium.config.schema import RunConfig
from atrium.errors import ConfigError
from atrium.evaluation.evaluator import Benchmark, WaveSize
from atrium.models.policy import Policy, load_policy
from atrium.records import Problem, TokenIds
from atrium.tracking.terminal import ProgressDisplay

_SMALL_MODEL_PARAMETERS = 10_000_000
_SAMPLES_OF_LARGE_MODELS = 64


def wave_size(config: RunConfig, policy: Policy) -> WaveSize | None:
    """How much an evaluation gives the engine at a time; None for one that batches by itself.

    A rule, not a measurement: it decides the last bits of log-probabilities, so it has to be the same for
    an evaluation that is resumed.
    """
    if config.rollout.engine == "vllm":
        return None
    is_small = policy.num_parameters <= _SMALL_MODEL_PARAMETERS
    return WaveSize() if is_small else WaveSize(num_samples=_SAMPLES_OF_LARGE_MODELS)


def load_evaluated_policy(config: RunConfig, cache_dir: Path, display: ProgressDisplay) -> Policy:
    """The policy, in the precision that it computes in: nothing is trained, so none other is kept."""
    is_for_vllm = config.rollout.engine == "vllm"
    if isinstance(config.model, TinyModelConfig) or config.model.weights == "random" or is_for_vllm:
        policy = build_policy(config, cache_dir, display, trains=False)
    else:
        display.phase("loading the model")
        dtype = torch.bfloat16 if config.compute.dtype == "bfloat16" else torch.float32
        policy = load_policy(
            config.model.source, dtype=dtype, device=config.compute.device, revision=config.model.revision
        )
    copy_out_of_mmap(policy.model)
    return policy


def fitted_benchmark(
    benchmark: Benchmark,
    policy: Policy,
    encode: Callable[[Problem], TokenIds],
    display: ProgressDisplay,
) -> Benchmark:
    """The benchmark with answers no longer than the model's context leaves, which is said where it cuts."""
    wanted, context = benchmark.sampling.max_new_tokens, policy.context_length
    longest = max(len(encode(problem)) for problem in benchmark.problems)
    room = context - longest
    if room < 1:
        raise ConfigError(
            f"benchmark {benchmark.name!r}: its longest prompt has {longest} tokens and the model's context "
            f"holds {context}, so nothing could be answered; choose another model or benchmark"
        )
    if wanted > room:
        display.message(
            f"{benchmark.name}: answers may have {room} tokens, not evaluation.max_new_tokens={wanted}: "
            f"the model's context of {context} leaves no more after the longest prompt"
        )
        return replace(benchmark, sampling=replace(benchmark.sampling, max_new_tokens=room))
    return benchmark

"""Combinations of settings that cannot work or have no effect, found before anything is loaded.

Single settings are checked by their sections; what an algorithm, a divergence and a regularizer
allow together, by `check_objective`. Every message names a key, its value and what would fit.
"""

from __future__ import annotations

from atrium.config.machine import torch_has_cuda
from atrium.config.models import TinyModelConfig
from atrium.config.objective_checks import check_objective
from atrium.config.schema import RunConfig
from atrium.config.tasks import CorrectnessRewardConfig
from atrium.errors import ConfigError


def check_consistency(config: RunConfig) -> None:
    """Raise `ConfigError` for the first combination that is impossible or idle."""
    _check_minibatches(config)
    _check_model(config)
    _check_lengths(config)
    _check_dataset(config)
    _check_reward(config)
    _check_schedule(config)
    _check_evaluation(config)
    _check_compute(config)
    check_objective(
        config.algorithm,
        config.divergence,
        config.regularizer,
        num_updates_per_batch=config.num_updates_per_batch,
        group_size=config.rollout.group_size,
    )


def _check_minibatches(config: RunConfig) -> None:
    num_prompts, num_minibatches = config.rollout.num_prompts, config.optimizer.num_minibatches
    if num_prompts % num_minibatches:
        divisors = [str(n) for n in range(1, num_prompts + 1) if num_prompts % n == 0]
        raise ConfigError(
            f"optimizer.num_minibatches={num_minibatches} does not divide "
            f"rollout.num_prompts={num_prompts}, and groups stay whole; allowed is " + ", ".join(divisors)
        )


def _check_model(config: RunConfig) -> None:
    model = config.model
    if isinstance(model, TinyModelConfig) and model.num_heads % model.num_key_value_heads:
        raise ConfigError(
            f"model.num_key_value_heads={model.num_key_value_heads} does not divide "
            f"model.num_heads={model.num_heads}; each serves the same number of query heads"
        )


def _check_lengths(config: RunConfig) -> None:
    limit = config.rollout.max_batch_tokens
    if limit is not None and limit <= config.rollout.max_new_tokens:
        raise ConfigError(
            f"rollout.max_batch_tokens={limit} does not hold one prompt and a completion of "
            f"rollout.max_new_tokens={config.rollout.max_new_tokens}; give more, or null for no limit"
        )
    if not isinstance(config.model, TinyModelConfig):
        return
    # The longest question in the built-in tokenizer: a mark before and after, a sign per operand.
    num_prompt_tokens = 2 * config.dataset.max_operands + 2
    room = config.model.context_length - num_prompt_tokens
    for key, length in (
        ("rollout.max_new_tokens", config.rollout.max_new_tokens),
        ("evaluation.max_new_tokens", config.evaluation.max_new_tokens),
    ):
        if length > room:
            raise ConfigError(
                f"{key}={length} does not fit: model.context_length={config.model.context_length} "
                f"less the longest prompt's {num_prompt_tokens} tokens leaves {room}"
            )


def _check_dataset(config: RunConfig) -> None:
    dataset = config.dataset
    if dataset.min_operands > dataset.max_operands:
        raise ConfigError(
            f"dataset.min_operands={dataset.min_operands} is above "
            f"dataset.max_operands={dataset.max_operands}; allowed is 2 to {dataset.max_operands}"
        )


def _check_reward(config: RunConfig) -> None:
    reward = config.reward
    if not isinstance(reward, CorrectnessRewardConfig):
        return
    for name, value in (("incorrect", reward.incorrect), ("no_answer", reward.no_answer)):
        if reward.correct <= value:
            raise ConfigError(
                f"reward.correct={reward.correct:g} must be above reward.{name}={value:g}, or a wrong answer "
                "is worth as much as a right one"
            )
    limit = config.rollout.max_new_tokens
    if reward.overlong is not None and reward.overlong.buffer_tokens > limit:
        raise ConfigError(
            f"reward.overlong.buffer_tokens={reward.overlong.buffer_tokens} is longer than a completion may "
            f"be; allowed is at most rollout.max_new_tokens={limit}"
        )


def _check_schedule(config: RunConfig) -> None:
    optimizer = config.optimizer
    if optimizer.schedule != "constant" and optimizer.num_warmup_steps >= config.num_steps:
        raise ConfigError(
            f"optimizer.schedule={optimizer.schedule} has nothing to do: "
            f"optimizer.num_warmup_steps={optimizer.num_warmup_steps} leaves none of "
            f"num_steps={config.num_steps}; allowed is constant, or fewer warm-up steps"
        )


def _check_evaluation(config: RunConfig) -> None:
    evaluation = config.evaluation
    if evaluation.temperature == 0.0 and evaluation.num_samples > 1:
        raise ConfigError(
            f"evaluation.num_samples={evaluation.num_samples} at evaluation.temperature=0 would give "
            "equal answers; allowed is 1, or a temperature above 0"
        )
    if evaluation.temperature == 0.0 and evaluation.top_p < 1.0:
        raise ConfigError(
            f"evaluation.top_p={evaluation.top_p:g} has no effect at evaluation.temperature=0; allowed is 1"
        )
    if config.checkpoint.keep_best and evaluation.every_num_steps is None:
        raise ConfigError(
            "checkpoint.keep_best=true needs validation while training, which "
            "evaluation.every_num_steps=null turns off; set either"
        )


def _check_compute(config: RunConfig) -> None:
    if config.compute.device == "cuda" and not torch_has_cuda():
        raise ConfigError(
            "compute.device=cuda: the installed torch is a build without CUDA; "
            "allowed is cpu, or install a CUDA build"
        )

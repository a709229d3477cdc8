"""Combinations of settings that cannot work or have no effect, found before anything is loaded.

Single settings are checked by their sections; what an algorithm, a divergence and a regularizer
allow together, by `Method.check`. Every message names a key, its value and what would fit.
"""

from __future__ import annotations

from atrium.config.compute import check_processes
from atrium.config.machine import torch_has_cuda
from atrium.config.models import HubModelConfig, TinyModelConfig
from atrium.config.rollouts import BankRolloutConfig, VllmRolloutConfig
from atrium.config.schema import RunConfig
from atrium.config.tasks import (
    ArithmeticBenchmarkConfig,
    ArithmeticDatasetConfig,
    CorrectnessRewardConfig,
    HeldOutBenchmarkConfig,
    ProblemsDatasetConfig,
    SuiteBenchmarkConfig,
)
from atrium.errors import ConfigError


def check_consistency(config: RunConfig) -> None:
    """Raise `ConfigError` for the first combination that is impossible or idle, the method's apart."""
    _check_minibatches(config)
    _check_model(config)
    _check_lengths(config)
    _check_dataset(config)
    _check_benchmark(config)
    _check_reward(config)
    _check_schedule(config)
    _check_optimizer(config)
    _check_evaluation(config)
    _check_compute(config)
    _check_overlap(config)
    _check_bank(config)
    _check_mirrors(config)
    _check_vllm(config)


def _check_mirrors(config: RunConfig) -> None:
    uri = config.tracking.mlflow.uri if config.tracking.mlflow else None
    if uri is not None and "@" in uri.partition("://")[2].partition("/")[0]:
        raise ConfigError(
            "tracking.mlflow.uri holds a user or password, which would be written to the run folder; leave "
            "them out, MLflow reads MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD by itself"
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
    if model.lora is not None and config.compute.world_size > 1:
        raise ConfigError(
            f"model.lora: adapters are trained by one process, not {config.compute.world_size}; allowed is "
            "compute.num_processes=1, or model.lora=null"
        )
    if isinstance(model, HubModelConfig) and model.weights == "random" and model.architecture is None:
        raise ConfigError(
            "model.weights=random needs model.architecture, the keys of a config.json; "
            "choose a model whose file has it, such as model=qwen3_0_6b, or model.weights=pretrained"
        )


def _check_lengths(config: RunConfig) -> None:
    rollout = config.rollout
    limit = None if isinstance(rollout, VllmRolloutConfig) else rollout.max_batch_tokens
    if limit is not None and limit <= config.rollout.max_new_tokens:
        raise ConfigError(
            f"rollout.max_batch_tokens={limit} does not hold one prompt and a completion of "
            f"rollout.max_new_tokens={config.rollout.max_new_tokens}; give more, or null for no limit"
        )
    dataset = config.dataset
    if not isinstance(config.model, TinyModelConfig) or not isinstance(dataset, ArithmeticDatasetConfig):
        return
    # The longest question in the built-in tokenizer: a mark before and after, a sign per operand.
    num_prompt_tokens = 2 * dataset.max_operands + 2
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
    if isinstance(dataset, ProblemsDatasetConfig):
        _check_published(dataset)
    elif dataset.min_operands > dataset.max_operands:
        raise ConfigError(
            f"dataset.min_operands={dataset.min_operands} is above "
            f"dataset.max_operands={dataset.max_operands}; allowed is 2 to {dataset.max_operands}"
        )


def _check_published(dataset: ProblemsDatasetConfig) -> None:
    if not dataset.fields.answer and not dataset.fields.solution:
        raise ConfigError(
            "dataset.fields.answer=[]: gold answers are nowhere; allowed is a field for the answer, or "
            "dataset.fields.solution with one whose last box is the answer"
        )


def _check_benchmark(config: RunConfig) -> None:
    benchmark, dataset = config.benchmark, config.dataset
    if isinstance(benchmark, ArithmeticBenchmarkConfig) and not isinstance(dataset, ArithmeticDatasetConfig):
        raise ConfigError(
            f"benchmark.kind=arithmetic: the test problems of the arithmetic task are not what "
            f"dataset.name={dataset.name} trains for; allowed is benchmark=NAME, such as math500 or aime24, "
            "or benchmark=held_out with dataset.num_test above 0"
        )
    if isinstance(benchmark, HeldOutBenchmarkConfig) and dataset.num_test == 0:
        raise ConfigError(
            "benchmark.kind=held_out: dataset.num_test=0 holds out no test problems; allowed is at least 1"
        )
    if isinstance(benchmark, SuiteBenchmarkConfig):
        names = [member.name for member in benchmark.members.values()]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"benchmark.members: two are named {name}, and results are filed by name; "
                    "allowed is a name of its own for each"
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


def _check_optimizer(config: RunConfig) -> None:
    kind, model, compute = config.optimizer.kind, config.model, config.compute
    if kind != "adamw" and (compute.world_size > 1 or compute.offload):
        moves = f"compute.num_processes={compute.num_processes} on compute.num_nodes={compute.num_nodes}"
        raise ConfigError(
            f"optimizer.kind={kind} keeps its state on one device, and {moves} with "
            f"compute.offload={str(compute.offload).lower()} do not leave it there; allowed is adamw"
        )
    if kind != "adamw_bf16":
        return
    if compute.dtype != "bfloat16":
        raise ConfigError(
            f"optimizer.kind=adamw_bf16 keeps the weights in bfloat16, and compute.dtype={compute.dtype}; "
            "allowed is compute.dtype=bfloat16, or optimizer=adamw"
        )
    if model.lora is not None:
        raise ConfigError(
            "optimizer.kind=adamw_bf16 saves memory on weights that are trained, and model.lora trains few; "
            "allowed is optimizer=adamw, or model.lora=null"
        )
    if config.algorithm.reference.kind == "moving_average":
        raise ConfigError(
            "algorithm.reference.kind=moving_average moves by less than bfloat16 weights can hold, which "
            "optimizer.kind=adamw_bf16 makes; allowed is optimizer=adamw"
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
    for k in evaluation.pass_at or ():
        if k > evaluation.num_samples:
            raise ConfigError(
                f"evaluation.pass_at={k} asks for more than evaluation.num_samples={evaluation.num_samples}: "
                f"Pass@{k} needs at least {k} samples; allowed is a k up to that, or more samples"
            )
    if config.checkpoint.keep_best and evaluation.every_num_steps is None:
        raise ConfigError(
            "checkpoint.keep_best=true needs validation while training, which "
            "evaluation.every_num_steps=null turns off; set either"
        )


def _check_bank(config: RunConfig) -> None:
    rollout = config.rollout
    if not isinstance(rollout, BankRolloutConfig):
        return
    if rollout.lag:
        raise ConfigError(
            f"rollout.lag={rollout.lag} has no effect on completions that are read from disk; allowed is 0"
        )
    if rollout.source == "last":
        raise ConfigError(
            "rollout.source=last would mean another run when this one is continued or repeated; allowed is "
            "the run's own name, which `atrium runs` shows, or a path"
        )
    if rollout.num_stored == 0 or abs(rollout.num_stored - rollout.stored_frac * rollout.group_size) > 1e-6:
        shares = ", ".join(f"{number / rollout.group_size:g}" for number in range(1, rollout.group_size + 1))
        raise ConfigError(
            f"rollout.stored_frac={rollout.stored_frac:g} of rollout.group_size={rollout.group_size} is no "
            f"whole number of completions; allowed is {shares}"
        )
    if config.algorithm.surrogate.regresses and config.compute.behavior_logprobs == "engine":
        raise ConfigError(
            "compute.behavior_logprobs=engine would compare the policy with whoever wrote the stored "
            f"completions, and algorithm.surrogate.kind={config.algorithm.surrogate.kind} compares it with "
            "itself at the start of the step; choose compute.behavior_logprobs=recompute or auto"
        )


def _check_overlap(config: RunConfig) -> None:
    rollout = config.rollout
    if rollout.overlap is not True:
        return
    if not rollout.lag:
        raise ConfigError(
            "rollout.overlap=true: with rollout.lag=0 a batch is sampled by the weights that the update "
            "before it made, so there is nothing to overlap; choose rollout.lag=1 or more, or auto"
        )
    if isinstance(rollout, VllmRolloutConfig) and rollout.sleep_level is not None:
        raise ConfigError(
            f"rollout.overlap=true: with rollout.sleep_level={rollout.sleep_level} vLLM gives its memory to "
            "the update and cannot sample beside it; choose rollout.sleep_level=null, or rollout.overlap=auto"
        )
    if config.compute.world_size > 1:
        raise ConfigError(
            f"rollout.overlap=true: {config.compute.world_size} processes exchange what they sampled and "
            "their gradients over one connection, one after the other; allowed is one process, or "
            "rollout.overlap=auto"
        )


def _check_vllm(config: RunConfig) -> None:
    rollout = config.rollout
    if not isinstance(rollout, VllmRolloutConfig):
        return
    num_guessed = rollout.num_speculative_tokens
    if num_guessed is not None and config.evaluation.top_p < 1.0:
        raise ConfigError(
            f"rollout.num_speculative_tokens={num_guessed}: vLLM guesses with wrong "
            f"log-probabilities where evaluation.top_p={config.evaluation.top_p:g} cuts their "
            "distribution; allowed is null, or evaluation.top_p=1"
        )
    length = rollout.context_length
    if length is not None and length <= rollout.max_new_tokens:
        raise ConfigError(
            f"rollout.context_length={length} leaves no room for a prompt before "
            f"rollout.max_new_tokens={rollout.max_new_tokens}; give more, or null for the model's own"
        )


def _check_compute(config: RunConfig) -> None:
    if config.compute.device == "cuda" and not torch_has_cuda():
        raise ConfigError(
            "compute.device=cuda: the installed torch is a build without CUDA; "
            "allowed is cpu, or install a CUDA build"
        )
    if config.compute.compile and (config.compute.world_size > 1 or not config.compute.packing):
        raise ConfigError(
            "compute.compile=true is for packed updates of one process; allowed is "
            "compute.packing=true with compute.num_processes=1, or compute.compile=false"
        )
    if config.compute.profile_step is not None and config.compute.profile_step > config.num_steps:
        raise ConfigError(
            f"compute.profile_step={config.compute.profile_step}: the run has num_steps={config.num_steps}; "
            "allowed is one of them, or null"
        )
    check_processes(config.compute, config.rollout)

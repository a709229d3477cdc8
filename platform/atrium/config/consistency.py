"""Checks for combinations of settings that cannot work or have no effect, made before anything is loaded.

Sections check single settings, and `Method.check` checks combinations within a method. Every message names a
key, its value and a value that works.
"""

from __future__ import annotations

from dataclasses import replace

from atrium.base.errors import ConfigError
from atrium.config.compute import check_processes, divisors
from atrium.config.schema import RunConfig
from atrium.config.tasks import (
    ArithmeticBenchmarkConfig,
    ArithmeticDatasetConfig,
    HeldOutBenchmarkConfig,
    ProblemsDatasetConfig,
    SuiteBenchmarkConfig,
)
from atrium.engines.settings import BankSettings
from atrium.grading.several import SeveralReward
from atrium.grading.verifiers import MultipleChoiceVerifier
from atrium.models.settings import HubModelSettings, TinyModelSettings


def check_consistency(config: RunConfig) -> None:
    """Raise `ConfigError` for the first combination that is impossible or has no effect.

    Combinations within a method are checked elsewhere.
    """
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
    check_ranks(config, config.compute.world_size)
    _check_mirrors(config)
    _check_seed_plan(config)


def check_ranks(config: RunConfig, num_ranks: int) -> None:
    """Raise `ConfigError` for a setting that does not work with this number of processes.

    The number comes from the settings, or from torchrun if the processes were started with it.
    """
    config.rollout.check(replace(config.engine_use, num_ranks=num_ranks))
    if num_ranks == 1:
        return
    alone = f"works with one process only (compute.num_processes=1), not {num_ranks}"
    if config.model.lora is not None:
        raise ConfigError(f"model.lora: adapter training {alone}; use model.lora=null")
    if config.optimizer.kind != "adamw":
        raise ConfigError(
            f"optimizer.kind={config.optimizer.kind}: its state is on one device, so it {alone}; use "
            "optimizer=adamw, whose state is sharded"
        )
    if config.compute.compile:
        raise ConfigError(f"compute.compile=true {alone}; use compute.compile=false")
    if config.compute.on_oom == "shrink":
        raise ConfigError(
            f"compute.on_oom=shrink {alone}, since a rank cannot repeat an update by itself; use "
            "compute.on_oom=stop, and lower compute.micro_batch_tokens (now "
            f"{config.compute.micro_batch_tokens})"
        )


def _check_mirrors(config: RunConfig) -> None:
    uri = config.tracking.mlflow.uri if config.tracking.mlflow else None
    if uri is not None and "@" in uri.partition("://")[2].partition("/")[0]:
        raise ConfigError(
            "tracking.mlflow.uri contains a user or password, which would be written to the run folder; "
            "remove them, MLflow reads MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD from the "
            "environment"
        )


def _check_seed_plan(config: RunConfig) -> None:
    looks, planned = config.looks, config.planned_seeds
    if looks and (list(looks) != sorted(set(looks)) or looks[-1] != planned):
        listed = ",".join(map(str, looks))
        end = "set planned_seeds" if planned is None else f"end with planned_seeds={planned}"
        raise ConfigError(
            f"looks=[{listed}]: planned looks must ascend and {end}, such as "
            f"--planned-seeds {looks[-1]} --looks 3,{max(looks[-1], 4)}"
        )


def _check_minibatches(config: RunConfig) -> None:
    num_prompts, num_minibatches = config.rollout.num_prompts, config.optimizer.num_minibatches
    if num_prompts % num_minibatches:
        raise ConfigError(
            f"optimizer.num_minibatches={num_minibatches} does not divide "
            f"rollout.num_prompts={num_prompts}, and groups stay whole; use "
            + ", ".join(map(str, divisors(num_prompts)))
        )


def _check_model(config: RunConfig) -> None:
    model = config.model
    if isinstance(model, TinyModelSettings) and model.num_heads % model.num_key_value_heads:
        raise ConfigError(
            f"model.num_key_value_heads={model.num_key_value_heads} does not divide "
            f"model.num_heads={model.num_heads}; each must serve the same number of query heads"
        )
    if isinstance(model, HubModelSettings) and model.weights == "random" and model.architecture is None:
        raise ConfigError(
            "model.weights=random needs model.architecture, the keys of a config.json; "
            "choose a model whose file has it, such as model=qwen3_0_6b, or model.weights=pretrained"
        )


def _check_lengths(config: RunConfig) -> None:
    dataset = config.dataset
    if not isinstance(config.model, TinyModelSettings) or not isinstance(dataset, ArithmeticDatasetConfig):
        return
    # The longest question in the built-in tokenizer: markers before and after, one sign per operand.
    num_prompt_tokens = 2 * dataset.max_operands + 2
    room = config.model.context_length - num_prompt_tokens
    for key, length in (
        ("rollout.max_new_tokens", config.rollout.max_new_tokens),
        ("evaluation.max_new_tokens", config.evaluation.max_new_tokens),
    ):
        if length > room:
            raise ConfigError(
                f"{key}={length} does not fit: model.context_length={config.model.context_length} minus "
                f"the longest prompt's {num_prompt_tokens} tokens leaves {room}"
            )


def _check_dataset(config: RunConfig) -> None:
    dataset = config.dataset
    if isinstance(dataset, ProblemsDatasetConfig):
        _check_published(dataset, config.grader)
    elif isinstance(dataset, ArithmeticDatasetConfig):
        dataset.check()
    elif not dataset.fits(config.grader):
        raise ConfigError(
            "dataset.kind=reasoning_gym: its tasks have their own scorers; set grader=reasoning_gym"
        )


def _check_published(dataset: ProblemsDatasetConfig, grader: object) -> None:
    if dataset.fields.choices and not isinstance(grader, MultipleChoiceVerifier):
        raise ConfigError(
            f"dataset.fields.choices={list(dataset.fields.choices)}: reference answers become letters, "
            "which this grader cannot compare; set grader=multiple_choice"
        )
    if dataset.fields.verifier:
        return
    if not dataset.fields.answer and not dataset.fields.solution:
        raise ConfigError(
            "dataset.fields.answer=[]: there are no reference answers; give a field for the answer, or "
            "set dataset.fields.solution to one whose last box is the answer"
        )


def _check_benchmark(config: RunConfig) -> None:
    benchmark, dataset = config.benchmark, config.dataset
    if isinstance(benchmark, ArithmeticBenchmarkConfig) and not isinstance(dataset, ArithmeticDatasetConfig):
        raise ConfigError(
            "benchmark.kind=arithmetic: the test problems of the arithmetic task do not match the "
            f"training set dataset.name={dataset.name}; use benchmark=NAME, such as math500 or aime24, or "
            "benchmark=held_out with dataset.num_test greater than 0"
        )
    if isinstance(benchmark, HeldOutBenchmarkConfig) and dataset.num_test == 0:
        raise ConfigError(
            "benchmark.kind=held_out: dataset.num_test=0 holds out no test problems; use at least 1"
        )
    if isinstance(benchmark, SuiteBenchmarkConfig):
        names = [member.name for member in benchmark.members.values()]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"benchmark.members: two are named {name}, and results are stored by name; give each "
                    "its own name"
                )


def _check_reward(config: RunConfig) -> None:
    config.reward.check(config.rollout.max_new_tokens)
    rollout = config.rollout
    if (
        isinstance(config.reward, SeveralReward)
        and isinstance(rollout, BankSettings)
        and rollout.rewards == "stored"
    ):
        raise ConfigError(
            "rollout.rewards=stored: a stored completion has one reward, but reward.kind=several computes "
            "each; use rollout.rewards=regrade"
        )


def _check_schedule(config: RunConfig) -> None:
    optimizer = config.optimizer
    if optimizer.schedule != "constant" and optimizer.num_warmup_steps >= config.num_steps:
        raise ConfigError(
            f"optimizer.schedule={optimizer.schedule} has no effect: "
            f"optimizer.num_warmup_steps={optimizer.num_warmup_steps} leaves none of "
            f"num_steps={config.num_steps}; use constant, or fewer warm-up steps"
        )


def _check_optimizer(config: RunConfig) -> None:
    kind, model, compute = config.optimizer.kind, config.model, config.compute
    if kind != "adamw" and compute.offload:
        raise ConfigError(
            f"optimizer.kind={kind} keeps its state on one device, but compute.offload=true moves it to "
            "main memory; use optimizer=adamw, or compute.offload=false"
        )
    if kind != "adamw_bf16":
        return
    if compute.dtype != "bfloat16":
        raise ConfigError(
            f"optimizer.kind=adamw_bf16 keeps the weights in bfloat16, but compute.dtype={compute.dtype}; "
            "use compute.dtype=bfloat16, or optimizer=adamw"
        )
    if model.lora is not None:
        raise ConfigError(
            "optimizer.kind=adamw_bf16 saves memory for trained weights, but model.lora trains few; use "
            "optimizer=adamw, or model.lora=null"
        )
    if config.algorithm.reference.kind == "moving_average":
        raise ConfigError(
            "algorithm.reference.kind=moving_average makes changes too small for the bfloat16 weights of "
            "optimizer.kind=adamw_bf16; use optimizer=adamw"
        )


def _check_evaluation(config: RunConfig) -> None:
    evaluation = config.evaluation
    if evaluation.temperature == 0.0 and evaluation.num_samples > 1:
        raise ConfigError(
            f"evaluation.num_samples={evaluation.num_samples} at evaluation.temperature=0 would give "
            "identical answers; use 1, or a temperature greater than 0"
        )
    for name, whole in (("top_p", 1.0), ("top_k", None), ("min_p", 0.0)):
        given = getattr(evaluation, name)
        if evaluation.temperature == 0.0 and given != whole:
            allowed = "null" if whole is None else f"{whole:g}"
            raise ConfigError(
                f"evaluation.{name}={given:g} has no effect at evaluation.temperature=0; use {allowed}"
            )
    for k in evaluation.pass_at or ():
        if k > evaluation.num_samples:
            raise ConfigError(
                f"evaluation.pass_at={k} exceeds evaluation.num_samples={evaluation.num_samples}: Pass@{k} "
                f"needs at least {k} samples; use a smaller k, or more samples"
            )
    if config.checkpoint.keep_best and evaluation.every_num_steps is None:
        raise ConfigError(
            "checkpoint.keep_best=true needs validation during training, which "
            "evaluation.every_num_steps=null turns off; change one of them"
        )


def _check_compute(config: RunConfig) -> None:
    if config.compute.head_dtype == config.compute.dtype:
        raise ConfigError(
            f"compute.head_dtype={config.compute.head_dtype} has no effect: compute.dtype is already the "
            "same; use model"
        )
    is_half = config.compute.dtype == "bfloat16" and config.compute.world_size == 1
    if config.compute.residual_dtype == "model" and not is_half:
        raise ConfigError(
            "compute.residual_dtype=model has no effect: with compute.dtype=float32 or several processes the "
            "states between layers already have the model's dtype; use float32"
        )
    if config.compute.compile and config.compute.packing is False:
        raise ConfigError(
            "compute.compile=true requires packed updates; use compute.packing=true, or compute.compile=false"
        )
    if config.compute.profile_step is not None and config.compute.profile_step > config.num_steps:
        raise ConfigError(
            f"compute.profile_step={config.compute.profile_step}: the run has only "
            f"num_steps={config.num_steps}; use one of them, or null"
        )
    check_processes(config.compute, config.rollout)

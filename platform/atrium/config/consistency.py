"""Checks for combinations of settings that cannot work or have no effect, before anything is loaded.

Single settings are checked by their sections, and combinations within a method by `Method.check`. Every error
names a setting and says how to correct it.
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
from atrium.engines.settings import BankSettings, VllmSettings
from atrium.grading.several import SeveralReward
from atrium.grading.verifiers import MultipleChoiceVerifier
from atrium.models.settings import HubModelSettings, TinyModelSettings

_MAX_ADAPTER_RANK = 512  # vLLM's limit on the rank of adapters that it applies itself


def check_consistency(config: RunConfig) -> None:
    """Raise `ConfigError` for the first combination of settings that cannot work or has no effect."""
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
    """Raise `ConfigError` for a setting that does not work with `num_ranks` processes.

    `num_ranks` is the number in the settings, or torchrun's number if torchrun started the processes.
    """
    config.rollout.check(replace(config.engine_use, num_ranks=num_ranks))
    if isinstance(config.rollout, VllmSettings) and config.rollout.adapters == "separate":
        _check_adapters(config, config.rollout, num_ranks)
    if num_ranks == 1:
        if config.compute.gradient_exchange == "minibatch":
            raise ConfigError(
                "compute.gradient_exchange=minibatch has no effect, since a single process exchanges no "
                "gradients; use micro_batch, or set compute.num_processes to at least 2"
            )
        return
    alone = f"requires a single process, got {num_ranks}"
    num_shards = config.compute.num_shards
    if num_shards is not None and num_ranks % num_shards:
        raise ConfigError(
            f"compute.num_shards must divide the number of processes on all nodes, {num_ranks}, got "
            f"{num_shards}; use null, or one of {', '.join(map(str, divisors(num_ranks)))}"
        )
    if config.optimizer.kind == "adamw_8bit":
        raise ConfigError(
            f"optimizer.kind=adamw_8bit {alone}, since bitsandbytes cannot update sharded parameters; "
            "use optimizer=adamw, or adamw_bf16, whose state is sharded"
        )
    if config.compute.on_oom == "shrink":
        raise ConfigError(
            f"compute.on_oom=shrink {alone}, since a rank cannot repeat an update alone; use "
            "compute.on_oom=stop, and lower compute.micro_batch_tokens (now "
            f"{config.compute.micro_batch_tokens})"
        )


def _check_adapters(config: RunConfig, rollout: VllmSettings, num_ranks: int) -> None:
    """Raise `ConfigError` if the run does not support `rollout.adapters=separate`."""
    lora = config.model.lora
    if lora is None or lora.rank > _MAX_ADAPTER_RANK:
        found = (
            "the run trains no adapters"
            if lora is None
            else f"model.lora.rank={lora.rank} exceeds vLLM's maximum of {_MAX_ADAPTER_RANK}"
        )
        raise ConfigError(f"rollout.adapters=separate: {found}; use rollout.adapters=merged")
    if rollout.placement == "server" or num_ranks > 1 or rollout.sleep_level == 2:
        raise ConfigError(
            "rollout.adapters=separate requires rollout.placement=inside, one process, and "
            "rollout.sleep_level of null or 1, since base weights are loaded only once; choose "
            "rollout.adapters=merged"
        )


def _check_mirrors(config: RunConfig) -> None:
    uri = config.tracking.mlflow.uri if config.tracking.mlflow else None
    if uri is not None and "@" in uri.partition("://")[2].partition("/")[0]:
        raise ConfigError(
            "tracking.mlflow.uri must not contain a user or password, since it is written to the run "
            "directory; remove them and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the "
            "environment"
        )


def _check_seed_plan(config: RunConfig) -> None:
    looks, planned = config.looks, config.planned_seeds
    if looks and (list(looks) != sorted(set(looks)) or looks[-1] != planned):
        listed = ",".join(map(str, looks))
        end = "be combined with planned_seeds" if planned is None else f"end with planned_seeds={planned}"
        most = max(*looks, 4)
        raise ConfigError(
            f"looks must be in ascending order and {end}, got [{listed}]; for example, use "
            f"--planned-seeds {most} --looks 3,{most}"
        )


def _check_minibatches(config: RunConfig) -> None:
    num_prompts, num_minibatches = config.rollout.num_prompts, config.optimizer.num_minibatches
    if num_prompts % num_minibatches:
        raise ConfigError(
            f"optimizer.num_minibatches must divide rollout.num_prompts={num_prompts}, since groups cannot "
            f"be split, got {num_minibatches}; use one of " + ", ".join(map(str, divisors(num_prompts)))
        )


def _check_model(config: RunConfig) -> None:
    model = config.model
    if isinstance(model, TinyModelSettings) and model.num_heads % model.num_key_value_heads:
        raise ConfigError(
            f"model.num_key_value_heads must divide model.num_heads={model.num_heads}, got "
            f"{model.num_key_value_heads}; choose a divisor"
        )
    if isinstance(model, HubModelSettings) and model.weights == "random" and model.architecture is None:
        raise ConfigError(
            "model.weights=random requires model.architecture (the content of a config.json); choose a "
            "model that sets it, such as model=qwen3_0_6b, or use model.weights=pretrained"
        )


def _check_lengths(config: RunConfig) -> None:
    dataset = config.dataset
    if not isinstance(config.model, TinyModelSettings) or not isinstance(dataset, ArithmeticDatasetConfig):
        return
    # The longest prompt in tokens: a start and an end marker, and a digit and a sign for each operand.
    num_prompt_tokens = 2 * dataset.max_operands + 2
    room = config.model.context_length - num_prompt_tokens
    for key, length in (
        ("rollout.max_new_tokens", config.rollout.max_new_tokens),
        ("evaluation.max_new_tokens", config.evaluation.max_new_tokens),
    ):
        if room < 1:
            raise ConfigError(
                f"model.context_length={config.model.context_length} must be greater than the "
                f"{num_prompt_tokens} tokens of the longest prompt; raise it, or lower dataset.max_operands"
            )
        if length > room:
            raise ConfigError(
                f"{key} must be at most {room}, which is "
                f"model.context_length={config.model.context_length} minus the {num_prompt_tokens} "
                f"tokens of the longest prompt, got {length}; lower it"
            )


def _check_dataset(config: RunConfig) -> None:
    dataset = config.dataset
    if isinstance(dataset, ProblemsDatasetConfig):
        _check_published(dataset, config.grader)
    elif isinstance(dataset, ArithmeticDatasetConfig):
        dataset.check()
    elif not dataset.fits(config.grader):
        raise ConfigError(
            "dataset.kind=reasoning_gym requires grader=reasoning_gym, since its tasks have their own "
            "scorers; set grader=reasoning_gym"
        )


def _check_published(dataset: ProblemsDatasetConfig, grader: object) -> None:
    if dataset.fields.choices and not isinstance(grader, MultipleChoiceVerifier):
        raise ConfigError(
            f"dataset.fields.choices={list(dataset.fields.choices)} turns reference answers into "
            "letters, which the chosen grader cannot compare; set grader=multiple_choice"
        )
    if dataset.fields.verifier:
        return
    if not dataset.fields.answer and not dataset.fields.solution:
        raise ConfigError(
            "dataset.fields.answer=[] leaves no reference answers; name the field with the answer, or "
            "set dataset.fields.solution to a field whose last boxed value is the answer"
        )


def _check_benchmark(config: RunConfig) -> None:
    benchmark, dataset = config.benchmark, config.dataset
    if isinstance(benchmark, ArithmeticBenchmarkConfig) and not isinstance(dataset, ArithmeticDatasetConfig):
        raise ConfigError(
            f"benchmark.kind=arithmetic requires dataset=arithmetic, got dataset.name={dataset.name}; "
            "choose a published benchmark such as benchmark=math500, or benchmark=held_out with "
            "dataset.num_test greater than 0"
        )
    if isinstance(benchmark, HeldOutBenchmarkConfig) and dataset.num_test == 0:
        raise ConfigError("dataset.num_test must be at least 1 with benchmark.kind=held_out, got 0")
    if isinstance(benchmark, SuiteBenchmarkConfig):
        names = [member.name for member in benchmark.members.values()]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"benchmark.members has two benchmarks with the name {name}; give each its own name, "
                    "since results are stored by name"
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
            "rollout.rewards=stored cannot be combined with reward.kind=several, since a stored "
            "completion has only one reward; use rollout.rewards=regrade"
        )


def _check_schedule(config: RunConfig) -> None:
    optimizer = config.optimizer
    if optimizer.schedule != "constant" and optimizer.num_warmup_steps >= config.num_steps:
        raise ConfigError(
            f"optimizer.schedule={optimizer.schedule} has no effect, since "
            f"optimizer.num_warmup_steps={optimizer.num_warmup_steps} covers all of "
            f"num_steps={config.num_steps}; use optimizer.schedule=constant, or fewer warm-up steps"
        )


def _check_optimizer(config: RunConfig) -> None:
    kind, model, compute = config.optimizer.kind, config.model, config.compute
    if kind != "adamw" and compute.offload:
        raise ConfigError(
            f"optimizer.kind={kind} cannot be combined with compute.offload=true, since its state must "
            "stay on one device; use optimizer=adamw, or compute.offload=false"
        )
    if kind != "adamw_bf16":
        return
    if compute.dtype != "bfloat16":
        raise ConfigError(
            "optimizer.kind=adamw_bf16 requires compute.dtype=bfloat16, got "
            f"compute.dtype={compute.dtype}; use compute.dtype=bfloat16, or optimizer=adamw"
        )
    if model.lora is not None:
        raise ConfigError(
            "optimizer.kind=adamw_bf16 cannot be combined with model.lora, since it would save little memory "
            "with so few trained weights; use optimizer=adamw, or model.lora=null"
        )
    if config.algorithm.reference.kind == "moving_average":
        raise ConfigError(
            "algorithm.reference.kind=moving_average cannot be combined with optimizer.kind=adamw_bf16, "
            "since bfloat16 rounds its small changes away; use optimizer=adamw"
        )


def _check_evaluation(config: RunConfig) -> None:
    evaluation = config.evaluation
    if evaluation.temperature == 0.0 and evaluation.num_samples > 1:
        raise ConfigError(
            "evaluation.num_samples must be 1 with evaluation.temperature=0, where all samples are "
            f"identical, got {evaluation.num_samples}; use 1, or a temperature greater than 0"
        )
    for name, whole in (("top_p", 1.0), ("top_k", None), ("min_p", 0.0)):
        given = getattr(evaluation, name)
        if evaluation.temperature == 0.0 and given != whole:
            allowed = "null" if whole is None else f"{whole:g}"
            raise ConfigError(
                f"evaluation.{name}={given:g} has no effect with evaluation.temperature=0, which always "
                f"selects the likeliest token; use {allowed}"
            )
    for k in evaluation.pass_at or ():
        if k > evaluation.num_samples:
            raise ConfigError(
                f"evaluation.pass_at must be at most evaluation.num_samples={evaluation.num_samples}, "
                f"got {k}; lower it, or raise evaluation.num_samples"
            )
    if config.checkpoint.keep_best and evaluation.every_num_steps is None:
        raise ConfigError(
            "checkpoint.keep_best=true requires validation during training, but "
            "evaluation.every_num_steps=null; set evaluation.every_num_steps, or use "
            "checkpoint.keep_best=false"
        )


def _check_compute(config: RunConfig) -> None:
    if config.compute.head_dtype == config.compute.dtype:
        raise ConfigError(
            f"compute.head_dtype={config.compute.head_dtype} has no effect, since compute.dtype is "
            f"already {config.compute.dtype}; use compute.head_dtype=model"
        )
    is_half = config.compute.dtype == "bfloat16" and config.compute.world_size == 1
    if config.compute.residual_dtype == "model" and not is_half:
        raise ConfigError(
            "compute.residual_dtype=model has no effect with compute.dtype=float32 or with several "
            "processes, since the states between layers then have the model's dtype anyway; use "
            "compute.residual_dtype=float32"
        )
    if config.compute.flash_attention == 3 and (
        config.compute.device != "cuda"
        or config.compute.dtype != "bfloat16"
        or config.compute.packing is False
    ):
        raise ConfigError(
            "compute.flash_attention=3 requires packed updates on a GPU in bfloat16, got "
            f"compute.device={config.compute.device}, compute.dtype={config.compute.dtype} and "
            f"compute.packing={str(config.compute.packing).lower()}; use compute.flash_attention=2"
        )
    if config.compute.compile is True and config.compute.packing is False:
        raise ConfigError(
            "compute.compile=true requires packed updates, but compute.packing=false; use "
            "compute.packing=true, or compute.compile=false"
        )
    if config.compute.profile_step is not None and config.compute.profile_step > config.num_steps:
        raise ConfigError(
            f"compute.profile_step must be at most num_steps={config.num_steps}, got "
            f"{config.compute.profile_step}; lower it, or use null"
        )
    check_processes(config.compute, config.rollout)

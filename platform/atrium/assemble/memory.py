"""The memory plan of a configuration, and checks of the plan, without importing torch."""

from __future__ import annotations

import math
from dataclasses import replace

from atrium.assemble.fitting import Plan, changed, fitting_changes
from atrium.base.errors import ConfigError
from atrium.base.records import MemoryItem, Phase
from atrium.config.scale import known_architecture
from atrium.config.schema import RunConfig
from atrium.engines.declaration import EngineDemand, EngineSettings
from atrium.engines.settings import VllmSettings
from atrium.models.settings import LoraSettings, TinyModelSettings
from atrium.models.shape import ModelShape, chosen_maps, read_shape
from atrium.planning.document import FittedPlan
from atrium.planning.memory import TrainerDemand, peak_by_phase, plan_memory

USABLE_FRAC = 0.9
"""Fraction of memory that a plan may use; the rest is for libraries and fragmentation."""
PROMPT_TOKENS = 256
"""Assumed prompt length in tokens, since the actual length is known only after the data are loaded."""

_ROW_TOKENS = 64
_GB = 1e9
_STATE_DIVERGENCES = ("state_kl", "state_total_variation", "top_k_kl", "top_k_total_variation")


def known_shape(config: RunConfig) -> ModelShape | None:
    """Return the model's shape, read from its settings or from a local folder.

    Returns None if the shape is only known once the model is loaded.
    """
    model = config.model
    if isinstance(model, TinyModelSettings):
        return read_shape(model.architecture)
    return read_shape(known_architecture(model))


def planned_memory(
    config: RunConfig,
    shape: ModelShape,
    *,
    num_prompt_tokens: int = PROMPT_TOKENS,
    device_bytes: int | None = None,
    trains: bool = True,
) -> tuple[MemoryItem, ...]:
    """Return the memory that each part of the run needs on the device of one process.

    Prompts have `num_prompt_tokens` tokens. `device_bytes` is the device's memory, for engines that reserve a
    share of it. `trains` is false for an evaluation. Raises `ConfigError` if `model.lora` names linear layers
    that the model does not have.
    """
    rollout, compute = config.rollout, config.compute
    allowed = shape.context_length or num_prompt_tokens + rollout.max_new_tokens
    longest = min(num_prompt_tokens + rollout.max_new_tokens, allowed)
    batch = rollout.num_prompts * rollout.group_size * longest
    demand = trainer_demand(config, shape, batch_tokens=batch, trains=trains)
    engine = rollout.memory(
        shape,
        EngineDemand(
            dtype=compute.dtype,
            weight_bytes=demand.weight_bytes,
            is_apart=trains and (compute.world_size > 1 or config.model.lora is not None),
            num_ranks=compute.world_size,
            rollout_tokens=batch,
            evaluation_tokens=min(num_prompt_tokens + config.evaluation.max_new_tokens, allowed),
            device_bytes=device_bytes,
        ),
    )
    if rollout.placement == "server":
        weight_bytes = 2 if reads_rounded_weights(config) else demand.weight_bytes
        in_memory = compute.device == "cpu" and rollout.weights_dir is None
        shared = rollout.num_kept_weights * weight_bytes * shape.num_parameters if in_memory else 0
        engine = (
            MemoryItem("weights that servers read", shared, tuple(Phase), "rollout.placement=inside"),
            *(replace(item, num_bytes=item.num_bytes * _num_on_device(config, trains)) for item in engine),
        )
    return plan_memory(shape, demand, engine)


def reads_rounded_weights(config: RunConfig) -> bool:
    """Return whether servers receive weights in bfloat16, the number format that they compute in."""
    compute = config.compute
    return config.rollout.has_own_weights and compute.dtype == "bfloat16" and compute.head_dtype == "model"


def _num_on_device(config: RunConfig, trains: bool) -> int:
    """Return the number of server processes that share the device of a trainer process.

    On a CPU, this is the number of server processes per trainer process. On GPUs, it is the largest number of
    server processes on any GPU of the trainer or, in an evaluation, on any GPU that servers use. Servers that
    the run does not start are not counted.
    """
    rollout, compute = config.rollout, config.compute
    if rollout.servers:
        return 0
    if compute.device == "cpu":
        return rollout.num_outside * rollout.processes_per_engine // compute.world_size
    if rollout.devices is None:
        return 0 if trains else 1
    devices = range(compute.num_processes) if trains else rollout.devices
    return max(map(rollout.devices.count, devices))


def trainer_demand(config: RunConfig, shape: ModelShape, *, batch_tokens: int, trains: bool) -> TrainerDemand:
    """Return the quantities that determine the trainer's memory.

    `batch_tokens` is the number of tokens in a step's batch, over all ranks. `trains` is false for an
    evaluation, which needs no adapters, reference or optimizer.
    """
    compute, lora = config.compute, config.model.lora
    adapters = [] if lora is None or not trains else _adapter_sizes(shape, lora)
    reference = config.algorithm.reference.kind
    return TrainerDemand(
        compute_dtype=compute.dtype,
        device=compute.device,
        micro_batch_tokens=min(
            compute.max_micro_batch_tokens,
            -(-batch_tokens // (config.optimizer.num_minibatches * compute.world_size)),
        ),
        batch_tokens=batch_tokens,
        # With adapters, a frozen reference is the model without them.
        has_reference=trains and reference != "none" and not (reference == "frozen" and adapters),
        keeps_states=config.divergence.kind in _STATE_DIVERGENCES,
        optimizer=config.optimizer.kind,
        num_ranks=compute.world_size,
        num_shards=compute.num_shards,
        offload=compute.offload,
        num_adapter_parameters=sum(adapters),
        num_adapter_tensors=len(adapters),
        adapter_width=0 if lora is None else lora.rank * len(adapters) // 2,
        recomputes=compute.recompute_activations is True,
        keeps_gradients=compute.gradient_exchange == "minibatch",
        num_kept=config.rollout.lag if config.rollout.overlaps else 0,
        trains=trains,
        held_dtype=compute.dtype,
        hands_over=not trains and config.rollout.is_apart and compute.device == "cuda",
        head_kernel=compute.head_kernel,
    )


def _adapter_sizes(shape: ModelShape, lora: LoraSettings) -> list[int]:
    """Return the numbers of parameters of the matrices A and B of all adapters.

    Raises `ConfigError` if `lora.target_modules` names unknown linear layers.
    """
    chosen = chosen_maps({name for name, *_ in shape.linear_maps}, lora.target_modules)
    return [lora.rank * width for name, *widths in shape.linear_maps if name in chosen for width in widths]


def needs_recomputation(
    config: RunConfig,
    shape: ModelShape,
    *,
    num_prompt_tokens: int = PROMPT_TOKENS,
    device_bytes: int | None = None,
) -> bool:
    """Return whether updates recompute activations.

    With `compute.recompute_activations=auto`, activations are recomputed only if an update is predicted not
    to fit otherwise. The prediction is made for the configured micro-batch size, or for a single row if the
    size is found by trial or may be reduced when memory runs out (`compute.on_oom=shrink`). If neither
    `device_bytes` nor a memory limit is known, the result is False.
    """
    compute = config.compute
    if compute.recompute_activations != "auto":
        return compute.recompute_activations
    if (room := _room_bytes(config, device_bytes)) is None:
        return False
    plain: dict[str, object] = {"recompute_activations": False}
    if compute.micro_batch_tokens == "auto" or compute.on_oom == "shrink":
        plain["micro_batch_tokens"] = num_prompt_tokens + config.rollout.max_new_tokens
    kept = changed(config, compute=plain)
    items = planned_memory(kept, shape, num_prompt_tokens=num_prompt_tokens, device_bytes=device_bytes)
    if compute.device == "cpu":  # the limit applies to one pass, on top of the memory in use before it
        return sum(item.num_bytes for item in items if _is_passing(item)) > room
    return peak_by_phase(items)[Phase.UPDATE] > room


def settled(config: RunConfig, shape: ModelShape, num_tokens: int, num_bytes: int | None) -> RunConfig:
    """Return the configuration with predicted values instead of `auto` for recomputation and micro-batches.

    Prompts have `num_tokens` tokens. `num_bytes` is the memory of the device, or None if it is unknown. A
    run with one process later finds its micro-batch size by trial; several processes use the predicted
    size. Raises `ConfigError` if the engine cannot compute the model or has too little memory for it.
    """
    compute, of_gpu = config.compute, num_bytes if config.compute.device == "cuda" else None
    config.rollout.check_model(shape, compute.device)
    config.rollout.check_cache(shape, compute.dtype, of_gpu)
    recomputes = needs_recomputation(config, shape, num_prompt_tokens=num_tokens, device_bytes=of_gpu)
    run = changed(config, compute={"recompute_activations": recomputes})
    room = math.inf if num_bytes is None else USABLE_FRAC * num_bytes
    tokens, row = compute.max_micro_batch_tokens, num_tokens + run.rollout.max_new_tokens
    while compute.micro_batch_tokens == "auto":
        run = changed(run, compute={"micro_batch_tokens": tokens})
        items = planned_memory(run, shape, num_prompt_tokens=num_tokens, device_bytes=of_gpu)
        if tokens <= row or max(peak_by_phase(items).values()) <= room:
            break
        tokens = max(row, tokens // 2)
    return run


def judge(
    config: RunConfig, shape: ModelShape, num_tokens: int, num_bytes: int | None
) -> tuple[RunConfig, FittedPlan]:
    """Return the configuration from `settled`, and its memory plan.

    The plan also lists changes to settings that would make the run fit, if there are any. A run fits if no
    phase needs more than 90 % of `num_bytes` (`USABLE_FRAC`). Takes the same arguments and raises the same
    errors as `settled`.
    """
    of_gpu = num_bytes if config.compute.device == "cuda" else None
    room = math.inf if num_bytes is None else USABLE_FRAC * num_bytes

    def plan(run: RunConfig) -> tuple[MemoryItem, ...]:
        run = settled(run, shape, num_tokens, num_bytes)
        return planned_memory(run, shape, num_prompt_tokens=num_tokens, device_bytes=of_gpu)

    return settled(config, shape, num_tokens, num_bytes), FittedPlan(
        items=plan(config),
        device=config.compute.device,
        device_bytes=num_bytes,
        changes=None if num_bytes is None else fitting_changes(config, plan, room),
    )


def plan_record(run: RunConfig, plan: FittedPlan) -> dict[str, object]:
    """Return a memory plan in bytes for the output of `--json`; `run` is the configuration from `judge`."""
    return {
        "items": [
            {
                "name": item.name,
                "bytes": item.num_bytes,
                "phases": [str(phase) for phase in item.phases],
                "lowered_by": item.lowered_by,
            }
            for item in plan.items
        ],
        "peak_bytes": {str(phase): num_bytes for phase, num_bytes in peak_by_phase(plan.items).items()},
        "device_bytes": plan.device_bytes,
        "fits_with": plan.changes,
        "micro_batch_tokens": run.compute.micro_batch_tokens,
        "recompute_activations": run.compute.recompute_activations,
    }


def plan_notes(run: RunConfig) -> list[str]:
    """Return notes on the assumptions of a memory plan; `run` is the configuration from `judge`."""
    share = f"in each of {run.compute.world_size} processes " if run.compute.world_size > 1 else ""
    again = ["updates recompute activations (compute.recompute_activations)"]
    return [
        f"at most, {share}on {run.compute.device} in {run.compute.dtype} with micro-batches of "
        f"{run.compute.micro_batch_tokens} tokens; libraries and fragmentation need more, so leave a tenth "
        "free",
        *(again if run.compute.recompute_activations else []),
        *(_split_notes(run.rollout) if run.compute.device == "cuda" else []),
    ]


def _split_notes(rollout: EngineSettings) -> list[str]:
    """Return a list with a note on the GPU memory that vLLM uses in the trainer's process.

    The list is empty if the engine is not vLLM or runs as servers.
    """
    if not isinstance(rollout, VllmSettings) or rollout.placement == "server":
        return []
    sleeps = f", and releases it during updates (sleep_level={rollout.sleep_level})" if rollout.sleeps else ""
    uses = f"{rollout.gpu_memory_fraction:.0%} of the GPU (rollout.gpu_memory_fraction)"
    if rollout.kv_cache_mb is not None:
        uses = f"a cache of {rollout.kv_cache_mb} MB (rollout.kv_cache_mb)"
    return [f"vLLM uses {uses}{sleeps}"]


def _room_bytes(config: RunConfig, device_bytes: int | None) -> float | None:
    """Return the number of bytes that a plan may use, or None if it is unknown.

    The number is 90 % of the smaller of the device's memory and `compute.memory_limit_mb`.
    """
    limit_mb = config.compute.memory_limit_mb
    sizes = [] if device_bytes is None else [device_bytes]
    sizes += [] if limit_mb is None else [limit_mb << 20]
    return USABLE_FRAC * min(sizes) if sizes else None


def _is_passing(item: MemoryItem) -> bool:
    return Phase.UPDATE in item.phases and Phase.SAMPLING not in item.phases


def check_memory(
    config: RunConfig, shape: ModelShape, device_bytes: int | None, *, trains: bool = True
) -> None:
    """Raise `ConfigError` if the engine cannot compute the model, or a minimal step exceeds `device_bytes`.

    A minimal step consists of the trained state, the engine, and an update on one short row with recomputed
    activations. A run that passes may still not fit; a run that fails cannot fit. If `device_bytes` is None,
    the memory of the step is not checked. Also raises `ConfigError` if the engine's cache is too small for
    the longest prompt and completion.
    """
    rollout, compute = config.rollout, config.compute
    rollout.check_model(shape, compute.device)
    of_gpu = device_bytes if compute.device == "cuda" else None

    def least(run: RunConfig) -> tuple[MemoryItem, ...]:
        small = changed(
            run,
            compute={"micro_batch_tokens": _ROW_TOKENS, "recompute_activations": True},
            rollout={"num_prompts": 1, "group_size": 1, "max_new_tokens": _ROW_TOKENS},
            evaluation={"max_new_tokens": _ROW_TOKENS},
        )
        return planned_memory(small, shape, num_prompt_tokens=0, device_bytes=of_gpu, trains=trains)

    def usable(run: RunConfig) -> tuple[MemoryItem, ...]:
        run.rollout.check_cache(shape, compute.dtype, of_gpu)
        return least(run)

    if device_bytes is not None:
        _check_peaks(config, least, usable, device_bytes)
    rollout.check_cache(shape, compute.dtype, of_gpu)


def _check_peaks(config: RunConfig, least: Plan, usable: Plan, device_bytes: int) -> None:
    """Raise `ConfigError` with remedies if a phase of the plan `least` needs more than `device_bytes`.

    The remedies are changes of settings that make the plan `usable` fit.
    """
    items = least(config)
    peaks = peak_by_phase(items)
    phase = max(peaks, key=lambda each: peaks[each])
    if peaks[phase] <= device_bytes:
        return
    held = sorted((item for item in items if phase in item.phases), key=lambda item: -item.num_bytes)
    is_cpu = config.compute.device == "cpu"
    found = fitting_changes(config, usable, device_bytes)
    less = " ".join(found) if found else "a smaller model" + (" or a GPU" if is_cpu else "")
    raise ConfigError(
        f"{_model_name(config)}: {phase} needs at least {_gb(peaks[phase])} of "
        f"{'main memory' if is_cpu else 'GPU memory'} per process ("
        + ", ".join(f"{item.name} {_gb(item.num_bytes)}" for item in held[:3])
        + f"), but only {_gb(device_bytes)} are available; use {less}"
    )


def _model_name(config: RunConfig) -> str:
    model = config.model
    return "model=tiny" if isinstance(model, TinyModelSettings) else f"model.source={model.source}"


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / _GB:.1f} GB"

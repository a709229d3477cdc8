"""From a configuration to the plan of its memory, and what is refused by it. Never torch."""

from __future__ import annotations

import math
from dataclasses import replace

from atrium.assemble.fitting import Plan, changed, fitting_changes
from atrium.base.errors import ConfigError
from atrium.base.records import MemoryItem, Phase
from atrium.config.scale import known_architecture
from atrium.config.schema import RunConfig
from atrium.engines.declaration import EngineDemand
from atrium.models.settings import LoraSettings, TinyModelSettings
from atrium.models.shape import ModelShape, chosen_maps, read_shape
from atrium.planning.document import FittedPlan
from atrium.planning.memory import TrainerDemand, peak_by_phase, plan_memory

USABLE_FRAC = 0.9
"""The share of memory that is planned with; libraries and fragmentation take the rest."""
PROMPT_TOKENS = 256
"""The length of a prompt, which only the data knows, where nobody says it."""

_ROW_TOKENS = 64
_GB = 1e9
_STATE_DIVERGENCES = ("state_kl", "state_total_variation", "top_k_kl", "top_k_total_variation")


def known_shape(config: RunConfig) -> ModelShape | None:
    """The model's shape where its settings or a local folder have it; None where only loading will say."""
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
    """What each part of the run takes of one process's device, for prompts of this length.

    `device_bytes` is what a share of the device's memory is taken from, where an engine asks for one. Raises
    `ConfigError` for adapters of maps that the model lacks.
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
    """Whether servers receive weights in bfloat16, to which they would round them themselves."""
    compute = config.compute
    return config.rollout.has_own_weights and compute.dtype == "bfloat16" and compute.head_dtype == "model"


def _num_on_device(config: RunConfig, trains: bool) -> int:
    """The number of servers' processes that take memory of this process's device: on a CPU all of them.

    On GPUs it is that of the GPU that most of them share: of the trainer's GPUs, or in an evaluation, which
    needs no GPU of its own, of all.
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
    """What the trainer's memory follows from, for batches of so many tokens."""
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
        # A frozen one is, for adapters, the model without them.
        has_reference=trains and reference != "none" and not (reference == "frozen" and adapters),
        keeps_states=config.divergence.kind in _STATE_DIVERGENCES,
        optimizer=config.optimizer.kind,
        num_ranks=compute.world_size,
        offload=compute.offload,
        num_adapter_parameters=sum(adapters),
        num_adapter_tensors=len(adapters),
        adapter_width=0 if lora is None else lora.rank * len(adapters) // 2,
        recomputes=compute.recompute_activations is True,
        num_kept=config.rollout.lag if config.rollout.overlaps else 0,
        trains=trains,
        held_dtype=compute.dtype,
        hands_over=not trains and config.rollout.is_apart and compute.device == "cuda",
    )


def _adapter_sizes(shape: ModelShape, lora: LoraSettings) -> list[int]:
    """The parameters of each adapter's A and B; raises `ConfigError` for maps that the model lacks."""
    chosen = chosen_maps({name for name, *_ in shape.linear_maps}, lora.target_modules)
    return [lora.rank * width for name, *widths in shape.linear_maps if name in chosen for width in widths]


def needs_recomputation(
    config: RunConfig,
    shape: ModelShape,
    *,
    num_prompt_tokens: int = PROMPT_TOKENS,
    device_bytes: int | None = None,
) -> bool:
    """Whether `compute.recompute_activations` is true, or auto and an update would else lack memory.

    Planned is a micro-batch of the size that is set, or of one row where it is found by trying or may
    shrink. Memory that is not known suffices.
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
    if compute.device == "cpu":  # the limit is that of a pass, above what is there before it
        return sum(item.num_bytes for item in items if _is_passing(item)) > room
    return peak_by_phase(items)[Phase.UPDATE] > room


def settled(config: RunConfig, shape: ModelShape, num_tokens: int, num_bytes: int | None) -> RunConfig:
    """A configuration without `auto`: recomputation and micro-batches as they are predicted to fit.

    On one GPU a run finds its micro-batches by trying; several processes take them from here. Raises
    `ConfigError` where the engine cannot hold the model.
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
    """A configuration without `auto`, and its plan for prompts of `num_tokens` on such a device.

    Raises `ConfigError` where the engine cannot hold the model.
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
    """A plan in the content of `--json`, in bytes; `run` is what `judge` made of the settings."""
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
    """What a plan is for, and what it leaves out."""
    share = f"in each of {run.compute.world_size} processes " if run.compute.world_size > 1 else ""
    again = ["updates compute activations again (compute.recompute_activations)"]
    return [
        f"at most, {share}on {run.compute.device} in {run.compute.dtype} with micro-batches of "
        f"{run.compute.micro_batch_tokens} tokens; libraries and fragmentation come on top, so leave a "
        "tenth free",
        *(again if run.compute.recompute_activations else []),
    ]


def _room_bytes(config: RunConfig, device_bytes: int | None) -> float | None:
    """The memory that is planned with, or None where it is not known."""
    limit_mb = config.compute.memory_limit_mb
    sizes = [] if device_bytes is None else [device_bytes]
    sizes += [] if limit_mb is None else [limit_mb << 20]
    return USABLE_FRAC * min(sizes) if sizes else None


def _is_passing(item: MemoryItem) -> bool:
    return Phase.UPDATE in item.phases and Phase.SAMPLING not in item.phases


def check_memory(
    config: RunConfig, shape: ModelShape, device_bytes: int | None, *, trains: bool = True
) -> None:
    """Raise `ConfigError` where the engine cannot hold such a model, or the run lacks `device_bytes`.

    What is asked for is the least: the trained state, what the engine is given, and an update on one short
    row with activations computed again. What passes may still not fit; what is refused cannot.
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
    """Raise `ConfigError` where a phase of the least plan lacks memory, with what `usable` would fit."""
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
        f"{_model_name(config)}: {phase} takes at least {_gb(peaks[phase])} of "
        f"{'main memory' if is_cpu else 'GPU memory'} in a process ("
        + ", ".join(f"{item.name} {_gb(item.num_bytes)}" for item in held[:3])
        + f"), and there are {_gb(device_bytes)}; what fits: {less}"
    )


def _model_name(config: RunConfig) -> str:
    model = config.model
    return "model=tiny" if isinstance(model, TinyModelSettings) else f"model.source={model.source}"


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / _GB:.1f} GB"

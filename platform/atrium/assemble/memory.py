"""From a configuration to the plan of its memory; a model's configuration is read, no weights are."""

from __future__ import annotations

import torch

from atrium.config.models import LoraConfig, TinyModelConfig
from atrium.config.rollouts import VllmRolloutConfig
from atrium.config.schema import RunConfig
from atrium.models.architecture import Architecture, hub_architecture, random_architecture
from atrium.models.lora import chosen_maps
from atrium.models.tiny import TinySettings, tiny_architecture
from atrium.train.memory_plan import (
    MemoryItem,
    MemorySettings,
    ModelDimensions,
    Phase,
    peak_by_phase,
    plan_memory,
)

_HALF, _SINGLE = 2, 4
_USABLE_FRAC = 0.9
"""The share of memory that is planned with; libraries and fragmentation take the rest."""

_STATE_DIVERGENCES = ("state_kl", "state_total_variation", "top_k_kl", "top_k_total_variation")


def planned_memory(
    config: RunConfig, *, num_prompt_tokens: int, device_bytes: int | None = None
) -> tuple[MemoryItem, ...]:
    """What each part of the run takes, for prompts of this length; raises as loading the model does.

    `device_bytes` is what a share of the device's memory is taken from, where an engine asks for one.
    """
    architecture = configured_architecture(config)
    dimensions = dimensions_of(architecture)
    return plan_memory(
        dimensions, _settings(config, architecture, num_prompt_tokens=num_prompt_tokens, of=device_bytes)
    )


def needs_recomputation(
    config: RunConfig, *, num_prompt_tokens: int, device_bytes: int | None = None
) -> bool:
    """Whether `compute.recompute_activations` is true, or auto and an update would else lack memory.

    Planned is a micro-batch of the size that is set, or of one row where it is found by trying or may
    shrink. Memory that is not known suffices. Raises as loading the model does.
    """
    compute = config.compute
    if compute.recompute_activations != "auto":
        return compute.recompute_activations
    if (room := _room_bytes(config, device_bytes)) is None:
        return False
    plain: dict[str, object] = {"recompute_activations": False}
    if compute.micro_batch_tokens == "auto" or compute.on_oom == "shrink":
        plain["micro_batch_tokens"] = num_prompt_tokens + config.rollout.max_new_tokens
    kept = config.model_copy(update={"compute": compute.model_copy(update=plain)})
    items = planned_memory(kept, num_prompt_tokens=num_prompt_tokens, device_bytes=device_bytes)
    if compute.device == "cpu":  # the limit is that of a pass, above what is there before it
        return sum(item.num_bytes for item in items if _is_passing(item)) > room
    return peak_by_phase(items)[Phase.UPDATE] > room


def gpu_bytes(device: str) -> int | None:
    """The memory of the GPU that a run takes, or None where there is none or it runs on a CPU."""
    if device == "cpu" or not torch.cuda.is_available():
        return None
    return int(torch.cuda.get_device_properties(device).total_memory)


def _room_bytes(config: RunConfig, device_bytes: int | None) -> float | None:
    """The memory that is planned with, or None where it is not known."""
    limit_mb = config.compute.memory_limit_mb
    sizes = [] if device_bytes is None else [device_bytes]
    sizes += [] if limit_mb is None else [limit_mb << 20]
    return _USABLE_FRAC * min(sizes) if sizes else None


def _is_passing(item: MemoryItem) -> bool:
    return Phase.UPDATE in item.phases and Phase.SAMPLING not in item.phases


def configured_architecture(config: RunConfig) -> Architecture:
    """The model's architecture: the built-in one's, the file's own, or that of its config.json."""
    model = config.model
    if isinstance(model, TinyModelConfig):
        shape = model.model_dump(exclude={"kind", "seed", "warmup", "prompt", "thinking", "lora"})
        return random_architecture(tiny_architecture(TinySettings(**shape)))
    if model.architecture is not None:
        return random_architecture(model.architecture)
    return hub_architecture(model.source, model.revision)


def dimensions_of(architecture: Architecture) -> ModelDimensions:
    """What of an architecture memory follows from."""
    names = ModelDimensions.__dataclass_fields__
    return ModelDimensions(**{name: getattr(architecture, name) for name in names})


def _settings(
    config: RunConfig, architecture: Architecture, *, num_prompt_tokens: int, of: int | None
) -> MemorySettings:
    rollout, compute = config.rollout, config.compute
    longest = min(num_prompt_tokens + rollout.max_new_tokens, architecture.context_length)
    batch = rollout.num_prompts * rollout.group_size * longest
    reference, lora = config.algorithm.reference.kind, config.model.lora
    cache = batch
    if (limit := getattr(rollout, "max_batch_tokens", None)) is not None:
        cache = min(batch, compute.world_size * limit)
    adapters = [] if lora is None else _adapter_sizes(architecture, lora)
    sets_cache = getattr(rollout, "kv_cache_mb", None) is not None
    return MemorySettings(
        compute_dtype=compute.dtype,
        micro_batch_tokens=min(
            compute.max_micro_batch_tokens,
            -(-batch // (config.optimizer.num_minibatches * compute.world_size)),
        ),
        batch_tokens=batch,
        cache_tokens=cache,
        # A frozen one is, for adapters, the model without them.
        has_reference=reference != "none" and not (reference == "frozen" and adapters),
        keeps_states=config.divergence.kind in _STATE_DIVERGENCES,
        engine_bytes=_engine_bytes(config, architecture, of),
        engine_lowered_by="rollout.kv_cache_mb" if sets_cache else "rollout.gpu_memory_fraction",
        engine_sleeps=isinstance(rollout, VllmRolloutConfig) and rollout.sleep_level is not None,
        optimizer=config.optimizer.kind,
        num_ranks=compute.world_size,
        offload=compute.offload,
        replica_bytes=_replica_bytes(config, architecture),
        num_adapter_parameters=sum(adapters),
        num_adapter_tensors=len(adapters),
        adapter_width=0 if lora is None else lora.rank * len(adapters) // 2,
        recomputes=compute.recompute_activations is True,
    )


def _engine_bytes(config: RunConfig, architecture: Architecture, of: int | None) -> int:
    """What an engine with memory of its own takes: its weights and cache; 0 for another."""
    rollout = config.rollout
    if not isinstance(rollout, VllmRolloutConfig):
        return 0
    item = _HALF if config.compute.dtype == "bfloat16" else _SINGLE
    weights = item * architecture.num_parameters // rollout.ranks_per_engine
    if rollout.kv_cache_mb is not None:
        return weights + (rollout.kv_cache_mb << 20)
    return int(rollout.gpu_memory_fraction * (of or 0)) or weights


def _replica_bytes(config: RunConfig, architecture: Architecture) -> int:
    """The copy that an engine samples from which has no memory of its own and cannot use the policy itself.

    It cannot where the policy is spread over ranks, has adapters, or is updated meanwhile.
    """
    if isinstance(config.rollout, VllmRolloutConfig):
        return 0
    is_apart = config.compute.world_size > 1 or config.model.lora is not None or config.overlaps
    item = _HALF if config.optimizer.kind == "adamw_bf16" else _SINGLE  # as the policy's own
    return item * architecture.num_parameters if is_apart else 0


def _adapter_sizes(architecture: Architecture, lora: LoraConfig) -> list[int]:
    """The parameters of each adapter's A and B; raises `ConfigError` for maps that the model lacks."""
    maps = architecture.linear_maps
    chosen = chosen_maps({name for name, *_ in maps}, lora.target_modules)
    return [lora.rank * width for name, *widths in maps if name in chosen for width in widths]

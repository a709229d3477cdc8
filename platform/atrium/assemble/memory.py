"""From a configuration to the plan of its memory; a model's configuration is read, no weights are."""

from __future__ import annotations

from atrium.config.models import TinyModelConfig
from atrium.config.rollouts import PagedRolloutConfig, VllmRolloutConfig
from atrium.config.schema import RunConfig
from atrium.models.architecture import Architecture, hub_architecture, random_architecture
from atrium.models.tiny import TinySettings, tiny_architecture
from atrium.train.memory_plan import (
    MemoryItem,
    MemorySettings,
    ModelDimensions,
    plan_memory,
)

_HALF, _SINGLE = 2, 4
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
    engine_bytes, replica_bytes, sleeps, cache = 0, 0, False, batch
    sets_cache = getattr(rollout, "kv_cache_mb", None) is not None
    if isinstance(rollout, VllmRolloutConfig):
        item = _HALF if compute.dtype == "bfloat16" else _SINGLE
        if rollout.kv_cache_mb is not None:
            engine_bytes = item * architecture.num_parameters + (rollout.kv_cache_mb << 20)
        else:
            engine_bytes = int(rollout.gpu_memory_fraction * (of or 0)) or item * architecture.num_parameters
        sleeps = rollout.sleep_level is not None
    elif isinstance(rollout, PagedRolloutConfig):
        item = _HALF if compute.dtype == "bfloat16" else _SINGLE
        engine_bytes = item * architecture.num_parameters + (rollout.kv_cache_mb << 20)
    else:
        if rollout.max_batch_tokens is not None:
            cache = min(batch, compute.world_size * rollout.max_batch_tokens)
        if compute.world_size > 1:
            replica_bytes = _SINGLE * architecture.num_parameters  # its own, whole, on every rank
    return MemorySettings(
        compute_dtype=compute.dtype,
        micro_batch_tokens=min(
            compute.max_micro_batch_tokens,
            -(-batch // (config.optimizer.num_minibatches * compute.world_size)),
        ),
        batch_tokens=batch,
        cache_tokens=cache,
        has_reference=config.algorithm.reference.kind != "none",
        keeps_states=config.divergence.kind in _STATE_DIVERGENCES,
        engine_bytes=engine_bytes,
        engine_lowered_by="rollout.kv_cache_mb" if sets_cache else "rollout.gpu_memory_fraction",
        engine_sleeps=sleeps,
        optimizer=config.optimizer.kind,
        num_ranks=compute.world_size,
        offload=compute.offload,
        replica_bytes=replica_bytes,
    )

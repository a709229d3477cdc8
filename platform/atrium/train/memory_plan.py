"""What a run needs of memory, by item and phase, computed from shapes before anything is loaded.

Weights, gradients and AdamW's float32 state are exact. Activations are counted from the tensors that a layer
keeps for its backward pass; the coefficients were read off such counts for Qwen3 layers, and other
architectures keep about as much. Where activations are computed again, they are those of one layer and the
states between layers. Libraries, CUDA's context and fragmentation are not counted: leave a
tenth free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

_CHUNK_LOGITS = 1 << 27  # as in `token_logprobs`
_FLOAT32, _BFLOAT16 = 4, 2
OPTIMIZER_STATE, BEHAVIOR_STATES = "AdamW's state", "behavior states"
"""Items that exist from the first update on, and during updates only."""


class Phase(StrEnum):
    """The phases of a step whose memory differs."""

    SAMPLING = "sampling"
    UPDATE = "update"
    OPTIMIZER = "optimiser step"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDimensions:
    """What memory follows from. Tied parameters count once; `num_tensors` counts parameter tensors."""

    model_type: str
    num_parameters: int
    num_tensors: int
    num_layers: int
    hidden_size: int
    feed_forward_size: int
    num_heads: int
    num_key_value_heads: int
    head_size: int
    vocabulary_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """The settings that decide what is needed.

    `micro_batch_tokens` are the tokens of one forward pass, `batch_tokens` those of a whole rollout batch,
    `cache_tokens` those whose keys and values the engine keeps at once. `engine_bytes` is what an engine of
    its own takes (vLLM), which `engine_lowered_by` sets and which is free during updates where
    `engine_sleeps`. Of several ranks, the plan
    is that of one: `num_ranks` share weights, gradients, optimiser state and rollouts; `batch_tokens` and
    `cache_tokens` are those of all. With `offload` what is shared lies in main memory, on one rank the
    optimiser's state. `replica_bytes` is what an engine without memory of its own copies of the policy. Of
    adapters, where there are any, all parameters are trained, and of the model none; `adapter_width` is the
    sum of their ranks. `recomputes` says whether activations are computed again in the backward pass.
    """

    compute_dtype: str
    micro_batch_tokens: int
    batch_tokens: int
    cache_tokens: int
    has_reference: bool = False
    keeps_states: bool = False
    engine_bytes: int = 0
    engine_lowered_by: str = "rollout.gpu_memory_fraction"
    engine_sleeps: bool = False
    optimizer: str = "adamw"
    num_ranks: int = 1
    offload: bool = False
    replica_bytes: int = 0
    num_adapter_parameters: int = 0
    num_adapter_tensors: int = 0
    adapter_width: int = 0
    recomputes: bool = False


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One use of memory: its bytes, the phases in which it is there, and the settings that lower it."""

    name: str
    num_bytes: int
    phases: tuple[Phase, ...]
    lowered_by: str


def plan_memory(model: ModelDimensions, settings: MemorySettings) -> tuple[MemoryItem, ...]:
    """Everything that takes memory, in the order in which it is made; items of 0 bytes are left out."""
    items = (*_lasting_items(model, settings), *_passing_items(model, settings))
    return tuple(item for item in items if item.num_bytes)


def _lasting_items(model: ModelDimensions, settings: MemorySettings) -> tuple[MemoryItem, ...]:
    """What is there from the start: the trained state and the engine."""
    always, is_shared = tuple(Phase), settings.num_ranks > 1
    weight_bytes = _weight_bytes(settings)
    reference = weight_bytes * model.num_parameters if settings.has_reference else 0
    # Of one rank the state alone is moved; of several all that they share.
    state = 0 if settings.offload else optimizer_bytes(_trained(model, settings), settings.optimizer)
    smaller = "compute.num_processes, compute.offload" if is_shared else "a smaller model"
    lowered = "optimizer=adamw_8bit, compute.offload" if settings.optimizer == "adamw" else smaller
    engine = (Phase.SAMPLING,) if settings.engine_sleeps else always
    cache = settings.cache_tokens * cache_bytes_per_token(model) // settings.num_ranks
    return (
        MemoryItem(
            f"weights, {'bfloat16' if _rounds(settings) else 'float32'}",
            _share(weight_bytes * (model.num_parameters + settings.num_adapter_parameters), settings),
            always,
            smaller,
        ),
        MemoryItem("reference weights", _share(reference, settings), always, "algorithm.reference.kind=none"),
        MemoryItem(OPTIMIZER_STATE, _share(state, settings), always, smaller if is_shared else lowered),
        MemoryItem("engine's copy of the weights", settings.replica_bytes, always, "rollout=vllm"),
        MemoryItem("engine's weights and cache", settings.engine_bytes, engine, settings.engine_lowered_by),
        MemoryItem(
            "key-value cache",
            0 if settings.engine_bytes else cache,
            (Phase.SAMPLING,),
            "rollout.max_batch_tokens",
        ),
    )


def _passing_items(model: ModelDimensions, settings: MemorySettings) -> tuple[MemoryItem, ...]:
    """What an update makes and frees again."""
    update, smaller = (Phase.UPDATE,), "a smaller model"
    states = _states_bytes(model, settings) if settings.keeps_states else 0
    halves = settings.compute_dtype == "bfloat16" and not _rounds(settings)
    if settings.num_ranks > 1:
        whole = "weights of units at work", gathered_bytes(model, settings.compute_dtype)
    else:
        whole = "weights, bfloat16 copy", _BFLOAT16 * model.num_parameters if halves else 0
    gradients = _share(_weight_bytes(settings) * _trained(model, settings).num_parameters, settings)
    fewer = "compute.micro_batch_tokens"
    lowered = fewer if settings.recomputes else f"{fewer}, compute.recompute_activations"
    return (
        MemoryItem(BEHAVIOR_STATES, states, update, "another divergence, rollout.max_new_tokens"),
        MemoryItem(*whole, update, smaller),
        MemoryItem("gradients", gradients, (Phase.UPDATE, Phase.OPTIMIZER), smaller),
        MemoryItem("activations", activation_bytes(model, settings), update, lowered),
        MemoryItem("logits", logits_bytes(model, settings), update, fewer),
    )


def _rounds(settings: MemorySettings) -> bool:
    """Whether the trained weights themselves are bfloat16."""
    return settings.optimizer == "adamw_bf16"


def _weight_bytes(settings: MemorySettings) -> int:
    return _BFLOAT16 if _rounds(settings) else _FLOAT32


def _trained(model: ModelDimensions, settings: MemorySettings) -> ModelDimensions:
    """The model with the number of what is trained of it: its adapters where it has any."""
    if settings.num_adapter_parameters == 0:
        return model
    return replace(
        model, num_parameters=settings.num_adapter_parameters, num_tensors=settings.num_adapter_tensors
    )


def _share(num_bytes: int, settings: MemorySettings) -> int:
    """What one rank holds on its device of what all of them share."""
    return 0 if settings.offload and settings.num_ranks > 1 else num_bytes // settings.num_ranks


def peak_by_phase(items: tuple[MemoryItem, ...]) -> Mapping[Phase, int]:
    """The bytes that each phase needs at once."""
    return {phase: sum(item.num_bytes for item in items if phase in item.phases) for phase in Phase}


def optimizer_bytes(model: ModelDimensions, kind: str = "adamw") -> int:
    """AdamW's state: two means per parameter and a count per tensor, or what the kind keeps instead.

    In 8 bits a mean has a float32 scale per block of 256; tables of 256 values and what tensors of fewer
    than 4,096 weights keep in float32 is left out.
    """
    if kind == "adamw_8bit":
        return int(2 * (1 + _FLOAT32 / 256) * model.num_parameters)
    if kind == "adamw_bf16":
        return 3 * _BFLOAT16 * model.num_parameters
    return 2 * _FLOAT32 * model.num_parameters + _FLOAT32 * model.num_tensors


def block_parameters(model: ModelDimensions) -> int:
    """The parameters of one decoder block, norms and biases left out."""
    query, keys = model.num_heads * model.head_size, model.num_key_value_heads * model.head_size
    return model.hidden_size * (2 * query + 2 * keys + 3 * model.feed_forward_size)


def gathered_bytes(model: ModelDimensions, compute_dtype: str) -> int:
    """What FSDP2 holds whole at once in an update: embeddings and head, a block at work and the next one.

    Each with its gradient, which is added up over ranks in float32.
    """
    item = _BFLOAT16 if compute_dtype == "bfloat16" else _FLOAT32
    block = block_parameters(model)
    root = max(model.num_parameters - model.num_layers * block, 0)
    return item * (root + 2 * block) + (item + _FLOAT32) * max(root, block)


def cache_bytes_per_token(model: ModelDimensions) -> int:
    """Keys and values of one token in all layers, in float32 as the transformers engine keeps them."""
    return 2 * model.num_layers * model.num_key_value_heads * model.head_size * _FLOAT32


def activation_bytes(model: ModelDimensions, settings: MemorySettings) -> int:
    """What a forward pass over the micro-batch keeps for its backward pass, logits excepted.

    Recomputed, it is what the states between layers and a layer's own activations take together.
    """
    of = _activation_coefficients(model, settings)
    query, keys = model.num_heads * model.head_size, model.num_key_value_heads * model.head_size
    per_token = of.hidden * model.hidden_size + of.feed_forward * model.feed_forward_size
    per_token += of.query * query + of.keys * keys
    # What is between A and B, in the dtype that is computed in.
    item = _BFLOAT16 if settings.compute_dtype == "bfloat16" else _FLOAT32
    per_token += item * settings.adapter_width / model.num_layers
    # Behind the layers: the last states, normed and chosen.
    outside = 3 * _FLOAT32 * model.hidden_size
    copies = of.weight_copies * model.hidden_size * (query + 2 * keys + 2 * model.feed_forward_size)
    layer = settings.micro_batch_tokens * per_token + copies
    layers = model.num_layers * layer
    if settings.recomputes:
        between = settings.micro_batch_tokens * _FLOAT32 * model.hidden_size
        layers = model.num_layers * between + layer
    return int(layers + settings.micro_batch_tokens * outside)


def logits_bytes(model: ModelDimensions, settings: MemorySettings) -> int:
    """What the loss needs at its peak: a chunk of logits, the head's gradient, and what is added to it."""
    is_half = settings.compute_dtype == "bfloat16"
    num_logits = settings.micro_batch_tokens * model.vocabulary_size
    logits = min(num_logits, _CHUNK_LOGITS)
    head = model.vocabulary_size * model.hidden_size
    total = _FLOAT32 * logits + (_BFLOAT16 * (logits + head) if is_half else 0)
    if settings.num_adapter_parameters:
        return total
    added = _BFLOAT16 if is_half else _FLOAT32 if num_logits > _CHUNK_LOGITS else 0
    return total + (_FLOAT32 + added) * head


def _states_bytes(model: ModelDimensions, settings: MemorySettings) -> int:
    """The last states of a whole batch, and a copy of the LM head."""
    return _FLOAT32 * model.hidden_size * (settings.batch_tokens + model.vocabulary_size)


@dataclass(frozen=True, slots=True)
class _Coefficients:
    """Bytes that one layer keeps per token and unit of a width, and per weight for products of its own."""

    hidden: float
    feed_forward: float
    query: float
    keys: float
    weight_copies: float = 0.0


def _activation_coefficients(model: ModelDimensions, settings: MemorySettings) -> _Coefficients:
    has_adapters = settings.num_adapter_parameters > 0
    if settings.compute_dtype == "bfloat16":
        return _Coefficients(18, 8, 16, 13.5) if has_adapters else _Coefficients(26, 8, 18, 15.5)
    if model.model_type == "qwen3" and has_adapters:  # which the fused pass does not compute
        return _Coefficients(16, 16, 27, 22.5)
    if model.model_type == "qwen3":
        return _Coefficients(8, 16, 27, 22.5, 2 * _FLOAT32)
    return _Coefficients(24, 16, 23, 18)

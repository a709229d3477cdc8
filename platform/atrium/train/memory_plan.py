"""What a run needs of memory, by item and phase, computed from shapes before anything is loaded.

Weights, gradients and AdamW's state are exact. Activations are counted from the tensors that a layer keeps
for its backward pass; the coefficients were read off such counts for Qwen3 layers, and other architectures
keep about as much. Libraries, CUDA's context and fragmentation are not counted: leave a tenth free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

_WHOLE_LOGITS, _CHUNK_LOGITS = 1 << 24, 1 << 27  # as in `token_logprobs`
_FLOAT32 = 4


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
    its own takes (vLLM), which is free during updates where `engine_sleeps`.
    """

    compute_dtype: str
    micro_batch_tokens: int
    batch_tokens: int
    cache_tokens: int
    has_reference: bool = False
    keeps_states: bool = False
    engine_bytes: int = 0
    engine_sleeps: bool = False


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One use of memory: its bytes, the phases in which it is there, and the settings that lower it."""

    name: str
    num_bytes: int
    phases: tuple[Phase, ...]
    lowered_by: str


def plan_memory(model: ModelDimensions, settings: MemorySettings) -> tuple[MemoryItem, ...]:
    """Everything that takes memory, in the order in which it is made; items of 0 bytes are left out."""
    parameters = _FLOAT32 * model.num_parameters
    always, update = tuple(Phase), (Phase.UPDATE,)
    halves = settings.compute_dtype == "bfloat16"
    reference = parameters if settings.has_reference else 0
    states = _states_bytes(model, settings) if settings.keeps_states else 0
    cache = 0 if settings.engine_bytes else settings.cache_tokens * cache_bytes_per_token(model)
    engine = (Phase.SAMPLING,) if settings.engine_sleeps else always
    items = (
        MemoryItem("weights, float32", parameters, always, "a smaller model"),
        MemoryItem("reference weights", reference, always, "algorithm.reference.kind=none"),
        MemoryItem("AdamW's means", optimizer_bytes(model), always, "a smaller model"),
        MemoryItem(
            "engine's weights and cache", settings.engine_bytes, engine, "rollout.gpu_memory_fraction"
        ),
        MemoryItem("key-value cache", cache, (Phase.SAMPLING,), "rollout.max_batch_tokens"),
        MemoryItem("behavior states", states, update, "another divergence, rollout.max_new_tokens"),
        MemoryItem("weights, bfloat16", 2 * model.num_parameters if halves else 0, update, "a smaller model"),
        MemoryItem("gradients", parameters, (Phase.UPDATE, Phase.OPTIMIZER), "a smaller model"),
        MemoryItem("activations", activation_bytes(model, settings), update, "compute.micro_batch_tokens"),
        MemoryItem("logits", logits_bytes(model, settings), update, "compute.micro_batch_tokens"),
    )
    return tuple(item for item in items if item.num_bytes)


def peak_by_phase(items: tuple[MemoryItem, ...]) -> Mapping[Phase, int]:
    """The bytes that each phase needs at once."""
    return {phase: sum(item.num_bytes for item in items if phase in item.phases) for phase in Phase}


def optimizer_bytes(model: ModelDimensions) -> int:
    """AdamW's two means per parameter, and a count per tensor."""
    return 2 * _FLOAT32 * model.num_parameters + _FLOAT32 * model.num_tensors


def cache_bytes_per_token(model: ModelDimensions) -> int:
    """Keys and values of one token in all layers, in float32 as the transformers engine keeps them."""
    return 2 * model.num_layers * model.num_key_value_heads * model.head_size * _FLOAT32


def activation_bytes(model: ModelDimensions, settings: MemorySettings) -> int:
    """What a forward pass over the micro-batch keeps for its backward pass, logits excepted."""
    of = _activation_coefficients(model, settings)
    query, keys = model.num_heads * model.head_size, model.num_key_value_heads * model.head_size
    per_token = of.hidden * model.hidden_size + of.feed_forward * model.feed_forward_size
    per_token += of.query * query + of.keys * keys
    # Behind the layers: the last states, normed and chosen.
    outside = 3 * _FLOAT32 * model.hidden_size
    copies = of.weight_copies * model.hidden_size * (query + 2 * keys + 2 * model.feed_forward_size)
    kept = settings.micro_batch_tokens * (model.num_layers * per_token + outside)
    return int(kept + model.num_layers * copies)


def logits_bytes(model: ModelDimensions, settings: MemorySettings) -> int:
    """What the loss needs at its peak: all logits if they are few, else a chunk and the head's gradient."""
    tokens, vocabulary = settings.micro_batch_tokens, model.vocabulary_size
    if tokens * vocabulary <= _WHOLE_LOGITS:
        return 3 * _FLOAT32 * tokens * vocabulary
    chunk = min(tokens * vocabulary, _CHUNK_LOGITS)
    return (2 * _FLOAT32 + 2) * chunk + (_FLOAT32 + 2) * vocabulary * model.hidden_size


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
    if settings.compute_dtype == "bfloat16":
        return _Coefficients(26, 8, 18, 15.5)
    if model.model_type == "qwen3":
        return _Coefficients(8, 20, 27, 22.5, 2 * _FLOAT32)
    return _Coefficients(24, 16, 23, 18)

"""Prediction of a run's device memory by item and phase, from shapes, before anything is loaded.

Weights, gradients and AdamW's float32 state are exact. Activations are the tensors that a layer of Qwen3,
Llama or Qwen2 keeps for its backward pass, counted one by one. Other architectures need about as much, and
compiled layers need less. The peak also includes the memory of the loss or of a layer's backward pass,
whichever is larger. Engines declare their own memory (`engines/settings.py`). Libraries, CUDA's context and
fragmentation are not included: leave a tenth of the memory free, or a third on a CPU, whose heap keeps freed
tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from atrium.base.records import MemoryItem, Phase
from atrium.models.shape import ModelShape

CHUNK_LOGITS = 1 << 27  # as in `token_logprobs`
_BLOCK_LOGITS = {"cpu": 1 << 19, "cuda": 1 << 25}  # as in `token_logprobs`
_FLOAT32, _BFLOAT16 = 4, 2
_STATES_BEHIND = 3  # states after the last layer: as computed, normalized, and selected for the loss
OPTIMIZER_STATE, PROXIMAL_STATES = "AdamW's state", "proximal states"
"""Names of two items: the first exists from the first update on, the second during updates only."""
TRAINED = tuple(phase for phase in Phase if phase is not Phase.START)
"""Phases in which the optimizer's state exists; the first update creates it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerDemand:
    """Properties of a run, besides the model's shape, that determine the trainer's memory.

    Attributes
    ----------
    compute_dtype
        Dtype of forward and backward passes: `float32` or `bfloat16`.
    device
        Device of these passes: `cuda` or `cpu`.
    micro_batch_tokens, batch_tokens
        Number of tokens per forward pass and per rollout batch.
    has_reference, keeps_states
        Whether a reference policy is kept, and whether a divergence over whole distributions keeps the
        policy's last hidden states from the start of the step.
    optimizer
        Variant of AdamW: `adamw`, `adamw_8bit` or `adamw_bf16`.
    num_ranks, num_shards
        Number of processes that share rollouts, and number of shards of weights, gradients and optimizer
        state (by default, one per process). The plan is for one process.
    offload
        Whether tensors are offloaded to main memory: all shards with several ranks, or the optimizer's state
        with a single rank.
    num_adapter_parameters, num_adapter_tensors, adapter_width
        Number of parameters and tensors of adapters, and the sum of their ranks; all 0 without adapters. With
        adapters, the model's own weights are not trained.
    recomputes
        Whether activations are recomputed in the backward pass.
    num_kept
        Number of copies of the trained parameters from earlier steps, kept to compare engine and trainer.
    trains
        Whether the run trains. A run that only evaluates keeps the weights in `held_dtype`.
    keeps_gradients
        Whether each rank keeps unsharded gradients until all micro-batches of a minibatch are done.
    hands_over
        Whether the engine's copy of the weights replaces the trainer's on the device.
    head_kernel
        Implementation of the LM head's log-probabilities: `torch` or `triton`.
    """

    compute_dtype: str
    micro_batch_tokens: int
    batch_tokens: int
    device: str = "cpu"
    has_reference: bool = False
    keeps_states: bool = False
    optimizer: str = "adamw"
    num_ranks: int = 1
    num_shards: int | None = None
    offload: bool = False
    num_adapter_parameters: int = 0
    num_adapter_tensors: int = 0
    adapter_width: int = 0
    recomputes: bool = False
    num_kept: int = 0
    trains: bool = True
    held_dtype: str = "float32"
    keeps_gradients: bool = False
    hands_over: bool = False
    head_kernel: str = "torch"

    @property
    def has_bfloat16_weights(self) -> bool:
        """Whether the stored weights are bfloat16."""
        return self.optimizer == "adamw_bf16" if self.trains else self.held_dtype == "bfloat16"

    @property
    def has_adapters(self) -> bool:
        """Whether adapters are trained instead of the model's own weights."""
        return self.num_adapter_parameters > 0

    @property
    def item_bytes(self) -> int:
        """Bytes per number in `compute_dtype`: 2 for bfloat16, 4 for float32."""
        return _BFLOAT16 if self.compute_dtype == "bfloat16" else _FLOAT32

    @property
    def weight_bytes(self) -> int:
        """Bytes per stored weight: 2 for bfloat16, 4 for float32."""
        return _BFLOAT16 if self.has_bfloat16_weights else _FLOAT32

    def share(self, num_bytes: int) -> int:
        """Return one rank's share of `num_bytes` on its device, or 0 if several ranks offload it."""
        return 0 if self.offload and self.num_ranks > 1 else num_bytes // (self.num_shards or self.num_ranks)


def plan_memory(
    model: ModelShape, demand: TrainerDemand, engine: Sequence[MemoryItem] = ()
) -> tuple[MemoryItem, ...]:
    """Return all items that use memory: the trainer's lasting items, the engine's items, an update's items.

    Items of 0 bytes are left out. `engine` lists the engine's items. Without training, only the weights and
    the engine use memory, at the start and during evaluations.
    """
    trained = _passing_items(model, demand) if demand.trains else ()
    items = [item for item in (*_lasting_items(model, demand), *engine, *trained) if item.num_bytes]
    if demand.trains:
        return tuple(items)
    alone = (Phase.START, Phase.EVALUATION)
    kept = [replace(item, phases=tuple(phase for phase in item.phases if phase in alone)) for item in items]
    return tuple(item for item in kept if item.phases)


def peak_by_phase(items: Sequence[MemoryItem]) -> Mapping[Phase, int]:
    """Return, for each phase, the total bytes of the items that are in memory in this phase."""
    return {phase: sum(item.num_bytes for item in items if phase in item.phases) for phase in Phase}


def _lasting_items(model: ModelShape, demand: TrainerDemand) -> tuple[MemoryItem, ...]:
    """Return the items that persist: weights, reference weights, and the optimizer's state once it exists."""
    is_shared = demand.num_ranks > 1
    weights = demand.weight_bytes * (model.num_parameters + demand.num_adapter_parameters)
    reference = demand.weight_bytes * model.num_parameters if demand.has_reference else 0
    # A single rank offloads only the optimizer's state, several ranks all shared tensors.
    state = 0 if demand.offload else optimizer_bytes(_trained(model, demand), demand.optimizer)
    smaller = "compute.num_processes, compute.offload" if is_shared else "a smaller model"
    lowered = "optimizer=adamw_8bit, compute.offload" if demand.optimizer == "adamw" else smaller
    return (
        MemoryItem(
            f"{'bfloat16' if demand.has_bfloat16_weights else 'float32'} weights",
            0 if demand.hands_over else demand.share(weights),
            tuple(Phase),
            smaller,
        ),
        MemoryItem(
            "reference weights", demand.share(reference), tuple(Phase), "algorithm.reference.kind=none"
        ),
        MemoryItem(
            OPTIMIZER_STATE,
            demand.share(state if demand.trains else 0),
            TRAINED,
            smaller if is_shared else lowered,
        ),
    )


def _passing_items(model: ModelShape, demand: TrainerDemand) -> tuple[MemoryItem, ...]:
    """Return the items that an update allocates and frees."""
    update, smaller = (Phase.UPDATE,), "a smaller model"
    updating = (Phase.UPDATE, Phase.OPTIMIZER)
    states = _states_bytes(model, demand) if demand.keeps_states else 0
    halves = demand.compute_dtype == "bfloat16" and not demand.has_bfloat16_weights
    if demand.num_ranks > 1:
        whole = "gathered weights (FSDP2)", gathered_bytes(model, demand.compute_dtype)
    else:
        whole = "bfloat16 copy of weights", _BFLOAT16 * model.num_parameters if halves else 0
    trained = demand.share(demand.weight_bytes * _trained(model, demand).num_parameters)
    kept = _FLOAT32 * _trained(model, demand).num_parameters if demand.keeps_gradients else 0
    smaller += ", compute.gradient_exchange" if kept else ""
    fewer = "compute.micro_batch_tokens"
    lowered = fewer if demand.recomputes else f"{fewer}, compute.recompute_activations"
    return (
        MemoryItem(PROXIMAL_STATES, states, update, "another divergence, rollout.max_new_tokens"),
        MemoryItem(
            "weights before updates",
            trained * demand.num_kept,
            updating,
            "rollout.lag, rollout.placement=inside",
        ),
        MemoryItem(*whole, update, smaller),
        MemoryItem("gradients", trained + kept, updating, smaller),
        MemoryItem("activations", activation_bytes(model, demand), update, lowered),
        MemoryItem(*_at_work(model, demand), update, fewer),
    )


def _at_work(model: ModelShape, demand: TrainerDemand) -> tuple[str, int]:
    """Return the name and the bytes of the larger temporary item: logits or gradients of activations."""
    logits, gradients = logits_bytes(model, demand), backward_bytes(model, demand)
    return ("logits", logits) if logits >= gradients else ("gradients of activations", gradients)


def _trained(model: ModelShape, demand: TrainerDemand) -> ModelShape:
    """Return the model's shape, with only its trained parameters and tensors counted.

    If the model has adapters, only those are trained.
    """
    if demand.num_adapter_parameters == 0:
        return model
    return replace(
        model, num_parameters=demand.num_adapter_parameters, num_tensors=demand.num_adapter_tensors
    )


def optimizer_bytes(model: ModelShape, kind: str = "adamw") -> int:
    """Return the bytes of AdamW's state: two moments per parameter, and a step count per tensor.

    `adamw_8bit` stores moments in 8 bits with a float32 scale per block of 256; its tables of 256 values and
    the float32 state of tensors with fewer than 4,096 weights are left out. `adamw_bf16` stores three
    bfloat16 values per parameter.
    """
    if kind == "adamw_8bit":
        return int(2 * (1 + _FLOAT32 / 256) * model.num_parameters)
    if kind == "adamw_bf16":
        return 3 * _BFLOAT16 * model.num_parameters
    return 2 * _FLOAT32 * model.num_parameters + _FLOAT32 * model.num_tensors


def checkpoint_bytes(model: ModelShape, demand: TrainerDemand, *, with_reference: bool) -> int:
    """Return the bytes of a checkpoint: weights, adapters and optimizer state.

    `with_reference` adds a reference policy, which a checkpoint contains if the reference changes during
    training.
    """
    weights = demand.weight_bytes * (model.num_parameters * (1 + with_reference))
    adapters = demand.weight_bytes * demand.num_adapter_parameters
    return weights + adapters + optimizer_bytes(_trained(model, demand), demand.optimizer)


def gathered_bytes(model: ModelShape, compute_dtype: str) -> int:
    """Return the bytes of the weights that FSDP2 gathers during an update, and of one unit's gradient.

    The gathered units are the current block, the next block, and the weights outside of blocks (embeddings
    and head), which form one unit. The gradient is that of the largest unit, in `compute_dtype` and as a
    float32 copy for the reduction.
    """
    item = _BFLOAT16 if compute_dtype == "bfloat16" else _FLOAT32
    block = model.num_block_parameters
    root = max(model.num_parameters - model.num_layers * block, 0)
    return item * (root + 2 * block) + (item + _FLOAT32) * max(root, block)


def activation_bytes(model: ModelShape, demand: TrainerDemand) -> int:
    """Return the bytes that a forward pass keeps for its backward pass, per micro-batch, without logits.

    If activations are recomputed, only the states between layers are kept.
    """
    state = demand.micro_batch_tokens * _FLOAT32 * model.hidden_size
    layer = state if demand.recomputes else _layer_bytes(model, demand)
    return int(model.num_layers * layer + _STATES_BEHIND * state)


def backward_bytes(model: ModelShape, demand: TrainerDemand) -> int:
    """Return the peak bytes of a layer's or the last norm's backward pass, whichever is larger.

    The hidden states after the last layer are subtracted, since `activation_bytes` includes them and they are
    freed before a layer's backward pass. A layer's backward pass peaks at the gated product of its
    feed-forward network, with two gradients of feed-forward size in `compute_dtype` and a float32 gradient of
    the hidden states. With adapters in bfloat16, there are three gradients of feed-forward size, and separate
    gradients of the hidden states through the base weights and through the adapters (10 bytes per value
    instead of 4). The last norm keeps its hidden states and five float32 gradients. With recomputation, only
    a layer's backward pass is considered, and the layer's activations are in memory together with its
    gradients.
    """
    hidden, feed_forward = model.hidden_size, model.feed_forward_size
    behind = _STATES_BEHIND * _FLOAT32 * hidden
    layer = 2 * demand.item_bytes * feed_forward + _FLOAT32 * hidden
    if demand.has_adapters and demand.compute_dtype == "bfloat16":
        layer = 6 * feed_forward + 10 * hidden
    if demand.recomputes:  # the state before the layer is already counted
        again = _layer_bytes(model, demand) - demand.micro_batch_tokens * _FLOAT32 * hidden
        return int(again + demand.micro_batch_tokens * (layer - behind))
    return int(demand.micro_batch_tokens * (max(layer, 6 * _FLOAT32 * hidden) - behind))


def _layer_bytes(model: ModelShape, demand: TrainerDemand) -> float:
    """Return the bytes that one layer keeps for its backward pass, per micro-batch.

    The tensors kept for each token, by their width, are the following. Hidden size: two states and two
    normalized states in float32, and the inputs of linear layers (five bfloat16 copies, or one float32 tensor
    per norm). Feed-forward size: the gate, its activation, the up projection, and their product. Query size:
    the queries, the attention output for whole rows, and the part of this output that belongs to packed
    tokens. Key size: keys and values. Per-head norms (Qwen3) add their float32 input and their output.
    Normalized states are kept only if the scale of the norm is trained. Adapters add the states between their
    two matrices. A CPU also keeps copies of short rows, their attention probabilities, and padding.
    """
    item, scales = demand.item_bytes, not demand.has_adapters
    normed = _FLOAT32 + item * scales if model.model_type == "qwen3" else 0
    is_on_cpu = demand.device == "cpu"
    per_token = (
        ((2 + 2 * scales) * _FLOAT32 + (5 if item == _BFLOAT16 else 2) * item) * model.hidden_size
        + 4 * item * model.feed_forward_size
        # On a CPU, short rows are copied and keep attention probabilities, and longer ones are padded.
        + (3 * item + normed + 2.75 * item * is_on_cpu) * model.query_size
        + (2 * item + normed + 2.625 * item * is_on_cpu) * model.key_size
        # Adapter states between A and B, in `compute_dtype`.
        + item * demand.adapter_width / model.num_layers
    )
    return demand.micro_batch_tokens * per_token


def logits_bytes(model: ModelShape, demand: TrainerDemand) -> int:
    """Return the peak bytes of the loss: a chunk of logits and the temporary memory of one pass.

    The pass is the forward or the backward pass, whichever needs more memory. The forward pass computes
    exponentials and products of a block of logits. The backward pass computes a chunk's gradient of the head
    and adds it to the head's total gradient. Triton's kernels keep a slice of logits in `compute_dtype`, the
    float32 gradient of the hidden states, and the head's gradient, which is not summed from chunks.
    """
    is_half = demand.compute_dtype == "bfloat16"
    num_logits = demand.micro_batch_tokens * model.vocabulary_size
    logits = min(num_logits, CHUNK_LOGITS)
    head = model.vocabulary_size * model.hidden_size
    block = min(logits, _BLOCK_LOGITS[demand.device])
    copies = _BFLOAT16 * head if is_half else 0
    if demand.head_kernel == "triton":
        states = _FLOAT32 * demand.micro_batch_tokens * model.hidden_size
        gradient = 0 if demand.has_adapters else demand.item_bytes * head
        return demand.item_bytes * logits + copies + states + gradient
    forward = max(2 * _FLOAT32 * block, _BFLOAT16 * logits if is_half else 0)
    added = _BFLOAT16 if is_half else _FLOAT32 if num_logits > CHUNK_LOGITS else 0
    backward = _BFLOAT16 * logits if is_half else 0
    if not demand.has_adapters:
        backward += (_FLOAT32 + added) * head
    return _FLOAT32 * logits + copies + max(forward, backward)


def _states_bytes(model: ModelShape, demand: TrainerDemand) -> int:
    """Return the bytes of a batch's last hidden states and of a copy of the LM head, in float32."""
    return _FLOAT32 * model.hidden_size * (demand.batch_tokens + model.vocabulary_size)

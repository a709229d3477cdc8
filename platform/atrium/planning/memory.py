"""What a run needs of a device's memory, by item and phase, computed from shapes before anything is loaded.

Weights, gradients and AdamW's float32 state are exact. Activations are the tensors that a layer of Qwen3,
Llama or Qwen2 keeps for its backward pass, counted one by one; other architectures keep about as much, and
compiled layers less. Beside them stands, at the peak, what the loss or the backward pass of a layer needs,
whichever is more. What an engine takes, it declares itself (`engines/settings.py`). Libraries, CUDA's context
and fragmentation are not counted: leave a tenth free, and a third on a CPU, whose heap keeps freed tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from atrium.base.records import MemoryItem, Phase
from atrium.models.shape import ModelShape

_CHUNK_LOGITS = 1 << 27  # as in `token_logprobs`
_FLOAT32, _BFLOAT16 = 4, 2
_STATES_BEHIND = 3  # the layers: the last states, normed and chosen
OPTIMIZER_STATE, PROXIMAL_STATES = "AdamW's state", "proximal states"
"""Items that exist from the first update on, and during updates only."""
TRAINED = tuple(phase for phase in Phase if phase is not Phase.START)
"""The phases in which the optimizer has its state, which the first update makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerDemand:
    """What the trainer's memory follows from, besides the model's shape.

    Attributes
    ----------
    compute_dtype
        What passes compute in: `float32` or `bfloat16`.
    device
        Where they are computed: `cuda` or `cpu`.
    micro_batch_tokens, batch_tokens
        Tokens of one forward pass, and of a whole rollout batch.
    has_reference, keeps_states
        Whether there is a copy of the policy as a reference; whether a divergence of whole distributions
        keeps the last states of the policy as the step begins.
    optimizer
        The kind of AdamW.
    num_ranks
        Processes that share weights, gradients, optimizer state and rollouts; the plan is that of one.
    offload
        Whether what is shared lies in main memory; on one rank, the optimizer's state.
    num_adapter_parameters, num_adapter_tensors, adapter_width
        Of adapters, where there are any, all parameters are trained, and of the model none; the width is the
        sum of their ranks.
    recomputes
        Whether activations are computed again in the backward pass.
    num_kept
        How many times the parameters of before an update are kept beside it.
    trains
        Whether anything is trained at all; an evaluation holds weights in `held_dtype`.
    hands_over
        Whether the engine takes the weights from the host, and the trainer has none on the device.
    """

    compute_dtype: str
    micro_batch_tokens: int
    batch_tokens: int
    device: str = "cpu"
    has_reference: bool = False
    keeps_states: bool = False
    optimizer: str = "adamw"
    num_ranks: int = 1
    offload: bool = False
    num_adapter_parameters: int = 0
    num_adapter_tensors: int = 0
    adapter_width: int = 0
    recomputes: bool = False
    num_kept: int = 0
    trains: bool = True
    held_dtype: str = "float32"
    hands_over: bool = False

    @property
    def rounds(self) -> bool:
        """Whether the weights that are held are bfloat16."""
        return self.optimizer == "adamw_bf16" if self.trains else self.held_dtype == "bfloat16"

    @property
    def has_adapters(self) -> bool:
        """Whether adapters are trained in place of the model's own weights."""
        return self.num_adapter_parameters > 0

    @property
    def item_bytes(self) -> int:
        """Bytes of one number that passes compute."""
        return _BFLOAT16 if self.compute_dtype == "bfloat16" else _FLOAT32

    @property
    def weight_bytes(self) -> int:
        """Bytes of one weight that is held."""
        return _BFLOAT16 if self.rounds else _FLOAT32

    def share(self, num_bytes: int) -> int:
        """What one rank holds on its device of what all of them share."""
        return 0 if self.offload and self.num_ranks > 1 else num_bytes // self.num_ranks


def plan_memory(
    model: ModelShape, demand: TrainerDemand, engine: Sequence[MemoryItem] = ()
) -> tuple[MemoryItem, ...]:
    """Everything that takes memory, in the order in which it is made; items of 0 bytes are left out.

    `engine` is what the engine takes. Without training there are the weights and the engine alone.
    """
    trained = _passing_items(model, demand) if demand.trains else ()
    items = [item for item in (*_lasting_items(model, demand), *engine, *trained) if item.num_bytes]
    if demand.trains:
        return tuple(items)
    alone = (Phase.START, Phase.EVALUATION)
    kept = [replace(item, phases=tuple(phase for phase in item.phases if phase in alone)) for item in items]
    return tuple(item for item in kept if item.phases)


def peak_by_phase(items: Sequence[MemoryItem]) -> Mapping[Phase, int]:
    """The bytes that each phase needs at once."""
    return {phase: sum(item.num_bytes for item in items if phase in item.phases) for phase in Phase}


def _lasting_items(model: ModelShape, demand: TrainerDemand) -> tuple[MemoryItem, ...]:
    """What is there from the start or the first update on: the trained state."""
    is_shared = demand.num_ranks > 1
    weights = demand.weight_bytes * (model.num_parameters + demand.num_adapter_parameters)
    reference = demand.weight_bytes * model.num_parameters if demand.has_reference else 0
    # Of one rank the state alone is moved; of several all that they share.
    state = 0 if demand.offload else optimizer_bytes(_trained(model, demand), demand.optimizer)
    smaller = "compute.num_processes, compute.offload" if is_shared else "a smaller model"
    lowered = "optimizer=adamw_8bit, compute.offload" if demand.optimizer == "adamw" else smaller
    return (
        MemoryItem(
            f"weights, {'bfloat16' if demand.rounds else 'float32'}",
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
    """What an update makes and frees again."""
    update, smaller = (Phase.UPDATE,), "a smaller model"
    updating = (Phase.UPDATE, Phase.OPTIMIZER)
    states = _states_bytes(model, demand) if demand.keeps_states else 0
    halves = demand.compute_dtype == "bfloat16" and not demand.rounds
    if demand.num_ranks > 1:
        whole = "weights of units at work", gathered_bytes(model, demand.compute_dtype)
    else:
        whole = "weights, bfloat16 copy", _BFLOAT16 * model.num_parameters if halves else 0
    trained = demand.share(demand.weight_bytes * _trained(model, demand).num_parameters)
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
        MemoryItem("gradients", trained, updating, smaller),
        MemoryItem("activations", activation_bytes(model, demand), update, lowered),
        MemoryItem(*_at_work(model, demand), update, fewer),
    )


def _at_work(model: ModelShape, demand: TrainerDemand) -> tuple[str, int]:
    """What the peak needs beside the activations that are kept: logits, or gradients behind them."""
    logits, gradients = logits_bytes(model, demand), backward_bytes(model, demand)
    return ("logits", logits) if logits >= gradients else ("gradients of activations", gradients)


def _trained(model: ModelShape, demand: TrainerDemand) -> ModelShape:
    """The model with the number of what is trained of it: its adapters where it has any."""
    if demand.num_adapter_parameters == 0:
        return model
    return replace(
        model, num_parameters=demand.num_adapter_parameters, num_tensors=demand.num_adapter_tensors
    )


def optimizer_bytes(model: ModelShape, kind: str = "adamw") -> int:
    """AdamW's state: two means per parameter and a count per tensor, or what the kind keeps instead.

    In 8 bits a mean has a float32 scale per block of 256; tables of 256 values and what tensors of fewer
    than 4,096 weights keep in float32 is left out.
    """
    if kind == "adamw_8bit":
        return int(2 * (1 + _FLOAT32 / 256) * model.num_parameters)
    if kind == "adamw_bf16":
        return 3 * _BFLOAT16 * model.num_parameters
    return 2 * _FLOAT32 * model.num_parameters + _FLOAT32 * model.num_tensors


def checkpoint_bytes(model: ModelShape, demand: TrainerDemand, *, with_reference: bool) -> int:
    """A checkpoint on the disk: whole weights, adapters, the optimizer's state, a reference that moves."""
    weights = demand.weight_bytes * (model.num_parameters * (1 + with_reference))
    adapters = demand.weight_bytes * demand.num_adapter_parameters
    return weights + adapters + optimizer_bytes(_trained(model, demand), demand.optimizer)


def gathered_bytes(model: ModelShape, compute_dtype: str) -> int:
    """What FSDP2 holds whole at once in an update: embeddings and head, a block at work and the next one.

    Each with its gradient, which is added up over ranks in float32.
    """
    item = _BFLOAT16 if compute_dtype == "bfloat16" else _FLOAT32
    block = model.num_block_parameters
    root = max(model.num_parameters - model.num_layers * block, 0)
    return item * (root + 2 * block) + (item + _FLOAT32) * max(root, block)


def activation_bytes(model: ModelShape, demand: TrainerDemand) -> int:
    """What a forward pass over the micro-batch keeps for its backward pass, logits excepted.

    Where activations are computed again, it is the states between layers.
    """
    state = demand.micro_batch_tokens * _FLOAT32 * model.hidden_size
    layer = state if demand.recomputes else _layer_bytes(model, demand)
    return int(model.num_layers * layer + _STATES_BEHIND * state)


def backward_bytes(model: ModelShape, demand: TrainerDemand) -> int:
    """What the backward pass of a layer or of the last norm makes, beyond the states behind the layers.

    Those are free again when a layer begins. It peaks where the gated product is taken apart: there are its
    gradient and those of both factors, and that of the states; adapters in bfloat16 add a float32 gradient,
    and that of the states once per path. The last norm has its states, and five gradients in float32. Where
    activations are computed again, those of a layer are there with its gradients.
    """
    hidden, feed_forward = model.hidden_size, model.feed_forward_size
    behind = _STATES_BEHIND * _FLOAT32 * hidden
    layer = 2 * demand.item_bytes * feed_forward + _FLOAT32 * hidden
    if demand.has_adapters and demand.compute_dtype == "bfloat16":
        layer = 6 * feed_forward + 10 * hidden
    if demand.recomputes:  # the state before the layer is among those that are kept
        again = _layer_bytes(model, demand) - demand.micro_batch_tokens * _FLOAT32 * hidden
        return int(again + demand.micro_batch_tokens * (layer - behind))
    return int(demand.micro_batch_tokens * (max(layer, 6 * _FLOAT32 * hidden) - behind))


def _layer_bytes(model: ModelShape, demand: TrainerDemand) -> float:
    """What one layer keeps of a micro-batch."""
    of = _activation_coefficients(model, demand)
    query, keys = model.query_size, model.key_size
    per_token = of.hidden * model.hidden_size + of.feed_forward * model.feed_forward_size
    per_token += of.query * query + of.keys * keys
    # What is between A and B, in the dtype that is computed in.
    per_token += demand.item_bytes * demand.adapter_width / model.num_layers
    return demand.micro_batch_tokens * per_token


def logits_bytes(model: ModelShape, demand: TrainerDemand) -> int:
    """What the loss needs at its peak: a chunk of logits, the head's gradient, and what is added to it."""
    is_half = demand.compute_dtype == "bfloat16"
    num_logits = demand.micro_batch_tokens * model.vocabulary_size
    logits = min(num_logits, _CHUNK_LOGITS)
    head = model.vocabulary_size * model.hidden_size
    total = _FLOAT32 * logits + (_BFLOAT16 * (logits + head) if is_half else 0)
    if demand.num_adapter_parameters:
        return total
    added = _BFLOAT16 if is_half else _FLOAT32 if num_logits > _CHUNK_LOGITS else 0
    return total + (_FLOAT32 + added) * head


def _states_bytes(model: ModelShape, demand: TrainerDemand) -> int:
    """The last states of a whole batch, and a copy of the LM head."""
    return _FLOAT32 * model.hidden_size * (demand.batch_tokens + model.vocabulary_size)


@dataclass(frozen=True, slots=True)
class _Coefficients:
    """Bytes that one layer keeps per token and unit of a width."""

    hidden: float
    feed_forward: float
    query: float
    keys: float


def _activation_coefficients(model: ModelShape, demand: TrainerDemand) -> _Coefficients:
    """The tensors that a layer keeps, counted; those of a norm only where its scale is trained.

    Hidden: two states and two normed ones, in float32, and what maps read: in bfloat16 a copy for each of
    five, else one for each norm. Feed-forward: gate, its activation, up, their product. Query: what attention
    reads and gives, and that at the tokens' own places. Keys: keys and values. Heads that are normed: what
    is normed, in float32, and the result.
    """
    item = demand.item_bytes
    is_half = demand.compute_dtype == "bfloat16"
    has_head_norms = model.model_type == "qwen3"
    scales = not demand.has_adapters
    normed = _FLOAT32 + item * scales if has_head_norms else 0
    is_on_cpu = demand.device == "cpu"
    # On a CPU short rows are copied and keep probabilities, longer ones are padded: about so much more.
    return _Coefficients(
        hidden=(2 + 2 * scales) * _FLOAT32 + (5 if is_half else 2) * item,
        feed_forward=4 * item,
        query=3 * item + normed + 2.75 * item * is_on_cpu,
        keys=2 * item + normed + 2.625 * item * is_on_cpu,
    )

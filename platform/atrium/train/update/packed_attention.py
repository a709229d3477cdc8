"""Causal attention among packed tokens, for transformers models that call an attention interface.

States of packed tokens are assembled into rows, processed by torch's own attention kernels, and taken apart
again; the gradient of a prompt's states is the sum over the rows that share it. On a GPU in half precision,
rows are concatenated (`torch.nn.attention.varlen`); elsewhere, where that kernel does not exist, rows of
similar length are padded to buckets, for this operation only. On a CPU, two batched products and a softmax
compute short rows, since torch's blocked kernel takes up to twice as long for them.

Axes: N computed tokens, P positions of all rows, B rows, L positions of a row, H query heads, K key-value
heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import varlen
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from atrium.base.errors import ConfigError
from atrium.models.blocks import decoder_of
from atrium.train.update.packing import Gathering, Packing

_NAME = "atrium_packed"
# In longer rows, computing masked values costs more than the blocked kernel.
_SHORT = 128
_UNDERSTOOD = {"dropout", "position_ids", "use_cache", "output_attentions", "cache_position", "is_causal"}
"""Arguments of models' attention calls without effect here: no dropout in eval mode, always causal."""


def attend(state_NHD: Tensor, packing: Packing, *, num_heads: int, num_kv_heads: int, scale: float) -> Tensor:
    """Compute attention among the packed tokens.

    Parameters
    ----------
    state_NHD
        Queries, keys and values of all heads, in that order: [N, H + 2 K, D].

    Returns
    -------
    Tensor
        The attention outputs [N, H, D].
    """
    state_PHD = gathered(state_NHD, packing.source)
    query, key, value = state_PHD.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    has_groups = num_heads != num_kv_heads
    if packing.row_ends is not None:
        longest = max(packing.bucket_lengths)
        mixed_PHD = varlen.varlen_attn(
            query, key, value, packing.row_ends, packing.row_ends, longest, longest,
            scale=scale, window_size=(-1, 0), **_groups_flag(has_groups),
        )  # fmt: skip
        return _FromRows.apply(mixed_PHD, packing)  # type: ignore[no-any-return]
    mixed = []
    sizes = [rows * length for rows, length in packing.bucket_shapes]
    for shape, *parts in zip(
        packing.bucket_shapes, *(x.split(sizes) for x in (query, key, value)), strict=True
    ):
        query_BHLD, key_BKLD, value_BKLD = (part.unflatten(0, shape).transpose(1, 2) for part in parts)
        if state_PHD.device.type == "cpu" and shape[1] <= _SHORT:
            mixed_BHLD = _ShortRows.apply(query_BHLD, key_BKLD, value_BKLD, scale)
        else:
            mixed_BHLD = functional.scaled_dot_product_attention(
                query_BHLD, key_BKLD, value_BKLD, is_causal=True, scale=scale, enable_gqa=has_groups
            )
        mixed.append(mixed_BHLD.transpose(1, 2).flatten(0, 1))
    return _FromRows.apply(mixed[0] if len(mixed) == 1 else torch.cat(mixed), packing)  # type: ignore[no-any-return]


def gathered(state: Tensor, gathering: Gathering) -> Tensor:
    """Return the states of N items, copied to P positions: [P, ...] from [N, ...].

    `gathering.index` contains the source item of each position. Gradients are summed in float32 or more.
    """
    return _Gathered.apply(state, gathering)  # type: ignore[no-any-return]


def packed_states(model: PreTrainedModel, packing: Packing) -> Tensor:
    """Return the last hidden states [N, D] at packed tokens, for any model with an attention interface.

    Raises `ConfigError` if the model requires more than causal attention (sinks, soft caps, windows). Masks
    are not computed here: `packing_probe` determines whether they are causal.
    """
    with attention_of(model, _NAME):
        output = decoder_of(model)(
            input_ids=packing.token_N[None],
            position_ids=packing.position_N[None],
            use_cache=False,
            packing=packing,
        )
    state_ND: Tensor = output.last_hidden_state[0]
    return state_ND


@contextmanager
def attention_of(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Make the model use the attention `implementation` of transformers within the `with` statement."""
    before = model.config._attn_implementation
    model.config._attn_implementation = implementation
    try:
        yield
    finally:
        model.config._attn_implementation = before


def _interface(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: Packing | None = None,
    scaling: float | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Return the attention outputs [1, N, H, D] of packed tokens, and None for the attention weights.

    Implements the attention interface of transformers, which passes states [1, heads, N, D] and does not
    require the weights. Raises `ConfigError` if the layer needs more than causal attention.
    """
    obstacle = attention_obstacle(module, query, value, attention_mask, packing, others)
    if obstacle is not None or packing is None:
        raise ConfigError(f"updates cannot be packed, since {obstacle}; set compute.packing=false")
    state_1HND = torch.cat([query, key, value], dim=1)
    if torch.is_autocast_enabled(query.device.type):
        state_1HND = state_1HND.to(torch.get_autocast_dtype(query.device.type))
    mixed_NHD = attend(
        state_1HND[0].transpose(0, 1),
        packing,
        num_heads=query.shape[1],
        num_kv_heads=key.shape[1],
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
    )
    return mixed_NHD[None], None


def attention_obstacle(
    module: nn.Module,
    query: Tensor,
    value: Tensor,
    attention_mask: object,
    packing: object,
    others: Mapping[str, object],
) -> str | None:
    """Return the reason why a layer cannot compute packed tokens, or None if it can.

    The reason is found from the layer and the arguments that it passes to its attention.
    """
    name = type(module).__name__
    more = sorted(key for key, given in others.items() if given is not None and key not in _UNDERSTOOD)
    if more:
        return f"{name} passes {', '.join(more)}, which packed attention does not support"
    if packing is None:
        return f"{name} does not pass keyword arguments on to its attention"
    if attention_mask is not None:
        return f"{name} masks not only later tokens"
    if others.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        return f"{name} attends to later tokens"
    if value.shape[-1] != query.shape[-1] or value.shape[-2] != query.shape[-2]:
        return f"{name} has values of another shape than queries"
    return None


def _groups_flag(has_groups: bool) -> dict[str, Any]:
    """Return keyword arguments of `varlen_attn` for grouped heads: `enable_gqa` if it exists, otherwise none.

    Torch 2.11 lacks this argument, since it detects grouped heads itself.
    """
    return {"enable_gqa": has_groups} if "enable_gqa" in signature(varlen.varlen_attn).parameters else {}


class _ShortRows(torch.autograd.Function):
    """Causal attention of queries [B, H, L, D] to keys and values [B, K, L, D].

    The probabilities are kept for the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, query_BHLD: Tensor, key_BKLD: Tensor, value_BKLD: Tensor, scale: float) -> Tensor:
        # The query heads that share a key head are further rows of the same product.
        query, key, value = (
            state.reshape(-1, num_rows, state.shape[-1])
            for state, num_rows in (
                (query_BHLD, query_BHLD.shape[1] // key_BKLD.shape[1] * query_BHLD.shape[2]),
                (key_BKLD, key_BKLD.shape[2]),
                (value_BKLD, key_BKLD.shape[2]),
            )
        )
        length = key.shape[1]
        future_LL = query.new_full((length, length), float("-inf")).triu_(1)
        future = future_LL.repeat(query.shape[1] // length, 1)
        scores = torch.baddbmm(future[None], query, key.transpose(1, 2), alpha=scale)
        probability = scores.softmax(-1)
        ctx.save_for_backward(query, key, value, probability)
        ctx.scale, ctx.num_kv_heads = scale, key_BKLD.shape[1]
        return torch.bmm(probability, value).view(query_BHLD.shape)

    @staticmethod
    def backward(ctx: Any, gradient_BHLD: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, probability = ctx.saved_tensors
        gradient = gradient_BHLD.reshape(query.shape)
        value_gradient = torch.bmm(probability.transpose(1, 2), gradient)
        probability_gradient = torch.bmm(gradient, value.transpose(1, 2))
        score_gradient = torch._softmax_backward_data(probability_gradient, probability, -1, query.dtype)
        score_gradient.mul_(ctx.scale)
        query_gradient = torch.bmm(score_gradient, key)
        key_gradient = torch.bmm(score_gradient.transpose(1, 2), query)
        kv_shape = (-1, ctx.num_kv_heads, *key.shape[1:])
        return (
            query_gradient.view(gradient_BHLD.shape),
            key_gradient.view(kv_shape),
            value_gradient.view(kv_shape),
            None,
        )


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, state: Tensor, gathering: Gathering) -> Tensor:
        ctx.gathering, ctx.num_states = gathering, len(state)
        return state.index_select(0, gathering.index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gathering: Gathering = ctx.gathering
        (place, thing), *others = gathering.rounds
        total = gradient.index_select(0, place)
        if len(thing) < ctx.num_states:
            spread = gradient.new_zeros((ctx.num_states, *gradient.shape[1:]))
            total = spread.index_copy_(0, thing, total)
        if others:
            shared = total[: gathering.num_shared]
            precise = shared.to(torch.promote_types(shared.dtype, torch.float32))
            for place, thing in others:
                precise.index_add_(0, thing, gradient.index_select(0, place).to(precise.dtype))
            shared.copy_(precise)
        return total, None


class _FromRows(torch.autograd.Function):
    """Selection of the computed tokens' attention outputs [N, ...] from those at all positions [P, ...]."""

    @staticmethod
    def forward(ctx: Any, state: Tensor, packing: Packing) -> Tensor:
        ctx.place_N, ctx.num_places = packing.place_N, len(state)
        return state.index_select(0, packing.place_N)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        spread = gradient.new_zeros((ctx.num_places, *gradient.shape[1:]))
        return spread.index_copy_(0, ctx.place_N, gradient), None


AttentionInterface.register(_NAME, _interface)
AttentionMaskInterface.register(_NAME, lambda *args, **kwargs: None)

"""Decoding Qwen3 models on a CPU with fewer and larger operations than their module's forward has.

At the sizes that train on a CPU, a decoding step of transformers spends a third of its time between
operations. This is the same computation over the same weights: query, key and value in one product,
gate and up in one, and attention as two batched products. Equal to the module's up to rounding.

Axes: N rows, H query heads, K key-value heads, R = H / K, D head size, L tokens so far, E hidden size.

Source: `Qwen3ForCausalLM` of transformers, whose forward it repeats; prefill still runs that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from atrium.records import TokenIds
from atrium.rollout.decoding import Decoder

_PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def has_fused_form(model: PreTrainedModel) -> bool:
    """Whether `model` is a plain float32 Qwen3 on a CPU, without hooks, adapters or sliding windows."""
    if type(model) is not Qwen3ForCausalLM or model.device.type != "cpu":
        return False
    config = model.config
    return (
        model.dtype == torch.float32
        and set(config.layer_types) == {"full_attention"}
        and not config.attention_bias
        and config.hidden_act == "silu"
        and config._attn_implementation == "sdpa"
        and all(
            not module._forward_hooks
            and not module._forward_pre_hooks
            and (name.rpartition(".")[2] not in _PROJECTIONS or type(module) is nn.Linear)
            for name, module in model.named_modules()
        )
    )


@dataclass(frozen=True, slots=True)
class _Block:
    """The weights of one layer as its step uses them, inputs first."""

    attention_norm: Tensor
    query_key_value: Tensor
    query_norm: Tensor
    key_norm: Tensor
    output: Tensor
    feed_forward_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Qwen3Decoder(Decoder):
    """A `Decoder` for models that `has_fused_form` accepts. It copies their weights when made."""

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[TokenIds],
        *,
        pad_token_id: int,
        max_new_tokens: int,
    ) -> None:
        super().__init__(model, prompts, pad_token_id=pad_token_id, max_new_tokens=max_new_tokens)
        config = model.config
        self._num_heads = config.num_attention_heads
        self._num_kv_heads = config.num_key_value_heads
        self._head_size = config.head_dim
        self._epsilon = config.rms_norm_eps
        self._blocks = [_fuse(layer) for layer in model.model.layers]

    def step(self, token_N: Tensor) -> None:
        """Append one token to every row."""
        self._length += 1
        self._position = self._position + 1
        hidden_NE = functional.embedding(token_N, self._model.model.embed_tokens.weight)
        cos, sin = self._model.model.rotary_emb(hidden_NE, self._position)
        half = cos.shape[-1] // 2
        # rotate_half(x) * sin equals roll(x) * sin with the sign of the first half turned.
        sin = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        bias = None
        if self._mask is not None:
            bias = self._mask[:, 0, :, : self._length].repeat_interleave(self._num_kv_heads, 0)
        for index, block in enumerate(self._blocks):
            hidden_NE = self._attend(index, block, hidden_NE, (cos, sin), bias)
            input_NE = self._norm(hidden_NE, block.feed_forward_norm)
            gate, up = (input_NE @ block.gate_up).chunk(2, dim=-1)
            hidden_NE = torch.addmm(hidden_NE, functional.silu(gate).mul_(up), block.down)
        hidden_NE = self._norm(hidden_NE, self._model.model.norm.weight)
        self.logit_NV = functional.linear(hidden_NE, self._model.lm_head.weight)

    def _attend(
        self,
        index: int,
        block: _Block,
        hidden_NE: Tensor,
        rotation: tuple[Tensor, Tensor],
        bias: Tensor | None,
    ) -> Tensor:
        num_rows, size = len(hidden_NE), self._head_size
        num_heads, num_kv = self._num_heads, self._num_kv_heads
        states = self._norm(hidden_NE, block.attention_norm) @ block.query_key_value
        query, key, value = states.view(num_rows, -1, size).split([num_heads, num_kv, num_kv], 1)
        query = self._norm(query, block.query_norm)
        key = self._norm(key, block.key_norm)
        turned = torch.cat([query, key], dim=1)
        cos, sin = rotation
        turned = torch.addcmul(turned * cos, turned.roll(size // 2, -1), sin)
        query, key = turned.split([num_heads, num_kv], 1)
        keys, values = self._cache.update(key.unsqueeze(2), value.unsqueeze(2), index)
        query = query.reshape(num_rows * num_kv, -1, size)
        scores = torch.baddbmm(
            query.new_zeros(1) if bias is None else bias,
            query,
            keys.flatten(0, 1).transpose(1, 2),
            alpha=size**-0.5,
        )
        mixed = torch.bmm(scores.softmax(-1), values.flatten(0, 1))
        return torch.addmm(hidden_NE, mixed.view(num_rows, -1), block.output)

    def _norm(self, states: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(states, weight.shape, weight, self._epsilon)


def _fuse(layer: Qwen3DecoderLayer) -> _Block:
    attention, feed_forward = layer.self_attn, layer.mlp
    query_key_value = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
    return _Block(
        attention_norm=layer.input_layernorm.weight,
        query_key_value=torch.cat(query_key_value).t().contiguous(),
        query_norm=attention.q_norm.weight,
        key_norm=attention.k_norm.weight,
        output=attention.o_proj.weight.t(),
        feed_forward_norm=layer.post_attention_layernorm.weight,
        gate_up=torch.cat([feed_forward.gate_proj.weight, feed_forward.up_proj.weight]).t().contiguous(),
        down=feed_forward.down_proj.weight.t(),
    )

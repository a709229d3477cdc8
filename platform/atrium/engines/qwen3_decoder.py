"""Decoding of Qwen3 models on a CPU, with fewer and larger operations than in transformers.

With a model small enough to train on a CPU, a decoding step of transformers spends a third of its time
between operations. `Qwen3Decoder` does the same computation with the same weights, but computes query, key
and value in one product, gate and up projections in another, and attention as two batched products. Its
results equal those of transformers up to rounding.

Axes: N rows, H query heads, K key-value heads, R = H / K, D head size, L tokens so far, E hidden size.

Source: the forward pass of `Qwen3ForCausalLM` in transformers. The prefill still uses this forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel, Qwen3ForCausalLM

from atrium.base.records import TokenIds
from atrium.engines.decoding import Decoder

_PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def has_fused_form(model: PreTrainedModel) -> bool:
    """Return whether `Qwen3Decoder` supports the model.

    It supports float32 Qwen3 models on a CPU with SDPA attention and SiLU, without attention biases, hooks,
    adapters or sliding windows.
    """
    if type(model) is not Qwen3ForCausalLM:
        return False
    config, weight = model.config, model.get_input_embeddings().weight
    return bool(
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
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
    """The weights of one layer, with the scales of the input norms multiplied into the matrices.

    The input norms are those before attention and before the MLP. The scales of the query and key norms
    remain separate, in `head_norms`. The matrices are stored with the input axis first. With 100 rows, MKL
    multiplies them 20 % faster than in the layout of `nn.Linear`, which has the output axis first.
    """

    query_key_value: Tensor
    head_norms: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor


class Qwen3Decoder(Decoder):
    """A `Decoder` for models accepted by `has_fused_form`. It copies the weights at construction."""

    def __init__(self, model: PreTrainedModel, prompts: Sequence[TokenIds], **sizes: int) -> None:
        super().__init__(model, prompts, **sizes)
        config = model.config
        self._num_heads = config.num_attention_heads
        self._num_kv_heads = config.num_key_value_heads
        self._head_size = config.head_dim
        self._epsilon = config.rms_norm_eps
        self._blocks = [_fuse(model, index) for index in range(config.num_hidden_layers)]
        self._head = (model.lm_head.weight * model.model.norm.weight).t().contiguous()

    def step(self, token_N: Tensor) -> None:
        """Append one token to every row, and compute the logits of the next token."""
        self._length += 1
        self._position = self._position + 1
        hidden_NE = functional.embedding(token_N, self._model.model.embed_tokens.weight)
        rotation = _rotations(self._model, self._position[:, 0])
        bias = None
        if self._mask is not None:
            bias = self._mask[:, 0, :, : self._length].repeat_interleave(self._num_kv_heads, 0)
        for index, block in enumerate(self._blocks):
            hidden_NE = self._attend(index, block, hidden_NE, rotation, bias)
            unit_NE = _unit_rms(hidden_NE, self._epsilon)
            gate, up = (unit_NE @ block.gate_up).chunk(2, dim=-1)
            hidden_NE = torch.addmm(hidden_NE, functional.silu(gate).mul_(up), block.down)
        unit_NE = _unit_rms(hidden_NE, self._epsilon)
        self.logit_NV = unit_NE @ self._head

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
        unit_NE = _unit_rms(hidden_NE, self._epsilon)
        states = (unit_NE @ block.query_key_value).view(num_rows, -1, size)
        value = states[:, num_heads + num_kv :]
        turned = _unit_rms(states[:, : num_heads + num_kv], self._epsilon).mul_(block.head_norms)
        cos, sin = rotation
        turned = torch.addcmul(turned.roll(size // 2, -1).mul_(sin), turned, cos)
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


def _fuse(model: PreTrainedModel, index: int) -> _Block:
    layer = model.model.layers[index]
    attention, feed_forward = layer.self_attn, layer.mlp
    query_key_value = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
    gate_up = [feed_forward.gate_proj.weight, feed_forward.up_proj.weight]
    query_norm = attention.q_norm.weight.expand(model.config.num_attention_heads, -1)
    key_norm = attention.k_norm.weight.expand(model.config.num_key_value_heads, -1)
    return _Block(
        query_key_value=(torch.cat(query_key_value) * layer.input_layernorm.weight).t().contiguous(),
        head_norms=torch.cat([query_norm, key_norm]),
        output=attention.o_proj.weight.t().contiguous(),
        gate_up=(torch.cat(gate_up) * layer.post_attention_layernorm.weight).t().contiguous(),
        down=feed_forward.down_proj.weight.t().contiguous(),
    )


def _unit_rms(state: Tensor, epsilon: float) -> Tensor:
    """Return the states divided by their root mean square over the last axis."""
    norm = torch.linalg.vector_norm(state, dim=-1, keepdim=True)
    inverse: Tensor = norm.square_().div_(state.shape[-1]).add_(epsilon).rsqrt_()
    return state * inverse


def _rotations(model: PreTrainedModel, position_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines [N, 1, D] of the rotary position embedding, shared by all heads.

    The first half of the sines has the opposite sign, so that the rotation of x is x * cos + roll(x) * sin,
    where roll(x) swaps the two halves of x.
    """
    like = model.model.embed_tokens.weight
    cos_ND, sin_ND = (part[0] for part in model.model.rotary_emb(like, position_N[None]))
    half = cos_ND.shape[-1] // 2
    sin_ND = torch.cat([-sin_ND[:, :half], sin_ND[:, half:]], dim=-1)
    return cos_ND[:, None], sin_ND[:, None]

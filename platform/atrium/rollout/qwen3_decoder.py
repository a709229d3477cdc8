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
from transformers import PreTrainedModel

from atrium.models.kept_products import BlockProducts, KeptProducts, KeptWave
from atrium.models.qwen3 import head_norms, rotations, unit_rms
from atrium.records import TokenIds
from atrium.rollout.decoding import Decoder

LARGE_HIDDEN_SIZE = 512
"""From here on MKL multiplies a hundred rows a quarter faster by columns than by rows, below it slower."""


@dataclass(frozen=True, slots=True)
class _Block:
    """The weights of one layer as its step uses them; norms' scales are taken into them."""

    query_key_value: Tensor
    head_norms: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor


class _Rows:
    """Products for narrow models: the weight is copied with inputs first."""

    @staticmethod
    def weight(weight_OI: Tensor) -> Tensor:
        """The weight in the layout of `product`."""
        return weight_OI.t().contiguous()

    @staticmethod
    def product(input_NI: Tensor, weight_IO: Tensor, added: Tensor | None = None) -> Tensor:
        """The rows times the weight, plus what is to be added."""
        return input_NI @ weight_IO if added is None else torch.addmm(added, input_NI, weight_IO)

    @staticmethod
    def unit_rms(state: Tensor, epsilon: float) -> Tensor:
        """The states over their root mean square in the last axis."""
        return unit_rms(state, epsilon)[0]


class _Columns:
    """Products for wide models: their results lie in memory with outputs first, and so does what follows."""

    @staticmethod
    def weight(weight_OI: Tensor) -> Tensor:
        """The weight in the layout of `product`."""
        return weight_OI.clone(memory_format=torch.contiguous_format)

    @staticmethod
    def product(input_NI: Tensor, weight_OI: Tensor, added: Tensor | None = None) -> Tensor:
        """The rows times the weight, plus what is to be added."""
        if added is None:
            return (weight_OI @ input_NI.t()).t()
        return torch.addmm(added.t(), weight_OI, input_NI.t()).t()

    @staticmethod
    def unit_rms(state: Tensor, epsilon: float) -> Tensor:
        """The states over their root mean square in the last axis, which torch's own norm reads slowly."""
        return state * state.square().mean(-1, keepdim=True).add_(epsilon).rsqrt_()


class Qwen3Decoder(Decoder):
    """A `Decoder` for models that `has_fused_form` accepts. It copies their weights when made."""

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[TokenIds],
        *,
        pad_token_id: int,
        max_new_tokens: int,
        kept: KeptProducts | None = None,
    ) -> None:
        self._wave: KeptWave | None = None
        super().__init__(model, prompts, pad_token_id=pad_token_id, max_new_tokens=max_new_tokens)
        config = model.config
        self._num_heads = config.num_attention_heads
        self._num_kv_heads = config.num_key_value_heads
        self._head_size = config.head_dim
        self._epsilon = config.rms_norm_eps
        self._layout = _Columns if config.hidden_size >= LARGE_HIDDEN_SIZE else _Rows
        self._blocks = [self._fused(model, index) for index in range(config.num_hidden_layers)]
        self._head = self._layout.weight(model.lm_head.weight * model.model.norm.weight)
        if kept is not None:
            self._wave = KeptWave(
                kept, prompts, num_blocks=len(self._blocks), bytes_per_token=_bytes_per_token(model)
            )

    def select(self, index_N: Tensor) -> None:
        """Make the rows at `index_N` the batch, in that order; a row may be dropped or repeated."""
        super().select(index_N)
        if self._wave is not None:
            self._wave.select(index_N)

    def finish(self, place: int, token_ids: TokenIds) -> None:
        """Be told that the row at `place` has its whole completion."""
        if self._wave is not None:
            self._wave.finish(place, token_ids)

    def step(self, token_N: Tensor) -> None:
        """Append one token to every row."""
        self._length += 1
        self._position = self._position + 1
        if self._wave is not None:
            self._wave.begin_step()
        hidden_NE = functional.embedding(token_N, self._model.model.embed_tokens.weight)
        rotation = rotations(self._model, self._position[:, 0])
        bias = None
        if self._mask is not None:
            bias = self._mask[:, 0, :, : self._length].repeat_interleave(self._num_kv_heads, 0)
        for index, block in enumerate(self._blocks):
            state_NM = self._layout.product(
                self._layout.unit_rms(hidden_NE, self._epsilon), block.query_key_value
            )
            mixed_NM = self._attend(index, block, state_NM, rotation, bias)
            attended_NE = self._layout.product(mixed_NM, block.output, added=hidden_NE)
            unit_NE = self._layout.unit_rms(attended_NE, self._epsilon)
            gate_up_NM = self._layout.product(unit_NE, block.gate_up)
            gate_NF, up_NF = gate_up_NM.chunk(2, dim=-1)
            gated_NF = functional.silu(gate_NF).mul_(up_NF)
            hidden_NE = self._layout.product(gated_NF, block.down, added=attended_NE)
            if self._wave is not None:
                self._wave.add(index, BlockProducts(state_NM, attended_NE, gate_up_NM, hidden_NE))
        unit_NE = self._layout.unit_rms(hidden_NE, self._epsilon)
        self.logit_NV = self._layout.product(unit_NE, self._head).contiguous()

    def _attend(
        self,
        index: int,
        block: _Block,
        state_NM: Tensor,
        rotation: tuple[Tensor, Tensor],
        bias: Tensor | None,
    ) -> Tensor:
        """The mixed values [N, H D] of the step's queries, whose keys and values join the cache."""
        num_rows, size = len(state_NM), self._head_size
        num_heads, num_kv = self._num_heads, self._num_kv_heads
        states = state_NM.view(num_rows, -1, size)
        value = states[:, num_heads + num_kv :]
        turned = self._layout.unit_rms(states[:, : num_heads + num_kv], self._epsilon).mul_(block.head_norms)
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
        return mixed.view(num_rows, -1)

    def _fused(self, model: PreTrainedModel, index: int) -> _Block:
        layer, weight = model.model.layers[index], self._layout.weight
        attention, feed_forward = layer.self_attn, layer.mlp
        query_key_value = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
        gate_up = [feed_forward.gate_proj.weight, feed_forward.up_proj.weight]
        return _Block(
            query_key_value=weight(torch.cat(query_key_value) * layer.input_layernorm.weight),
            head_norms=head_norms(model, index),
            output=weight(attention.o_proj.weight),
            gate_up=weight(torch.cat(gate_up) * layer.post_attention_layernorm.weight),
            down=weight(feed_forward.down_proj.weight),
        )


def _bytes_per_token(model: PreTrainedModel) -> int:
    """What the results of a token's products take in all blocks."""
    maps = [module for module in model.model.layers.modules() if isinstance(module, nn.Linear)]
    return sum(module.out_features * module.weight.itemsize for module in maps)

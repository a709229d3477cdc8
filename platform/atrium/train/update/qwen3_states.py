"""The training pass of Qwen3 on a CPU, with fewer and larger operations than its module's forward has.

The same computation over the same parameters, with gradients derived by hand: query, key and value in one
product, gate and up in one, head norms and rotation of all heads at once. The scale of a norm is taken into
the linear map behind it, whose weights are fewer than the states. Equal to the module's up to rounding.

Axes: N tokens, E hidden size, F feed-forward size, M outputs of a map, H heads, D head size.

Source: `Qwen3ForCausalLM` of transformers, whose forward it repeats.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from atrium.models.qwen3 import head_norms, rotations, unit_rms
from atrium.train.guard.recomputed_blocks import recomputed
from atrium.train.update.packed_attention import attend
from atrium.train.update.packing import Packing


def qwen3_states(model: PreTrainedModel, packing: Packing, *, recomputes: bool = False) -> Tensor:
    """The last states [N, E] at the packed tokens, of a model that `has_fused_form` accepts.

    With `recomputes`, a backward pass finds the states between blocks, and computes the rest again.
    """
    config, base = model.config, model.model
    cos, sin = rotations(model, packing.position_N)
    hidden_NE: Tensor = functional.embedding(packing.token_N, base.embed_tokens.weight)
    for index in range(config.num_hidden_layers):
        block = partial(_block_states, model=model, index=index, packing=packing, cos=cos, sin=sin)
        keeps = not (recomputes and torch.is_grad_enabled())
        hidden_NE = block(hidden_NE) if keeps else recomputed(block, hidden_NE)
    return functional.rms_norm(hidden_NE, (config.hidden_size,), base.norm.weight, config.rms_norm_eps)


def _block_states(
    hidden_NE: Tensor, *, model: PreTrainedModel, index: int, packing: Packing, cos: Tensor, sin: Tensor
) -> Tensor:
    """The states behind a block from those before it."""
    config, layer = model.config, model.model.layers[index]
    attention, feed_forward = layer.self_attn, layer.mlp
    epsilon = config.rms_norm_eps
    state_NM = _NormProduct.apply(
        hidden_NE,
        layer.input_layernorm.weight,
        torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]),
        epsilon,
    )
    state_NHD = state_NM.unflatten(1, (-1, config.head_dim))
    mixed_NHD = attend(
        _RotatedHeads.apply(state_NHD, head_norms(model, index), cos, sin, epsilon),
        packing,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        scale=attention.scaling,
    )
    hidden_NE = torch.addmm(hidden_NE, mixed_NHD.flatten(1), attention.o_proj.weight.t())
    gate_up_NM = _NormProduct.apply(
        hidden_NE,
        layer.post_attention_layernorm.weight,
        torch.cat([feed_forward.gate_proj.weight, feed_forward.up_proj.weight]),
        epsilon,
    )
    return torch.addmm(hidden_NE, _Gated.apply(gate_up_NM), feed_forward.down_proj.weight.t())


def _unit_rms_backward(gradient: Tensor, unit: Tensor, inverse: Tensor) -> Tensor:
    """The gradient of the states of `unit_rms` from that of its result, which it overwrites."""
    mean = torch.linalg.vecdot(gradient, unit).unsqueeze(-1).div_(unit.shape[-1])
    return gradient.addcmul_(unit, mean, value=-1.0).mul_(inverse)


class _NormProduct(torch.autograd.Function):
    """RMSNorm with its scale and a linear map without bias: [N, E] to [N, M]."""

    @staticmethod
    def forward(ctx: Any, state_NE: Tensor, norm_E: Tensor, weight_ME: Tensor, epsilon: float) -> Tensor:
        unit_NE, inverse_N1 = unit_rms(state_NE, epsilon)
        scaled_ME = weight_ME * norm_E
        ctx.save_for_backward(unit_NE, inverse_N1, norm_E, weight_ME, scaled_ME)
        return unit_NE @ scaled_ME.t()

    @staticmethod
    def backward(ctx: Any, gradient_NM: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        unit_NE, inverse_N1, norm_E, weight_ME, scaled_ME = ctx.saved_tensors
        scaled_gradient_ME = gradient_NM.t() @ unit_NE
        norm_gradient_E = (scaled_gradient_ME * weight_ME).sum(0)
        state_gradient_NE = _unit_rms_backward(gradient_NM @ scaled_ME, unit_NE, inverse_N1)
        return state_gradient_NE, norm_gradient_E, scaled_gradient_ME.mul_(norm_E), None


class _RotatedHeads(torch.autograd.Function):
    """RMSNorm with scales and rotation of the heads that have a norm; those behind them pass unchanged."""

    @staticmethod
    def forward(
        ctx: Any, state_NHD: Tensor, norm_HD: Tensor, cos: Tensor, sin: Tensor, epsilon: float
    ) -> Tensor:
        num_normed = len(norm_HD)
        unit, inverse = unit_rms(state_NHD[:, :num_normed], epsilon)
        scaled = unit * norm_HD
        out_NHD = torch.empty_like(state_NHD)
        turned = scaled.roll(scaled.shape[-1] // 2, -1).mul_(sin)
        torch.addcmul(turned, scaled, cos, out=out_NHD[:, :num_normed])
        out_NHD[:, num_normed:] = state_NHD[:, num_normed:]
        ctx.save_for_backward(unit, inverse, norm_HD, cos, sin)
        return out_NHD

    @staticmethod
    def backward(ctx: Any, gradient_NHD: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        unit, inverse, norm_HD, cos, sin = ctx.saved_tensors
        num_normed = len(norm_HD)
        turned = gradient_NHD[:, :num_normed]
        # A rotation's transpose: the roll by half the size is its own inverse.
        scaled = (turned * sin).roll(turned.shape[-1] // 2, -1).addcmul_(turned, cos)
        norm_gradient_HD = (scaled * unit).sum(0)
        out_NHD = torch.empty_like(gradient_NHD)
        out_NHD[:, :num_normed] = _unit_rms_backward(scaled.mul_(norm_HD), unit, inverse)
        out_NHD[:, num_normed:] = gradient_NHD[:, num_normed:]
        return out_NHD, norm_gradient_HD, None, None, None


class _Gated(torch.autograd.Function):
    """silu(gate) * up, of gate and up side by side: [N, 2 F] to [N, F]."""

    @staticmethod
    def forward(ctx: Any, gate_up_NM: Tensor) -> Tensor:
        gate_NF, up_NF = gate_up_NM.chunk(2, dim=-1)
        active_NF = functional.silu(gate_NF)
        ctx.save_for_backward(gate_up_NM, active_NF)
        return active_NF * up_NF

    @staticmethod
    def backward(ctx: Any, gradient_NF: Tensor) -> Tensor:
        gate_up_NM, active_NF = ctx.saved_tensors
        gate_NF, up_NF = gate_up_NM.chunk(2, dim=-1)
        out_NM = torch.empty_like(gate_up_NM)
        out_gate_NF, out_up_NF = out_NM.chunk(2, dim=-1)
        torch.mul(gradient_NF, active_NF, out=out_up_NF)
        torch.ops.aten.silu_backward.grad_input(gradient_NF * up_NF, gate_NF, grad_input=out_gate_NF)
        return out_NM

"""What the two fused forms of Qwen3 share, that of decoding and that of the training pass.

At the sizes that train on a CPU, a good part of a transformers forward passes between and inside small
elementwise operations. Both forms do the same computation over the same parameters in fewer operations.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen3ForCausalLM

_PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def has_fused_form(model: PreTrainedModel) -> bool:
    """Whether `model` is a plain float32 Qwen3 on a CPU, without hooks, adapters or sliding windows."""
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


def unit_rms(state: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The states over their root mean square in the last axis, and the factor [..., 1] that did it."""
    norm = torch.linalg.vector_norm(state, dim=-1, keepdim=True)
    inverse = norm.square_().div_(state.shape[-1]).add_(epsilon).rsqrt_()
    return state * inverse, inverse


def head_norms(model: PreTrainedModel, layer: int) -> Tensor:
    """The scales [H + K, D] of a layer's query and key heads, in that order."""
    attention, config = model.model.layers[layer].self_attn, model.config
    query = attention.q_norm.weight.expand(config.num_attention_heads, -1)
    key = attention.k_norm.weight.expand(config.num_key_value_heads, -1)
    return torch.cat([query, key])


def rotations(model: PreTrainedModel, position_N: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [N, 1, D] of rotary positions, for all heads.

    The sign of the sine's first half is turned, so that a rotation is x * cos + roll(x) * sin.
    """
    like = model.model.embed_tokens.weight
    cos_ND, sin_ND = (part[0] for part in model.model.rotary_emb(like, position_N[None]))
    half = cos_ND.shape[-1] // 2
    sin_ND = torch.cat([-sin_ND[:, :half], sin_ND[:, half:]], dim=-1)
    return cos_ND[:, None], sin_ND[:, None]

"""Packed passes against plain ones, for the architectures that are trained, in value and gradient."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from atrium.base.errors import ConfigError
from atrium.models.policy import build_random_policy
from atrium.models.tiny import build_tokenizer
from atrium.train.update import packed_attention
from atrium.train.update.packing import pack

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "initializer_range": 0.3,
}
ARCHITECTURES = {
    "qwen3": {"model_type": "qwen3", "head_dim": 6, "num_key_value_heads": 2},
    "qwen3 without groups": {"model_type": "qwen3", "head_dim": 6, "num_key_value_heads": 4},
    "qwen2": {"model_type": "qwen2", "num_key_value_heads": 2},
    "llama": {"model_type": "llama", "num_key_value_heads": 1},
}
RAGGED = ((1, 0, 0, 1), (0, 1), (1,))


def model_of(name, **changes):
    architecture = {**SIZES, **ARCHITECTURES[name], **changes}
    return build_random_policy(architecture, tokenizer=build_tokenizer(), seed=0).model


def numbers(model, forward, rows):
    """Log-probabilities and, for random weights on them, the gradient of every parameter."""
    policy = forward(rows, entropy="gradient")
    weight_BT = torch.randn(policy.logprob_BT.shape, generator=torch.Generator().manual_seed(0))
    model.zero_grad()
    (weight_BT * (policy.logprob_BT + policy.entropy_BT)).sum().backward()
    return policy.logprob_BT.detach(), [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("short", [128, 0], ids=["two products", "torch's kernel"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_packed_training_equals_padded_training(make, monkeypatch, name, short):
    monkeypatch.setattr(packed_attention, "_SHORT", short)
    model = model_of(name)
    rows = make.rows(make.groups(rewards=RAGGED, longest=40))
    padded, expected = numbers(model, make.forward(model, packing=False), rows)
    packed, gradients = numbers(model, make.forward(model), rows)
    assert (packed - padded).abs().max() < 1e-4
    scale = max(float(gradient.abs().max()) for gradient in expected)
    gap = max(float((ours - theirs).abs().max()) for ours, theirs in zip(gradients, expected, strict=True))
    assert gap < 1e-4 * scale


def varlen_of_2_11(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
    """torch 2.11's kernel on a CPU: it sees by the shapes that query heads share key heads."""
    assert (cu_seq_q is cu_seq_k, max_q == max_k, window_size) == (True, True, (-1, 0))
    lengths = cu_seq_q.diff().tolist()
    rows = zip(*(state.split(lengths) for state in (query, key, value)), strict=True)
    return torch.cat(
        [
            functional.scaled_dot_product_attention(
                *(state.transpose(0, 1) for state in row), is_causal=True, scale=scale, enable_gqa=True
            ).transpose(0, 1)
            for row in rows
        ]
    )


def varlen_of_2_13(*args, enable_gqa=False, **kwargs):
    """torch 2.13's, which has to be told."""
    assert enable_gqa == (args[0].shape[1] != args[1].shape[1])
    return varlen_of_2_11(*args, **kwargs)


@pytest.mark.parametrize("kernel", [varlen_of_2_11, varlen_of_2_13])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_kernel_for_rows_of_any_length_is_called_as_each_torch_wants_it(make, monkeypatch, name, kernel):
    monkeypatch.setattr(packed_attention.varlen, "varlen_attn", kernel)
    model = model_of(name)
    rows = make.rows(make.groups(rewards=RAGGED, longest=40))
    sizes = rows.token_BL, rows.num_prompt_tokens_B, rows.num_tokens_B, rows.prompt_index_B
    padded, ragged = (
        packed_attention.packed_states(model, pack(*sizes, padded=padded)) for padded in (True, False)
    )
    torch.testing.assert_close(ragged, padded, atol=1e-5, rtol=1e-4)


def test_a_model_keeps_its_own_attention_outside_the_packed_pass(make):
    model = model_of("llama")
    rows = make.rows(make.groups())
    make.forward(model)(rows, entropy="none")
    assert model.config._attn_implementation == "sdpa"


def test_attention_that_is_more_than_causal_is_refused_and_the_setting_named(make):
    model = model_of("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=0)
    rows = make.rows(make.groups(rewards=RAGGED))
    with pytest.raises(ConfigError, match=r"sliding_window.*compute\.packing=false"):
        make.forward(model)(rows, entropy="none")
    assert make.forward(model, packing=False)(rows, entropy="none").logprob_BT.isfinite().all()

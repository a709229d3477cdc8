"""A residual stream in bfloat16 under autocast: the numbers of a model that is held in bfloat16."""

from __future__ import annotations

import copy

import pytest
import torch

from atrium.assemble.policies import build_forward
from atrium.config.compose import compose
from atrium.models.policy import build_random_policy
from atrium.models.tiny import build_tokenizer
from atrium.train.update.forward import PolicyForward
from atrium.train.update.half_stream import keep_stream_half

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "initializer_range": 0.3,
}
ARCHITECTURES = {
    "qwen3": {"model_type": "qwen3", "head_dim": 6},
    "qwen2": {"model_type": "qwen2"},
    "llama": {"model_type": "llama"},
}


def model_of(name):
    architecture = {**SIZES, **ARCHITECTURES[name]}
    return build_random_policy(architecture, tokenizer=build_tokenizer(), seed=0).model


@pytest.fixture
def rows(make):
    return make.rows(make.groups(rewards=((1, 0, 0, 1), (0, 1)), longest=24))


def numbers(forward, rows):
    """Log-probabilities of the rows' tokens and the gradients of their sum, in float32."""
    policy = forward(rows, entropy="none")
    forward.model.zero_grad()
    policy.logprob_BT.sum().backward()
    gradients = [parameter.grad.float() for parameter in forward.model.parameters()]
    return policy.logprob_BT.detach().float(), gradients


def in_bfloat16(model):
    """A copy with parameters in bfloat16; rotary frequencies stay in float32, as transformers loads them."""
    held = copy.deepcopy(model)
    for parameter in held.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return held


def autocast(model):
    return PolicyForward(model, temperature=1.0, autocast_dtype=torch.bfloat16)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_pass_computes_what_the_model_held_in_bfloat16_does(name, rows):
    model = model_of(name)
    held = autocast(in_bfloat16(model))
    before, _ = numbers(autocast(model), rows)
    keep_stream_half(model)
    found, gradients = numbers(autocast(model), rows)
    expected, expected_gradients = numbers(held, rows)
    assert found.equal(expected)
    assert not found.equal(before)
    for one, other in zip(gradients, expected_gradients, strict=True):
        assert (one - other).norm() <= 0.02 * other.norm()
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_without_autocast_nothing_changes_and_a_second_call_adds_nothing(rows):
    model = model_of("qwen3")
    plain = PolicyForward(model, temperature=1.0)
    before, _ = numbers(plain, rows)
    keep_stream_half(model)
    num_hooks = sum(len(module._forward_hooks) for module in model.modules())
    keep_stream_half(model)
    assert num_hooks == sum(len(module._forward_hooks) for module in model.modules()) > 0
    assert numbers(plain, rows)[0].equal(before)


@pytest.mark.parametrize(("value", "has_hooks"), [("float32", False), ("model", True)])
def test_the_setting_decides(value, has_hooks):
    config = compose(["compute.dtype=bfloat16", f"compute.residual_dtype={value}"])
    model = model_of("qwen3")
    build_forward(config, model)
    assert any(module._forward_hooks for module in model.modules()) == has_hooks

"""Compiled blocks: the same numbers as plain ones, inside updates only, and refused where idle."""

from __future__ import annotations

import pytest
import torch

from atrium.base.errors import ConfigError
from atrium.models.policy import build_random_policy
from atrium.models.tiny import build_tokenizer
from atrium.train.update.compiled_blocks import CompiledBlocks

# The compiler warns of what torch itself does on the way.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

LLAMA = {
    "model_type": "llama",
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "initializer_range": 0.3,
}


def model_of():
    return build_random_policy(LLAMA, tokenizer=build_tokenizer(), seed=0).model


def gradients(model, forward, rows):
    policy = forward(rows, entropy="gradient")
    model.zero_grad()
    (policy.logprob_BT + policy.entropy_BT).sum().backward()
    return policy.logprob_BT.detach(), [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.full
@pytest.mark.timeout(900)
def test_compiled_blocks_give_the_values_and_gradients_of_plain_ones_at_any_length(make):
    model = model_of()
    compiled = make.forward(model, compiled=CompiledBlocks(model))
    for longest in (12, 30):
        rows = make.rows(make.groups(rewards=((1, 0, 0, 1), (0, 1)), longest=longest))
        plain, expected = gradients(model, make.forward(model), rows)
        found, compiled_gradients = gradients(model, compiled, rows)
        assert (found - plain).abs().max() < 1e-4
        scale = max(float(gradient.abs().max()) for gradient in expected)
        for gradient, same in zip(compiled_gradients, expected, strict=True):
            assert (gradient - same).abs().max() < 1e-4 * scale
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1


def test_equal_blocks_share_one_compiled_graph_however_many_there_are(make):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = build_random_policy({**LLAMA, "num_hidden_layers": 10}, tokenizer=build_tokenizer(), seed=0).model
    compiled = make.forward(model, compiled=CompiledBlocks(model, "eager"))
    rows = make.rows(make.groups(rewards=((1, 0), (0, 1))))
    plain, expected = gradients(model, make.forward(model), rows)
    found, compiled_gradients = gradients(model, compiled, rows)
    assert torch.equal(found, plain)
    assert all(map(torch.equal, compiled_gradients, expected))
    # Beyond eight graphs of a function, torch gives up compiling it.
    assert 1 <= torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 4


def test_blocks_are_plain_outside_updates():
    model = model_of()
    blocks = CompiledBlocks(model)
    layer = model.model.layers[0]
    plain = layer.forward
    with blocks.used():
        assert layer.forward != plain
    assert layer.forward == plain


def test_a_machine_without_a_compiler_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr("atrium.base.compilers.shutil.which", lambda name: None)
    with pytest.raises(ConfigError, match=r"C\+\+ compiler"):
        CompiledBlocks(model_of())

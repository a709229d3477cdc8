"""Activations that are computed again: the same numbers bit for bit, from fewer kept bytes."""

from __future__ import annotations

import pytest
import torch

from atrium.base.errors import ConfigError
from atrium.models.lora import add_lora
from atrium.models.policy import build_random_policy
from atrium.models.settings import LoraSettings
from atrium.models.tiny import build_tokenizer
from atrium.train.guard.recomputed_blocks import RecomputedBlocks
from atrium.train.update import packed_attention
from atrium.train.update.compiled_blocks import CompiledBlocks

NUM_LAYERS = 4
SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": NUM_LAYERS,
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
RAGGED = ((1, 0, 0, 1), (0, 1), (1,))


def model_of(name):
    architecture = {**SIZES, **ARCHITECTURES[name]}
    return build_random_policy(architecture, tokenizer=build_tokenizer(), seed=0).model


@pytest.fixture
def rows(make):
    return make.rows(make.groups(rewards=RAGGED, longest=40))


@pytest.fixture
def calls(monkeypatch):
    """How often attention among packed tokens is computed."""
    seen = []
    attend = packed_attention.attend

    def counted(*args, **kwargs):
        seen.append(torch.is_grad_enabled())
        return attend(*args, **kwargs)

    monkeypatch.setattr(packed_attention, "attend", counted)
    return seen


def numbers(model, forward, rows):
    """Log-probabilities, entropies and, of random weights on them, the gradient of what is trained."""
    policy = forward(rows, entropy="gradient")
    weight_BT = torch.randn(policy.logprob_BT.shape, generator=torch.Generator().manual_seed(0))
    model.zero_grad()
    (weight_BT * (policy.logprob_BT + policy.entropy_BT)).sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.requires_grad]
    return [policy.logprob_BT.detach(), policy.entropy_BT.detach(), *gradients]


def assert_equal(found, expected):
    assert len(found) == len(expected) > 2
    for one, other in zip(found, expected, strict=True):
        assert one.equal(other)
        assert one.any()


def kept_bytes(forward, rows):
    """Bytes of the storages that a forward pass keeps for its backward pass, parameters excepted."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in forward.model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy = forward(rows, entropy="value")
    assert policy.logprob_BT.requires_grad
    return sum(num_bytes for num_bytes, _ in kept.values())


@pytest.mark.parametrize("packing", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_values_and_gradients_are_those_of_activations_that_are_kept(make, rows, name, packing):
    model = model_of(name)
    expected = numbers(model, make.forward(model, packing=packing), rows)
    assert_equal(numbers(model, make.forward(model, packing=packing, recomputes=True), rows), expected)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_it_holds_in_bfloat16_over_float32_weights(make, rows, name):
    model = model_of(name)
    settings = {"autocast_dtype": torch.bfloat16}
    expected = numbers(model, make.forward(model, **settings), rows)
    assert_equal(numbers(model, make.forward(model, recomputes=True, **settings), rows), expected)


@pytest.mark.full
@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_adapters_get_the_same_gradients(make, rows, name):
    model = model_of(name)
    add_lora(model, LoraSettings(rank=2, alpha=4.0), seed=0)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if ".lora_B." in key:
                parameter.fill_(0.1)  # at 0, as it begins, A would have no gradient
    expected = numbers(model, make.forward(model), rows)
    assert_equal(numbers(model, make.forward(model, recomputes=True), rows), expected)


@pytest.mark.parametrize("packing", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_kept_are_the_states_between_blocks_and_what_stands_behind_the_last(make, rows, name, packing):
    model = model_of(name)
    plain = make.forward(model, packing=packing)
    again = make.forward(model, packing=packing, recomputes=True)
    num_positions, hidden = plain.num_positions(rows), SIZES["hidden_size"]
    between = 4 * num_positions * hidden * NUM_LAYERS
    kept, few = kept_bytes(plain, rows), kept_bytes(again, rows)
    assert few >= between
    # Behind: the last states, normed and chosen, log-probabilities over the vocabulary, indices.
    behind = 4 * num_positions * (4 * hidden + 2 * model.config.vocab_size)
    assert few - between < behind
    assert kept - few > 4 * (few - behind)


@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_only_a_backward_pass_computes_again(make, rows, calls, name):
    model = model_of(name)
    forward = make.forward(model, recomputes=True)
    with torch.no_grad():
        forward(rows, entropy="none")
        forward.states(rows)
    assert calls == [False] * 2 * NUM_LAYERS
    calls.clear()
    policy = forward(rows, entropy="none")
    assert len(calls) == NUM_LAYERS
    policy.logprob_BT.sum().backward()
    assert len(calls) == 2 * NUM_LAYERS


def test_a_model_has_its_own_blocks_and_attention_outside_such_passes(make, rows):
    model = model_of("llama")
    forward = make.forward(model, recomputes=True)
    numbers(model, forward, rows)
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert model.config._attn_implementation == "sdpa"
    with RecomputedBlocks(model).used():
        assert sum("forward" in module.__dict__ for module in model.modules()) == NUM_LAYERS
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_a_pass_can_be_had_that_computes_again_and_leaves_the_first_as_it_was(make, rows, calls):
    model = model_of("qwen2")
    plain = make.forward(model)
    again = plain.recomputing()
    assert (plain.recomputes, again.recomputes) == (False, True)
    plain(rows, entropy="none").logprob_BT.sum().backward()
    assert len(calls) == NUM_LAYERS
    again(rows, entropy="none").logprob_BT.sum().backward()
    assert len(calls) == 3 * NUM_LAYERS


def test_a_model_that_does_not_say_its_blocks_is_refused(make, monkeypatch):
    model = model_of("llama")
    monkeypatch.setattr(type(model), "_no_split_modules", None)
    model._no_split_modules = None
    with pytest.raises(ConfigError, match=r"compute\.recompute_activations=false"):
        make.forward(model, recomputes=True)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_compiled_blocks_compute_again_to_the_numbers_of_plain_ones(make, rows):
    model = model_of("llama")
    plain = make.forward(model)
    again = make.forward(model, compiled=CompiledBlocks(model), recomputes=True)
    expected, found = numbers(model, plain, rows), numbers(model, again, rows)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= 1e-4 * max(1.0, float(other.abs().max()))
    assert kept_bytes(again, rows) < kept_bytes(plain, rows) / 2

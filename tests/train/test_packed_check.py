"""The check before training that packed tokens give the model's own states: what passes, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atrium.base.errors import ConfigError
from atrium.models.policy import build_random_policy
from atrium.models.tiny import build_tokenizer
from atrium.train.update import forward as logprobs
from atrium.train.update import forward_check, packed_attention
from atrium.train.update.forward import PolicyForward
from atrium.train.update.forward_check import check_model, find_packing
from atrium.train.update.packing import pack

LONGEST = 64
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}


def policy_of(initializer_range=0.02):
    architecture = {
        "model_type": "qwen3",
        "vocab_size": 64,
        "hidden_size": 64,
        "num_hidden_layers": 28,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "initializer_range": initializer_range,
    }
    return build_random_policy(architecture, tokenizer=build_tokenizer(), seed=0)


def build_model(**settings):
    return policy_of(**settings).model


def fault_of(model, precision, longest=LONGEST):
    forward = PolicyForward(model, temperature=1.0, autocast_dtype=PRECISIONS[precision])
    check_model(forward, longest)
    return find_packing(forward, longest).fault


def plant_massive_activations(model, tokens):
    """Let a channel of some tokens rise to 10,333 in early layers and fall again in a late one.

    bfloat16 rounds these numbers to 7,008, 3,328 and 10,304: what is left of them is another than in float32.
    """
    seen = {}

    def read(module, inputs, output):
        seen["is_planted"] = torch.isin(inputs[0], torch.tensor(tokens))

    def add(size):
        def shift(module, inputs, output):
            shifted = output.clone()
            shifted[..., 0] += size * seen["is_planted"]
            return shifted

        return shift

    model.get_input_embeddings().register_forward_hook(read)
    for layer, size in ((3, 7_000.0), (4, 3_333.0), (-2, -10_333.0)):
        model.model.layers[layer].mlp.register_forward_hook(add(size))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("scale", [1.0, 4.0, 30.0])
def test_a_large_final_norm_is_no_fault(precision, scale):
    model = build_model()
    with torch.no_grad():
        model.model.norm.weight.fill_(scale)
    assert fault_of(model, precision) is None


@pytest.mark.parametrize("precision", PRECISIONS)
def test_massive_activations_of_a_few_tokens_are_no_fault(precision):
    model = build_model()
    plant_massive_activations(model, tokens=[0, 20, 62])
    assert fault_of(model, precision) is None


def causal(row, column, key_row, key_column):
    """Whether a place of a row sees another: those of its own row up to itself."""
    return (row == key_row) & (key_column <= column)


WRONG_ATTENTION = {
    "sees the next token": lambda row, column, *key: causal(row, column + 1, *key),
    "does not see itself": lambda row, column, *key: causal(row, (column - 1).clamp(min=0), *key),
    "sees the row before": lambda row, column, *key: causal(row, column, *key) | (key[0] < row),
}


def attention_that(may_see):
    """Attention among packed tokens, from each place of a row to those that `may_see` lets it see."""

    def attend(state_NHD, packing, *, num_heads, num_kv_heads, scale):
        ((num_rows, length),) = packing.bucket_shapes
        row_P = torch.arange(num_rows).repeat_interleave(length)
        column_P = torch.arange(length).repeat(num_rows)
        sees_PP = may_see(row_P[:, None], column_P[:, None], row_P, column_P)
        state_HPD = state_NHD[packing.source.index].transpose(0, 1)
        query, key, value = state_HPD.split([num_heads, num_kv_heads, num_kv_heads])
        mixed_HPD = torch.nn.functional.scaled_dot_product_attention(
            query[None], key[None], value[None], attn_mask=sees_PP, scale=scale, enable_gqa=True
        )[0]
        return mixed_HPD.transpose(0, 1)[packing.place_N]

    return attend


def packing_shifted_by(step):
    """Packing that counts the positions of completions from another one on."""

    def shifted(*args, **settings):
        packing = pack(*args, **settings)
        is_completion_N = packing.position_N >= args[1][0]
        return replace(packing, position_N=packing.position_N + step * is_completion_N)

    return shifted


@pytest.mark.parametrize("precision", PRECISIONS)
def test_attention_that_is_causal_within_rows_passes(monkeypatch, precision):
    monkeypatch.setattr(packed_attention, "attend", attention_that(causal))
    assert fault_of(build_model(initializer_range=0.1), precision) is None


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("wrong", WRONG_ATTENTION)
def test_a_wrong_mask_is_refused_beside_massive_activations_too(monkeypatch, precision, wrong):
    monkeypatch.setattr(packed_attention, "attend", attention_that(WRONG_ATTENTION[wrong]))
    model = build_model(initializer_range=0.1)
    plant_massive_activations(model, tokens=[0, 20, 62])
    assert "computes different states on packed tokens" in fault_of(model, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("step", [1, -1])
def test_positions_that_are_off_by_one_are_refused(monkeypatch, precision, step):
    monkeypatch.setattr(logprobs, "pack", packing_shifted_by(step))
    fault = fault_of(build_model(initializer_range=0.1), precision)
    assert "computes different states on packed tokens" in fault


SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "initializer_range": 0.3,
    "max_position_embeddings": 1024,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
MASKED = {
    "phimoe": {**LOCAL_EXPERTS, "sliding_window": 600},
    "mistral": {"sliding_window": 600},
    "qwen2_moe": {
        **EXPERTS,
        "shared_expert_intermediate_size": 24,
        "use_sliding_window": True,
        "sliding_window": 600,
        "max_window_layers": 2,
    },
    "llama4_text": {
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 48,
        "head_dim": 8,
        "attention_chunk_size": 600,
    },
    "gemma3_text": {"sliding_window": 600, "head_dim": 8, "query_pre_attn_scalar": 8},
}
"""Architectures with windows or chunks, which for some are in the attention mask alone."""


def forward_of(model_type, **settings):
    architecture = {"model_type": model_type, **SIZES, **settings}
    model = build_random_policy(architecture, tokenizer=build_tokenizer(), seed=0).model
    return PolicyForward(model, temperature=1.0)


@pytest.mark.parametrize("model_type", MASKED)
def test_windows_and_chunks_are_found_though_no_checked_row_is_as_long(model_type):
    forward = forward_of(model_type, **MASKED[model_type])
    check_model(forward, LONGEST)
    assert "=600" in find_packing(forward, LONGEST).fault


@pytest.mark.parametrize("model_type", ["phimoe", "qwen2_moe", "llama4_text"])
def test_a_mask_that_no_layer_shows_is_found_by_rows_longer_than_every_window(monkeypatch, model_type):
    monkeypatch.setattr(forward_check, "packing_obstacle", lambda *_: None)
    monkeypatch.setattr(packed_attention, "attention_obstacle", lambda *_: None)
    settings = {name: 100 if value == 600 else value for name, value in MASKED[model_type].items()}
    forward = forward_of(model_type, **settings)
    assert "computes different states on packed tokens" in find_packing(forward, 200).fault
    assert find_packing(forward, 100).fault is None  # no row of such a run is as long as the window


def test_a_window_that_no_layer_uses_is_no_fault():
    settings = {**MASKED["qwen2_moe"], "use_sliding_window": False}
    assert find_packing(forward_of("qwen2_moe", **settings), LONGEST).fault is None


@pytest.mark.parametrize(
    ("model_type", "said"),
    [
        ("stablelm", "StableLmAttention does not pass keyword arguments on to its attention"),
        ("falcon", "FalconForCausalLM needs its own mask"),
        ("gptj", "only 0 of the 2 layers of GPTJForCausalLM call the attention interface"),
        ("lfm2", "only 1 of the 2 layers of Lfm2ForCausalLM call the attention interface"),
    ],
)
def test_models_that_compute_attention_by_themselves_are_not_packed(model_type, said):
    settings = {
        "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
        "lfm2": {"layer_types": ["conv", "full_attention"]},
    }.get(model_type, {})
    assert said in find_packing(forward_of(model_type, **settings), LONGEST).fault


def test_a_model_that_sees_later_tokens_cannot_be_trained():
    forward = forward_of("llama")
    for layer in forward.model.model.layers:
        layer.self_attn.is_causal = False
    with pytest.raises(ConfigError, match="so it cannot be trained"):
        check_model(forward, LONGEST)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_checked_in_float32_and_the_weights_are_left_as_they_were(monkeypatch, dtype):
    seen = []

    def recorded(packing, model=None):
        states = packed_attention.packed_states(model, packing)
        seen.append(states.dtype)
        return states

    model = build_model().to(dtype)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    forward = PolicyForward(model, temperature=1.0, autocast_dtype=torch.bfloat16)
    monkeypatch.setattr(forward, "_packed", lambda packing: recorded(packing, model))
    finding = find_packing(forward, LONGEST)
    assert finding.fault is None
    assert "rows of 64 tokens" in finding.evidence
    assert seen[-1] == torch.float32
    assert all(value.dtype == dtype for value in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

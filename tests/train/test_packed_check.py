"""The check before training that packed tokens give the model's own states: what passes, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atrium.assemble.policies import build_updater
from atrium.config.compose import compose
from atrium.errors import ConfigError
from atrium.models.policy import build_random_policy
from atrium.models.tiny import build_tokenizer
from atrium.train.guard.faults import FaultHandling
from atrium.train.update import forward as logprobs
from atrium.train.update import packed_attention
from atrium.train.update.forward import PolicyForward
from atrium.train.update.packing import pack

TOKENS = list(range(32))
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


def check(model, precision):
    PolicyForward(model, temperature=1.0, autocast_dtype=PRECISIONS[precision]).check(TOKENS)


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
    check(model, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_massive_activations_of_a_few_tokens_are_no_fault(precision):
    model = build_model()
    plant_massive_activations(model, tokens=[0, 20, 31])
    check(model, precision)


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
        is_completion_N = packing.position_N >= len(TOKENS) // 2
        return replace(packing, position_N=packing.position_N + step * is_completion_N)

    return shifted


@pytest.fixture
def plain_pass(monkeypatch):
    """Has float32 models computed by transformers' modules, whose attention can be replaced."""
    monkeypatch.setattr(logprobs, "has_fused_form", lambda model: False)


@pytest.mark.usefixtures("plain_pass")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_attention_that_is_causal_within_rows_passes(monkeypatch, precision):
    monkeypatch.setattr(packed_attention, "attend", attention_that(causal))
    check(build_model(initializer_range=0.1), precision)


@pytest.mark.usefixtures("plain_pass")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("wrong", WRONG_ATTENTION)
def test_a_wrong_mask_is_refused_beside_massive_activations_too(monkeypatch, precision, wrong):
    monkeypatch.setattr(packed_attention, "attend", attention_that(WRONG_ATTENTION[wrong]))
    model = build_model(initializer_range=0.1)
    plant_massive_activations(model, tokens=[0, 20, 31])
    with pytest.raises(ConfigError, match="computes something else on packed tokens"):
        check(model, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("step", [1, -1])
def test_positions_that_are_off_by_one_are_refused(monkeypatch, precision, step):
    monkeypatch.setattr(logprobs, "pack", packing_shifted_by(step))
    with pytest.raises(ConfigError, match="computes something else on packed tokens"):
        check(build_model(initializer_range=0.1), precision)


def test_a_run_is_checked_on_32_different_tokens(monkeypatch):
    read = []
    monkeypatch.setattr(PolicyForward, "check", lambda self, token_ids: read.extend(token_ids))
    build_updater(compose(["debug=tiny_steps"]), policy_of(), None, {}, FaultHandling())
    assert len(read) == len(set(read)) == 32
    assert 0 <= min(read) <= max(read) < 64

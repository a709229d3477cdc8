"""A policy is loaded by rank 0 alone, and every rank receives its shards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.ranks.conftest import run_ranks

from atrium.models.policy import build_random_policy, load_policy, write_policy
from atrium.models.skeletons import on_device, take_weights
from atrium.models.tiny import build_tokenizer

ARCHITECTURE = {
    "model_type": "qwen3",
    "hidden_size": 250,  # not a multiple of the ranks: the last shards are smaller
    "intermediate_size": 1001,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 30_001,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    write_policy(build_random_policy(ARCHITECTURE, tokenizer=build_tokenizer(), seed=1), folder)
    return folder


@pytest.mark.full
@pytest.mark.timeout(600)
def test_other_ranks_receive_their_shards_without_ever_holding_the_model(source, tmp_path):
    num_ranks = 3
    out = tmp_path / "records.json"
    codes, said = run_ranks(num_ranks, Path(__file__).with_name("loading.py"), source, out)
    assert codes == [0] * num_ranks, said[-4000:]
    first, *others = json.loads(out.read_text(encoding="utf-8"))
    assert first["found"] == first["digest"]
    for one in (first, *others):
        assert (one["found"], one["buffers"], one["is_tied"]) == (first["digest"], first["buffers"], True)
    if all(one["grown"] for one in others):  # Linux
        # Their shards, their part of one parameter while it arrives, and code that is loaded on the way.
        assert max(one["grown"] for one in others) < 0.5 * first["grown"]


def test_a_model_without_values_takes_its_weights_back(source):
    policy = load_policy(source, dtype=torch.float32, device="cpu")
    model, logits = policy.model, policy.model(torch.tensor([[1, 2, 3]])).logits
    weights = take_weights(model)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    on_device(model, "cpu")
    model.load_state_dict(weights, strict=False)
    assert torch.equal(model(torch.tensor([[1, 2, 3]])).logits, logits)


def test_a_policy_on_meta_has_everything_but_values(source):
    policy = load_policy(source, dtype=torch.bfloat16, device="meta")
    loaded = load_policy(source, dtype=torch.bfloat16, device="cpu")
    assert policy.model.config.to_dict() == loaded.model.config.to_dict()
    assert policy.num_parameters == loaded.num_parameters
    assert {name: (one.shape, one.dtype) for name, one in policy.model.state_dict().items()} == {
        name: (one.shape, one.dtype) for name, one in loaded.model.state_dict().items()
    }
    assert all(one.is_meta for one in policy.model.parameters())

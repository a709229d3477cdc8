"""The longest row that a model computes, with rope types whose factors depend on the batch."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig

from atrium.models.context import Context
from atrium.models.policy import build_random_policy
from atrium.models.shape import read_shape
from atrium.models.tiny import build_tokenizer

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "initializer_range": 0.3,
}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
LONGROPE = {
    "model_type": "phi3",
    **SIZES,
    "max_position_embeddings": 128,
    "original_max_position_embeddings": 32,
    "rope_parameters": LONG,
}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"max_position_embeddings": 128}, (128, None)),
        ({"n_positions": 1024}, (1024, None)),
        ({"max_seq_len": 2048, "rope_parameters": None}, (2048, None)),
        ({"hidden_size": 64}, (0, None)),
        ({"max_position_embeddings": 128, "rope_parameters": LONG | {"rope_type": "yarn"}}, (128, None)),
        (LONGROPE, (32, "longrope")),
        ({**LONGROPE, "original_max_position_embeddings": 4096}, (128, None)),
        (
            {
                "n_ctx": 99,
                "rope_scaling": {"type": "su", "original_max_position_embeddings": 9},
            },
            (9, "su"),
        ),
        ({"max_position_embeddings": 64, "rope_parameters": DYNAMIC}, (64, "dynamic")),
        (
            {
                "n_ctx": 64,
                "rope_parameters": {"full_attention": DYNAMIC, "sliding_attention": {}},
            },
            (64, "dynamic"),
        ),
        ({"max_position_embeddings": 64, "other": {"type": "dynamic"}}, (64, None)),
    ],
)
def test_the_context_ends_where_rope_factors_begin_to_depend_on_the_batch(keys, expected):
    context = Context.of(keys)
    assert (context.length, context.rope_type) == expected
    assert (expected[1] or "") in context.reason
    assert bool(context.reason) == bool(context.rope_type)


def test_the_context_of_transformers_own_configuration_is_that_of_its_keys():
    config = AutoConfig.for_model(**LONGROPE)
    assert Context.of(config.get_text_config().to_dict()) == Context(32, "longrope")
    assert read_shape({**LONGROPE, "vocab_size": 28}).context_length == 32


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_a_short_row_is_exact_beside_rows_within_the_context_only(kind):
    architecture = LONGROPE if kind == "longrope" else {**LONGROPE, "rope_parameters": DYNAMIC}
    if kind == "dynamic":
        architecture = {**architecture, "model_type": "llama", "max_position_embeddings": 32}
    policy = build_random_policy(architecture, tokenizer=build_tokenizer(), seed=0)
    assert policy.context == Context(32, kind)
    token_BL = torch.randint(5, 28, (2, 40), generator=torch.Generator().manual_seed(0))

    def logits(longest):
        return policy.model(input_ids=token_BL[:, :longest], use_cache=False).logits[0, :10]

    with torch.no_grad():
        alone, within, beyond = logits(10), logits(32), logits(33)
    assert (within - alone).abs().max() < 1e-4
    assert (beyond - alone).abs().max() > 1e-2


@pytest.mark.parametrize("model_type", ["bloom", "mpt", "mamba2"])
def test_a_model_without_position_embeddings_has_a_context(model_type):
    sizes = {
        "bloom": {"hidden_size": 32, "n_layer": 1, "n_head": 4},
        "mpt": {"d_model": 32, "n_layers": 1, "n_heads": 4, "max_seq_len": 128},
        "mamba2": {"hidden_size": 32, "num_hidden_layers": 1, "num_heads": 8, "head_dim": 8, "state_size": 8},
    }[model_type]
    policy = build_random_policy({"model_type": model_type, **sizes}, tokenizer=build_tokenizer(), seed=0)
    assert policy.context_length == {"bloom": 1 << 20, "mpt": 128, "mamba2": 1 << 20}[model_type]

"""The training forward pass against a plain one: whole logits, float64 log-softmax, one row at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from atrium.base.errors import ConfigError
from atrium.models.policy import build_random_policy
from atrium.models.tiny import build_tokenizer
from atrium.train.update.forward import PolicyForward
from atrium.train.update.forward_check import check_model
from atrium.train.update.token_logprobs import selected_logprobs

LONGER = ((1, 0, 0, 1), (0, 1), (1,))


def _plain(model, rows, temperature):
    """Log-probabilities and entropies [B, T] of each row alone, without padding."""
    shape = rows.batch.mask_BT.shape
    logprob_BT, entropy_BT = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    for row in range(shape[0]):
        start, end = rows.num_prompt_tokens_B[row], rows.num_tokens_B[row]
        token_L = rows.token_BL[row, :end]
        logits_LV = model(token_L[None], use_cache=False).logits[0].double() / temperature
        all_LV = logits_LV.log_softmax(-1)[start - 1 : end - 1]
        logprob_BT[row, : end - start] = all_LV.gather(1, token_L[start:, None])[:, 0]
        entropy_BT[row, : end - start] = -(all_LV.exp() * all_LV).sum(-1)
    return logprob_BT, entropy_BT


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_log_probabilities_and_entropies_are_those_of_a_plain_forward(make, temperature, packing):
    model = make.tiny_policy().model
    rows = make.rows(make.groups(rewards=LONGER, longest=40))
    with torch.no_grad():
        expected = _plain(model, rows, temperature)
        policy = make.forward(model, temperature=temperature, packing=packing)(rows, entropy="value")
    mask_BT = rows.batch.mask_BT
    assert (policy.logprob_BT - expected[0]).abs().max() < 1e-5
    assert (policy.entropy_BT - expected[1]).abs().max() < 1e-5
    assert policy.logprob_BT[~mask_BT].eq(0.0).all()
    assert policy.entropy_BT[~mask_BT].eq(0.0).all()
    assert policy.logprob_BT[mask_BT].lt(0.0).all()


@pytest.mark.parametrize("packing", [True, False])
def test_they_are_exact_in_double_precision_and_so_are_their_gradients(make, packing):
    model = make.exact_model()
    rows = make.rows(make.groups(rewards=LONGER))
    expected = _plain(model, rows, 0.7)
    forward = make.forward(model, temperature=0.7, packing=packing)
    weight_BT = torch.randn(rows.batch.mask_BT.shape, generator=torch.Generator().manual_seed(0))
    for name, theirs in zip(("logprob_BT", "entropy_BT"), expected, strict=True):
        ours = getattr(forward(rows, entropy="gradient"), name)
        assert ours.dtype == torch.float64
        assert (ours - theirs).abs().max() < 1e-12
        parameters = list(model.parameters())
        mine = torch.autograd.grad((weight_BT * ours).sum(), parameters)
        yours = torch.autograd.grad((weight_BT * theirs).sum(), parameters, retain_graph=True)
        scale = max(float(gradient.abs().max()) for gradient in yours)
        assert scale > 0.01
        assert max(float((a - b).abs().max()) for a, b in zip(mine, yours, strict=True)) < 1e-12 * scale


def test_padding_does_not_reach_the_log_probabilities(make):
    model = make.exact_model()
    rows = make.rows(make.groups())
    forward = make.forward(model)
    with torch.no_grad():
        together = forward(rows, entropy="none").logprob_BT
        for row in range(rows.batch.num_rows):
            alone = forward(rows.select(np.array([row])), entropy="none").logprob_BT
            assert (together[row, : alone.shape[1]] - alone[0]).abs().max() < 1e-12


@pytest.mark.parametrize(("entropy", "has_gradient"), [("value", False), ("gradient", True)])
def test_the_entropy_carries_a_gradient_only_where_asked(entropy, has_gradient):
    logits_NV = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    logprob_N, entropy_N = selected_logprobs(logits_NV, torch.arange(5), entropy=entropy)
    assert logprob_N.requires_grad
    assert entropy_N.requires_grad is has_gradient
    expected_N = torch.distributions.Categorical(logits=logits_NV).entropy()
    assert entropy_N.tolist() == pytest.approx(expected_N.tolist())
    if has_gradient:
        ours = torch.autograd.grad(entropy_N.sum(), logits_NV)[0]
        assert ours.allclose(torch.autograd.grad(expected_N.sum(), logits_NV)[0])


def test_no_entropy_is_computed_where_none_is_needed(make):
    rows = make.rows(make.groups())
    assert make.forward(make.tiny_policy().model)(rows, entropy="none").entropy_BT is None


def test_half_precision_logits_are_normalised_in_single_precision(make):
    model = make.tiny_policy().model
    rows = make.rows(make.groups())
    forward = PolicyForward(model, temperature=1.0, autocast_dtype=torch.bfloat16)
    with torch.no_grad():
        half = forward(rows, entropy="value")
        single = make.forward(model)(rows, entropy="value")
    assert half.logprob_BT.dtype == half.entropy_BT.dtype == torch.float32
    difference = (half.logprob_BT - single.logprob_BT).abs().max()
    assert 0.0 < difference < 0.05


def test_a_model_that_changes_its_logits_behind_the_head_is_refused(make):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    scaled = build_random_policy(
        {
            "model_type": "granite",
            **sizes,
            "intermediate_size": 24,
            "logits_scaling": 8.0,
            "initializer_range": 0.3,
        },
        tokenizer=build_tokenizer(),
        seed=0,
    )
    with pytest.raises(ConfigError, match="changes logits after the LM head"):
        check_model(make.forward(scaled.model), 16)
    for model in (make.tiny_policy().model, make.exact_model()):
        check_model(make.forward(model), 16)


def test_a_short_completion_of_a_long_prompt_fits_beside_a_long_one_of_a_short_prompt(make):
    model = make.exact_model(context_length=12)
    long, short = make.groups(rewards=((1,), (0,)))
    rows = make.rows(
        [
            replace(
                long, prompt_token_ids=np.arange(1, 11, dtype=np.int32), rollouts=(_cut(long.rollouts[0], 2),)
            ),
            replace(
                short,
                prompt_token_ids=np.arange(1, 3, dtype=np.int32),
                rollouts=(_cut(short.rollouts[0], 9),),
            ),
        ]
    )
    with torch.no_grad():
        expected, _ = _plain(model, rows, 1.0)
        ours = make.forward(model)(rows, entropy="none").logprob_BT
    assert (ours - expected).abs().max() < 1e-12


def _cut(rollout, num_tokens):
    completion = replace(
        rollout.completion,
        token_ids=np.arange(3, 3 + num_tokens, dtype=np.int32),
        logprobs=np.full(num_tokens, -1.0, np.float32),
    )
    return replace(rollout, completion=completion)

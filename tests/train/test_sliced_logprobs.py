"""Triton's kernels for log-probabilities, in its interpreter, against all logits in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from atrium.train.update import sliced_logprobs as module
from atrium.train.update.token_logprobs import selected_logprobs, tempered_logits, token_logprobs

pytestmark = pytest.mark.kernels


@pytest.fixture(autouse=True)
def slices(monkeypatch):
    """Slices as narrow as they can be, of 256 logits."""
    monkeypatch.setattr(module, "_SLICE_NUMBERS", 1)


def case(num_tokens, vocabulary, width=5):
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(width, vocabulary, bias=False)
    nn.init.normal_(head.weight, generator=generator)
    state_MD = torch.randn(num_tokens, width, generator=generator, requires_grad=True)
    return head, state_MD, torch.randint(0, vocabulary, (num_tokens,), generator=generator)


def gradients(values, entropy, inputs):
    """The gradients of a weighted sum of log-probabilities, and of entropies if they have one."""
    logprob_M, entropy_M = values
    weight_2M = torch.randn(2, len(logprob_M), generator=torch.Generator().manual_seed(1))
    total = (weight_2M[0] * logprob_M).sum()
    if entropy == "gradient":
        total = total + (weight_2M[1] * entropy_M).sum()
    return torch.autograd.grad(total, inputs)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("entropy", ["none", "value", "gradient"])
@pytest.mark.parametrize(("num_tokens", "vocabulary"), [(1, 3), (7, 256), (6, 601), (4, 2305)])
def test_values_and_gradients_equal_those_of_all_logits(num_tokens, vocabulary, entropy, temperature):
    head, state_MD, token_M = case(num_tokens, vocabulary)
    exact, exact_MD = nn.Linear(*head.weight.T.shape, bias=False).double(), state_MD.detach().double()
    exact.weight.data.copy_(head.weight.data)
    exact_MD.requires_grad_()
    ours = token_logprobs(head, state_MD, token_M, temperature=temperature, entropy=entropy, kernel="triton")
    theirs = selected_logprobs(tempered_logits(exact, exact_MD, temperature), token_M, entropy=entropy)
    assert (ours[0] - theirs[0]).abs().max() < 1e-5
    if entropy == "none":
        assert ours[1] is None
    else:
        assert (ours[1] - theirs[1]).abs().max() < 1e-5
        assert ours[1].requires_grad is (entropy == "gradient")
    found = gradients(ours, entropy, [state_MD, head.weight])
    for mine, expected in zip(found, gradients(theirs, entropy, [exact_MD, exact.weight]), strict=True):
        assert (mine - expected).abs().max() < 1e-5 * expected.abs().max().clamp(min=1.0)


@pytest.mark.parametrize("float32_logits", [False, True])
def test_half_precision_gives_what_chunks_of_tokens_give(float32_logits):
    head, state_MD, token_M = case(6, 601, width=16)
    found = []
    for kernel in ("torch", "triton"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            values = token_logprobs(
                head, state_MD, token_M, temperature=0.7, entropy="gradient",
                float32_logits=float32_logits, kernel=kernel,
            )  # fmt: skip
        found.append((values, gradients(values, "gradient", [state_MD, head.weight])))
    (chunked, expected), (sliced, gradient) = found
    assert sliced[0].dtype == gradient[1].dtype == torch.float32
    for mine, theirs in zip(sliced, chunked, strict=True):
        assert (mine - theirs).abs().max() < 1e-5
    for mine, theirs in zip(gradient, expected, strict=True):
        assert (mine - theirs).norm() < 0.01 * theirs.norm()


def test_large_logits_lose_no_precision():
    head, state_MD, token_M = case(5, 601)
    shift = nn.Parameter(torch.cat([head.weight.detach(), torch.full((601, 1), 40.0)], dim=1))
    shifted = nn.Linear(6, 601, bias=False)
    shifted.weight = shift
    state = torch.cat([state_MD.detach(), torch.ones(5, 1)], dim=1)
    plain = token_logprobs(head, state_MD, token_M, temperature=1.0, entropy="value")
    found = token_logprobs(shifted, state, token_M, temperature=1.0, entropy="value", kernel="triton")
    for mine, theirs in zip(found, plain, strict=True):
        assert (mine - theirs).abs().max() < 1e-4  # 40 has a spacing of 4e-6


def test_an_untrained_head_gets_no_gradient_and_one_with_a_bias_takes_all_logits():
    head, state_MD, token_M = case(4, 300)
    head.weight.requires_grad_(False)
    logprob_M, _ = token_logprobs(head, state_MD, token_M, temperature=1.0, entropy="none", kernel="triton")
    logprob_M.sum().backward()
    assert head.weight.grad is None
    biased = nn.Linear(5, 300)
    found, _ = token_logprobs(biased, state_MD, token_M, temperature=1.0, entropy="none", kernel="triton")
    assert torch.equal(found, selected_logprobs(biased(state_MD), token_M, entropy="none")[0])


def test_tied_weights_get_the_gradients_of_both_uses(make):
    model = make.tiny_policy().model
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    rows = make.rows(make.groups(rewards=((1, 0), (0, 1))))
    found = []
    for kernel in ("torch", "triton"):
        model.zero_grad()
        policy = make.forward(model, head_kernel=kernel)(rows, entropy="gradient")
        (policy.logprob_BT + policy.entropy_BT).sum().backward()
        found.append((policy.logprob_BT.detach(), [one.grad.clone() for one in model.parameters()]))
    (expected_BT, expected), (logprob_BT, gradient) = found
    assert (logprob_BT - expected_BT).abs().max() < 1e-5
    for mine, theirs in zip(gradient, expected, strict=True):
        assert (mine - theirs).abs().max() < 1e-5 * theirs.abs().max().clamp(min=1.0)

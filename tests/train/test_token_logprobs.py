"""Log-probabilities by chunks against those from all logits, in value and gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from atrium.base.errors import ConfigError, MissingDependencyError
from atrium.train.update import token_logprobs as module
from atrium.train.update.token_logprobs import (
    check_triton,
    selected_logprobs,
    tempered_logits,
    token_logprobs,
)


def _case(num_tokens=13, width=5, vocabulary=11):
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(width, vocabulary, bias=False, dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(torch.randn(vocabulary, width, generator=generator))
    state_MD = torch.randn(num_tokens, width, generator=generator, dtype=torch.float64, requires_grad=True)
    token_M = torch.randint(0, vocabulary, (num_tokens,), generator=generator)
    return head, state_MD, token_M


@pytest.mark.parametrize("block", [1, 3, 100])
@pytest.mark.parametrize("chunk", [1, 4, 13, 100])
@pytest.mark.parametrize("entropy", ["none", "value", "gradient"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_chunks_equal_the_whole(monkeypatch, block, chunk, entropy, temperature):
    head, state_MD, token_M = _case()
    monkeypatch.setitem(module._BLOCK_NUMBERS, "cpu", block * 11)
    monkeypatch.setattr(module, "_CHUNK_NUMBERS", chunk * 11)
    ours = token_logprobs(head, state_MD, token_M, temperature=temperature, entropy=entropy)
    theirs = selected_logprobs(tempered_logits(head, state_MD, temperature), token_M, entropy=entropy)
    weights = torch.randn(2, 13, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gradients = []
    for logprob_M, entropy_M in (ours, theirs):
        total = (weights[0] * logprob_M).sum()
        if entropy == "gradient":
            total = total + (weights[1] * entropy_M).sum()
        gradients.append(torch.autograd.grad(total, [state_MD, head.weight]))
    assert (ours[0] - theirs[0]).abs().max() < 1e-12
    if entropy == "none":
        assert ours[1] is None
    else:
        assert (ours[1] - theirs[1]).abs().max() < 1e-12
        assert ours[1].requires_grad is (entropy == "gradient")
    for mine, yours in zip(*gradients, strict=True):
        assert (mine - yours).abs().max() < 1e-12


def test_chunks_compute_in_the_dtype_of_autocast_and_sum_in_single_precision(monkeypatch):
    head, state_MD, token_M = _case(num_tokens=40, width=16, vocabulary=50)
    head, state_MD = head.float(), state_MD.detach().float().requires_grad_()
    exact, _ = token_logprobs(head, state_MD, token_M, temperature=1.0, entropy="none")
    monkeypatch.setattr(module, "_CHUNK_NUMBERS", 50 * 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half, _ = token_logprobs(head, state_MD, token_M, temperature=1.0, entropy="none")
    half.sum().backward()
    assert half.dtype == torch.float32
    assert 0.0 < (half - exact).abs().max() < 0.1
    assert head.weight.grad.dtype == torch.float32


def test_entropies_under_autocast_are_those_of_the_rounded_logits_in_single_precision():
    head, state_MD, token_M = _case(num_tokens=40, width=16, vocabulary=50)
    head, state_MD = head.float(), state_MD.detach().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, found_M = token_logprobs(head, state_MD, token_M, temperature=1.0, entropy="value")
        logits_MV = head(state_MD).float()
    _, expected_M = selected_logprobs(logits_MV, token_M, entropy="value")
    assert (found_M - expected_M).abs().max() < 1e-5


@pytest.mark.parametrize(("chunk", "num_products"), [(13, 3), (4, 4 * 4)])
def test_logits_of_one_chunk_are_computed_once(monkeypatch, chunk, num_products):
    head, state_MD, token_M = _case()
    monkeypatch.setattr(module, "_CHUNK_NUMBERS", chunk * 11)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        logprob_M, _ = token_logprobs(head, state_MD, token_M, temperature=1.0, entropy="value")
        logprob_M.sum().backward()
    assert sum(event.count for event in profile.key_averages() if event.key == "aten::mm") == num_products


def test_a_second_backward_pass_over_the_kept_logits_is_an_error():
    head, state_MD, token_M = _case()
    logprob_M, _ = token_logprobs(head, state_MD, token_M, temperature=1.0, entropy="value")
    logprob_M.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logprob_M.sum().backward()


def test_a_head_with_a_bias_takes_all_logits_at_once():
    head, state_MD, token_M = _case()
    biased = nn.Linear(5, 11, dtype=torch.float64)
    ours, _ = token_logprobs(biased, state_MD, token_M, temperature=1.0, entropy="none")
    theirs, _ = selected_logprobs(biased(state_MD), token_M, entropy="none")
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, token_logprobs(head, state_MD, token_M, temperature=1.0, entropy="none")[0])


def test_logits_are_never_all_in_memory(monkeypatch):
    monkeypatch.setattr(module, "_CHUNK_NUMBERS", 4000)
    head, state_MD = nn.Linear(4, 1000, bias=False), torch.randn(300, 4)
    largest = 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result is not head.weight:
                largest = max(largest, result.numel())
            return result

    with Watch():
        token_logprobs(head, state_MD, torch.zeros(300, dtype=torch.int64), temperature=1.0, entropy="value")
    assert 300 <= largest <= 4000


def test_float32_logits_of_a_biased_head_in_half_precision_are_not_rounded():
    _, state_MD, token_M = _case(width=16, vocabulary=50)
    head, state_MD = nn.Linear(16, 50).bfloat16(), state_MD.detach().bfloat16()
    found, _ = token_logprobs(head, state_MD, token_M, temperature=0.7, entropy="none", float32_logits=True)
    found.sum().backward()
    assert all(one.grad.isfinite().all() for one in head.parameters())
    exact, _ = token_logprobs(head.float(), state_MD.float(), token_M, temperature=0.7, entropy="none")
    assert (found - exact).abs().max() < 1e-5


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("chunk", [7, 1000])
def test_float32_logits_are_products_of_rounded_numbers_that_are_not_rounded_themselves(
    monkeypatch, chunk, has_bias
):
    head, state_MD, token_M = _case(num_tokens=40, width=16, vocabulary=50)
    head = nn.Linear(16, 50, bias=has_bias)
    nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():  # what is rounded already, so that a head with a bias rounds nothing either
        head.weight.copy_(head.weight.bfloat16())
    state_MD = state_MD.detach().bfloat16().float().requires_grad_()
    monkeypatch.setattr(module, "_CHUNK_NUMBERS", 50 * chunk)
    exact, _ = token_logprobs(head, state_MD, token_M, temperature=0.7, entropy="none")
    (gradient_MD,) = torch.autograd.grad(exact.sum(), state_MD)
    errors = []
    for float32_logits in (True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, _ = token_logprobs(
                head, state_MD, token_M, temperature=0.7, entropy="none", float32_logits=float32_logits
            )
        (own_MD,) = torch.autograd.grad(found.sum(), state_MD)
        assert (own_MD - gradient_MD).norm() < 0.02 * gradient_MD.norm()
        errors.append(float((found - exact).detach().abs().max()))
    assert errors[0] < 1e-5 < 1e-3 < errors[1]


def test_kernels_without_triton_or_a_gpu_are_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: name)
    with pytest.raises(ConfigError, match=r"compute\.device=cpu; use compute\.head_kernel=torch"):
        check_triton("cpu")
    check_triton("cuda")
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="requires triton"):
        check_triton("cuda")

"""On a CUDA device in half precision: attention over rows of any length, and logits by chunks."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from atrium.models.policy import build_random_policy
from atrium.models.tiny import build_tokenizer
from atrium.train.update import token_logprobs
from atrium.train.update.compiled_blocks import CompiledBlocks
from atrium.train.update.half_stream import keep_stream_half
from atrium.train.update.packed_attention import packed_states
from atrium.train.update.packing import pack

DEVICE = "cuda"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def case(model_type):
    """A model on the device, and how its packing follows from whether rows are padded."""
    architecture = {
        "model_type": model_type,
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 512,
    }
    model = build_random_policy(architecture, tokenizer=build_tokenizer(), seed=0).model.to(DEVICE)
    rng = np.random.default_rng(0)
    prompt_B = np.repeat(np.arange(4), 3)
    num_prompt_B = rng.integers(4, 60, 4)[prompt_B]
    num_tokens_B = num_prompt_B + rng.integers(2, 200, len(prompt_B))
    token_BL = torch.from_numpy(rng.integers(1, 20, (len(prompt_B), num_tokens_B.max()))).to(DEVICE)
    for row, prompt in enumerate(prompt_B):
        token_BL[row, : num_prompt_B[row]] = token_BL[prompt * 3, : num_prompt_B[row]]
    return model, lambda padded: pack(token_BL, num_prompt_B, num_tokens_B, prompt_B, padded=padded)


def states_and_gradient(model, packing, blocks=None):
    """The last states in float32 and the gradient of their mean square, by compiled blocks if given."""
    model.zero_grad()
    with torch.autocast(DEVICE, dtype=torch.bfloat16), blocks.used() if blocks else nullcontext():
        state_ND = packed_states(model, packing)
    state_ND.float().square().mean().backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return state_ND.float().detach(), torch.cat(gradients)


def assert_close(found, expected):
    (state_ND, gradient), (expected_ND, expected_gradient) = found, expected
    assert (state_ND - expected_ND).abs().max() < 0.05 * expected_ND.abs().max()
    assert (gradient - expected_gradient).norm() < 0.02 * expected_gradient.norm()


@pytest.mark.parametrize("model_type", ["qwen3", "qwen2", "llama"])
def test_rows_behind_each_other_give_the_states_and_gradients_of_padded_rows(model_type):
    model, packing = case(model_type)
    assert_close(
        states_and_gradient(model, packing(padded=False)), states_and_gradient(model, packing(padded=True))
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("has_half_stream", [False, True])
def test_compiled_blocks_give_the_states_and_gradients_of_plain_ones(has_half_stream):
    model, packing = case("qwen3")
    if has_half_stream:
        keep_stream_half(model)
    packed = packing(padded=False)
    plain = states_and_gradient(model, packed)
    assert_close(states_and_gradient(model, packed, CompiledBlocks(model)), plain)


@pytest.mark.parametrize("model_type", ["qwen3", "llama"])
def test_a_residual_stream_in_bfloat16_gives_the_states_and_gradients_of_one_in_float32(model_type):
    model, packing = case(model_type)
    packed = packing(padded=False)
    plain = states_and_gradient(model, packed)
    keep_stream_half(model)
    found = states_and_gradient(model, packed)
    assert not found[0].equal(plain[0])
    assert_close(found, plain)


def test_a_head_in_float32_gives_the_log_probabilities_and_gradients_of_rounded_weights_in_float64():
    generator = torch.Generator().manual_seed(0)
    weight_VD, state_MD = (
        torch.randn(shape, generator=generator).to(torch.bfloat16) for shape in ((512, 64), (100, 64))
    )
    token_M = torch.randint(0, 512, (100,), generator=generator)
    exact_MD = state_MD.double().requires_grad_()
    expected_M = (exact_MD @ weight_VD.double().T).log_softmax(-1).gather(1, token_M[:, None])[:, 0]
    expected_M.sum().backward()
    head = torch.nn.Linear(64, 512, bias=False, device=DEVICE, dtype=torch.bfloat16)
    head.weight.data.copy_(weight_VD)
    state_MD = state_MD.to(DEVICE).requires_grad_()
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        logprob_M, _ = token_logprobs.token_logprobs(
            head, state_MD, token_M.to(DEVICE), temperature=1.0, entropy="value", float32_logits=True
        )
    logprob_M.sum().backward()
    assert (logprob_M.detach().cpu() - expected_M.detach()).abs().max() < 1e-3
    assert (state_MD.grad.cpu() - exact_MD.grad).norm() < 0.01 * exact_MD.grad.norm()


@pytest.mark.parametrize("float32_logits", [False, True])
def test_triton_kernels_give_the_log_probabilities_entropies_and_gradients_of_torch(float32_logits):
    generator = torch.Generator().manual_seed(0)
    head = torch.nn.Linear(64, 40_000, bias=False, device=DEVICE, dtype=torch.bfloat16)
    state_MD = torch.randn(5000, 64, generator=generator).to(DEVICE, torch.bfloat16).requires_grad_()
    token_M = torch.randint(0, 40_000, (5000,), generator=generator).to(DEVICE)
    weight_M = torch.randn(5000, generator=generator).to(DEVICE)
    found = []
    for kernel in ("torch", "triton", "triton"):
        logprob_M, entropy_M = token_logprobs.token_logprobs(
            head, state_MD, token_M, temperature=0.7, entropy="gradient",
            float32_logits=float32_logits, kernel=kernel,
        )  # fmt: skip
        total = (weight_M * (logprob_M + entropy_M)).sum()
        found.append((logprob_M, entropy_M, *torch.autograd.grad(total, [state_MD, head.weight])))
    expected, ours, again = found
    for mine, theirs in zip(ours, expected, strict=True):
        assert (mine - theirs).float().norm() < 0.01 * theirs.float().norm()
    assert (ours[0] - expected[0]).abs().max() < 1e-4
    assert all(map(torch.equal, ours, again))


@pytest.mark.parametrize("kernel", ["torch", "triton"])
def test_the_memory_of_log_probabilities_does_not_grow_with_tokens_times_vocabulary(kernel):
    head = torch.nn.Linear(1024, 151_936, bias=False, device=DEVICE, dtype=torch.bfloat16)
    peaks = []
    for num_tokens in (2048, 8192):
        state_MD = torch.randn(num_tokens, 1024, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        token_M = torch.randint(0, 151_936, (num_tokens,), device=DEVICE)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        logprob_M, _ = token_logprobs.token_logprobs(
            head, state_MD, token_M, temperature=1.0, entropy="value", kernel=kernel
        )
        logprob_M.sum().backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        head.weight.grad = None
    assert peaks[1] < 1.2 * peaks[0]

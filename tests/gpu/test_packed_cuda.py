"""On a CUDA device in half precision: attention over rows of any length, and logits by chunks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from atrium.models.policy import build_random_policy
from atrium.models.tiny import build_tokenizer
from atrium.train.update import token_logprobs
from atrium.train.update.packed_attention import packed_states
from atrium.train.update.packing import pack

DEVICE = "cuda"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


@pytest.mark.parametrize("model_type", ["qwen3", "qwen2", "llama"])
def test_rows_behind_each_other_give_the_states_and_gradients_of_padded_rows(model_type):
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
    found = []
    for padded in (True, False):
        packing = pack(token_BL, num_prompt_B, num_tokens_B, prompt_B, padded=padded)
        model.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            state_ND = packed_states(model, packing)
        state_ND.float().square().mean().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        found.append((state_ND.float().detach(), gradient))
    (padded_ND, padded_gradient), (ragged_ND, ragged_gradient) = found
    assert (padded_ND - ragged_ND).abs().max() < 0.05 * padded_ND.abs().max()
    assert (padded_gradient - ragged_gradient).norm() < 0.02 * padded_gradient.norm()


def test_the_memory_of_log_probabilities_does_not_grow_with_tokens_times_vocabulary():
    head = torch.nn.Linear(1024, 151_936, bias=False, device=DEVICE, dtype=torch.bfloat16)
    peaks = []
    for num_tokens in (2048, 8192):
        state_MD = torch.randn(num_tokens, 1024, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        token_M = torch.randint(0, 151_936, (num_tokens,), device=DEVICE)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        logprob_M, _ = token_logprobs.token_logprobs(
            head, state_MD, token_M, temperature=1.0, entropy="value"
        )
        logprob_M.sum().backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        head.weight.grad = None
    assert peaks[1] < 1.2 * peaks[0]

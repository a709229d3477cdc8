"""Transformers' continuous batching on a CUDA device: it samples what the trainer says, and a run trains."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from atrium.cli import main
from atrium.metrics import MISMATCH_MEAN
from atrium.models.tiny import TinySettings, build_tiny_policy
from atrium.rollout.engine import GenerationRequest, SamplingParams
from atrium.rollout.paged_engine import PagedEngine
from atrium.rollout.paged_start import PagedSettings
from atrium.tracking.json_lines import read_json_lines

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

PROMPT = np.array([3, 7, 8, 9, 4], np.int32)


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 2e-3), (torch.bfloat16, 0.1)], ids=["float32", "bfloat16"]
)
def test_sampled_log_probabilities_are_the_trainers_after_an_update(dtype, bound):
    policy, other = (build_tiny_policy(TinySettings(head_dim=64), seed=seed) for seed in (0, 1))
    engine = PagedEngine(
        model=copy.deepcopy(policy.model).to("cuda", dtype),
        tokenizer=policy.tokenizer,
        stop_token_ids=policy.stop_token_ids,
        settings=PagedSettings(
            context_length=128,
            max_num_seqs=64,
            kv_cache_mb=64,
            page_size=16,
            attention="sdpa",
            step_timeout_s=60.0,
        ),
    )
    request = GenerationRequest(prompt_token_ids=PROMPT, sample_seeds=tuple(range(8)))
    for version, current in enumerate((policy, other), start=1):
        current.model.to("cuda")
        engine.update_weights(current.model.state_dict(), version)
        (generation,) = engine.generate([request], SamplingParams(max_new_tokens=32))
        for completion in generation.completions:
            token_ids = torch.from_numpy(np.concatenate([PROMPT, completion.token_ids])).long().cuda()
            with torch.no_grad():
                logits = current.model(token_ids[None]).logits[0, len(PROMPT) - 1 : -1].float()
            own = logits.log_softmax(-1).gather(1, token_ids[len(PROMPT) :, None])[:, 0].cpu().numpy()
            assert np.abs(own - completion.logprobs).mean() < bound
    engine.close()


def test_a_short_run_of_a_language_models_architecture_trains(tmp_path):
    arguments = [
        "model=qwen3_0_6b",
        "model.weights=random",
        "rollout=transformers_paged",
        "rollout.context_length=512",
        "debug=tiny_steps",
        f"runs_dir={tmp_path}",
    ]
    assert main(["train", *arguments]) == 0
    (metrics_file,) = tmp_path.glob("*/*/metrics.jsonl")
    for step in read_json_lines(metrics_file).records:
        assert step[MISMATCH_MEAN.name] < 0.1

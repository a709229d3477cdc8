"""On a CUDA device: the engine samples what the model says, and a whole run trains."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from atrium.base.metrics import ENTROPY, GRAD_NORM, MISMATCH_MAX, PEAK_MEMORY_MB
from atrium.cli import main
from atrium.engines.engine import GenerationRequest, SamplingParams
from atrium.engines.transformers_engine import TransformersEngine
from atrium.models.settings import TinySettings
from atrium.models.tiny import build_tiny_policy

DEVICE = "cuda"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def test_log_probabilities_sampled_on_the_device_are_those_of_a_forward_on_the_cpu():
    policy = build_tiny_policy(TinySettings(), seed=0)
    policy.model.to(DEVICE)
    engine = TransformersEngine(
        model=policy.model,
        tokenizer=policy.tokenizer,
        stop_token_ids=policy.stop_token_ids,
        pad_token_id=policy.pad_token_id,
        context_length=policy.context_length,
    )
    prompts = [
        np.array(policy.tokenizer.encode(text), dtype=np.int32) for text in ("<q>7+8=<a>", "<q>9-4+3+1=<a>")
    ]
    requests = [GenerationRequest(prompt_token_ids=prompt, sample_seeds=(1, 2, 3)) for prompt in prompts]
    generations = list(engine.generate(requests, SamplingParams(max_new_tokens=24)))
    policy.model.to("cpu")
    assert sorted(generation.request_index for generation in generations) == [0, 1]
    for generation in generations:
        prompt = prompts[generation.request_index]
        for completion in generation.completions:
            token_ids = torch.from_numpy(np.concatenate([prompt, completion.token_ids])).long()
            with torch.no_grad():
                logits = policy.model(input_ids=token_ids[None]).logits[0, len(prompt) - 1 : -1]
            expected = logits.log_softmax(-1).gather(1, token_ids[len(prompt) :, None])[:, 0]
            np.testing.assert_allclose(completion.logprobs, expected.numpy(), atol=2e-3)


@pytest.mark.parametrize("algorithm", ["atr", "grpo", "reinforce"])
def test_a_short_run_trains_on_the_device(algorithm, tmp_path):
    arguments = [f"algorithm={algorithm}", "debug=tiny_steps", f"compute={DEVICE}", f"runs_dir={tmp_path}"]
    assert main(["train", *arguments]) == 0
    (metrics_file,) = tmp_path.glob("*/*/metrics.jsonl")
    steps = [json.loads(line) for line in metrics_file.read_text(encoding="utf-8").splitlines()]
    assert len(steps) >= 3
    for step in steps[-3:]:
        assert math.isfinite(step[GRAD_NORM.name])
        assert step[ENTROPY.name] > 0.0
        assert step[MISMATCH_MAX.name] < 1e-2
        assert step[PEAK_MEMORY_MB.name] > 0.0

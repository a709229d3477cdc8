"""vLLM on a CUDA device: the engine samples what the trainer says, sleeps and wakes, and a whole run trains.

The contract and the runs of `tests/vllm` are the same on a GPU: `pytest -m vllm tests/engines tests/vllm`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.vllm.settings import vllm_settings

from atrium.base.json_lines import read_json_lines
from atrium.base.metrics import MISMATCH_MEAN, NUM_UPDATES
from atrium.cli import main
from atrium.config.machine import this_machine
from atrium.engines.engine import GenerationRequest, SamplingParams
from atrium.models.settings import TinySettings
from atrium.models.tiny import build_tiny_policy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.skipif(not this_machine().has_vllm, reason="vLLM is not installed"),
]

CACHE = Path(__file__).resolve().parents[2] / "runs" / ".cache" / "vllm-tests"


@pytest.mark.parametrize("sleep_level", [None, 1, 2])
@pytest.mark.parametrize("enforce_eager", [True, False], ids=["eager", "graphs"])
def test_sampled_log_probabilities_are_the_trainers_after_an_update(sleep_level, enforce_eager):
    from atrium.engines.vllm_engine import VllmEngine
    from atrium.engines.vllm_start import Place

    policy, other = (build_tiny_policy(TinySettings(head_dim=64), seed=seed) for seed in (0, 1))
    for each in (policy, other):
        each.model.to("cuda")
    engine = VllmEngine(
        model=policy.model,
        tokenizer=policy.tokenizer,
        stop_token_ids=policy.stop_token_ids,
        settings=vllm_settings(
            gpu_memory_fraction=0.3, kv_cache_mb=None, enforce_eager=enforce_eager, sleep_level=sleep_level
        ),
        place=Place(device="cuda", dtype="bfloat16", context_length=128),
        cache_dir=CACHE,
    )
    prompt = np.array([3, 7, 8, 9, 4], np.int32)
    request = GenerationRequest(prompt_token_ids=prompt, sample_seeds=tuple(range(8)))
    try:
        for version, current in enumerate((policy, other), start=1):
            engine.update_weights(current.model.state_dict(), version)
            (generation,) = engine.generate([request], SamplingParams(max_new_tokens=32))
            for completion in generation.completions:
                token_ids = torch.from_numpy(np.concatenate([prompt, completion.token_ids])).long().cuda()
                with torch.no_grad():
                    logits = current.model(token_ids[None]).logits[0, len(prompt) - 1 : -1].float()
                own = logits.log_softmax(-1).gather(1, token_ids[len(prompt) :, None])[:, 0].cpu().numpy()
                assert np.abs(own - completion.logprobs).mean() < 0.1
    finally:
        engine.close()


SHORT_RUN = (
    "model=qwen3_0_6b",
    "model.weights=random",
    "rollout=vllm",
    "rollout.context_length=512",
    "debug=tiny_steps",
)


def assert_trained(runs_dir):
    (metrics_file,) = runs_dir.glob("*/*/metrics.jsonl")
    for step in read_json_lines(metrics_file).records:
        assert step[NUM_UPDATES.name] == 2
        assert step[MISMATCH_MEAN.name] < 0.1


def test_a_short_run_of_a_language_models_architecture_trains(tmp_path):
    assert main(["train", *SHORT_RUN, f"runs_dir={tmp_path}"]) == 0
    assert_trained(tmp_path)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two ranks take a GPU each")
def test_two_gpus_share_one_vllm(tmp_path):
    from tests.vllm.test_vllm_ranks import run_two

    run_two(
        "-m", "atrium", "train", *SHORT_RUN, f"runs_dir={tmp_path}", "compute.num_processes=2",
        "rollout.tensor_parallel=2",
    )  # fmt: skip
    assert_trained(tmp_path)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="the trainer and a server take a GPU each")
@pytest.mark.parametrize("transfer", ["host", "nccl"])
def test_a_run_samples_with_a_server_on_another_gpu(tmp_path, transfer):
    served = ("rollout.placement=server", "rollout.lag=1", f"rollout.weight_transfer={transfer}")
    assert main(["train", *SHORT_RUN, *served, f"runs_dir={tmp_path}", "optimizer.learning_rate=1e-4"]) == 0
    assert_trained(tmp_path)

"""What the engine of continuous batching promises beyond the contract: seeds, a small cache, faults."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from tests.rollout.conftest import (
    LOGPROB_ROUNDING,
    build_model,
    generate,
    paged_engine,
    requests_for,
    transformers_engine,
)

from atrium.errors import EngineError
from atrium.rollout.engine import GenerationRequest, SamplingParams

TEXTS = ["1+2=", "7", "3+4-5+6=", "12+7=", "1+2=", "3+4-5+6-2+9="]
SAMPLING = SamplingParams(max_new_tokens=24)


def library_threads():
    return [thread for thread in threading.enumerate() if "_run_generation_loop" in thread.name]


@pytest.fixture(autouse=True)
def _nothing_is_left_running():
    before = threading.active_count()
    yield
    assert library_threads() == []
    assert threading.active_count() <= before + 1  # a watchdog may not have looked yet


def assert_equal(some, others):
    for one, other in zip(sum(some, ()), sum(others, ()), strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=0.0, atol=LOGPROB_ROUNDING)
        assert (one.text, one.finish_reason) == (other.text, other.finish_reason)


@pytest.mark.parametrize(
    "sampling",
    [SAMPLING, SamplingParams(max_new_tokens=16, temperature=1.3, top_p=0.9, top_k=6)],
    ids=["whole", "cut"],
)
def test_seeds_give_the_very_completions_of_the_transformers_engine(policy, tokenizer, sampling):
    requests = requests_for(TEXTS, tokenizer, group_size=4)
    engine = paged_engine(policy)
    assert_equal(
        generate(engine, requests, sampling), generate(transformers_engine(policy), requests, sampling)
    )
    engine.close()


def test_completions_that_wait_or_are_put_off_for_want_of_cache_are_the_same(policy, tokenizer):
    requests = requests_for(TEXTS, tokenizer, group_size=4)
    sampling = SamplingParams(max_new_tokens=80, ignore_stop=True)
    engine = paged_engine(policy, kv_cache_mb=1, max_num_seqs=32)
    assert_equal(
        generate(engine, requests, sampling), generate(transformers_engine(policy), requests, sampling)
    )
    engine.close()


def test_the_trainers_module_and_the_random_state_of_torch_stay_as_they_are(policy, tokenizer):
    policy.model.train()
    state = torch.get_rng_state()
    engine = paged_engine(policy)
    generate(engine, requests_for(["7"], tokenizer), SAMPLING)
    engine.close()
    assert policy.model.training
    assert policy.model.config._attn_implementation == "sdpa"
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_that_change_in_the_middle_stop_the_generation(policy, tokenizer):
    engine = paged_engine(policy)
    generations = engine.generate(requests_for(TEXTS, tokenizer), SAMPLING)
    next(generations)
    engine.update_weights(build_model(1).state_dict(), 1)
    assert library_threads() == []
    with pytest.raises(EngineError, match="from version 0 to 1"):
        list(generations)
    engine.close()


def test_a_generation_that_is_given_up_ends_its_thread_and_frees_its_cache(policy, tokenizer):
    engine = paged_engine(policy)
    generations = engine.generate(requests_for(TEXTS, tokenizer), SAMPLING)
    next(generations)
    generations.close()
    assert library_threads() == []
    generations = engine.generate(requests_for(TEXTS, tokenizer), SAMPLING)
    next(generations)
    engine.close()
    assert library_threads() == []
    with pytest.raises(EngineError, match="the engine was closed"):
        list(generations)


def test_a_failure_in_the_librarys_thread_is_one_line_and_the_engine_goes_on(policy, tokenizer, capfd):
    engine = paged_engine(policy)
    num_forwards = iter(range(10**6))

    def fail(module, args, output):
        if next(num_forwards) == 3:
            raise RuntimeError("a kernel\nis gone")

    handle = engine._model.register_forward_hook(fail)
    message = (
        r"^transformers failed \(waiting for a decoding step of continuous batching\): a kernel is gone; go"
    )
    with pytest.raises(EngineError, match=message):
        list(engine.generate(requests_for(TEXTS, tokenizer), SAMPLING))
    handle.remove()
    assert "Traceback" not in capfd.readouterr().err
    assert library_threads() == []
    assert len(generate(engine, requests_for(TEXTS, tokenizer), SAMPLING)) == len(TEXTS)
    engine.close()


def test_weights_that_are_not_finite_are_named(policy, tokenizer):
    engine = paged_engine(policy)
    weights = {name: torch.full_like(weight, torch.nan) for name, weight in policy.model.state_dict().items()}
    with torch.no_grad():
        for name, weight in engine._model.state_dict().items():
            weight.copy_(weights[name])
    with pytest.raises(EngineError, match="logits are not finite"):
        list(engine.generate(requests_for(["7"], tokenizer), SAMPLING))
    engine.close()


def test_a_prompt_that_does_not_fit_the_cache_is_refused_with_the_setting(policy):
    engine = paged_engine(policy, kv_cache_mb=1, context_length=4096)
    request = GenerationRequest(prompt_token_ids=np.full(2000, 5, np.int32), sample_seeds=(1,))
    with pytest.raises(EngineError, match=r"rollout\.kv_cache_mb=1 holds 1024 tokens, and a .* have 2024"):
        engine.generate([request], SAMPLING)
    engine.close()


def test_an_attention_that_is_not_installed_is_refused_with_the_setting(policy):
    with pytest.raises(
        EngineError, match=r"rollout\.attention=flash_attention_2 cannot be used here .* sdpa"
    ):
        paged_engine(policy, attention="flash_attention_2")


HANGING = """
import time
from tests.rollout.conftest import *

tokenizer = build_tokenizer()
engine = paged_engine(Policy(model=build_model(0), tokenizer=tokenizer), step_timeout_s=2.0)
engine._model.register_forward_hook(lambda module, args, output: time.sleep(600))
list(engine.generate(requests_for(["7"], tokenizer), SamplingParams(max_new_tokens=4)))
"""


@pytest.mark.full
def test_a_step_that_hangs_ends_the_process_which_says_what_it_waited_for():
    done = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "gave up waiting for a decoding step of continuous batching after 2 s" in done.stderr
    assert "Traceback" not in done.stderr

"""What the engine contract leaves open: how vLLM streams, fails, sleeps and ends."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from tests.vllm import interface
from tests.vllm.settings import vllm_settings

from atrium.base.errors import EngineError
from atrium.engines.engine import GenerationRequest, SamplingParams
from atrium.engines.vllm_engine import VllmEngine
from atrium.engines.vllm_start import Place, model_folder
from atrium.models.lora import add_lora
from atrium.models.settings import LoraSettings, TinySettings
from atrium.models.tiny import build_tiny_policy
from atrium.train.measure.mismatch import check_mismatch

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / "runs" / ".cache" / "vllm-tests"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROMPT = np.array([3, 7, 8, 9, 4], np.int32)


def build(policy, engine_type=VllmEngine, context_length=128, **changes):
    return engine_type(
        model=policy.model,
        tokenizer=policy.tokenizer,
        stop_token_ids=policy.stop_token_ids,
        settings=vllm_settings(**changes),
        place=Place(device=DEVICE, dtype="float32", context_length=context_length),
        cache_dir=CACHE,
    )


@pytest.fixture(scope="module")
def policy():
    return build_tiny_policy(TinySettings(head_dim=32), seed=0)


@pytest.fixture(scope="module")
def engine(policy):
    engine = build(policy)
    yield engine
    engine.close()


def request(*seeds, prompt=PROMPT):
    return GenerationRequest(prompt_token_ids=prompt, sample_seeds=seeds)


def mean_gap(model, completions):
    """The mean difference, in nats, of sampled log-probabilities and the model's own."""
    gaps = []
    for completion in completions:
        token_ids = torch.from_numpy(np.concatenate([PROMPT, completion.token_ids])).long()
        with torch.no_grad():
            logits = model(token_ids[None]).logits[0, len(PROMPT) - 1 : -1]
        own = logits.log_softmax(-1).gather(1, token_ids[len(PROMPT) :, None])[:, 0]
        gaps += (own - torch.from_numpy(completion.logprobs)).abs().tolist()
    return sum(gaps) / len(gaps)


def test_finished_requests_are_handed_out_while_others_are_still_sampled(engine):
    long, short = SamplingParams(max_new_tokens=100, ignore_stop=True), []
    # The short one ends at a stop token, which is likely early; which of many does is up to the seeds.
    sampling = SamplingParams(max_new_tokens=100)
    requests = [request(seed) for seed in range(40)]
    generations = engine.generate(requests, sampling)
    first = next(generations)
    rest = list(generations)
    lengths = {g.request_index: g.completions[0].num_tokens for g in [first, *rest]}
    short = lengths[first.request_index]
    assert short == min(lengths.values()) < max(lengths.values())
    assert len(list(engine.generate([request(1)], long))) == 1


def test_requests_that_are_appended_while_completions_are_taken_are_answered_too(engine):
    requests = [request(1, 2), request(3, 4)]
    answered = []
    for generation in engine.generate(requests, SamplingParams(max_new_tokens=8)):
        answered.append(generation.request_index)
        if len(requests) < 5:
            requests.append(request(10 + len(requests), 20 + len(requests)))
    assert sorted(answered) == [0, 1, 2, 3, 4]


def test_a_generation_that_is_given_up_leaves_nothing_in_flight(engine):
    sampling = SamplingParams(max_new_tokens=60)
    expected = [
        c.token_ids.tolist() for g in engine.generate([request(5, 6)], sampling) for c in g.completions
    ]
    generations = engine.generate([request(*range(30)), request(*range(30))], sampling)
    del generations
    started = engine.generate([request(seed) for seed in range(50)], sampling)
    next(started)
    started.close()
    again = [c.token_ids.tolist() for g in engine.generate([request(5, 6)], sampling) for c in g.completions]
    assert again == expected


def test_two_generations_at_once_get_their_own_completions(engine):
    sampling = SamplingParams(max_new_tokens=30)
    alone = [c.token_ids.tolist() for g in engine.generate([request(7)], sampling) for c in g.completions]
    outer = engine.generate([request(seed) for seed in range(20)], sampling)
    next(outer)
    nested = [c.token_ids.tolist() for g in engine.generate([request(7)], sampling) for c in g.completions]
    assert nested == alone
    assert len(list(outer)) == 19


def test_weights_that_change_in_the_middle_stop_the_generation(engine, policy):
    generations = engine.generate([request(seed) for seed in range(20)], SamplingParams(max_new_tokens=60))
    next(generations)
    version = engine._weight_version
    engine.update_weights(policy.model.state_dict(), version + 1)
    with pytest.raises(EngineError, match=f"from version {version} to {version + 1}"):
        list(generations)
    engine.update_weights(policy.model.state_dict(), 0)


def test_a_cache_that_is_too_small_preempts_samples_which_is_counted_and_changes_no_token():
    policy = build_tiny_policy(TinySettings(head_dim=32, context_length=256), seed=0)
    sampling = SamplingParams(max_new_tokens=200, ignore_stop=True)
    found, preempted = [], []
    for kv_cache_mb in (1, 64):
        engine = build(policy, context_length=256, kv_cache_mb=kv_cache_mb)
        try:
            assert engine.facts.num_preempted == 0
            # Eight samples of two blocks each; the small cache has eight blocks.
            (generation,) = engine.generate([request(*range(8))], sampling)
            found.append(generation.completions)
            preempted.append(engine.facts.num_preempted)
        finally:
            engine.close()
    assert preempted[0] > preempted[1] == 0
    for one, other in zip(*found, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


def test_an_engine_says_which_code_runs_the_model_and_how_much_its_cache_holds(engine):
    described = engine.facts.described
    assert described["model_runner"] in ("V1", "V2")
    assert described["cache_longest_completions"] == round(described["cache_tokens"] / 128, 2)
    assert described["max_num_batched_tokens"] == 8192


def bfloat16_engine(policy, head_dtype="model", **changes):
    return VllmEngine(
        model=policy.model,
        tokenizer=policy.tokenizer,
        stop_token_ids=policy.stop_token_ids,
        settings=vllm_settings(**changes),
        place=Place(device=DEVICE, dtype="bfloat16", context_length=128, head_dtype=head_dtype),
        cache_dir=CACHE,
    )


def gap_of(policy, engine):
    """The mean gap of eight completions."""
    (generation,) = engine.generate([request(*range(8))], SamplingParams(max_new_tokens=30))
    return mean_gap(policy.model, generation.completions)


@pytest.mark.parametrize(("asked", "found"), [("model", "bfloat16"), ("float32", "float32")])
def test_the_head_is_as_precise_as_it_is_asked_to_be(policy, asked, found):
    engine = bfloat16_engine(policy, head_dtype=asked)
    try:
        assert engine.facts.described["head_dtype"] == found
        assert gap_of(policy, engine) < 0.1
    finally:
        engine.close()


def test_an_fp8_cache_keeps_the_log_probabilities_close_or_is_refused(policy):
    if DEVICE == "cpu" and torch.backends.cpu.get_cpu_capability() != "AVX512":
        with pytest.raises(EngineError, match="vLLM failed"):
            bfloat16_engine(policy, kv_cache_dtype="fp8")
        return
    engine = bfloat16_engine(policy, kv_cache_dtype="fp8")
    try:
        assert 0 < gap_of(policy, engine) < 0.1
    finally:
        engine.close()


def test_the_installed_vllm_has_all_that_is_called():
    place = Path(importlib.util.find_spec("vllm").origin).parents[1]
    read = interface.sources(place)
    assert list(interface.lacking(read)) == []
    without = list(interface.lacking(lambda name: read(name).replace("def wake_up", "def rouse")))
    assert without == ["LLMEngine.wake_up()"]
    passed = interface.passed_to("EngineArgs")
    assert {"max_num_batched_tokens", "tensor_parallel_size", "hf_overrides"} <= passed


def test_equal_models_have_one_folder_so_that_what_vllm_compiled_is_found_again(policy, tmp_path):
    first = model_folder(policy.model, tmp_path)
    again = model_folder(build_tiny_policy(TinySettings(head_dim=32), seed=1).model, tmp_path)
    other = model_folder(build_tiny_policy(TinySettings(head_dim=64), seed=0).model, tmp_path)
    assert first == again != other
    assert [path.name for path in first.iterdir()] == ["config.json"]


class EngineWithAStaleHead(VllmEngine):
    """The engine as it is when a tied head is forgotten: no error, and the old head stays."""

    def update_weights(self, weights, version):
        self._weights = {name: value for name, value in weights.items() if name != "lm_head.weight"}
        self._load()
        self._weight_version = version


def test_a_head_that_does_not_arrive_raises_nothing_and_the_comparison_finds_it(policy):
    engine = build(policy, EngineWithAStaleHead)
    try:
        sampling = SamplingParams(max_new_tokens=30)
        bound = 1e-3
        for other, is_stale in (
            (policy, False),
            (build_tiny_policy(TinySettings(head_dim=32), seed=1), True),
        ):
            engine.update_weights(other.model.state_dict(), 1)
            completions = [c for g in engine.generate([request(*range(8))], sampling) for c in g.completions]
            gap = mean_gap(other.model, completions)
            assert (gap > bound) == is_stale
            measured = {"mismatch/logprob_mean": gap, "mismatch/logprob_max": gap}
            if is_stale:
                with pytest.raises(EngineError, match=r"step 3: .* more than rollout\.max_mismatch=0\.001"):
                    check_mismatch(measured, bound, 3, lambda mean, bound: "")
            else:
                check_mismatch(measured, bound, 3, lambda mean, bound: "")
    finally:
        engine.close()


def test_an_engine_that_dies_in_a_step_gives_one_line_and_ends_cleanly(policy, monkeypatch):
    engine = build(policy)
    generations = engine.generate([request(*range(4))], SamplingParams(max_new_tokens=30))

    def fail():
        raise RuntimeError("the device\nis gone")

    monkeypatch.setattr(engine._engine, "step", fail)
    with pytest.raises(
        EngineError, match="RuntimeError: the device is gone; resume from the last checkpoint"
    ):
        list(generations)
    engine.close()
    assert not torch.distributed.is_initialized()
    assert psutil.Process().children(recursive=True) == []
    with pytest.raises(EngineError, match="vLLM has exited"):
        engine.generate([request(1)], SamplingParams(max_new_tokens=4))


def test_a_cache_that_holds_no_completion_is_said_in_one_line():
    policy = build_tiny_policy(TinySettings(head_dim=32, context_length=4096), seed=0)
    with pytest.raises(EngineError, match=r"vLLM failed \(waiting for vLLM to start\): .*lower") as raised:
        build(policy, kv_cache_mb=1, context_length=4096)
    assert "\n" not in str(raised.value)


def guess_tokens():
    policy = build_tiny_policy(TinySettings(head_dim=32), seed=0)
    engine = build(policy, num_speculative_tokens=3)
    try:
        sampling = SamplingParams(max_new_tokens=40)
        requests = [request(*range(6)), request(3)]
        together, alone = sorted(engine.generate(requests, sampling), key=lambda g: g.request_index)
        assert mean_gap(policy.model, together.completions) < 1e-5
        assert together.completions[3].token_ids.tolist() == alone.completions[0].token_ids.tolist()
        for cut in (SamplingParams(max_new_tokens=4, top_p=0.9), SamplingParams(max_new_tokens=4, top_k=5)):
            with pytest.raises(EngineError, match=r"cannot be combined with rollout\.num_speculative_tokens"):
                engine.generate(requests, cut)
    finally:
        engine.close()


def test_tokens_that_are_guessed_have_the_log_probabilities_of_the_policy():
    # A process of its own: vLLM guesses with numba, whose objects its next start in one process trips over.
    guessed = "from tests.vllm.test_vllm_engine import guess_tokens; guess_tokens()"
    done = subprocess.run(
        [sys.executable, "-c", guessed], cwd=REPOSITORY, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of vLLM's own imports
def test_vllm_names_its_two_pools_of_memory_as_the_engine_wakes_them():
    from vllm.v1.engine.llm_engine import LLMEngine

    assert "tags" in inspect.signature(LLMEngine.wake_up).parameters
    worker = Path(importlib.util.find_spec("vllm.v1.worker.gpu_worker").origin).read_text(encoding="utf-8")
    # Any other pool (0.32 has `runtime`) comes back with the first that is woken.
    assert {"weights", "kv_cache"} <= set(
        re.findall(r'_maybe_get_memory_pool_context\(tag="(\w+)"\)', worker)
    )


def test_weights_that_are_rounded_on_their_way_are_those_that_vllm_rounds_itself(policy):
    weights = build_tiny_policy(TinySettings(head_dim=32), seed=1).model.state_dict()
    rounded = {name: weight.to(torch.bfloat16) for name, weight in weights.items()}
    engine = bfloat16_engine(policy)
    found = []
    for version, given in enumerate((weights, rounded), 1):
        engine.update_weights(given, version)
        (generation,) = engine.generate([request(*range(8))], SamplingParams(max_new_tokens=24))
        found.append([(one.token_ids.tolist(), one.logprobs.tolist()) for one in generation.completions])
    engine.close()
    assert found[0] == found[1]


def test_adapters_that_vllm_applies_itself_follow_each_update():
    policy = build_tiny_policy(TinySettings(head_dim=32), seed=0)
    add_lora(policy.model, LoraSettings(rank=4, alpha=8.0), seed=0)
    engine = build(policy, adapters="separate")
    generator = torch.Generator().manual_seed(0)
    try:
        for version in (1, 2, 3):
            for parameter in policy.model.parameters():
                if parameter.requires_grad:
                    values = 0.3 * torch.randn(parameter.shape, generator=generator)
                    parameter.data = values.to(parameter.device)
            engine.update_weights(policy.weights(), version)
            [found] = engine.generate([request(1, 2, 3)], SamplingParams(max_new_tokens=12, temperature=1.0))
            for completion in found.completions:
                token_ids = torch.tensor([*PROMPT, *completion.token_ids], device=policy.model.device)[None]
                with torch.no_grad():
                    logits = policy.model(token_ids).logits[0, len(PROMPT) - 1 : -1]
                own = logits.log_softmax(-1).gather(1, token_ids[0, len(PROMPT) :, None])[:, 0]
                assert np.abs(own.cpu().numpy() - completion.logprobs).max() < 1e-4
    finally:
        engine.close()

"""The contract of every engine; a new engine joins the tables in `conftest.py`, not this file.

Tests that take `any_engine` hold for engines without a model too. Those that take `engine` compare
with a forward pass of the model alone: no padding, no cache, no batch.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from tests.engines.conftest import (
    CONTEXT_LENGTH,
    LOGPROB_ROUNDING,
    STOPS,
    build_model,
    generate,
    reference_logprobs,
    requests_for,
)

from atrium.base.errors import EngineError
from atrium.base.records import FinishReason
from atrium.engines.engine import GenerationRequest, SamplingParams

TEXTS = ["1+2=", "7", "3+4-5+6=", "a=1;b=", "12+7=", "1+2=", "3+4-5+6-2+9="]
TEMPERATURE_1 = SamplingParams(max_new_tokens=16)
SAMPLINGS = {
    "temperature_1": TEMPERATURE_1,
    "temperature_0.6": SamplingParams(max_new_tokens=16, temperature=0.6),
    "temperature_1.7": SamplingParams(max_new_tokens=16, temperature=1.7),
    "top_p": SamplingParams(max_new_tokens=16, top_p=0.8),
    "top_k": SamplingParams(max_new_tokens=16, top_k=5),
    "top_p_and_top_k": SamplingParams(max_new_tokens=16, temperature=1.3, top_p=0.9, top_k=6),
    "penalties": SamplingParams(
        max_new_tokens=16,
        temperature=0.8,
        repetition_penalty=1.5,
        presence_penalty=0.7,
        frequency_penalty=-0.4,
    ),
    "ignore_stop": SamplingParams(max_new_tokens=16, ignore_stop=True),
    "greedy": SamplingParams(max_new_tokens=16, temperature=0.0),
}


@pytest.fixture(params=SAMPLINGS)
def sampling(request):
    return SAMPLINGS[request.param]


def assert_equal(some, others):
    assert len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=0.0, atol=LOGPROB_ROUNDING)
        assert (one.text, one.finish_reason) == (other.text, other.finish_reason)


def test_every_seed_of_every_request_is_answered_once(any_engine, tokenizer):
    requests = requests_for(TEXTS, tokenizer)
    for request, completions in zip(requests, generate(any_engine, requests, TEMPERATURE_1), strict=True):
        assert len(completions) == len(request.sample_seeds)
        for completion in completions:
            assert completion.token_ids.dtype == np.int32
            assert completion.logprobs.dtype == np.float32
            assert completion.token_ids.shape == completion.logprobs.shape
            assert 1 <= completion.num_tokens <= TEMPERATURE_1.max_new_tokens
            assert (completion.logprobs <= 0).all()


def test_no_requests_give_nothing(any_engine):
    assert list(any_engine.generate([], TEMPERATURE_1)) == []


def test_a_request_without_seeds_has_no_completions(any_engine, tokenizer):
    requests = requests_for(["1+2="], tokenizer, group_size=0) + requests_for(["7"], tokenizer)
    assert [len(group) for group in generate(any_engine, requests, TEMPERATURE_1)] == [0, 3]


@pytest.mark.parametrize("text", ["7", "1+2="])
def test_one_sample_of_one_prompt_is_what_it_is_in_a_group(any_engine, tokenizer, text):
    group = requests_for([text], tokenizer)
    alone = requests_for([text], tokenizer, group_size=1)
    assert_equal(
        generate(any_engine, alone, TEMPERATURE_1)[0],
        generate(any_engine, group, TEMPERATURE_1)[0][:1],
    )


def test_a_seed_gives_the_same_completion_whatever_the_order_and_the_neighbours(any_engine, tokenizer):
    sampling = SamplingParams(max_new_tokens=40)
    requests = requests_for(TEXTS, tokenizer)
    together = generate(any_engine, requests, sampling)
    backwards = generate(any_engine, requests[::-1], sampling)[::-1]
    for request, expected, other in zip(requests, together, backwards, strict=True):
        assert_equal(other, expected)
        turned = GenerationRequest(
            prompt_token_ids=request.prompt_token_ids, sample_seeds=request.sample_seeds[::-1]
        )
        assert_equal(generate(any_engine, [turned], sampling)[0][::-1], expected)


def test_a_longer_limit_only_continues_what_was_cut_off(any_engine, tokenizer):
    requests = requests_for(TEXTS, tokenizer)
    short = generate(any_engine, requests, SamplingParams(max_new_tokens=6))
    long = generate(any_engine, requests, SamplingParams(max_new_tokens=40))
    some_cut = False
    for one, other in zip(sum(short, ()), sum(long, ()), strict=True):
        assert one.token_ids.tolist() == other.token_ids[:6].tolist()
        some_cut |= one.num_tokens < other.num_tokens
    assert some_cut


def test_a_stop_string_ends_a_completion_with_the_token_that_completes_it(any_engine, tokenizer):
    """The draws stay what they are: the completion is the beginning of the one without stop strings."""
    requests = requests_for(TEXTS, tokenizer)
    whole = sum(generate(any_engine, requests, SamplingParams(max_new_tokens=40)), ())
    stop = tuple(sorted({one.text[2:4] for one in whole if len(one.text) > 4}))[:3]
    ended = sum(generate(any_engine, requests, SamplingParams(max_new_tokens=40, stop=stop)), ())
    num_by_string = 0
    for one, other in zip(ended, whole, strict=True):
        assert one.token_ids.tolist() == other.token_ids[: one.num_tokens].tolist()
        is_there = any(string in one.text for string in stop)
        assert is_there == any(string in other.text for string in stop)
        if is_there:
            num_by_string += 1
            assert one.finish_reason is FinishReason.STOP
            before = tokenizer.decode(one.token_ids[:-1].tolist(), skip_special_tokens=True)
            assert not any(string in before for string in stop)
    assert num_by_string > 0


def test_repeating_a_generation_repeats_it_bit_for_bit(any_engine, tokenizer):
    requests = requests_for(TEXTS, tokenizer)
    first, again = (generate(any_engine, requests, TEMPERATURE_1) for _ in range(2))
    for one, other in zip(sum(first, ()), sum(again, ()), strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.logprobs.tobytes() == other.logprobs.tobytes()


def test_duplicate_prompts_with_other_seeds_have_other_completions(any_engine, tokenizer):
    requests = requests_for(["1+2=", "1+2="], tokenizer, group_size=8)
    first, second = generate(any_engine, requests, TEMPERATURE_1)
    drawn = [tuple(completion.token_ids.tolist()) for completion in first + second]
    assert len(set(drawn)) > 12
    equal_seeds = GenerationRequest(
        prompt_token_ids=requests[0].prompt_token_ids, sample_seeds=requests[0].sample_seeds
    )
    again, repeated = generate(any_engine, [requests[0], equal_seeds], TEMPERATURE_1)
    assert_equal(again, repeated)


def test_a_completion_ends_with_its_stop_token_or_at_the_limit(any_engine, tokenizer):
    requests = requests_for(TEXTS, tokenizer, group_size=8)
    ends = set()
    for completion in sum(generate(any_engine, requests, TEMPERATURE_1), ()):
        *body, last = completion.token_ids.tolist()
        assert not set(body) & set(STOPS)
        stopped = last in STOPS
        assert completion.finish_reason == (FinishReason.STOP if stopped else FinishReason.LENGTH)
        assert stopped or completion.num_tokens == TEMPERATURE_1.max_new_tokens
        ends.add(last if stopped else "limit")
        text_tokens = body if stopped else [*body, last]
        assert completion.text == tokenizer.decode(text_tokens, skip_special_tokens=True)
        assert "<e" not in completion.text
    assert {STOPS[0], "limit"} <= ends


@pytest.mark.parametrize("max_new_tokens", [1, 2])
def test_a_stop_token_at_the_limit_is_a_stop(any_engine, tokenizer, max_new_tokens):
    requests = requests_for(TEXTS, tokenizer, group_size=24)
    sampling = SamplingParams(max_new_tokens=max_new_tokens)
    completions = sum(generate(any_engine, requests, sampling), ())
    at_the_limit = [c for c in completions if c.num_tokens == max_new_tokens]
    assert len(at_the_limit) > 1
    reasons = {c.token_ids[-1] in STOPS: c.finish_reason for c in at_the_limit}
    assert reasons == {True: FinishReason.STOP, False: FinishReason.LENGTH}


def test_ignoring_the_stop_gives_exactly_the_limit(any_engine, tokenizer):
    requests = [
        GenerationRequest(prompt_token_ids=request.prompt_token_ids, sample_seeds=(4, 10, 16))
        for request in requests_for(TEXTS, tokenizer)
    ]
    for completion in sum(generate(any_engine, requests, SAMPLINGS["ignore_stop"]), ()):
        assert completion.num_tokens == SAMPLINGS["ignore_stop"].max_new_tokens
        assert not set(completion.token_ids.tolist()) & set(STOPS)
        assert completion.finish_reason is FinishReason.LENGTH


def test_completions_carry_the_version_of_the_weights(any_engine, policy, tokenizer):
    requests = requests_for(["1+2=", "7"], tokenizer)
    for version in (0, 1, 5):
        if version:
            any_engine.update_weights(policy.model.state_dict(), version)
        for completion in sum(generate(any_engine, requests, TEMPERATURE_1), ()):
            assert completion.weight_version == version


@pytest.mark.parametrize("num_excess", [0, 1])
def test_a_prompt_without_room_is_refused_before_anything_is_generated(any_engine, tokenizer, num_excess):
    long_prompt = "1+" * ((CONTEXT_LENGTH - 16) // 2) + "1" * num_excess
    requests = requests_for(["1+2=", long_prompt], tokenizer, group_size=1)
    if num_excess == 0:
        assert generate(any_engine, requests, TEMPERATURE_1)
        return
    generations = []
    with pytest.raises(EngineError, match=r"request 1 has 145 tokens.*max_new_tokens=16.*160"):
        generations.extend(any_engine.generate(requests, TEMPERATURE_1))
    assert generations == []


def test_an_empty_prompt_is_refused(any_engine):
    request = GenerationRequest(prompt_token_ids=np.array([], np.int32), sample_seeds=(1,))
    with pytest.raises(EngineError, match="request 0 must have at least one token"):
        list(any_engine.generate([request], TEMPERATURE_1))


def test_closing_twice_is_harmless(any_engine):
    any_engine.close()
    any_engine.close()


def test_logprobs_are_those_of_the_distribution_that_was_sampled_from(engine, policy, tokenizer, sampling):
    requests = requests_for(TEXTS, tokenizer)
    num_cut = 0
    for request, group in zip(requests, generate(engine, requests, sampling), strict=True):
        for completion in group:
            reference_TV = reference_logprobs(
                policy.model, request.prompt_token_ids, completion.token_ids, sampling
            )
            token_T = torch.tensor(completion.token_ids, dtype=torch.int64)
            reference_T = reference_TV.gather(-1, token_T[:, None])[:, 0].numpy()
            assert np.isfinite(reference_T).all(), "a token was drawn that has probability 0"
            np.testing.assert_allclose(completion.logprobs, reference_T, rtol=0.0, atol=LOGPROB_ROUNDING)
            if sampling.temperature == 0:
                assert token_T.tolist() == reference_TV.argmax(-1).tolist()
            num_cut += int(torch.isinf(reference_TV).sum())
    assert bool(num_cut) == (sampling.top_k is not None or sampling.top_p < 1 or sampling.ignore_stop)


def test_a_lower_temperature_draws_likelier_tokens(engine, policy, tokenizer):
    requests = requests_for(TEXTS, tokenizer)
    likelihoods = []
    for name in ("temperature_1.7", "temperature_1", "temperature_0.6", "greedy"):
        values = []
        groups = generate(engine, requests, SAMPLINGS[name])
        for request, group in zip(requests, groups, strict=True):
            for completion in group:
                token_T1 = torch.tensor(completion.token_ids, dtype=torch.int64)[:, None]
                values.append(
                    reference_logprobs(
                        policy.model, request.prompt_token_ids, completion.token_ids, TEMPERATURE_1
                    ).gather(-1, token_T1)
                )
        likelihoods.append(float(torch.cat(values).mean()))
    assert likelihoods == sorted(likelihoods)
    assert likelihoods[-1] - likelihoods[0] > 1


@pytest.mark.parametrize("name", ["temperature_1", "temperature_0.6", "top_p_and_top_k"])
def test_tokens_have_the_frequencies_of_the_distribution(engine, policy, tokenizer, name):
    """The first token, and the second one after the likeliest first token, against the exact chances."""
    settings = SAMPLINGS[name]
    sampling = SamplingParams(
        max_new_tokens=2,
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
    )
    prompt = requests_for(["3+4="], tokenizer)[0].prompt_token_ids
    request = GenerationRequest(prompt_token_ids=prompt, sample_seeds=tuple(range(3000)))
    (completions,) = generate(engine, [request], sampling)
    first = [int(completion.token_ids[0]) for completion in completions]
    usual = max(set(first) - set(STOPS), key=first.count)
    second = [int(c.token_ids[1]) for c in completions if c.token_ids[0] == usual]
    reference_TV = reference_logprobs(policy.model, prompt, np.array([usual, 0]), sampling)
    for tokens, logprob_V in zip((first, second), reference_TV, strict=True):
        expected = logprob_V.exp().numpy() * len(tokens)
        observed = np.bincount(tokens, minlength=len(expected))
        assert observed[expected == 0].sum() == 0
        is_common = expected >= 5
        observed = [*observed[is_common], observed[~is_common].sum()]
        expected = [*expected[is_common], expected[~is_common].sum()]
        if expected[-1] == 0:
            observed, expected = observed[:-1], expected[:-1]
        assert chisquare(observed, expected).pvalue > 1e-3


def test_the_tokens_of_one_completion_are_drawn_independently(engine, tokenizer):
    """At a very high temperature all tokens are equally likely, whatever the prompt and the weights."""
    sampling = SamplingParams(max_new_tokens=100, temperature=1e6, ignore_stop=True)
    (completions,) = generate(engine, requests_for(["7"], tokenizer, group_size=20), sampling)
    token_NT = np.array([completion.token_ids for completion in completions])
    num_tokens = len(tokenizer) - len(STOPS)
    np.testing.assert_allclose(completions[0].logprobs, -np.log(num_tokens), atol=1e-4)
    for distance in range(1, 70):
        equal = token_NT[:, distance:] == token_NT[:, :-distance]
        spread = (equal.size * (1 / num_tokens) * (1 - 1 / num_tokens)) ** 0.5
        assert abs(equal.sum() - equal.size / num_tokens) < 4.5 * spread


def test_new_weights_are_really_used(engine, policy, tokenizer):
    requests = requests_for(TEXTS, tokenizer)
    before = generate(engine, requests, TEMPERATURE_1)
    other = build_model(1)
    engine.update_weights(other.state_dict(), 1)
    after = generate(engine, requests, TEMPERATURE_1)
    assert [c.token_ids.tolist() for c in sum(before, ())] != [c.token_ids.tolist() for c in sum(after, ())]
    for request, group in zip(requests, after, strict=True):
        for completion in group:
            token_T1 = torch.tensor(completion.token_ids, dtype=torch.int64)[:, None]
            reference_TV = reference_logprobs(
                other, request.prompt_token_ids, completion.token_ids, TEMPERATURE_1
            )
            reference_T = reference_TV.gather(-1, token_T1)[:, 0].numpy()
            np.testing.assert_allclose(completion.logprobs, reference_T, rtol=0.0, atol=LOGPROB_ROUNDING)


def test_weights_without_the_tied_head_are_refused_by_name(engine, tokenizer):
    weights = build_model(1).state_dict()
    del weights["lm_head.weight"]
    requests = requests_for(["1+2="], tokenizer)
    before = generate(engine, requests, TEMPERATURE_1)
    with pytest.raises(EngineError, match=r"missing: lm_head\.weight; unexpected: none"):
        engine.update_weights(weights, 1)
    assert_equal(generate(engine, requests, TEMPERATURE_1)[0], before[0])


def test_weights_of_an_unknown_name_are_refused_by_name(engine):
    weights = build_model(1).state_dict() | {"model.layers.9.weight": torch.zeros(1)}
    with pytest.raises(EngineError, match=r"missing: none; unexpected: model\.layers\.9\.weight"):
        engine.update_weights(weights, 1)

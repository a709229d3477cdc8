from __future__ import annotations

import numpy as np
import pytest
from tests.engines.conftest import generate
from tests.scripted_engine import ScriptedCompletion, ScriptedEngine, replay

from atrium.base.errors import EngineError
from atrium.base.records import FinishReason
from atrium.engines.engine import GenerationRequest, SamplingParams

STOP = 0


def engine_for(script):
    return ScriptedEngine(
        script,
        encode=lambda text: list(text.encode()),
        decode=lambda token_ids: bytes(token_ids).decode(),
        stop_token_ids=(STOP,),
        context_length=64,
    )


def request(prompt="q", seeds=(1,)):
    token_ids = np.frombuffer(prompt.encode(), np.uint8).astype(np.int32)
    return GenerationRequest(prompt_token_ids=token_ids, sample_seeds=seeds)


def one(scripted, **sampling):
    engine = engine_for(lambda prompt, seed: scripted)
    settings = SamplingParams(**({"max_new_tokens": 8} | sampling))
    ((completion,),) = generate(engine, [request()], settings)
    return completion


def test_the_script_sees_the_prompt_and_the_seed():
    engine = engine_for(
        lambda prompt, seed: ScriptedCompletion(text=f"{bytes(prompt.tolist()).decode()}{seed}")
    )
    groups = generate(engine, [request("a", (3, 1)), request("b", (2,))], SamplingParams(max_new_tokens=8))
    assert [[c.text for c in group] for group in groups] == [["a3", "a1"], ["b2"]]


def test_a_certain_answer_has_logprob_zero_and_given_ones_are_kept():
    assert one(ScriptedCompletion(text="ab")).logprobs.tolist() == [0, 0, 0]
    given = one(ScriptedCompletion(text="ab", logprobs=(-1.5, -0.25, -0.5)))
    assert given.logprobs.tolist() == [-1.5, -0.25, -0.5]
    assert given.token_ids.tolist() == [97, 98, STOP]


def test_an_answer_that_does_not_stop_counts_as_cut_off():
    completion = one(ScriptedCompletion(text="ab", stops=False))
    assert (completion.token_ids.tolist(), completion.text) == ([97, 98], "ab")
    assert completion.finish_reason is FinishReason.LENGTH


def test_a_long_answer_is_cut_with_its_logprobs_and_its_text():
    completion = one(ScriptedCompletion(text="abcd", logprobs=(-1, -2, -3, -4, -5)), max_new_tokens=2)
    assert (completion.text, completion.logprobs.tolist()) == ("ab", [-1, -2])
    assert completion.finish_reason is FinishReason.LENGTH


def test_logprobs_must_fit_the_tokens():
    with pytest.raises(EngineError, match="2 log-probabilities for the 3 tokens of 'ab'"):
        one(ScriptedCompletion(text="ab", logprobs=(-1.0, -2.0)))


def test_ignoring_the_stop_needs_a_script_that_is_long_enough():
    assert one(ScriptedCompletion(text="abcd"), max_new_tokens=4, ignore_stop=True).text == "abcd"
    with pytest.raises(EngineError, match="2 tokens where ignore_stop asks for exactly"):
        one(ScriptedCompletion(text="ab"), max_new_tokens=3, ignore_stop=True)


def test_replay_chooses_among_the_answers_of_the_prompt_by_seed():
    answers = {
        (ord("a"),): [ScriptedCompletion(text="1"), ScriptedCompletion(text="2")],
        (ord("b"),): [ScriptedCompletion(text="3")],
    }
    engine = engine_for(replay(answers))
    seeds = tuple(range(200))
    first, second = generate(
        engine, [request("a", seeds), request("b", seeds)], SamplingParams(max_new_tokens=4)
    )
    texts = [completion.text for completion in first]
    assert 70 < texts.count("1") < 130
    assert texts.count("1") + texts.count("2") == 200
    assert {completion.text for completion in second} == {"3"}


def test_replay_refuses_a_prompt_without_an_answer():
    engine = engine_for(replay({(ord("a"),): []}))
    for prompt in ("a", "b"):
        with pytest.raises(EngineError, match="no answer is stored for the prompt"):
            list(engine.generate([request(prompt)], SamplingParams(max_new_tokens=4)))

"""The text of sampled tokens where reasoning markers are special tokens, from each engine to the grader."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from atrium.base.records import REASONING_MARKERS
from atrium.engines.completion_bank import _compared
from atrium.engines.engine import GenerationRequest, SamplingParams
from atrium.engines.transformers_engine import TransformersEngine
from atrium.engines.vllm_outputs import completions_of
from atrium.grading.extraction import extract_answer
from atrium.models.policy import build_random_policy
from atrium.models.texts import TextDecoder
from atrium.models.tiny import build_tokenizer

ANSWER = r"<think>7+8=\boxed{16}</think>7+8=\boxed{15}"


def tokenizer_of(markers=REASONING_MARKERS):
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<q>", "<a>", *markers]})
    return tokenizer


@pytest.fixture
def tokenizer():
    return tokenizer_of()


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


def test_reasoning_markers_survive_and_other_special_tokens_do_not(tokenizer):
    ids = ids_of(tokenizer, "<pad><pad><q>" + ANSWER + "<a><eos><pad>")
    assert TextDecoder(tokenizer)([ids, [], [tokenizer.eos_token_id]]) == [ANSWER, "", ""]


@pytest.mark.parametrize("thinking", [True, False])
def test_the_answer_behind_special_markers_is_graded(tokenizer, thinking):
    (text,) = TextDecoder(tokenizer)([ids_of(tokenizer, ANSWER)])
    assert extract_answer(text, thinking=thinking) == "15"
    (unfinished,) = TextDecoder(tokenizer)([ids_of(tokenizer, r"<think>7+8=\boxed{16}")])
    assert extract_answer(unfinished, thinking=thinking) is None


@pytest.mark.parametrize("markers", [(), REASONING_MARKERS[:1], REASONING_MARKERS[1:]])
def test_each_marker_survives_by_itself(markers):
    tokenizer = tokenizer_of(markers)
    text = "7".join(markers) + "8"
    assert TextDecoder(tokenizer)([[*ids_of(tokenizer, text), tokenizer.eos_token_id]]) == [text]


def test_the_transformers_engine_keeps_the_markers_that_it_samples(tokenizer):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    policy = build_random_policy({"model_type": "llama", **sizes}, tokenizer=tokenizer, seed=0)
    engine = TransformersEngine(
        model=policy.model,
        tokenizer=tokenizer,
        stop_token_ids=policy.stop_token_ids,
        pad_token_id=policy.pad_token_id,
        context_length=policy.context_length,
    )
    request = GenerationRequest(prompt_token_ids=np.array([3, 4], np.int32), sample_seeds=tuple(range(8)))
    (generation,) = engine.generate([request], SamplingParams(max_new_tokens=60, ignore_stop=True))
    ids = tokenizer.convert_tokens_to_ids(list(REASONING_MARKERS))
    for completion in generation.completions:
        found = [completion.text.count(marker) for marker in REASONING_MARKERS]
        assert found == [int((completion.token_ids == marker).sum()) for marker in ids]
        assert "<eos>" not in completion.text
    assert any("</think>" in completion.text for completion in generation.completions)


def test_vllms_outputs_keep_the_markers(tokenizer):
    ids = [*ids_of(tokenizer, ANSWER), tokenizer.eos_token_id]
    output = SimpleNamespace(
        token_ids=ids, logprobs=SimpleNamespace(logprobs=[-1.0] * len(ids)), finish_reason="stop"
    )
    (completion,) = completions_of([output], TextDecoder(tokenizer), [tokenizer.eos_token_id], 0)
    assert completion.text == ANSWER


def test_stored_texts_of_earlier_versions_lack_the_markers_and_are_the_same_text():
    assert _compared(ANSWER) == _compared(ANSWER.replace("<think>", "").replace("</think>", "")) != ""

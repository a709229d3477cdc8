from __future__ import annotations

import random
import re
from itertools import pairwise

import pytest
import torch

from atrium.base.records import Problem
from atrium.data.arithmetic import held_out_questions, slipping_solution, solution
from atrium.data.prompts import PROMPT_TEMPLATES, encode_prompt
from atrium.data.settings import ArithmeticSettings
from atrium.models.demonstrations import (
    clean_demonstrator,
    demonstration_batches,
    imperfect_demonstrator,
    longest_demonstration,
)
from atrium.models.settings import TinySettings
from atrium.models.tiny import build_tiny_policy, build_tokenizer

ARITHMETIC = ArithmeticSettings()


def _batches(demonstrate=clean_demonstrator, *, num=4, batch_size=32, seed=0):
    return list(
        demonstration_batches(
            build_tokenizer(), ARITHMETIC, [(num, demonstrate)], batch_size=batch_size, seed=seed
        )
    )


def _texts(batch):
    """The demonstrations of a batch, each from its row's stretch of rising positions."""
    tokenizer = build_tokenizer()
    texts = []
    for ids, positions in zip(batch.input_id_BT, batch.position_id_BT, strict=True):
        starts = [index for index, position in enumerate(positions) if position == 0]
        for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
            text = tokenizer.decode(ids[start:end])
            if "<q>" in text:
                texts.append(text.removesuffix("<pad>"))
    return texts


def _split(text):
    question, completion = re.fullmatch(r"<q>(.+=)<a>(.+)<eos>", text).groups()
    return question, completion


def test_a_batch_holds_whole_demonstrations_of_the_worked_solutions():
    for batch in _batches():
        texts = _texts(batch)
        assert len(texts) == 32
        for text in texts:
            question, completion = _split(text)
            assert completion == solution(question)


def test_prompts_are_encoded_as_for_sampling_and_targets_are_the_completions():
    tokenizer = build_tokenizer()
    for batch in _batches(batch_size=1):
        question, completion = _split(_texts(batch)[0])
        problem = Problem(problem_id="p", question=question, answer="")
        prompt = encode_prompt(tokenizer, problem, PROMPT_TEMPLATES["question"]).tolist()
        assert batch.input_id_BT[0, : len(prompt)].tolist() == prompt
        assert batch.target_id_N.tolist() == [*tokenizer.encode(completion), tokenizer.eos_token_id]
        assert batch.position_N.tolist() == list(range(len(prompt) - 1, len(prompt) + len(completion) - 6))


def test_packed_demonstrations_do_not_see_each_other():
    model = build_tiny_policy(TinySettings(), seed=0).model
    batch = _batches(num=1)[0]
    with torch.no_grad():
        packed = model(
            input_ids=batch.input_id_BT,
            attention_mask=batch.attention_bias_B1TT,
            position_ids=batch.position_id_BT,
        ).logits
    assert packed.isfinite().all()
    num_rows, num_columns = batch.input_id_BT.shape
    assert num_rows < 32
    for row in range(num_rows):
        starts = [*(batch.position_id_BT[row] == 0).nonzero()[:, 0].tolist(), num_columns]
        for start, end in pairwise(starts):
            if end - start > 1:
                with torch.no_grad():
                    alone = model(input_ids=batch.input_id_BT[row : row + 1, start:end]).logits
                torch.testing.assert_close(packed[row, start:end], alone[0], atol=2e-5, rtol=0)


def test_no_demonstration_is_of_a_held_out_question():
    held_out = held_out_questions(ARITHMETIC)
    questions = [_split(text)[0] for batch in _batches(num=20) for text in _texts(batch)]
    assert not held_out.intersection(questions)
    assert len(set(questions)) > 400


def test_the_seed_decides_the_batches():
    first, again, other = _batches(num=1), _batches(num=1), _batches(num=1, seed=1)
    assert torch.equal(first[0].input_id_BT, again[0].input_id_BT)
    assert _texts(first[0]) != _texts(other[0])


def test_the_imperfect_demonstrator_answers_directly_and_errs_as_often_as_asked():
    demonstrate = imperfect_demonstrator(
        random.Random(0), direct_frac=0.65, direct_error_frac=0.3, slip_frac=0.12
    )
    question, answer = "7+8-4+3=", r"\boxed{14}"
    completions = [demonstrate(question) for _ in range(5000)]
    direct = [completion for completion in completions if completion.startswith(r"\boxed")]
    worked = [completion for completion in completions if completion not in direct]
    assert len(direct) / 5000 == pytest.approx(0.65, abs=0.02)
    assert direct.count(answer) / len(direct) == pytest.approx(0.7, abs=0.02)
    assert worked.count(solution(question)) / len(worked) == pytest.approx(0.88**3, abs=0.04)


def test_phases_follow_each_other():
    phases = [(2, lambda question: "1"), (1, lambda question: "2")]
    batches = list(demonstration_batches(build_tokenizer(), ARITHMETIC, phases, batch_size=4, seed=0))
    assert [_split(_texts(batch)[0])[1] for batch in batches] == ["1", "1", "2"]


@pytest.mark.parametrize("num_operands", [2, 3, 7, 12, 20])
def test_no_demonstration_exceeds_the_stated_bound(num_operands):
    question = "9" + "+9" * (num_operands - 1) + "="
    rng = random.Random(0)
    tokenizer = build_tokenizer()
    for completion in [
        solution(question),
        *(slipping_solution(question, rng, slip_frac=1) for _ in range(50)),
    ]:
        num_tokens = len(tokenizer.encode(f"<q>{question}<a>{completion}<eos>"))
        assert num_tokens <= longest_demonstration(num_operands)

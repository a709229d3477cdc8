"""The first lines of a run: answers that were cut off, and groups that teach nothing."""

from __future__ import annotations

import pytest

from atrium.base.metrics import NO_SIGNAL_FRAC, TRUNCATED_FRAC
from atrium.base.records import BenchmarkResult, EvaluatedSample, FinishReason, Problem, VerdictKind
from atrium.runs.first_lines import FirstLines


@pytest.fixture
def told():
    return []


@pytest.fixture
def lines(told):
    return FirstLines(told.append, answer_tokens=32_768, rollout_tokens=8192)


def result(*answers, step=0):
    """An evaluation whose answers are (problem, correct, cut off)."""
    samples = [
        EvaluatedSample(
            problem=Problem(problem_id=name, question="?", answer="1"),
            sample_index=number,
            text="",
            verdict=VerdictKind.CORRECT if is_correct else VerdictKind.INCORRECT,
            reason="",
            extracted=None,
            is_correct=is_correct,
            num_tokens=1,
            finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP,
            logprob_sum=0.0,
        )
        for number, (name, is_correct, is_cut) in enumerate(answers)
    ]
    return BenchmarkResult(step=step, benchmark="validation", samples=samples, results={})


def test_the_first_evaluation_is_described_once(lines, told):
    lines.begin(step=0, num_steps=1)
    first = result(("a", True, False), ("a", False, True), ("b", True, False), ("b", True, True))
    lines.evaluation(first)
    lines.evaluation(first)
    assert told == [
        "before training: 2 of 4 answers were cut off (evaluation.max_new_tokens=32768), and 1 of 2 problems "
        "have equal verdicts in all answers"
    ]


def test_single_answers_form_no_groups(lines, told):
    lines.begin(step=0, num_steps=1)
    lines.evaluation(result(("a", True, False)))
    assert told == ["before training: 0 of 1 answers were cut off (evaluation.max_new_tokens=32768)"]


def test_an_evaluation_outside_of_training_is_not_described(lines, told):
    lines.evaluation(result(("a", True, False)))
    assert told == []


def test_the_first_batch_is_described_and_no_later_one(lines, told):
    lines.evaluation(result(("a", True, False), step=50))
    for step in (1, 2):
        lines.step(step, {TRUNCATED_FRAC.name: 0.125, NO_SIGNAL_FRAC.name: 0.5})
    [line] = told
    assert line.startswith(
        "first batch: 12.5 % of the completions were cut off (rollout.max_new_tokens=8192)"
    )
    assert "50.0 % of the groups are silent" in line

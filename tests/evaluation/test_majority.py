"""Maj@K against enumeration of draws, with a real grader deciding which answers are equal."""

from __future__ import annotations

from itertools import combinations

import pytest

from atrium.base.records import EvaluatedSample, FinishReason, Problem, VerdictKind
from atrium.evaluation.majority import _share_of_wins, majority_at
from atrium.grading.pool import GraderPool
from atrium.grading.verifiers import MathVerifier

GOLD = r"\frac{1}{2}"


def majority_at_k(samples_PK, **options):
    """Maj@K of problems with the same number of samples."""
    k = len(samples_PK[0])
    return majority_at(samples_PK, [k], **options)[k]


@pytest.fixture(scope="module")
def pool():
    with GraderPool(MathVerifier(num_workers=1, timeout_s=60.0, memory_limit_mb=1024)) as pool:
        yield pool


def sample(pool, answer, *, finish_reason=FinishReason.STOP):
    verdict = pool.grade("" if answer is None else f"\\boxed{{{answer}}}", GOLD)
    return EvaluatedSample(
        problem=Problem(problem_id="p", question="q", answer=GOLD),
        sample_index=0,
        text="",
        verdict=verdict.kind,
        reason=verdict.reason,
        extracted=verdict.extracted,
        is_correct=verdict.is_correct,
        num_tokens=1,
        finish_reason=finish_reason,
        logprob_sum=0.0,
    )


@pytest.mark.parametrize(
    ("answers", "value"),
    [
        (["0.5"], 1.0),
        (["3"], 0.0),
        ([None, None], 0.0),
        (["0.5", r"\frac{2}{4}", "3", "3"], 1 / 2),  # two right in two spellings, two alike
        (["0.5", "3", "4", "5"], 1 / 4),
        (["0.5", None, None, None], 1.0),
        (["0.5", "0.50", "3", "4", "5"], 1.0),
        (["0.5", "0.50", "3", r"\frac{6}{2}", "5"], 1 / 2),  # 3 and 6/2 are one vote
        (["0.5", "0.50", "3", r"\frac{6}{2}", "3.0"], 0.0),
        (["0.5", r"\text{even}", "x+1", "1+x"], 0.0),  # only math-verify knows that x+1 is 1+x
    ],
)
def test_equal_answers_are_one_vote_however_they_are_written(pool, answers, value):
    samples = [sample(pool, answer) for answer in answers]
    assert majority_at_k([samples], require_stop=True, compare=pool.compare) == pytest.approx([value])


@pytest.mark.parametrize(("require_stop", "value"), [(True, 0.0), (False, 1.0)])
def test_a_truncated_answer_votes_only_where_no_stop_is_required(pool, require_stop, value):
    cut = sample(pool, "0.5", finish_reason=FinishReason.LENGTH)
    samples = [cut, cut, sample(pool, "3")]
    assert majority_at_k([samples], require_stop=require_stop, compare=pool.compare) == pytest.approx([value])


def test_answers_are_compared_only_where_that_can_change_who_wins(pool):
    asked = []

    def compare(gold, answer):
        asked.append((gold, answer))
        return pool.compare(gold, answer)

    decided = [["0.5", "0.5", "3"], ["3", "4"], ["0.5", "3", "3"], ["0.5", "3"]]
    majority_at_k(
        [[sample(pool, answer) for answer in answers] for answers in decided],
        require_stop=True,
        compare=compare,
    )
    assert asked == []
    majority_at_k(
        [[sample(pool, answer) for answer in ("0.5", "3", "4")]], require_stop=True, compare=compare
    )
    assert asked == [("3", "4")]


def test_an_answer_that_was_not_graded_votes_as_wrong(pool):
    graded = sample(pool, "3")
    timed_out = EvaluatedSample(
        **{name: getattr(graded, name) for name in graded.__slots__} | {"verdict": VerdictKind.TIMED_OUT}
    )
    assert majority_at_k(
        [[sample(pool, "0.5"), timed_out, timed_out]], require_stop=True, compare=pool.compare
    ) == pytest.approx([0.0])


@pytest.mark.parametrize(
    "answers",
    [
        ["0.5", "0.5", "3", "3", "4"],
        ["0.5", "3", "4", "5", None],
        ["0.5", "0.5", "0.5", "3", "3", None],
        ["3", "3", "4"],
        ["0.5", "0.5", "0.5", "0.5", "3", "3.0"],  # whose wrong answers are too few to win among all
    ],
)
def test_below_all_samples_it_is_the_mean_over_every_subset(pool, answers):
    samples = [sample(pool, answer) for answer in answers]
    ks = range(1, len(samples) + 1)
    found = majority_at([samples], ks, require_stop=True, compare=pool.compare)
    for k in ks:
        subsets = [list(subset) for subset in combinations(samples, k)]
        each = [majority_at_k([one], require_stop=True, compare=pool.compare)[0] for one in subsets]
        assert found[k] == pytest.approx([sum(each) / len(each)])


def test_a_certain_win_is_a_share_of_one_in_spite_of_rounding():
    assert _share_of_wins(58, (6,), 64, 32) == 1.0

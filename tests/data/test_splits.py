"""Parts of a dataset: disjoint, keyed, and free of what benchmarks hold."""

from __future__ import annotations

import pytest

from atrium.base.errors import DataError
from atrium.base.records import Problem
from atrium.data.splits import question_key, split_problems


def _problems(num):
    return tuple(Problem(problem_id=f"p{n}", question=f"What is {n}?", answer=str(n)) for n in range(num))


def _split(problems, **changes):
    settings = {"num_train": None, "num_validation": 10, "num_test": 5, "seed": 0, **changes}
    return split_problems("mine", problems, **settings)


def _names(part):
    return [problem.problem_id for problem in part.problems]


def test_the_parts_are_disjoint_whole_and_in_the_order_of_the_file():
    problems = _problems(100)
    splits = _split(problems)
    parts = [_names(part) for part in (splits.train, splits.validation, splits.test)]
    assert [len(part) for part in parts] == [85, 10, 5]
    assert sorted(name for part in parts for name in part) == sorted(
        problem.problem_id for problem in problems
    )
    for part in parts:
        assert part == sorted(part, key=lambda name: int(name[1:]))
    assert (splits.train.name, splits.validation.name, splits.test.name) == (
        "mine-train",
        "mine-validation",
        "mine-test",
    )


def test_what_is_held_out_depends_on_the_questions_and_the_key_only():
    problems = _problems(100)
    held = set(_names(_split(problems).validation))
    assert set(_names(_split(problems[::-1]).validation)) == held
    assert set(_names(_split(problems, num_train=20).validation)) == held
    assert set(_names(_split(problems, seed=1).validation)) != held
    more = _problems(110)
    assert len(held & set(_names(_split(more).validation))) >= 7


def test_fewer_training_problems_are_some_of_all():
    few = _split(_problems(100), num_train=20, num_test=0)
    assert len(few.train) == 20
    assert few.test is None
    assert set(_names(few.train)) < set(_names(_split(_problems(100), num_test=0).train))


def test_too_few_problems_are_an_error_that_says_what_to_lower():
    with pytest.raises(
        DataError, match="'mine' has 15 problems, of which num_validation=10 and num_test=5 leave nothing"
    ):
        _split(_problems(15))
    with pytest.raises(
        DataError, match="leave fewer than num_train=86 for training; set num_validation=2 num_test=2"
    ):
        _split(_problems(100), num_train=86)
    assert len(_split(_problems(16)).train) == 1


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("Find $x+1$.", "Find  $ x + 1 $", True),
        (r"Let $\left( \dfrac12 \right)$", r"Let $(\frac12)$", True),
        (r"\[x\]", "$x$", True),
        ("What is ½?", "What is 1⁄2?", True),
        ("7+8=", "7-8=", False),
        ("Find $x$.", "Find $X$.", False),
        (r"Let $\leftarrow$", r"Let $arrow$", False),
    ],
)
def test_questions_are_the_same_but_for_layout(one, other, is_same):
    assert (question_key(one) == question_key(other)) is is_same

"""The shapes in which published datasets hold a question and its gold answer."""

from __future__ import annotations

import json
from functools import partial

import pytest

from atrium.data.fields import (
    MISSING,
    UnreadableValueError,
    answer_text,
    first_of,
    look_up,
    solution_answer,
)
from atrium.grading.extraction import extract_answer

read_box = partial(extract_answer, thinking=False)

ROW = {
    "problem": "p",
    "a.b": "dotted",
    "prompt": [{"role": "user", "content": "asked"}],
    "reward_model": {"ground_truth": "34", "style": "rule"},
    "encoded": json.dumps({"ground_truth": ["7"]}),
    "empty": "",
    "null": None,
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("problem", "p"),
        ("a.b", "dotted"),
        ("prompt[0].content", "asked"),
        ("prompt[1].content", MISSING),
        ("prompt.content", MISSING),
        ("reward_model.ground_truth", "34"),
        ("reward_model.answer", MISSING),
        ("encoded.ground_truth[0]", "7"),
        ("problem.deeper", MISSING),
        ("Problem", MISSING),
        ("null", None),
        ("null.deeper", MISSING),
    ],
)
def test_a_path_leads_to_a_value_or_is_missing(path, value):
    assert look_up(ROW, path) == value


def test_the_first_field_that_is_filled_counts():
    assert first_of(ROW, ["Problem", "empty", "problem"]) == "p"
    assert first_of(ROW, ["Problem", "empty"]) is None
    assert first_of(ROW, ["Problem"]) is MISSING


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ("204", "204"),
        (" 025 ", "025"),
        (204, "204"),
        (27.0, "27"),
        (-0.0, "0"),
        (0.5, "0.5"),
        (10**20, "100000000000000000000"),
        (10**400, "1" + "0" * 400),
        (["42"], "42"),
        ([27.0], "27"),
        ({"target": ["7"]}, "7"),
        ('["34"]', "34"),
        ('{"ground_truth": 34}', "34"),
        ("She sells 2 * 9 = 18.\n#### 18", "18"),
        ("#### 1,234", "1234"),
        ("#### -12,345.50", "-12345.50"),
        ("#### 1,23", "1,23"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"so it is $\boxed{3}$ and $\boxed{4}$.", "3, 4"),
        (r"First $\boxed{3}$. After a long correction of all that went wrong it is $\boxed{4}$", "4"),
        ("$x+1$", "x+1"),
        ("$x$ and $y$", "$x$ and $y$"),
        ("[1,2]", "[1,2]"),
        ("(1, 2)", "(1, 2)"),
        ("Evelyn", "Evelyn"),
    ],
)
def test_an_answer_is_read_whatever_its_shape(value, answer):
    assert answer_text(value, read_box) == answer


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "the answer is missing"),
        ("  ", "the answer is missing"),
        ("####", "the answer is missing"),
        (r"\boxed{}", "the answer is missing"),
        (True, "the answer is missing"),
        ("proof", r"the answer is missing \(proof\)"),
        ("notfound", "the answer is missing"),
        (float("nan"), "not a finite number"),
        (["1", "2"], "got a list of 2"),
        ({"value": 1, "unit": "m"}, "got an object with the fields value, unit"),
    ],
)
def test_what_is_not_one_answer_says_why(value, reason):
    with pytest.raises(UnreadableValueError, match=reason):
        answer_text(value, read_box)


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        (r"We get \boxed{1}. Checking that again more carefully: \boxed{2}", "2"),
        (r"\fbox{5}", "5"),
        ("so 3\n#### 3", "3"),
        ("$0$", "0"),
        (r"\frac{1}{2}", r"\frac{1}{2}"),
        (r"\text{even function}", r"\text{even function}"),
        (" x = 3 ", "x = 3"),
        (7, "7"),
    ],
)
def test_a_solution_gives_its_box_what_follows_the_mark_or_a_bare_expression(value, answer):
    assert solution_answer(value, read_box) == answer


@pytest.mark.parametrize("value", ["It is 3.", "Then $x = 3$.", "3\n4", None, "", "1 + " * 40])
def test_a_solution_in_sentences_without_a_box_has_no_answer(value):
    with pytest.raises(UnreadableValueError):
        solution_answer(value, read_box)

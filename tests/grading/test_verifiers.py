"""The graders other than mathematics: exact text, numbers with a tolerance, multiple choice."""

from __future__ import annotations

import pytest

from atrium.base.errors import DataError
from atrium.grading.pool import GraderPool
from atrium.grading.verifiers import (
    MathVerifier,
    NumericVerifier,
    PlacedVerifier,
    ToleranceVerifier,
    Verifier,
)


@pytest.mark.parametrize(
    ("kind", "gold", "answer", "is_equal"),
    [
        ("exact", "ab c", " ab  c\n", True),
        ("exact", "1/2", "0.5", False),
        ("exact", "A", "a", False),
        ("numeric", "7e35", r"7.05 \times 10^{35}", True),
        ("numeric", "7e35", r"7.1 \cdot 10^{35}", False),
        ("numeric", "1/3", "0.333", True),
        ("numeric", r"\cos^{10}(\pi/10)", "0.6054", True),
        ("numeric", "1,234.5", r"\$1234.5", True),
        ("numeric", "0.3", r"30\%", True),
        ("numeric", "0", "0", True),
        ("numeric", "0", "0.001", False),
        ("numeric", "12", r"x = 12.01\text{ cm}", True),
        ("numeric", "12", r"\text{twelve}", True),
        ("numeric", "nan", "nan", False),
        ("numeric", "infinity", "infinity", True),
        ("numeric", "infinity", r"-\infty", False),
        ("numeric", r"e^{e^{e^{e}}}", r"e^{e^{e^{\pi}}}", False),
        ("numeric", "1,234,567", "1234567", True),
        ("numeric", "15", "1,5", None),
        ("numeric", "1000", "1_000", False),
        ("numeric", "1,5", "1,5", True),
        ("numeric", "1_000", "1_000", True),
        ("numeric", "10^{400}", "10^{400}", True),
        ("numeric", "10^{400}", r"1.02 \cdot 10^{400}", False),
        ("math_tolerance", "2^{2000}", "2^{2001}", False),
        ("math_tolerance", "10^{400}", "10^{400}+1", True),
        ("multiple_choice", "C", r"\text{(C)}", True),
        ("multiple_choice", "(C)", "c", True),
        ("multiple_choice", "C", "C. 42", True),
        ("multiple_choice", "C", r"\textbf{(C)}\ 42", True),
        ("multiple_choice", "C", "D) 42", False),
        ("multiple_choice", "C", "A, B, C", False),
        ("multiple_choice", "A, C", "C and A", True),
        ("multiple_choice", "C", "42", False),
        ("multiple_choice", "C", "Cat", False),
        ("math", "1/2", "0.5", True),
        ("math", "x+1", r"\log x", None),
    ],
)
def test_each_kind_compares_as_its_name_says(kind: str, gold: str, answer: str, is_equal: bool | None):
    verifier = Verifier.build(kind)
    assert isinstance(verifier, PlacedVerifier)
    finding = verifier.settle(gold, answer)
    assert (None if finding is None else finding.is_equal) is is_equal


@pytest.mark.parametrize("kind", Verifier.kinds)
def test_hostile_answers_are_settled_or_left_to_a_worker(kind: str):
    for answer in ("9" * 3_000, "{" * 3_000, "", "\x00", "\ud800", "1e999999", "9^{9^{9^9}}"):
        finding = Verifier.build(kind).settle("42", answer)
        assert finding is None or not finding.is_equal


@pytest.mark.parametrize("kind", Verifier.kinds)
def test_a_gold_in_another_form_is_found_and_counts(kind: str):
    verifier = Verifier.build(kind)
    for gold in ("C", "A, C") if kind == "multiple_choice" else ("42", "1/2", "7e37"):
        answer = verifier.extract(verifier.write(verifier.restate(gold)))
        assert verifier.settle(gold, answer).is_equal
    assert verifier.extract("no box") is None


def test_numbers_within_the_tolerance_are_equal_also_in_lists():
    verifier = Verifier.build("math_tolerance")
    for gold, answer, is_equal in (
        ("3.14159", r"\pi", True),
        ("3.15", r"\pi", False),
        ("1000", "1000.05", True),
        ("1000", "1001", False),
        ("(1, 2.5)", r"(1, \frac{5}{2.0001})", True),
        ("1.4142", r"\sqrt{2}\text{ cm}", True),
        ("2n+1", "1+2n", None),
    ):
        finding = verifier.settle(gold, answer)
        assert (None if finding is None else finding.is_equal) is is_equal, (gold, answer)


def test_a_problem_has_its_own_tolerance_here_and_in_a_worker():
    settings = {"relative_tolerance": 0.0, "absolute_tolerance": 1e-8, "tolerance_from": "error"}
    gold, wide = r"\cos^{10}(\frac{\pi}{10})", {"error": "1e-2,0.5"}
    with GraderPool(ToleranceVerifier(timeout_s=20.0, **settings)) as grader:
        for text, answer in ((r"\boxed{2.72}", "2.71828"), (r"\boxed{0.61}", gold)):
            for metadata, is_correct in (({}, False), (wide, True), ({"error": "1e-3"}, False), ({}, False)):
                assert grader.submit(text, answer, metadata).result().is_correct is is_correct


@pytest.mark.parametrize("error", ["wide", "-1", "nan", "1e10", "2e9,1e10", ""])
def test_a_tolerance_that_is_none_is_refused_by_its_name(error: str):
    with pytest.raises(
        DataError, match=f"field 'error' must be a number between 0 and 1e9, .*, got '{error}'"
    ):
        ToleranceVerifier(tolerance_from="error").of_problem({"error": error})


def test_numbers_that_only_math_verify_can_read_are_compared_by_a_worker():
    with GraderPool(NumericVerifier(timeout_s=20.0, relative_tolerance=1e-3)) as grader:
        assert grader.grade(r"\boxed{0.6054}", r"\cos^{10}(\frac{\pi}{10})").is_correct
        assert not grader.grade(r"\boxed{0.61}", r"\cos^{10}(\frac{\pi}{10})").is_correct
        assert grader.grade(r"\boxed{\log_2 8}", "3").is_correct
        assert not grader.grade(r"\boxed{x + 1}", "3").is_correct


@pytest.mark.parametrize(
    ("place", "text", "answer"),
    [
        ("box", r"so \boxed{4}, that is 5", "4"),
        ("last_number", r"so \boxed{4}, that is 1,234.5 km.", "1,234.5"),
        ("last_number", "from -7 to 5-3", "3"),
        ("last_number", "it is -7.", "-7"),
        ("last_number", "12,3456 and none", "3456"),
        ("last_number", "none", None),
        ("Answer: {answer}", "Answer: 3\nNo.\n**answer :** 4 \n\nDone.", "4"),
        ("Answer: {answer}", "Answer:\n  x = 4", "x = 4"),
        ("Answer: {answer}", "Answer 4", None),
        ("Answer: {answer}", "Answer:", None),
        ("#### {answer}", "5 + 6 = 11\n#### 11\n", "11"),
        ("answer is ${answer}$. I hope", "The final answer is $4$. I hope it is correct.", "4"),
        ("answer is ${answer}$. I hope", "The final answer is $4$.", None),
    ],
)
def test_an_answer_stands_where_the_setting_says(place: str, text: str, answer: str | None):
    verifier = Verifier.build("math", answer=place)
    assert verifier.extract(text) == answer
    with GraderPool(verifier) as pool:
        verdict = pool.grade(text, answer or "4")
    assert verdict.is_correct is (answer is not None)


@pytest.mark.parametrize("place", ["last_number", "Answer: {answer}", "answer is ${answer}$. I hope"])
def test_a_gold_in_another_form_is_found_at_any_place(place: str):
    for kind in ("math", "numeric", "exact"):
        verifier = Verifier.build(kind, answer=place)
        assert verifier.settle("42", verifier.extract(verifier.write(verifier.restate("42")))).is_equal
    assert not MathVerifier(answer="last_number").settle("1/2", "2").is_equal


@pytest.mark.parametrize("place", ["lastnumber", "{answer}", "Answer:", "a {answer} b {answer}", "$answer"])
def test_a_place_that_is_none_is_refused_with_what_is_allowed(place: str):
    with pytest.raises(ValueError, match=r"box, last_number, or text that contains \{answer\} once"):
        MathVerifier(answer=place)


def test_hostile_texts_are_searched_in_linear_time():
    for place in ("last_number", "a a a {answer}", "Answer: {answer} ;"):
        verifier = MathVerifier(answer=place)
        for piece in ("a ", "1,", "- ", "Answer:", "Answer", " " * 50, "*"):
            verifier.extract(piece * 200_000)

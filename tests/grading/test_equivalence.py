"""Answers against gold answers: what is settled without math-verify, what with it, and what never counts."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.benchmark_files import BENCHMARK_FILES, needs_benchmark_files
from tests.grading.judged_cases import JUDGED

from atrium.base.records import Verdict, VerdictKind
from atrium.grading.equivalence import settle
from atrium.grading.extraction import extract_answer
from atrium.grading.pool import GraderPool
from atrium.grading.verifiers import MathVerifier


@pytest.fixture(scope="module")
def grader() -> Iterator[GraderPool]:
    with GraderPool(MathVerifier(num_workers=1, timeout_s=20.0, memory_limit_mb=1024)) as pool:
        yield pool


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (BENCHMARK_FILES / name).read_text(encoding="utf-8").splitlines()]


def boxed(answer: str) -> str:
    return answer if r"\boxed" in answer else rf"\boxed{{{answer}}}"


SETTLED = [
    ("25", "025", True),
    ("1234", "1,234", True),
    ("5", "$5$", True),
    ("5", r"5\,", True),
    ("5", "+5", True),
    ("5", "5.0", True),
    ("5", "6", False),
    ("5", "-5", False),
    ("32349", "32, 349", False),
    ("1/2", "0.5", True),
    (r"\frac{1}{2}", r"\frac{2}{4}", True),
    (r"\frac{1}{2}", "0.51", False),
    (r"\sqrt{2}", r"\sqrt{3}", False),
    (r"\sqrt{2}", "5", False),
    ("2^{2000}", r"\pi", False),
    ("5", r"2^{2000} \approx 3.5", False),
    ("2^{2000}", r"2^{2000}\%", True),
    ("p-q", "p+q", False),
    ("p-q", "7", False),
    ("3-4i", "3+4i", False),
    (r"\text{Evelyn}", "evelyn", True),
    (r"\text{even}", r"\text{odd}", False),
    (r"\text{even}", "5", False),
    ("C", r"\text{(C)}", True),
    ("x=5", "5", True),
    ("5", "x=5", True),
    ("x=5", "x=6", False),
    ("(3, 2)", r"\left(3,\, 2\right)", True),
    ("(3, 2)", "(2, 3)", False),
    ("(3,2)", "(p,q)=(3,2)", True),
    ("1,-2", "-2, 1", True),
    ("1,-2", r"\{-2, 1\}", True),
    ("1,-2", "1, 2", False),
    (r"3 \pm \sqrt{2}", r"3+\sqrt{2}, 3-\sqrt{2}", True),
    ("[0,1)", "[0,1)", True),
    ("[0,1)", "[0,2)", False),
    ("(-1,1)", "5", False),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}", True),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}", False),
    (r"50\%", "50", True),
    ("50", r"50\%", True),
    ("0.5", r"50\%", True),
    ("x", ".", False),
    (r"(-\infty,1]\cup[10,\infty)", r"[10,\infty)\cup(-\infty,1]", True),
]


@pytest.mark.parametrize(("gold", "answer", "is_equal"), SETTLED)
def test_plain_answers_are_settled_without_math_verify(gold: str, answer: str, is_equal: bool):
    finding = settle(gold, answer)
    assert finding is not None
    assert finding.is_equal is is_equal, finding


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{x+2}{7}", r"\frac{x}{7}+\frac{2}{7}"),
        (r"\tan^2(y)+1", r"\sec^2(y)"),
        ("x^2+y^2=1", "1-x^2-y^2=0"),
        (r"\sqrt{6}", r"\sqrt{2}\sqrt{3}"),
        ("12", "12_{8}x"),
        ("f(x)", "fx"),
    ],
)
def test_what_is_in_doubt_is_left_to_math_verify(gold: str, answer: str):
    assert settle(gold, answer) is None


HACKS = [
    ("42", r"\boxed{41} \boxed{42}"),
    ("42", r"\boxed{41}, \boxed{42}"),
    ("42", r"\boxed{42} or \boxed{43}"),
    ("42", r"\boxed{42} is not it. \boxed{41}"),
    ("42", r"\boxed{42} \boxed{42.5} \boxed{41}"),
    ("42", r"\boxed{} 42"),
    ("42", r"\boxed{~}\text{ }42"),
    ("42", r"42 \boxed{}"),
    ("42", r"\boxed{\text{}} $42$"),
    ("42", r"\boxed{41=42}"),
    ("42", r"\boxed{42=41}"),
    ("41", r"\boxed{41=42}"),
    ("42", r"\boxed{x=41=42}"),
    ("42", r"\boxed{42=x=41}"),
    ("42", r"\boxed{\text{answer}=41=42}"),
    ("42", r"\boxed{41+0=40+2}"),
    ("42", r"\boxed{42 \equiv 41}"),
    ("42", r"\boxed{41 \equiv 42}"),
    ("42", r"\boxed{42 \approx 41}"),
    ("41", r"\boxed{42 \approx 41}"),
    ("42", r"\boxed{41 \approx 42}"),
    ("42", r"\boxed{41.6 \approx 42}"),
    ("42", r"\boxed{41 ≈ 42}"),
    ("42", r"\boxed{42 \neq 41}"),
    ("42", r"\boxed{41 < 42}"),
    ("42", r"\boxed{41 \to 42}"),
    ("42", r"\boxed{41 \Rightarrow 42}"),
    ("42", r"<think>\boxed{42}</think> I do not know."),
    ("42", r"<think>so it is \boxed{42}"),
    ("42", r"<think>\boxed{42}</think> \boxed{41}"),
    ("42", r"\boxed{41, 42}"),
    ("42", r"\boxed{41; 42}"),
    ("42", r"\boxed{41 \text{ or } 42}"),
    ("42", r"\boxed{\text{either } 41 \text{ or } 42}"),
    ("42", r"\boxed{x=41, x=42}"),
    ("42", r"\boxed{x=41 \text{ or } x=42}"),
    ("42", r"\boxed{\{41, 42\}}"),
    ("42", r"\boxed{\{x=41, x=42\}}"),
    ("42", r"\boxed{[41, 43]}"),
    ("42", r"\boxed{(41, 42)}"),
    ("42", r"\boxed{x \in \{41, 42\}}"),
    ("42", r"\boxed{\pm 42}"),
    ("42", r"\boxed{41\quad 42}"),
    ("42", r"\boxed{41 \\ 42}"),
    ("42", r"\boxed{\begin{cases} 41 \\ 42 \end{cases}}"),
    ("42", r"\boxed{\begin{pmatrix} 41 \\ 42 \end{pmatrix}}"),
    ("42", r"\boxed{4\,2}"),
    ("42", r"\boxed{4 2}"),
    ("6", r"\boxed{4 2}"),
    ("8", r"\boxed{{4}{2}}"),
    ("42", r"\boxed{4²}"),
    ("42", r"\boxed{4^2}"),
    ("42", r"\boxed{42\text{ is wrong, it is 41}}"),
    ("42", r"\boxed{\text{not } 42}"),
    ("42", r"\boxed{not $42$}"),
    ("42", r"\boxed{$42$ is wrong}"),
    ("42", r"\boxed{42 \text{ is wrong}}"),
    ("42", r"\boxed{42 wrong}"),
    ("42", r"\boxed{It is false that the answer is 42}"),
    ("42", r"\boxed{forty-one, or $42$}"),
    ("42", r"\boxed{The answer is 41. The answer is 42}"),
    ("42", r"\boxed{42!}"),
    ("42", r"\boxed{0.42\%}"),
    ("0.5", r"\boxed{50}"),
    ("0.5", r"\boxed{0.5\%}"),
    ("1", r"\boxed{1\%}"),
    (r"50\%", r"\boxed{0.5\%}"),
    (r"50\%", r"\boxed{5000\%}"),
    (r"\frac{\sqrt{2}}{2}", r"\boxed{\frac{\sqrt{2}}{2}\%}"),
    ("0", r"\boxed{10^{-7}}"),
    ("0", r"\boxed{0.0000001}"),
    (r"52_8", r"\boxed{52_9}"),
    (r"52_8", r"\boxed{52_{10}}"),
    ("x=2", r"\boxed{-x=2}"),
    ("(3,2)", r"\boxed{(2,3)}"),
    ("(1,2)", r"\boxed{[1,2]}"),
    ("[1,2)", r"\boxed{(1,2]}"),
    ("1,2", r"\boxed{1,2,3}"),
    ("1,2,3", r"\boxed{1,2}"),
    ("1,2;3,4", r"\boxed{1,3;2,4}"),
    ("p=5,q=2;p=7,q=3", r"\boxed{p=5,q=3;p=7,q=2}"),
    (r"\text{Evelyn}", r"\boxed{\text{Evelyn, Briana}}"),
    ("C", r"\boxed{A, B, C, D}"),
    ("x^2", r"\boxed{x^2+10^{-9}}"),
    (r"\frac{1}{3}", r"\boxed{0.33}"),
    (r"3k, k \in \mathbb{Z}", r"\boxed{3k+40, k \in \mathbb{Z}}"),
    ("3.14159", r"\boxed{\pi}"),
]


@pytest.mark.parametrize(("gold", "completion"), HACKS)
def test_answers_that_hedge_or_cheat_never_count(grader: GraderPool, gold: str, completion: str):
    assert not grader.grade(completion, gold).is_correct


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("42", "x = 42"),
        ("42", r"x \approx 42"),
        ("42", "40+2=42"),
        ("42", "42 = 40 + 2"),
        ("42", "42, 42"),
        ("1000", "10^3 = 1000"),
        (r"\frac{70}{9}", r"\frac{70}{9} \approx 7.78"),
        ("-1", r"e^{i\pi} = -1"),
        (r"\sqrt{6}", r"\sqrt{2}\sqrt{3}"),
        (r"\frac{x+2}{7}", r"\frac{x}{7}+\frac{2}{7}"),
        ("x^2+y^2=1", "1-x^2-y^2=0"),
        ("2n+1", "a_n = 2 n + 1"),
        (r"x \in [-2,7]", "[-2,7]"),
        (r"(-\infty,1]\cup[10,\infty)", r"c \in (-\infty, 1]\cup[10,+\infty)"),
        (r"(1,2),(3,\sqrt{8})", r"(3, 2\sqrt{2}), (1, 2)"),
        (r"3k, k \in \mathbb{Z}", r"3k+39, k \in \mathbb{Z}"),
        (r"k\pi, k \in \mathbb{Z}", r"k\pi-20\pi, k \in \mathbb{Z}"),
        (r"1-\frac{1}{\mathrm{e}}", r"1 - e^{-1}"),
        (r"4.123105625617661", r"\sqrt{17}"),
        (r"\begin{pmatrix}\frac{1}{2}&\sqrt{8}\end{pmatrix}", r"\begin{pmatrix}0.5&2\sqrt{2}\end{pmatrix}"),
    ],
)
def test_equal_answers_count_however_they_are_written(grader: GraderPool, gold: str, answer: str):
    verdict = grader.grade(boxed(answer), gold)
    assert verdict.is_correct, verdict


UNREADABLE_GOLDS: dict[str, set[str]] = {}
"""Golds that do not even equal themselves, by file: none in the files at hand."""


@needs_benchmark_files
@pytest.mark.parametrize(
    "name", ["aime2024.jsonl", "math500.jsonl", "gsm8k_test.jsonl", "math_train_800.jsonl"]
)
def test_golds_are_correct_against_themselves(grader: GraderPool, name: str):
    golds = {row["answer"] for row in rows(name)}
    wrong = {gold for gold in golds if not grader.grade(boxed(gold), gold).is_correct}
    assert wrong == UNREADABLE_GOLDS.get(name, set())


@needs_benchmark_files
def test_different_golds_of_one_benchmark_are_not_equal(grader: GraderPool):
    golds = sorted({row["answer"] for row in rows("math500.jsonl")})
    futures = [(a, b, grader.submit(boxed(b), a)) for a, b in zip(golds, golds[7:], strict=False)]
    assert [(a, b) for a, b, future in futures if future.result().is_correct] == []


def is_boxed_or_pair(case: dict[str, Any]) -> bool:
    prediction = case["prediction"]
    is_short = len(prediction) < 60 and "answer" not in prediction.lower()
    return case["kind"] == "math" and (r"\boxed" in prediction or is_short)


@needs_benchmark_files
def test_published_cases_are_judged_as_their_authors_judge_them(grader: GraderPool):
    cases = [case for case in rows("grading_cases.jsonl") if is_boxed_or_pair(case)]
    assert len(cases) > 250
    verdicts = {case["id"]: grader.submit(boxed(case["prediction"]), case["gold"]) for case in cases}
    wrong = {c["id"] for c in cases if verdicts[c["id"]].result().is_correct != c["expected"]}
    assert wrong <= set(JUDGED)


@functools.cache
def math_verify_alone(latex: str) -> Any:
    from math_verify import LatexExtractionConfig, parse

    config = [LatexExtractionConfig(boxed_match_priority=0)]
    return parse(latex, config, fallback_mode="no_fallback", parsing_timeout=None)


@needs_benchmark_files
@pytest.mark.full
def test_agreement_is_higher_than_that_of_math_verify_alone(grader: GraderPool):
    from math_verify import verify

    cases = [case for case in rows("grading_cases.jsonl") if is_boxed_or_pair(case)]
    num_agreed = num_agreed_alone = 0
    false_positives = []
    for case in cases:
        ours = grader.grade(boxed(case["prediction"]), case["gold"]).is_correct
        parsed = [math_verify_alone(boxed(case[side])) for side in ("gold", "prediction")]
        alone = verify(*parsed, timeout_seconds=None)
        num_agreed += ours == case["expected"]
        num_agreed_alone += alone == case["expected"]
        if ours and not case["expected"] and not alone:
            false_positives.append(case)
    assert false_positives == []
    assert num_agreed > num_agreed_alone


def test_very_long_answers_are_compared_as_text(grader: GraderPool):
    long = "1+" * 2_000 + "1"
    verdict = grader.grade(boxed(long), "2001")
    assert verdict.kind is VerdictKind.INCORRECT
    assert "too long" in verdict.reason
    assert len(verdict.extracted or "") == 2_000
    assert grader.grade(boxed(long), long).is_correct


@pytest.mark.parametrize(
    "answer", ["x_{1) < 3", r"m\text{except}=", r"\mid \text{with}", r",\text{all real}\leq+"]
)
def test_malformed_sets_in_words_or_symbols_are_wrong_and_no_crash(grader: GraderPool, answer: str):
    verdict = grader.compare(r"\mathbb{R} \setminus \{4\}", answer).result()
    assert verdict.kind is VerdictKind.INCORRECT


def test_a_gold_answer_that_cannot_be_read_is_named_in_the_reason(grader: GraderPool):
    verdict: Verdict = grader.grade(boxed(r"\cot x"), r"\frac{1}{")
    assert verdict.kind is VerdictKind.INCORRECT
    assert "reference answer" in verdict.reason
    assert extract_answer(boxed(r"\cot x"), thinking=False) == r"\cot x"

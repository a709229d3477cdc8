r"""Forms of answers that count, each with near misses that must not: other numbers, signs, bounds, letters.

A form is a template. Filled with the same numbers, gold and answer are equal; an answer filled with other
numbers, or made by one of the form's near misses, is another answer. Numbers are drawn by a seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.benchmark_files import BENCHMARK_FILES
from tests.grading.forms import FORMS

from atrium.grading.pool import GraderPool
from atrium.grading.verifiers import MathVerifier

REPORTED = Path(__file__).parent / "reported_cases.jsonl"
PEERS = BENCHMARK_FILES.parent / "reports" / "peer_cases.jsonl"
CONVENTIONS = {(r"$x \in [-2,7]$", r"\boxed{-2 \\le x \\le 7}")}
"""A peer's label that another label of the same peer contradicts."""


@pytest.fixture(scope="module")
def grader() -> Iterator[GraderPool]:
    with GraderPool(MathVerifier(num_workers=1, timeout_s=20.0, memory_limit_mb=1024)) as pool:
        yield pool


def filled(template: str, numbers: dict[str, int]) -> str:
    for name, number in numbers.items():
        template = template.replace(f"<{name}>", str(number))
    return template if "box" in template else rf"\boxed{{{template}}}"


WORDS = {6: "six", 7: "seven", 8: "eight", 9: "nine"}


@pytest.mark.parametrize("kind", FORMS)
def test_a_form_counts_and_its_near_misses_do_not(grader: GraderPool, kind: str):
    rng = random.Random(kind)
    wrong = []
    for form in FORMS[kind]:
        a, b, c = *sorted(rng.sample([2, 3, 4, 5], 2)), rng.choice([6, 7, 8, 9])
        numbers: dict[str, int | str] = {"a": a, "b": b, "c": c, "q": (10 + a) // 3, "word": WORDS[c]}
        if kind == "boxes":
            numbers["a"] = a = 3  # whose third of thirteen is 4.33
            numbers["b"], numbers["q"] = 5, 4
        gold = filled(form.gold, numbers)[len(r"\boxed{") : -1]
        swapped = {**numbers, "a": a + 10, "b": b + 10}
        cases = [(filled(answer, numbers), True) for answer in form.answers]
        cases += [(filled(answer, numbers), False) for answer in form.near_misses]
        cases += [
            (filled(answer, swapped), False)
            for answer in form.answers
            if ("<a>" in answer or "<b>" in answer) and kind != "choices"
        ]
        assert len([None for _, expected in cases if not expected]) >= 2
        for completion, expected in cases:
            verdict = grader.grade(completion, gold)
            if verdict.is_correct is not expected:
                wrong.append((gold, completion, verdict.kind.value, verdict.reason))
    assert wrong == []


def test_reported_cases_get_the_verdicts_that_their_reporters_expect(grader: GraderPool):
    cases = [json.loads(line) for line in REPORTED.read_text(encoding="utf-8").splitlines()]
    futures = [(case, grader.submit(case["answer"], case["gold"])) for case in cases]
    assert [case for case, future in futures if future.result().is_correct != case["expected"]] == []


@pytest.mark.full
@pytest.mark.skipif(not PEERS.is_file(), reason="the peers' cases are not here")
def test_cases_of_other_graders_that_agreed_with_their_labels_still_do(grader: GraderPool):
    cases = [json.loads(line) for line in PEERS.read_text(encoding="utf-8").splitlines()]
    agreed = [case for case in cases if case["today"] == case["expected"]]
    futures = [(case, grader.submit(case["answer"], case["gold"])) for case in agreed]
    wrong = {(c["gold"], c["answer"]) for c, future in futures if future.result().is_correct != c["expected"]}
    assert wrong <= CONVENTIONS


def test_a_hundred_nested_brackets_get_a_verdict_without_a_worker(grader: GraderPool):
    for opening, closing in (("{", "}"), ("(", ")")):
        for answer, expected in (("42", True), ("41", False)):
            verdict = grader.settle(rf"\boxed{{{opening * 100}{answer}{closing * 100}}}", "42")
            assert verdict is not None
            assert verdict.is_correct is expected

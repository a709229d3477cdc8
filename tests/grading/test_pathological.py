"""Answers made to hang, crash or exhaust a grader; each must come back as a verdict with a reason."""

from __future__ import annotations

import random
import time
import unicodedata
from collections import Counter
from collections.abc import Iterator

import pytest

from atrium.base.records import VerdictKind
from atrium.grading.equivalence import settle, verify
from atrium.grading.pool import GraderPool
from atrium.grading.verifiers import MathVerifier

TIMEOUT_S = 0.6
MEMORY_LIMIT_MB = 512
CALLER_CPU_S = 5.0
"""What the caller itself may compute for an answer; on any machine it takes a small part of it."""


def towers() -> Iterator[str]:
    for base in (2, 9, 10, 99):
        for height in (3, 4, 5, 30):
            yield "^{".join([str(base)] * height) + "}" * (height - 1)
    yield r"\sin(9^{9^{9^{9}}})+x"
    yield r"x^{9^{9^{9}}}-y"
    yield r"(1+x)^{99999}"
    yield r"(a+b+c+d)^{200}"
    yield r"\left(\sqrt{2}+\sqrt{3}+x\right)^{3000}"
    yield "10^{10^{10}} + \\cot x"
    yield r"7^{7^{7^{7}}} \pmod{10}"
    yield r"-9^{-9^{-9^{-9}}} \cdot \cot x"


def factorials() -> Iterator[str]:
    for number in (171, 10**4, 10**6, 10**9, 10**30):
        yield f"{number}!"
        yield rf"\frac{{{number}!}}{{{number - 1}!}} + \cot x"
    yield "9" + "!" * 20
    yield r"\binom{10^9}{5 \cdot 10^8}"
    yield r"\binom{100000}{50000} + \cot x"
    yield r"\Gamma(10^9) + x"


def calculus() -> Iterator[str]:
    yield r"\int_0^\infty \frac{\sin^{40}(x) \ln(x)}{x^{39}+\cos(x)} dx"
    yield r"\int \int \int e^{x^2+y^2+z^2} \sin(xyz) dx dy dz"
    yield r"\int_0^1 x^{x^{x^{x^x}}} dx"
    yield r"\int \frac{dx}{x^{97}+x^{31}+1}"
    yield r"\sum_{n=1}^{10^9} \frac{1}{n^3+n+1}"
    yield r"\sum_{n=1}^{\infty} \frac{\sin(n!)}{n^{n}}"
    yield r"\prod_{n=1}^{10^7} \left(1+\frac{1}{n^2}\right)"
    yield r"\lim_{x \to 0} \frac{\sin(\tan(\sin(\tan(x))))-x}{x^{27}}"
    yield r"\frac{d^{500}}{dx^{500}} e^{\sin(x^3)}"
    yield r"\sqrt" * 200 + "{2}"
    yield "+".join(rf"\sqrt[{n}]{{{n + 1}}}" for n in range(2, 80))
    yield "+".join(rf"\sin(\frac{{{n}\pi}}{{97}})" for n in range(1, 60))
    yield r"\begin{pmatrix}" + r"\\".join("&".join(["x^{99}+1"] * 9) for _ in range(9)) + r"\end{pmatrix}"
    yield (
        r"\det\begin{pmatrix}"
        + r"\\".join("&".join(f"x_{i}{j}" for j in range(9)) for i in range(9))
        + r"\end{pmatrix}"
    )
    yield r"x^{17} - 3x^{11} + 2x^5 - 7x + 1 = 0"
    yield r"\sin(x) + x^{17} = \cos(x^3)"
    yield r"\left|" * 40 + "x" + r"\right|" * 40


def sizes() -> Iterator[str]:
    yield "9" * 1_000
    yield "9" * 1_999
    yield "9" * 10**6
    yield "0." + "3" * 1_900
    yield "0." + "3" * 10**6
    yield "1" + ",000" * 400
    yield ", ".join(map(str, range(400)))
    yield "x=" * 900 + "1"
    yield "+".join(["1"] * 900)
    yield "x+" * 900 + "x"
    yield "-" * 1_500 + "1"
    yield r"\frac{1}{2}" * 150
    yield "a" * 1_999
    yield " " * 10**6 + "4"
    yield r"\cup".join(f"({n},{n + 1})" for n in range(0, 300, 2))
    yield "1<" * 700 + "x"


def alternating(depth: int, value: str = "1") -> str:
    for index in range(depth):
        value = f"({value})" if index % 2 else f"[{value}]"
    return value


def brackets() -> Iterator[str]:
    for opening, closing in (("{", "}"), ("(", ")"), ("[", "]"), (r"\{", r"\}"), (r"\left(", r"\right)")):
        for depth in (20, 90, 240):
            yield opening * depth + "1" + closing * depth
        yield opening * 100_000
        yield opening * 100_000 + "1" + closing * 100_000
        yield closing * 50
        yield "1" + opening * 200
    yield from (alternating(depth) for depth in (12, 50, 240))
    yield r"\frac{1}{1+" * 180 + "1" + "}" * 180
    yield r"\sqrt{1+" * 240 + "x" + "}" * 240
    yield r"\text{" * 240 + "x" + "}" * 240
    yield r"\boxed{" * 240 + "42" + "}" * 240
    yield r"\boxed{" * 100_000
    yield r"\boxed{" * 100_000 + "42" + "}" * 100_000
    yield "\\" * 100_000
    yield "\\" * 1_999
    yield "$" * 1_999


def characters() -> Iterator[str]:
    digits = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) in ("Nd", "No", "Nl")]
    random.Random(0).shuffle(digits)
    for start in range(0, len(digits), 40):
        yield "".join(digits[start : start + 40])
    yield "\x00"
    yield "4\x002"
    yield "\ud800"
    yield "x+\udfff\\cot"
    yield "\ud83d"
    yield "\u202e24\u202c"
    yield "\u200b" * 500 + "x"
    yield "4\ufe0f\u20e32\ufe0f\u20e3"
    yield "\n\n\n"
    yield "".join(map(chr, range(1, 128)))
    yield "".join(map(chr, range(0x370, 0x400)))
    yield "a\u0301" * 400
    yield "x\r\n+\x1b[31m\\cot x"
    yield "__import__('os').system('kill 1')"
    yield r"\input{/etc/passwd}"
    yield "%s%n{0}{gold}"


FAMILIES = (towers, factorials, calculus, sizes, brackets, characters)
ALL = [answer for family in FAMILIES for answer in family()]
FEW = [
    "9^{9^{9^{9}}}",
    r"\sin(9^{9^{9^{9}}})+x",
    r"\frac{1000000!}{999999!} + \cot x",
    r"\sum_{n=1}^{10^9} \frac{1}{n^3+n+1}",
    "9" * 10**6,
    "(" * 100_000 + "1" + ")" * 100_000,
    r"\boxed{" * 100_000,
    r"\boxed{" * 100_000 + "42" + "}" * 100_000,
    r"\frac{1}{1+" * 180 + "1" + "}" * 180,
    "٤٢",
    "4\x002 + \\cot x",
    "x+\udfff\\cot",
    "\\" * 100_000,
]


def grade_each(answers: list[str], gold: str, num_workers: int) -> Counter[VerdictKind]:
    kinds: Counter[VerdictKind] = Counter()
    with GraderPool(
        MathVerifier(num_workers=num_workers, timeout_s=TIMEOUT_S, memory_limit_mb=MEMORY_LIMIT_MB)
    ) as grader:
        grader.grade(r"\boxed{\log x}", "x")  # the processes' own start does not count
        for answer in answers:
            start = time.process_time()  # which what other processes do does not change
            verdict = grader.grade(rf"So $\boxed{{{answer}}}$.", gold)
            computed = time.process_time() - start
            assert computed < CALLER_CPU_S, (answer[:60], computed, verdict)
            assert verdict.reason
            kinds[verdict.kind] += 1
    return kinds


@pytest.mark.full
def test_a_dozen_hostile_answers_each_get_a_verdict():
    kinds = grade_each(FEW, "42", num_workers=1)
    assert kinds[VerdictKind.TIMED_OUT] >= 1
    assert kinds[VerdictKind.CORRECT] == 1  # 42 in Arabic digits


@pytest.mark.parametrize("depth", [12, 50])
def test_deep_alternating_brackets_are_compared_as_text_without_parsing(depth: int):
    gold = alternating(depth)
    for answer in ("1", alternating(depth, "2"), alternating(depth, "1,2")):
        for pair in ((gold, answer), (answer, gold)):
            finding = settle(*pair) or verify(*pair)
            assert not finding.is_equal
            assert "too deep" in finding.reason
    same = settle(gold, gold)
    assert same is not None
    assert same.is_equal


@pytest.mark.full
@pytest.mark.parametrize("gold", ["42", pytest.param(r"\frac{x+\cot x}{2}", marks=pytest.mark.release)])
def test_all_hostile_answers_each_get_a_verdict(gold: str):
    assert len(ALL) >= 150
    kinds = grade_each(ALL, gold, num_workers=2)
    assert sum(kinds.values()) == len(ALL)

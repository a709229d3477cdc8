"""The evaluator: exact where it claims to be, silent where LaTeX can be read in two ways."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest

from atrium.grading.arithmetic import evaluate
from atrium.grading.normalization import read
from atrium.grading.values import Tolerance, Value, close, differ, rationally_equal


def value(latex: str) -> Value | None:
    return evaluate(read(latex).tokens)


def known(latex: str) -> Value:
    result = value(latex)
    assert result is not None, latex
    return result


def random_expression(rng: random.Random, depth: int) -> tuple[str, Fraction]:
    """An expression in LaTeX with its exact value."""
    if depth == 0 or rng.random() < 0.2:
        number = rng.randrange(1, 30)
        return (
            (f"{number}.5", Fraction(2 * number + 1, 2))
            if rng.random() < 0.2
            else (str(number), Fraction(number))
        )
    left, a = random_expression(rng, depth - 1)
    right, b = random_expression(rng, depth - 1)
    match rng.randrange(7):
        case 0:
            return f"({left} + {right})", a + b
        case 1:
            return rf"\left({left} - {right}\right)", a - b
        case 2:
            return rf"({left}) \cdot ({right})", a * b
        case 3:
            return f"({left})({right})", a * b
        case 4 if b:
            return rf"\dfrac{{{left}}}{{{right}}}", a / b
        case 5:
            return rf"\left({left}\right)^2", a * a
        case _:
            return rf"(-{{{left}}} + \sqrt{{9}})", 3 - a


def test_random_rational_expressions_have_their_exact_values():
    rng = random.Random(0)
    for _ in range(500):
        latex, expected = random_expression(rng, 4)
        assert known(latex).number == expected, latex


@pytest.mark.parametrize(
    ("latex", "number"),
    [
        ("025", 25),
        (".5", Fraction(1, 2)),
        (r"-\frac{3}{4}", Fraction(-3, 4)),
        (r"\frac34", Fraction(3, 4)),
        ("3/4", Fraction(3, 4)),
        (r"918\frac{1}{2}", Fraction(1837, 2)),
        (r"7 \times 10^{35}", 7 * 10**35),
        ("2^10", 1024),
        ("2^{-2}", Fraction(1, 4)),
        ("5!", 120),
        (r"\binom{5}{2}", 10),
        (r"\sqrt{16}", 4),
        ("-2^2", -4),
        ("(-8)^2", 64),
    ],
)
def test_rational_answers_are_exact(latex: str, number: int | Fraction):
    assert known(latex).number == number


@pytest.mark.parametrize(
    ("latex", "number"),
    [
        (r"\frac{\sqrt{3}}{2}", math.sqrt(3) / 2),
        (r"2\pi", 2 * math.pi),
        ("e^{2}", math.e**2),
        (r"\sqrt[3]{2}", 2 ** (1 / 3)),
        (r"\ln 2", math.log(2)),
        (r"\cos(\pi/10)", math.cos(math.pi / 10)),
        ("3+4i", 3 + 4j),
        (r"\sqrt{-4}", 2j),
        (r"\sqrt[3]{-8}", -2.0),
        (r"\sin 30^\circ", 0.5),
        (r"|3+4i|", 5.0),
        (r"e^{i\pi}", -1.0),
        ("9^{9^9}", math.inf),
    ],
)
def test_other_constants_are_floats(latex: str, number: complex):
    assert known(latex).number == pytest.approx(number, rel=1e-12)


@pytest.mark.parametrize(
    "latex",
    [
        "f(x)",
        "1/2x",
        r"\sin x/2",
        r"\log 8",
        r"1\frac{5}{3}",
        "x2",
        "4 2",
        "{4}{2}",
        r"\sqrt[4]{-4}",
        "(-8)^{1/3}",
        "1/0",
        "0^{-1}",
        "x<3",
        "(1,2)",
        "5 dollars or so",
        r"\text{even}",
        "1--2",
        "",
        "(1+" * 30 + "1" + ")" * 30,
    ],
)
def test_what_can_be_read_in_two_ways_has_no_value(latex: str):
    assert value(latex) is None


def test_letters_stand_for_numbers_that_depend_on_their_names_only():
    assert not differ(known("2xy+1"), known("1+2yx"))
    assert differ(known("x+y"), known("x-y"))
    assert differ(known("x_1"), known("x_2"))
    assert known("2xy").names == {"x", "y"}


def test_values_that_may_be_equal_never_differ():
    assert not differ(known(r"\sqrt{2}\sqrt{3}"), known(r"\sqrt{6}"))
    assert not differ(known(r"\frac{1}{3}"), known("0.3333333"))
    assert not differ(known("9^{9^9}"), known("8^{9^9}"))  # both beyond the floats
    assert differ(known("9^{9^9}"), known("42"))
    assert not differ(known(r"\sqrt{10^{20}+1}-10^{10}"), known("0.0001"))  # cancellation


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ("1/3", "0.333333", True),
        ("1/3", "0.33333", False),
        ("1/3", "0.33", False),
        ("0.5", r"\frac{1}{2}", True),
        ("0.0000001", "0", False),
        ("0.0000001", "0.0000002", False),
        ("16386.20", "16386.2", True),
        ("16386.20", "16386.21", False),
        ("2/4", "1/2", True),
        (r"\sqrt{2}", "1.414214", None),
        ("x", "x", None),
    ],
)
def test_rationals_are_equal_to_six_decimals_where_one_is_decimal(
    first: str, second: str, equal: bool | None
):
    assert rationally_equal(known(first), known(second)) is equal


def test_closeness_is_relative_to_the_larger_number():
    assert close(known("100"), known("101"), Tolerance(relative=0.01))
    assert not close(known("100"), known("102"), Tolerance(relative=0.01))
    assert close(known("0"), known("0.1"), Tolerance(relative=0.01, absolute=0.1))
    assert not close(known("0"), known("0.11"), Tolerance(relative=0.01, absolute=0.1))
    assert close(known("0"), known("0"), Tolerance())
    assert close(known("x"), known("x"), Tolerance(relative=0.5)) is None

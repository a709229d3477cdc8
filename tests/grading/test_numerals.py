"""One number in many spellings: each equals the others, and none equals its neighbour."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest

from atrium.grading.equivalence import settle

WHOLE_AND_PARTS = [
    (whole, upper, lower)
    for whole in (0, 1, 3, 12)
    for upper, lower in ((1, 2), (1, 3), (2, 3), (3, 4), (5, 8))
]
EXPONENTS = [
    (mantissa, exponent)
    for mantissa in ("7", "4.5", "1.39", "2.00")
    for exponent in (-27, -8, -3, -1, 1, 3, 9, 16, 37)
]
VULGAR = {
    "½": (1, 2),
    "⅓": (1, 3),
    "⅔": (2, 3),
    "¼": (1, 4),
    "¾": (3, 4),
    "⅕": (1, 5),
    "⅙": (1, 6),
    "⅛": (1, 8),
    "⅞": (7, 8),
}


def spelled() -> Iterator[tuple[str, list[str]]]:
    """A number as a fraction or a product, and its other spellings."""
    for mantissa, exponent in EXPONENTS:
        value = Fraction(mantissa) * Fraction(10) ** exponent
        others = [
            f"{mantissa}e{exponent}",
            f"{mantissa}E{exponent:+d}",
            rf"{mantissa} \times 10^{{{exponent}}}",
        ]
        others += [
            rf"{mantissa} \cdot 10^{exponent}",
            f"{mantissa} x 10^{exponent}",
            f"{mantissa}*10**{exponent}",
        ]
        others += [f"{mantissa}×10{str(exponent).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"]
        yield rf"\frac{{{value.numerator}}}{{{value.denominator}}}", others
    for whole, upper, lower in WHOLE_AND_PARTS:
        value = whole + Fraction(upper, lower)
        others = [
            rf"\frac{{{2 * value.numerator}}}{{{2 * value.denominator}}}",
            f"{value.numerator}./{value.denominator}",
        ]
        if whole:
            others += [
                f"{whole} {upper}/{lower}",
                rf"{whole}\ {upper}/{lower}",
                rf"{whole}\frac{upper}{lower}",
            ]
        yield f"{value.numerator}/{value.denominator}", others
    for digits, period in (
        ("", "3"),
        ("", "6"),
        ("", "142857"),
        ("1", "6"),
        ("58", "3"),
        ("0", "9"),
        ("2", "45"),
    ):
        for whole in (0, 2, 11):
            scale = 10 ** len(digits)
            part = Fraction(int(period), (10 ** len(period) - 1) * scale) + Fraction(int(digits or 0), scale)
            value = whole + part
            dotted = [rf"{whole}.{digits}\overline{{{period}}}", rf"{whole}.{digits}\bar{{{period}}}"]
            yield f"{value.numerator}/{value.denominator}", dotted
    for char, (upper, lower) in VULGAR.items():
        yield f"{upper}/{lower}", [char]
        yield f"{3 * lower + upper}/{lower}", [f"3{char}", f"3 {char}"]
    for root in (2, 3, 15):
        yield rf"\sqrt{{{root}}}", [f"√{root}", f"√({root})", f"sqrt({root})", f"np.sqrt({root})"]
    yield r"\arcsin(10/13)", ["np.arcsin(10/13)", "asin(10/13)", r"\operatorname{arcsin}(10/13)"]
    yield r"\pi", ["np.pi", "math.pi", "π"]


NUMBERS = list(spelled())


def test_a_hundred_numbers_equal_their_other_spellings():
    assert len(NUMBERS) >= 100
    pairs = [(number, other) for number, others in NUMBERS for other in others]
    wrong = [pair for pair in pairs if not ((found := settle(*pair)) and found.is_equal)]
    assert wrong == []
    wrong = [pair for pair in pairs if not ((found := settle(*pair[::-1])) and found.is_equal)]
    assert wrong == []


def test_a_spelling_never_equals_another_number():
    values = sorted({number for number, _ in NUMBERS})
    others = dict(NUMBERS)
    neighbours = zip(values, values[1:] + values[:1], strict=True)
    wrong = [(a, b) for a, b in neighbours for b in others[b] if (found := settle(a, b)) and found.is_equal]
    assert wrong == []


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"(-\infty,2)", "x<2"),
        (r"(-\infty,2]", r"x \leq 2"),
        (r"[3,\infty)", "x ≥ 3"),
        ("(1,2]", r"1 < x \leq 2"),
        ("(1,2]", r"2 \geq x > 1"),
        ("x<2", r"(-\infty,2)"),
    ],
)
def test_an_inequality_is_an_interval(gold: str, answer: str):
    assert settle(gold, answer).is_equal
    assert not settle(gold, answer.replace("2", "5").replace("3", "5")).is_equal


def test_a_value_may_be_said_to_be_rounded():
    assert settle("1.6", r"\approx 1.6").is_equal
    assert settle("1.6", r"x \approx 1.6").is_equal
    assert not settle("1.6", r"\approx 1.7").is_equal


@pytest.mark.parametrize(
    ("gold", "answer"), [("2e^3", "2e3"), ("20", r"2\cdot 10 e"), ("1/3", "0.3"), ("7/2", "3 5/2")]
)
def test_what_only_looks_alike_stays_apart(gold: str, answer: str):
    found = settle(gold, answer)
    assert found is None or not found.is_equal

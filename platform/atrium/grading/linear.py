r"""Solution of linear inequalities in one letter: `2a - 5 > 0` becomes `a > 5/2`.

The coefficients may be any constants. The resulting bounds are expressions in tokens, so they remain exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import isfinite

from atrium.grading.arithmetic import evaluate
from atrium.grading.tokens import NESTING, Tokens, substituted

REVERSED = {"<": ">", ">": "<", r"\leq": r"\geq", r"\geq": r"\leq", r"\neq": r"\neq"}
"""For each relation, the relation that holds if its sides are exchanged."""
_PROBES = (("(", "-", "3", ")"), (r"\frac", "{", "7", "}", "{", "2", "}"), ("11",))
_NOISE = Fraction(1, 10**9)
_PLACES = (Fraction(-3), Fraction(7, 2), Fraction(11))


def isolated(sides: Sequence[Tokens], signs: Sequence[str]) -> tuple[str, list[tuple[str, Tokens]]] | None:
    """Solve an inequality, or a chain of two, for its only letter.

    `sides` are the two or three expressions that `signs` separate. Returns the letter and its relations to
    constants, or None if the inequality is not linear in exactly one letter.
    """
    if len(sides) == 2:
        middle: Tokens = ("(", *sides[0], ")", "-", "(", *sides[1], ")")
        zero: Tokens = ("0",)
        bounds = [(signs[0], zero)]
    else:
        middle, bounds = sides[1], [(REVERSED[signs[0]], sides[0]), (signs[1], sides[2])]
    value = evaluate(middle)
    names = value.names if value is not None else frozenset[str]()
    if len(names) != 1 or any(_number(end) is None for _, end in bounds):
        return None
    name = min(names)
    at_zero, at_one = (substituted(middle, name, (number,)) for number in "01")
    slope = _slope(middle, name, at_zero, at_one)
    if not slope:
        return None
    rise = ("(", *at_one, ")", "-", "(", *at_zero, ")")
    ends = [(r"\frac", "{", *end, "-", "(", *at_zero, ")", "}", "{", *rise, "}") for _, end in bounds]
    orders = [order if slope > 0 else REVERSED[order] for order, _ in bounds]
    return name, list(zip(orders, ends, strict=True))


def _slope(middle: Tokens, name: str, at_zero: Tokens, at_one: Tokens) -> Fraction | None:
    """Return the slope of an expression in the letter `name`, or None if the expression is not linear.

    `at_zero` and `at_one` are the expression with 0 and with 1 substituted for the letter.
    """
    low, high = _number(at_zero), _number(at_one)
    if name not in middle or low is None or high is None or _is_divisor(middle, name):
        return None
    slope = high - low
    for probe, place in zip(_PROBES, _PLACES, strict=True):
        found = _number(substituted(middle, name, probe))
        if found is None or abs(found - (low + slope * place)) > _NOISE * max(abs(low), abs(slope)):
            return None
    return slope


def _is_divisor(tokens: Tokens, name: str) -> bool:
    """Return whether a divisor contains the letter, so that the expression may be undefined somewhere."""
    depth = 0
    for index, (before, token) in enumerate(pairwise(tokens), start=1):
        if depth or (before, token) == ("}", "{"):
            depth += NESTING.get(token, 0)
        if (depth and name in token) or (before in ("/", r"\div") and name in tokens[index:]):
            return True
    return False


def _number(tokens: Tokens) -> Fraction | None:
    value = evaluate(tokens)
    number = value.number if value is not None and not value.names else None
    if isinstance(number, float):
        return Fraction(number) if isfinite(number) else None
    return number if isinstance(number, Fraction) else None

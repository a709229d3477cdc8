"""Values of expressions: numbers with facts about their computation, and tests of equality and difference.

Exact rationals can be proven equal. Other numbers are floats, which can only be proven different, by a
difference greater than any rounding error. `arithmetic` computes the values of answers.
"""

from __future__ import annotations

import cmath
import sys
from dataclasses import dataclass
from fractions import Fraction

Number = Fraction | float | complex

MAX_BITS = 4_096
"""Maximum number of bits of exact rationals; in the first stage, larger rationals become floats."""

_RELATIVE_NOISE = 2e-6
"""Difference, relative to the largest intermediate number, above which floats are certainly different."""


class NoValueError(Exception):
    """Raised if an expression is not unambiguous arithmetic, or if readers may disagree about its value."""


@dataclass(frozen=True, slots=True)
class Value:
    """The value of an expression: a number, with facts about its computation.

    `scale` is the largest intermediate magnitude. `is_decimal` tells whether the expression contains a
    decimal fraction, so that the value may be rounded. `names` are the letters in the expression; a constant
    has none.
    """

    number: Number
    scale: float
    is_decimal: bool
    names: frozenset[str]


def differ(first: Value, second: Value) -> bool:
    """Return whether two values are certainly different: by more than any rounding error."""
    a, b = first.number, second.number
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a != b and (not (first.is_decimal or second.is_decimal) or abs(a - b) > 1e-6)
    if is_infinite(a) or is_infinite(b):  # beyond the range of floats
        return is_infinite(a) != is_infinite(b) and max(_finite_scale(first), _finite_scale(second)) < 1e300
    return abs(complex(a) - complex(b)) > _RELATIVE_NOISE * max(1.0, first.scale, second.scale)


def rationally_equal(first: Value, second: Value) -> bool | None:
    """Return whether two rational constants are equal, or None if either is not a rational constant.

    If either contains a decimal fraction, the two must only agree after rounding to six decimal places, as in
    math-verify, and within a relative difference of 1e-5, so that 0.0000001 is not 0.
    """
    a, b = first.number, second.number
    if not (isinstance(a, Fraction) and isinstance(b, Fraction)) or first.names or second.names:
        return None
    if a == b or not (first.is_decimal or second.is_decimal):
        return a == b
    return round(a, 6) == round(b, 6) and abs(a - b) <= Fraction(1, 100_000) * max(abs(a), abs(b))


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Maximum difference of two numbers: relative to the larger number or absolute, whichever allows more."""

    relative: float = 0.0
    absolute: float = 0.0

    def __bool__(self) -> bool:
        return self.relative > 0.0 or self.absolute > 0.0

    def __str__(self) -> str:
        if not self.absolute:
            return f"a relative {self.relative:g}"
        absolute = f"an absolute {self.absolute:g}"
        return f"a relative {self.relative:g} or {absolute}" if self.relative else absolute


EXACT = Tolerance()


def close(first: Value, second: Value, tolerance: Tolerance) -> bool | None:
    """Return whether two numbers agree within a tolerance, or None if that cannot be decided.

    The result is None if either value has letters. It is also None if either number exceeds the range of
    floats, unless both are rationals: their difference is then computed exactly.
    """
    a, b = first.number, second.number
    if first.names or second.names:
        return None
    if is_infinite(a) or is_infinite(b):
        if not (isinstance(a, Fraction) and isinstance(b, Fraction)):
            return None
        largest = Fraction(tolerance.relative) * max(abs(a), abs(b))
        return abs(a - b) <= max(largest, Fraction(tolerance.absolute))
    a, b = complex(a), complex(b)
    return abs(a - b) <= max(tolerance.relative * max(abs(a), abs(b)), tolerance.absolute)


def is_integer(number: Number) -> bool:
    """Return whether a number is an exact integer. The result is False for all floats."""
    return isinstance(number, Fraction) and number.denominator == 1


def is_infinite(number: Number) -> bool:
    """Return whether a number exceeds the range of floats.

    A float is infinite if it, or an intermediate value of its computation, exceeds this range.
    """
    return abs(number) > sys.float_info.max if isinstance(number, Fraction) else cmath.isinf(number)


def is_nan(number: object) -> bool:
    """Return whether a number is NaN, such as infinity times zero."""
    return number != number


def _finite_scale(value: Value) -> float:
    return 0.0 if is_infinite(value.number) else value.scale

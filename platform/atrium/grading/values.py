"""Numbers with a record of their origin: operations, and tests of equality and difference.

Exact rationals can be proven equal; other numbers are floats and can only be proven different, beyond any
rounding. `arithmetic` reads numbers from answers.
"""

from __future__ import annotations

import cmath
from dataclasses import dataclass
from fractions import Fraction

Number = Fraction | float | complex

MAX_BITS = 4_096
"""Number of bits above which rationals become floats in the first pass."""

_RELATIVE_NOISE = 2e-6
"""Relative difference, to the largest intermediate number, above which floats are different."""


class NoValueError(Exception):
    """An answer is not unambiguous arithmetic, or its value would not be agreed upon by all readers."""


@dataclass(frozen=True, slots=True)
class Value:
    """A number, the largest intermediate magnitude, and the numbers it was computed from.

    `is_decimal`: a decimal fraction was among the numbers, so the value may be rounded. `names`: the letters
    in it; empty for a constant.
    """

    number: Number
    scale: float
    is_decimal: bool
    names: frozenset[str]


def differ(first: Value, second: Value) -> bool:
    """Return whether two values are certainly different, beyond rounding of any kind."""
    a, b = first.number, second.number
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a != b and (not (first.is_decimal or second.is_decimal) or abs(a - b) > 1e-6)
    if is_infinite(a) or is_infinite(b):  # beyond 1e308
        return is_infinite(a) != is_infinite(b) and max(_finite_scale(first), _finite_scale(second)) < 1e300
    return abs(complex(a) - complex(b)) > _RELATIVE_NOISE * max(1.0, first.scale, second.scale)


def rationally_equal(first: Value, second: Value) -> bool | None:
    """Return whether two rational constants are equal, decimals to six places; None if one is not rational.

    Decimals must agree after rounding to six places, as in math-verify, and to a relative 1e-5, so that
    0.0000001 is not 0.
    """
    a, b = first.number, second.number
    if not (isinstance(a, Fraction) and isinstance(b, Fraction)) or first.names or second.names:
        return None
    if a == b or not (first.is_decimal or second.is_decimal):
        return a == b
    return round(a, 6) == round(b, 6) and abs(a - b) <= Fraction(1, 100_000) * max(abs(a), abs(b))


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Maximum difference of numbers: relative to the larger one, or absolute, whichever is larger."""

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
    """Return whether two constants agree within a tolerance; None if one depends on a letter."""
    if first.names or second.names or is_infinite(first.number) or is_infinite(second.number):
        return None
    a, b = complex(first.number), complex(second.number)
    return abs(a - b) <= max(tolerance.relative * max(abs(a), abs(b)), tolerance.absolute)


def is_integer(number: Number) -> bool:
    """Return whether it is an exact integer; a float never is."""
    return isinstance(number, Fraction) and number.denominator == 1


def is_infinite(number: Number) -> bool:
    """Return whether an intermediate value was too large for a float."""
    return not isinstance(number, Fraction) and cmath.isinf(number)


def is_nan(number: object) -> bool:
    """Return whether it is not a number, such as infinity times zero."""
    return number != number


def _finite_scale(value: Value) -> float:
    return 0.0 if is_infinite(value.number) else value.scale

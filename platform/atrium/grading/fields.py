r"""The numbers that expressions are evaluated in: exact rationals, and what takes over where they end.

`Field` turns a number that is not a rational of moderate size into a float: fast, and good for telling two
numbers apart. `Precise` turns it into an mpmath number of any precision: the second opinion on numbers that
floats cannot tell apart. Both read real powers and roots in the same way:

- an odd root of a negative number is negative; a fractional power of one has no value;
- an even root of a negative constant is imaginary; where a letter takes part, it has no value.
"""

from __future__ import annotations

import cmath
import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

from atrium.grading.values import MAX_BITS, NoValueError, Number

Amount = Any
"""What a field computes with: a fraction, a float, a complex number, or a number of mpmath."""

_MAX_EXPONENT = 10**12
MAX_EXACT = 20_000
"""Factorials and binomials of larger numbers are not computed exactly."""
_REAL_FUNCTIONS = {
    **{name: name[1:] for name in (r"\sin", r"\cos", r"\tan", r"\sinh", r"\cosh", r"\tanh")},
    r"\ln": "log",
    r"\arcsin": "asin",
    r"\arccos": "acos",
    r"\arctan": "atan",
}
_RECIPROCALS = {r"\cot": r"\tan", r"\sec": r"\cos", r"\csc": r"\sin"}
FUNCTIONS = frozenset((*_REAL_FUNCTIONS, *_RECIPROCALS, r"\exp", r"\cis", r"\log", r"\lg"))
"""Functions of one argument."""


class Field:
    """Exact rationals up to `max_bits`, and floats beyond, with infinity for what is beyond them.

    A subclass has other inexact numbers. `library` has the functions of inexact real numbers: `math`, or
    mpmath's context.
    """

    max_bits = MAX_BITS
    pi: Amount = math.pi
    e: Amount = math.e
    i: Amount = 1j
    library: Any = math

    def inexact(self, number: Number) -> Amount:
        """The number without a fraction; a number that is none already stays."""
        return float(number) if isinstance(number, Fraction) else number

    def exp(self, number: Amount) -> Amount:
        """The exponential of a real or complex number."""
        return cmath.exp(number) if isinstance(number, complex) else math.exp(number)

    def magnitude(self, number: Amount) -> Amount:
        """The absolute value, in a form that compares."""
        try:
            return abs(complex(number))
        except OverflowError:
            return math.inf

    def size(self, number: Amount) -> int:
        """How many bits the number is written with; 0 where nobody needs to know."""
        return 0

    def is_complex(self, number: Amount) -> bool:
        """Whether it has an imaginary part."""
        return isinstance(number, complex)

    def reduced(self, number: Number) -> Amount:
        """The number, made inexact where it is an unwieldy rational."""
        if isinstance(number, Fraction):
            bits = max(number.numerator.bit_length(), number.denominator.bit_length())
            if bits > self.max_bits:
                return self.inexact(number)
        return number

    def add(self, first: Amount, second: Amount) -> Amount:
        """The sum."""
        return first + second

    def multiply(self, first: Amount, second: Amount) -> Amount:
        """The product."""
        return first * second

    def divide(self, first: Amount, second: Amount) -> Amount:
        """The quotient."""
        return first / second

    def power(self, base: Amount, exponent: Amount) -> Amount:
        """The power, exact where it is a rational of moderate size."""
        is_whole = isinstance(exponent, Fraction) and exponent.denominator == 1
        if is_whole and isinstance(base, Fraction):
            num_bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if base in (0, 1, -1) or abs(exponent) * num_bits <= self.max_bits:
                small = exponent if abs(exponent) <= self.max_bits else 2 + exponent % 2
                return Fraction(base ** int(small))
        if is_whole and abs(exponent) <= _MAX_EXPONENT:
            return self.whole_power(self.inexact(base), int(exponent))
        if self.is_complex(base):
            raise NoValueError
        if self.is_complex(exponent):
            return self.exp(self.inexact(exponent) * self.library.log(self.inexact(base)))
        if base <= 0 or self.magnitude(exponent) > _MAX_EXPONENT:
            if base == 0 and exponent > 0:
                return Fraction(0)
            return self.overflow(base, exponent)
        return self.real_power(self.inexact(base), self.inexact(exponent))

    def whole_power(self, base: Amount, exponent: int) -> Amount:
        """A power of an inexact number."""
        return base**exponent if isinstance(base, complex) else self.real_power(base, exponent)

    def real_power(self, base: Amount, exponent: Amount) -> Amount:
        """A power of a positive inexact number, infinite beyond the floats."""
        try:
            return base**exponent
        except OverflowError:
            return self.overflow(base, exponent)

    def overflow(self, base: Amount, exponent: Amount) -> Amount:
        """A power that cannot be computed: infinity, where that is what it tends to."""
        if base > 1 and exponent > 0:
            return math.inf
        raise NoValueError

    def root(self, radicand: Amount, index: Amount, *, is_constant: bool) -> Amount:
        """The real root, imaginary for an even root of a negative constant; exact for squares."""
        if not isinstance(index, Fraction) or index.denominator != 1 or not 2 <= index <= 10_000:
            raise NoValueError
        if self.is_complex(radicand):
            raise NoValueError
        if radicand < 0:
            positive = self.root(-radicand, index, is_constant=is_constant)
            if index % 2 == 1:
                return -positive
            if index == 2 and is_constant:
                return self.i * self.inexact(positive)
            raise NoValueError
        if index == 2 and isinstance(radicand, Fraction):
            exact = Fraction(math.isqrt(radicand.numerator), math.isqrt(radicand.denominator))
            if exact * exact == radicand:
                return exact
        return self.positive_root(self.inexact(radicand), int(index))

    def positive_root(self, radicand: Amount, index: int) -> Amount:
        """The root of an inexact number that is not negative."""
        return radicand ** (1 / index)

    def factorial(self, number: Amount, *, step: int = 1) -> Amount:
        """The factorial of a natural number, or with a step of 2 the double factorial."""
        if not isinstance(number, Fraction) or number.denominator != 1 or number < 0:
            raise NoValueError
        if number <= min(MAX_EXACT, self.max_bits // 8):
            whole = int(number)
            return Fraction(math.factorial(whole) if step == 1 else math.prod(range(whole, 0, -step)))
        return self.huge_factorial(int(number), step)

    def huge_factorial(self, number: int, step: int) -> Amount:
        """The factorial of a natural number that is too large for an exact one."""
        return math.inf

    def function(self, name: str, argument: Amount) -> Amount:
        """The value of a function; without a value outside of the real numbers, but for the exponential."""
        if name == r"\cis":
            return self.exp(self.i * self.inexact(argument))
        if name == r"\exp":
            return self.exp(self.inexact(argument))
        if self.is_complex(argument):
            raise NoValueError
        if name in _RECIPROCALS:
            return self.inexact(Fraction(1)) / self.function(_RECIPROCALS[name], argument)
        if argument <= 0 if name == r"\ln" else self.magnitude(argument) > _MAX_EXPONENT:
            raise NoValueError
        if name in (r"\arcsin", r"\arccos") and abs(argument) > 1:
            raise NoValueError
        return getattr(self.library, _REAL_FUNCTIONS[name])(self.inexact(argument))

    def logarithm(self, argument: Amount, base: Amount) -> Amount:
        """The logarithm of a positive number to a positive base."""
        return self.function(r"\ln", argument) / self.function(r"\ln", base)


class Precise(Field):
    """Numbers of mpmath with `bits` bits, whose exponents have no limit of consequence."""

    max_bits = 2**18

    def __init__(self, bits: int) -> None:
        from mpmath import MPContext

        self.library = MPContext()
        self.library.prec = bits
        self.pi, self.e = +self.library.pi, +self.library.e
        self.i = self.library.mpc(0, 1)

    def inexact(self, number: Amount) -> Amount:
        """A number of mpmath."""
        if isinstance(number, Fraction):
            return self.library.mpf(number.numerator) / number.denominator
        return number

    def add(self, first: Amount, second: Amount) -> Amount:
        """The sum; mpmath does not know fractions."""
        return first + second if type(first) is type(second) else self.inexact(first) + self.inexact(second)

    def multiply(self, first: Amount, second: Amount) -> Amount:
        """The product."""
        return first * second if type(first) is type(second) else self.inexact(first) * self.inexact(second)

    def divide(self, first: Amount, second: Amount) -> Amount:
        """The quotient."""
        return first / second if type(first) is type(second) else self.inexact(first) / self.inexact(second)

    def exp(self, number: Amount) -> Amount:
        """The exponential."""
        if self.magnitude(number) > _MAX_EXPONENT:
            raise NoValueError
        return self.library.exp(number)

    def magnitude(self, number: Amount) -> Amount:
        """The absolute value."""
        return abs(self.inexact(number))

    def size(self, number: Amount) -> int:
        """The bits of a fraction, and the exponent of an inexact number."""
        if isinstance(number, Fraction):
            return number.numerator.bit_length() + number.denominator.bit_length()
        return abs(int(self.library.mag(number))) if number and self.library.isfinite(number) else 1

    def is_complex(self, number: Amount) -> bool:
        """Whether it has an imaginary part."""
        return isinstance(number, self.library.mpc)

    def real_power(self, base: Amount, exponent: Amount) -> Amount:
        """The power."""
        return base**exponent

    whole_power = real_power

    def overflow(self, base: Amount, exponent: Amount) -> Amount:
        """No infinity stands for it."""
        raise NoValueError

    def positive_root(self, radicand: Amount, index: int) -> Amount:
        """The root."""
        return self.library.root(radicand, index)

    def huge_factorial(self, number: int, step: int) -> Amount:
        """As an inexact number."""
        if number > _MAX_EXPONENT:
            raise NoValueError
        return (self.library.fac if step == 1 else self.library.fac2)(self.library.mpf(number))


FLOATS = Field()


@lru_cache(maxsize=32)
def precise(bits: int) -> Precise:
    """The field with that precision; a context is slow to make."""
    return Precise(bits)

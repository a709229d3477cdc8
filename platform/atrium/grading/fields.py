"""Arithmetic of expressions, which is exact for rationals and inexact for all other numbers.

`Field` and `Precise` represent rationals of moderate size exactly. `Field` represents all other numbers by
floats, which are fast and distinguish most numbers. `Precise` represents them by mpmath numbers of any
precision, for numbers that floats cannot distinguish. Both classes treat real powers and roots the same way:

- an odd root of a negative number is negative; a negative number with a fractional exponent has no value;
- the square root of a negative constant is imaginary; other even roots of negative numbers have no value.
"""

from __future__ import annotations

import cmath
import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

from atrium.grading.values import MAX_BITS, NoValueError, Number

Amount = Any
"""A number of a field: a fraction, a float, a complex number, or an mpmath number."""

_MAX_EXPONENT = 10**12
MAX_EXACT = 20_000
"""Largest number for which any field computes factorials and binomial coefficients exactly."""
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
    """Arithmetic with exact rationals of at most `max_bits` bits, and floats for all other numbers.

    Real numbers beyond the range of floats are infinite, but exponential and hyperbolic functions, powers of
    complex numbers and the conversion of a fraction raise `OverflowError`. `library` provides the functions
    of inexact real numbers: the module `math` in this class, and an mpmath context in the subclass `Precise`.
    """

    max_bits = MAX_BITS
    pi: Amount = math.pi
    e: Amount = math.e
    i: Amount = 1j
    library: Any = math

    def inexact(self, number: Number) -> Amount:
        """Convert a fraction to an inexact number; return any other number unchanged."""
        return float(number) if isinstance(number, Fraction) else number

    def exp(self, number: Amount) -> Amount:
        """Return the exponential of a real or complex number."""
        return cmath.exp(number) if isinstance(number, complex) else math.exp(number)

    def magnitude(self, number: Amount) -> Amount:
        """Return the absolute value as a float; infinity if it exceeds the range of floats."""
        try:
            return abs(complex(number))
        except OverflowError:
            return math.inf

    def size(self, number: Amount) -> int:
        """Return the size of a number in bits; 0 in this field, since only `Precise` uses sizes."""
        return 0

    def is_complex(self, number: Amount) -> bool:
        """Return whether the number is of a complex type."""
        return isinstance(number, complex)

    def reduced(self, number: Number) -> Amount:
        """Convert a rational with more than `max_bits` bits to an inexact number; return others unchanged."""
        if isinstance(number, Fraction):
            bits = max(number.numerator.bit_length(), number.denominator.bit_length())
            if bits > self.max_bits:
                return self.inexact(number)
        return number

    def add(self, first: Amount, second: Amount) -> Amount:
        """Return the sum."""
        return first + second

    def multiply(self, first: Amount, second: Amount) -> Amount:
        """Return the product."""
        return first * second

    def divide(self, first: Amount, second: Amount) -> Amount:
        """Return the quotient."""
        return first / second

    def power(self, base: Amount, exponent: Amount) -> Amount:
        """Return the power; integer powers of rationals are exact up to about `max_bits` bits.

        Raises `NoValueError` for a fractional power of a negative or complex number, and `ZeroDivisionError`
        for a negative integer power of 0.
        """
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
        """Return `base`, an inexact real or complex number, raised to an integer power."""
        return base**exponent if isinstance(base, complex) else self.real_power(base, exponent)

    def real_power(self, base: Amount, exponent: Amount) -> Amount:
        """Return a power of a real inexact number, or the result of `overflow` beyond the range of floats."""
        try:
            return base**exponent
        except OverflowError:
            return self.overflow(base, exponent)

    def overflow(self, base: Amount, exponent: Amount) -> Amount:
        """Return infinity if the base exceeds 1 and the exponent is positive; else raise `NoValueError`."""
        if base > 1 and exponent > 0:
            return math.inf
        raise NoValueError

    def root(self, radicand: Amount, index: Amount, *, is_constant: bool) -> Amount:
        """Return the real root, or, with `is_constant`, the imaginary square root of a negative number.

        `is_constant` means that the expression contains no letters. Square roots of rational squares are
        exact. Raises `NoValueError` if there is no such root, or if `index` is not an integer from 2 to
        10,000.
        """
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
        """Return the real root of a nonnegative inexact number."""
        return radicand ** (1 / index)

    def factorial(self, number: Amount, *, step: int = 1) -> Amount:
        """Return the factorial of a natural number, or its double factorial if `step` is 2.

        Raises `NoValueError` for any other number.
        """
        if not isinstance(number, Fraction) or number.denominator != 1 or number < 0:
            raise NoValueError
        if number <= min(MAX_EXACT, self.max_bits // 8):
            whole = int(number)
            return Fraction(math.factorial(whole) if step == 1 else math.prod(range(whole, 0, -step)))
        return self.huge_factorial(int(number), step)

    def huge_factorial(self, number: int, step: int) -> Amount:
        """Return the value for a factorial that is too large to compute exactly: infinity in this field.

        `step` is the difference between consecutive factors (2 in a double factorial).
        """
        return math.inf

    def function(self, name: str, argument: Amount) -> Amount:
        r"""Return the value of a function of a real number; `\exp` and `\cis` also accept complex numbers.

        Raises `NoValueError` outside the function's real domain.
        """
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
        """Return the logarithm of a positive number to a positive base."""
        return self.function(r"\ln", argument) / self.function(r"\ln", base)


class Precise(Field):
    """Arithmetic with exact rationals, and with mpmath numbers for all others.

    The mpmath numbers have `bits` bits and an almost unlimited range of exponents.
    """

    max_bits = 2**18

    def __init__(self, bits: int) -> None:
        from mpmath import MPContext

        self.library = MPContext()
        self.library.prec = bits
        self.pi, self.e = +self.library.pi, +self.library.e
        self.i = self.library.mpc(0, 1)

    def inexact(self, number: Amount) -> Amount:
        """Convert a fraction to an mpmath number; return any other number unchanged."""
        if isinstance(number, Fraction):
            return self.library.mpf(number.numerator) / number.denominator
        return number

    def add(self, first: Amount, second: Amount) -> Amount:
        """Return the sum, which is exact for two fractions.

        If only one operand is a fraction, it is converted to an mpmath number first.
        """
        return first + second if type(first) is type(second) else self.inexact(first) + self.inexact(second)

    def multiply(self, first: Amount, second: Amount) -> Amount:
        """Return the product."""
        return first * second if type(first) is type(second) else self.inexact(first) * self.inexact(second)

    def divide(self, first: Amount, second: Amount) -> Amount:
        """Return the quotient."""
        return first / second if type(first) is type(second) else self.inexact(first) / self.inexact(second)

    def exp(self, number: Amount) -> Amount:
        """Return the exponential; raise `NoValueError` for numbers of more than 1e12 in magnitude."""
        if self.magnitude(number) > _MAX_EXPONENT:
            raise NoValueError
        return self.library.exp(number)

    def magnitude(self, number: Amount) -> Amount:
        """Return the absolute value."""
        return abs(self.inexact(number))

    def size(self, number: Amount) -> int:
        """Return the bits of a fraction, or the absolute value of the binary exponent of an inexact number.

        The result is 1 for an inexact zero and for infinity.
        """
        if isinstance(number, Fraction):
            return number.numerator.bit_length() + number.denominator.bit_length()
        return abs(int(self.library.mag(number))) if number and self.library.isfinite(number) else 1

    def is_complex(self, number: Amount) -> bool:
        """Return whether the number is of mpmath's complex type."""
        return isinstance(number, self.library.mpc)

    def real_power(self, base: Amount, exponent: Amount) -> Amount:
        """Return a power of an inexact number."""
        return base**exponent

    whole_power = real_power

    def overflow(self, base: Amount, exponent: Amount) -> Amount:
        """Raise `NoValueError`: unlike floats, these numbers do not represent large powers by infinity."""
        raise NoValueError

    def positive_root(self, radicand: Amount, index: int) -> Amount:
        """Return the real root of a nonnegative inexact number."""
        return self.library.root(radicand, index)

    def huge_factorial(self, number: int, step: int) -> Amount:
        """Return a factorial that is too large to compute exactly, as an inexact number.

        Raises `NoValueError` for the factorial of a number above 1e12.
        """
        if number > _MAX_EXPONENT:
            raise NoValueError
        return (self.library.fac if step == 1 else self.library.fac2)(self.library.mpf(number))


FLOATS = Field()


@lru_cache(maxsize=32)
def precise(bits: int) -> Precise:
    """Return the field with `bits` bits of precision. It is cached, as mpmath contexts are slow to create."""
    return Precise(bits)

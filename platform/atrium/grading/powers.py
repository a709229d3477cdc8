r"""Products of powers with exact exponents, for numbers that are too large to write out: `2^{2^{100}}`.

Two products are compared by their exponents. Their bases are split by common divisors until they are pairwise
coprime; then the numbers are equal if all exponents are, whether they are integers or not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from atrium.grading.fields import Amount, Field
from atrium.grading.values import NoValueError, Number


@dataclass(frozen=True, slots=True)
class Product:
    """A sign times powers of natural numbers."""

    sign: int
    powers: tuple[tuple[int, Fraction], ...]

    def __rmul__(self, sign: int) -> Product:
        return Product(self.sign * sign, self.powers)

    def __abs__(self) -> Product:
        return Product(1, self.powers)


class Powers(Field):
    """Exact rationals, and products of powers beyond; sums of such products and functions have no value."""

    pi = e = i = math.nan

    def inexact(self, number: Number) -> Amount:
        """Raise an error: no number is inexact here."""
        raise NoValueError

    exp = inexact

    def reduced(self, number: Number) -> Amount:
        """Return the number unchanged."""
        return number

    def magnitude(self, number: Amount) -> float:
        """Return 0: the magnitude is unknown."""
        return 0.0

    def add(self, first: Amount, second: Amount) -> Amount:
        """Return the sum of two rationals."""
        if not (isinstance(first, Fraction) and isinstance(second, Fraction)):
            raise NoValueError
        return first + second

    def multiply(self, first: Amount, second: Amount) -> Amount:
        """Return the product."""
        if isinstance(first, Fraction) and isinstance(second, Fraction):
            return first * second
        a, b = product(first), product(second)
        return Product(a.sign * b.sign, (*a.powers, *b.powers))

    def divide(self, first: Amount, second: Amount) -> Amount:
        """Return the quotient."""
        return self.multiply(first, self.power(second, Fraction(-1)))

    def power(self, base: Amount, exponent: Amount) -> Amount:
        """Return the power, as a rational if it is small."""
        if not isinstance(exponent, Fraction):
            raise NoValueError
        if isinstance(base, Fraction) and exponent.denominator == 1:
            size = max(base.numerator.bit_length(), base.denominator.bit_length())
            if abs(exponent) * size <= self.max_bits:
                return base ** int(exponent)
        a = product(base)
        if a.sign < 0 and exponent.denominator > 1:
            raise NoValueError
        sign = a.sign if exponent % 2 else 1
        return Product(sign, tuple((number, power * exponent) for number, power in a.powers))

    def root(self, radicand: Amount, index: Amount, *, is_constant: bool) -> Amount:
        """Return the root of a positive number."""
        return self.power(radicand, 1 / index if isinstance(index, Fraction) and index else index)

    def huge_factorial(self, number: int, step: int) -> Amount:
        """Raise an error: it is not computed."""
        raise NoValueError

    def function(self, name: str, argument: Amount) -> Amount:
        """Raise an error: it is not computed."""
        raise NoValueError


def product(number: Amount) -> Product:
    """Return a number as a product of powers."""
    if isinstance(number, Product):
        return number
    if not isinstance(number, Fraction) or number == 0:
        raise NoValueError
    parts = ((abs(number.numerator), Fraction(1)), (number.denominator, Fraction(-1)))
    return Product(1 if number > 0 else -1, tuple(part for part in parts if part[0] > 1))


def is_one(number: Product) -> bool:
    """Return whether a product of powers is 1."""
    exponents: dict[int, Fraction] = {}
    rest = list(number.powers)
    while rest:
        base, exponent = rest.pop()
        for other in exponents:
            common = math.gcd(base, other)
            if common > 1:
                moved = exponents.pop(other)
                parts = ((common, exponent + moved), (base // common, exponent), (other // common, moved))
                rest += [part for part in parts if part[0] > 1]
                break
        else:
            exponents[base] = exponent
    return number.sign > 0 and not any(exponents.values())


POWERS = Powers()

r"""Products of powers with exact exponents, for numbers that are too large to write out: `2^{2^{100}}`.

Two products are compared by their exponents, which are integers or fractions. Bases are split by common
divisors until they are pairwise coprime. The products are then equal if all exponents are equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from atrium.grading.fields import Amount, Field
from atrium.grading.values import NoValueError, Number


@dataclass(frozen=True, slots=True)
class Product:
    """The product of a sign (1 or -1) and powers of natural numbers.

    `powers` contains pairs of a base and its exponent.
    """

    sign: int
    powers: tuple[tuple[int, Fraction], ...]

    def __rmul__(self, sign: int) -> Product:
        return Product(self.sign * sign, self.powers)

    def __abs__(self) -> Product:
        return Product(1, self.powers)


class Powers(Field):
    """Arithmetic with exact rationals, and products of powers for larger numbers.

    Sums of such products, and functions, have no value: they raise `NoValueError`.
    """

    pi = e = i = math.nan

    def inexact(self, number: Number) -> Amount:
        """Raise `NoValueError`, since this field has no inexact numbers."""
        raise NoValueError

    exp = inexact

    def reduced(self, number: Number) -> Amount:
        """Return the number unchanged."""
        return number

    def magnitude(self, number: Amount) -> float:
        """Return 0 for every number, since the magnitudes of products are not computed."""
        return 0.0

    def add(self, first: Amount, second: Amount) -> Amount:
        """Return the sum of two rationals; raise `NoValueError` for products."""
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
        """Return the power: as a rational if it has at most about `max_bits` bits, else as a product."""
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
        """Return the root of a positive number, as a power with the exponent 1 / `index`."""
        return self.power(radicand, 1 / index if isinstance(index, Fraction) and index else index)

    def huge_factorial(self, number: int, step: int) -> Amount:
        """Raise `NoValueError`, since large factorials are not computed."""
        raise NoValueError

    def function(self, name: str, argument: Amount) -> Amount:
        """Raise `NoValueError`, since functions are not computed."""
        raise NoValueError


def product(number: Amount) -> Product:
    """Convert a rational to a product of powers. Raises `NoValueError` for 0 and for inexact numbers."""
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

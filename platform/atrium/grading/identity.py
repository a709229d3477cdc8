r"""Equality of two expressions, decided at rational points and with as much precision as necessary.

**Constants.** Rationals are compared exactly. The difference of other constants is computed with increasing
precision until its sign is known. Two algebraic numbers are equal if they agree to as many bits as a root
separation bound requires (roughly, the bits of their notation times the degrees of their roots). For
functions and powers of e or pi no such bound is known, and agreement to between 1,024 and 4,096 bits,
depending on the size of the expressions, counts as equality. Decimals follow the rule of
`values.rationally_equal`: six places, and five significant digits.

**Letters.** Two expressions with letters are equal if they agree at random rational points, where the values
of rational functions are compared exactly. Points at which an expression has no real value are skipped. If
both expressions have letters under a root or in a logarithm, these letters are assumed to be positive, so
`\sqrt{ab}` is `\sqrt{a}\sqrt{b}`. Otherwise letters may be negative, so `\sqrt{x^2}` is `|x|` and not `x`. If
real points give no values, as for `n!` and `(-1)^n`, natural numbers are tried.

The computation may take long, so it runs in worker processes only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

from atrium.grading.arithmetic import LOG, Evaluator
from atrium.grading.fields import precise
from atrium.grading.powers import POWERS, Product, is_one, product
from atrium.grading.tokens import Tokens
from atrium.grading.values import NoValueError

_FIRST_BITS = 160
_ENOUGH_BITS = 4_096
_MAX_BITS = 2**17
_MAX_DEGREE = 16
_NUM_POINTS = 6
_MAX_TRIES = 40
_LOG_BASES = (Fraction(10), Fraction(27, 10))


def same(first: Tokens, second: Tokens) -> bool | None:
    """Return whether two expressions are equal, or None if that cannot be decided.

    Nothing can be decided if an expression cannot be parsed or has no value.
    """
    names: set[str] = set()
    rooted: list[set[str]] = []
    for tokens in (first, second):
        read = _evaluated(tokens, _FIRST_BITS, _Point(_anywhere))
        names |= read.names
        rooted.append(read.rooted)
        if read.position < len(read.tokens) and not read.names:
            return None
    if not names:
        is_equal = _agree_in_powers(first, second)
        return _agree(first, second, {}) if is_equal is None else is_equal
    positive = rooted[0] | rooted[1] if rooted[0] and rooted[1] else set[str]()
    if LOG in names and not all(_has_bare_log(tokens) for tokens in (first, second)):
        return None
    for points in (_points(partial(_real, positive)), _points(_natural)):
        is_equal = _agree_at(first, second, points)
        if is_equal is not None:
            return is_equal
    return None


class _Point(dict[str, Fraction]):
    """A point with a value for each letter, drawn when the letter is first read.

    The letters are not known in advance, since an evaluation may stop before it has read all of them.
    """

    def __init__(self, draw: Callable[[str], Fraction]) -> None:
        super().__init__()
        self._draw = draw

    def __missing__(self, name: str) -> Fraction:
        self[name] = self._draw(name)
        return self[name]


def _anywhere(name: str) -> Fraction:
    """Return a fixed rational for a letter, for the first evaluation, which only collects the letters."""
    return Fraction(7, 3) + Fraction(sum(map(ord, name)) % 97, 89)


def _evaluated(tokens: Tokens, bits: int, points: Mapping[str, Fraction]) -> Evaluator:
    return Evaluator(tokens, precise(bits), points).run()


def _has_bare_log(tokens: Tokens) -> bool:
    return any(a == r"\log" and b != "_" for a, b in zip(tokens, (*tokens[1:], ""), strict=True))


def _agree_at(first: Tokens, second: Tokens, points: Iterator[_Point]) -> bool | None:
    """Return True if two expressions agree at six of `points`, or False as soon as they differ at one.

    Returns None if neither happens. Points at which the comparison cannot be decided are skipped.
    """
    num_agreed = 0
    for point in points:
        is_equal = _agree(first, second, point)
        if is_equal is False:
            return False
        num_agreed += is_equal is True
        if num_agreed == _NUM_POINTS:
            return True
    return None


def _agree(first: Tokens, second: Tokens, point: Mapping[str, Fraction]) -> bool | None:
    """Return whether two expressions have the same value at a point, or None if that cannot be decided."""
    bits, before = _FIRST_BITS, None
    while True:
        a, b = _evaluated(first, bits, point), _evaluated(second, bits, point)
        if a.result is None or b.result is None:
            return None
        if a.is_decimal or b.is_decimal:
            if point:
                return True if a.result == b.result else None
            return _agree_in_decimals(a, b)
        if isinstance(a.result, Fraction) and isinstance(b.result, Fraction):
            return a.result == b.result
        difference = a.field.add(a.result, -b.result)
        # Rounding noise changes with the precision, a true difference does not.
        if before is not None and difference != 0 and abs(before - difference) < abs(difference) / 4:
            return False
        wanted = _wanted_bits(a, b)
        if before is not None and (bits >= wanted or wanted > _MAX_BITS):
            return True if bits >= wanted else None
        bits, before = max(2 * bits, min(wanted, 8 * bits)), difference


def _agree_in_powers(first: Tokens, second: Tokens) -> bool | None:
    """Return whether two products of huge powers are equal, or None for sums, decimals or small numbers."""
    sides = [Evaluator(tokens, POWERS).run() for tokens in (first, second)]
    a, b = (side.result for side in sides)
    if not (isinstance(a, Product) or isinstance(b, Product)) or any(side.is_decimal for side in sides):
        return None
    try:
        return is_one(POWERS.divide(product(a), product(b)))
    except NoValueError:
        return None


def _wanted_bits(a: Evaluator, b: Evaluator) -> int:
    """Return the number of bits to which two values must agree in order to count as equal."""
    wanted = 2 * (a.num_bits + b.num_bits) * min(a.degree * b.degree, _MAX_DEGREE) + _FIRST_BITS
    is_algebraic = a.is_algebraic and b.is_algebraic
    return wanted if is_algebraic else min(max(wanted, _ENOUGH_BITS // 4), _ENOUGH_BITS)


def _agree_in_decimals(a: Evaluator, b: Evaluator) -> bool:
    """Return whether real and imaginary parts of two values agree by the rule of `rationally_equal`."""
    field = a.field
    x, y = field.inexact(a.result), field.inexact(b.result)
    if abs(x - y) > max(abs(x), abs(y)) / 100_000:
        return False
    parts: tuple[Any, ...] = (field.library.re, field.library.im)
    return all(field.library.nint(part(x) * 10**6) == field.library.nint(part(y) * 10**6) for part in parts)


def _points(draw: Callable[[int, str], Fraction]) -> Iterator[_Point]:
    """Yield 40 points. `draw` returns a letter's value, given the number of the point and the letter."""
    for number in range(_MAX_TRIES):
        point = _Point(partial(draw, number))
        point[LOG] = _LOG_BASES[number % 2]
        yield point


def _real(positive: set[str], number: int, name: str) -> Fraction:
    """Return a letter's pseudorandom value at point `number`, the same in every process.

    The value is positive if the letter is in `positive`; other letters may be negative.
    """
    generator = random.Random(f"real {number} {name}")
    value = Fraction(generator.randrange(200, 5_000), generator.randrange(701, 997))
    return -value if name not in positive and generator.random() < 0.4 else value


def _natural(number: int, name: str) -> Fraction:
    return Fraction(random.Random(f"natural {number} {name}").randrange(2, 12 + number))

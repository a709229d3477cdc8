r"""Equality of two expressions, decided with exact points and as much precision as necessary.

**Constants.** Rationals are compared exactly. The difference of other constants is computed with a precision
that doubles until its sign is known. Two algebraic numbers that agree to the bits of a root separation bound
(roughly, the bits of their notation times the degrees of their roots) are equal; with functions and powers of
e or pi, for which no such bound is known, agreement to `_ENOUGH_BITS` counts. Decimals follow the rule of
`values.rationally_equal`: six places, and five significant digits.

**Letters.** Two expressions in letters are equal if they agree at random rational points, exactly if they are
rational functions. A point where one has no real value is no evidence. Letters under a root, or in a
logarithm, on both sides are assumed to be positive, so `\sqrt{ab}` is `\sqrt{a}\sqrt{b}`; with a root on one
side only they are not, so `\sqrt{x^2}` is `|x|` and not `x`. If real points give no values, as for `n!` and
`(-1)^n`, natural numbers are tried.

The computation may take long, and is called in a worker process only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
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
    """Return whether two expressions are equal; None if one cannot be parsed, or has no value to compare."""
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
    for points in (_real_points(positive), _natural_points()):
        is_equal = _agree_at(first, second, points)
        if is_equal is not None:
            return is_equal
    return None


class _Point(dict[str, Fraction]):
    """A point with a value for each letter, drawn when the letter is first read.

    The letters are not known in advance: a first evaluation stops at the first operation without a value.
    """

    def __init__(self, draw: Callable[[str], Fraction]) -> None:
        super().__init__()
        self._draw = draw

    def __missing__(self, name: str) -> Fraction:
        self[name] = self._draw(name)
        return self[name]


def _anywhere(name: str) -> Fraction:
    """Return one value for any letter, used to find out which letters there are."""
    return Fraction(7, 3) + Fraction(sum(map(ord, name)) % 97, 89)


def _evaluated(tokens: Tokens, bits: int, points: Mapping[str, Fraction]) -> Evaluator:
    return Evaluator(tokens, precise(bits), points).run()


def _has_bare_log(tokens: Tokens) -> bool:
    return any(a == r"\log" and b != "_" for a, b in zip(tokens, (*tokens[1:], ""), strict=True))


def _agree_at(first: Tokens, second: Tokens, points: Iterator[_Point]) -> bool | None:
    """Return whether the two agree at points where both have values; None if too few points are found."""
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
    """Return whether both have the same value at a point; None if one has none, or none is known."""
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
    """Return whether two products of huge powers are equal; None if one is a sum, or neither is huge."""
    sides = [Evaluator(tokens, POWERS).run() for tokens in (first, second)]
    a, b = (side.result for side in sides)
    if not (isinstance(a, Product) or isinstance(b, Product)) or any(side.is_decimal for side in sides):
        return None
    try:
        return is_one(POWERS.divide(product(a), product(b)))
    except NoValueError:
        return None


def _wanted_bits(a: Evaluator, b: Evaluator) -> int:
    """Return the number of bits within which two different values would differ."""
    wanted = 2 * (a.num_bits + b.num_bits) * min(a.degree * b.degree, _MAX_DEGREE) + _FIRST_BITS
    is_algebraic = a.is_algebraic and b.is_algebraic
    return wanted if is_algebraic else min(max(wanted, _ENOUGH_BITS // 4), _ENOUGH_BITS)


def _agree_in_decimals(a: Evaluator, b: Evaluator) -> bool:
    """Apply the rule of `rationally_equal` to the real and the imaginary part."""
    field = a.field
    x, y = field.inexact(a.result), field.inexact(b.result)
    if abs(x - y) > max(abs(x), abs(y)) / 100_000:
        return False
    parts: tuple[Any, ...] = (field.library.re, field.library.im)
    return all(field.library.nint(part(x) * 10**6) == field.library.nint(part(y) * 10**6) for part in parts)


def _real_points(positive: set[str]) -> Iterator[_Point]:
    """Yield random points, the same in every process; only letters outside `positive` may be negative."""
    for index in range(_MAX_TRIES):

        def draw(name: str, index: int = index) -> Fraction:
            generator = random.Random(f"real {index} {name}")
            value = Fraction(generator.randrange(200, 5_000), generator.randrange(701, 997))
            return -value if name not in positive and generator.random() < 0.4 else value

        yield _Point(_with_log_base(draw, index))


def _natural_points() -> Iterator[_Point]:
    for index in range(_MAX_TRIES):

        def draw(name: str, index: int = index) -> Fraction:
            return Fraction(random.Random(f"natural {index} {name}").randrange(2, 12 + index))

        yield _Point(_with_log_base(draw, index))


def _with_log_base(draw: Callable[[str], Fraction], index: int) -> Callable[[str], Fraction]:
    return lambda name: _LOG_BASES[index % 2] if name == LOG else draw(name)

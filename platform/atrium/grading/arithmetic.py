r"""The value of an answer that is arithmetic: exact where it is rational, a floating-point number else.

A small evaluator for the unambiguous part of LaTeX: numbers, fractions, mixed numbers, roots, powers,
products, sums, factorials, binomials, a few functions, and letters. A letter stands for a fixed number
that depends on its name only, so two expressions with different values cannot be identical, while equal
values prove nothing: the evaluator refutes, and only exact rationals confirm. Whatever can be read in two
ways (`f(x)`, `1/2x`, `\sin 2x`, `\log`, a word, a set, a relation) has no value here and is left to
math-verify. It is not a parser of answers at large.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache

from atrium.grading.values import (
    MAX_BITS,
    NoValueError,
    Number,
    Value,
    binomial,
    factorial,
    is_nan,
    magnitude,
    power,
    root,
)

_MAX_DEPTH = 24


@lru_cache(maxsize=4_096)
def evaluate(tokens: tuple[str, ...]) -> Value | None:
    """The value of canonical tokens, or None where they are not unambiguous arithmetic."""
    evaluator = _Evaluator(_spelled_out(tokens))
    try:
        number = evaluator.expression(0)
        if evaluator.position < len(evaluator.tokens) or is_nan(number):
            return None
    except (NoValueError, ZeroDivisionError, ValueError, OverflowError):
        return None
    scale = max(evaluator.scale, magnitude(number))
    return Value(number, scale, evaluator.is_decimal, frozenset(evaluator.names))


def _spelled_out(tokens: Sequence[str]) -> list[str]:
    """The tokens with `xy` as `x`, `y`, except where it is the name of something."""
    spelled: list[str] = []
    for token in tokens:
        is_run = 1 < len(token) <= 3 and token.isascii() and token.isalpha()
        if is_run and token.lower() not in _SHORT_WORDS:
            spelled.extend(token)
        else:
            spelled.append(token)
    return spelled


def _stand_in(name: str) -> float:
    """A number between 0.5 and 1.5 that stands for a letter, the same in every process."""
    digest = hashlib.blake2b(name.encode(), digest_size=6).digest()
    return 0.5 + int.from_bytes(digest, "big") / 2**48


_CONSTANTS: dict[str, Number] = {r"\pi": math.pi, "e": math.e, "E": math.e, "i": 1j}
GREEK = frozenset(
    (r"\alpha", r"\beta", r"\gamma", r"\delta", r"\epsilon", r"\theta", r"\lambda", r"\mu", r"\nu", r"\rho")
) | frozenset((r"\sigma", r"\tau", r"\phi", r"\psi", r"\omega"))
_FUNCTIONS: dict[str, Callable[[float], float]] = {
    r"\sin": math.sin,
    r"\cos": math.cos,
    r"\tan": math.tan,
    r"\ln": math.log,
    r"\exp": math.exp,
    r"\arcsin": math.asin,
    r"\arccos": math.acos,
    r"\arctan": math.atan,
}
_SHORT_WORDS = frozenset(
    (
        "pi",
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "log",
        "ln",
        "exp",
        "mod",
        "max",
        "min",
        "gcd",
        "lcm",
        "inf",
        "deg",
        "rad",
        "and",
        "or",
        "not",
        "is",
        "no",
        "yes",
        "cm",
        "mm",
        "km",
        "ft",
        "in",
        "kg",
        "mg",
        "ml",
        "mi",
        "hr",
        "sq",
        "lb",
        "oz",
        "mph",
        "am",
        "pm",
        "dx",
        "dy",
        "dt",
        "any",
        "all",
        "one",
        "two",
        "six",
        "ten",
        "odd",
    )
)
_SIGNS = ("+", "-")
_PRODUCTS = (r"\cdot", r"\times", "*")
_STARTS = frozenset(("(", "{", r"\frac", r"\sqrt", r"\binom", *_CONSTANTS, *GREEK, *_FUNCTIONS))


class _Evaluator:
    """Recursive descent over one answer's tokens; the nesting is bounded by `_MAX_DEPTH`."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = tokens
        self.position = 0
        self.scale = 0.0
        self.is_decimal = False
        self.names: set[str] = set()

    def expression(self, depth: int) -> Number:
        """A sum with an optional sign in front."""
        if depth > _MAX_DEPTH:
            raise NoValueError
        sign = self._take_sign()
        total = self._noted(sign * self._term(depth))
        while self._peek() in _SIGNS:
            total = self._noted(total + self._take_sign() * self._term(depth))
        return total

    def _term(self, depth: int) -> Number:
        product = self._factor(depth, is_first=True)
        while True:
            token = self._peek()
            if token in _PRODUCTS:
                self.position += 1
                product = self._noted(product * self._factor(depth, is_first=True))
            elif token in ("/", r"\div"):
                self.position += 1
                product = self._noted(product / self._factor(depth, is_first=True))
                if self._starts_factor():
                    raise NoValueError  # 1/2x is read in two ways
            elif self._starts_factor():
                product = self._noted(product * self._factor(depth, is_first=False))
            else:
                return product

    def _factor(self, depth: int, *, is_first: bool) -> Number:
        base = self._base(depth, is_first=is_first)
        while (token := self._peek()) in ("^", "!"):
            self.position += 1
            base = self._noted(factorial(base) if token == "!" else power(base, self._group(depth)))
        return base

    def _base(self, depth: int, *, is_first: bool) -> Number:
        token = self._take()
        if token[0] in ".0123456789":
            return self._number(token, depth, is_first=is_first)
        if token in _CONSTANTS or token in GREEK or (len(token) == 1 and token.isascii() and token.isalpha()):
            return self._letter(token, depth)
        if token in ("(", "{"):
            self.position -= 1
            number = self._bracketed(depth, token)
            if token == "{" and (not is_first or self._starts_factor()):
                raise NoValueError  # {4}{2} shows as 42
            return number
        if token == r"\frac":
            return self._group(depth) / self._group(depth)
        if token == r"\binom":
            return binomial(self._group(depth), self._group(depth))
        if token == r"\sqrt":
            return self._root(depth)
        if token in _FUNCTIONS:
            return self._function(_FUNCTIONS[token], depth)
        raise NoValueError

    def _number(self, token: str, depth: int, *, is_first: bool) -> Number:
        if not is_first or len(token) > 1_000:
            raise NoValueError
        self.is_decimal |= "." in token
        number = Fraction(token)
        if self._peek() == r"\frac":  # a mixed number, where it is a proper one
            start = self.position
            part = self._base(depth + 1, is_first=True)
            digits = [t for t in self.tokens[start + 1 : self.position] if t not in "{}"]
            is_plain = "." not in token and all(map(str.isdigit, digits)) and self._peek() not in ("^", "!")
            if not is_plain or not isinstance(part, Fraction) or part >= 1 or self._starts_factor():
                raise NoValueError
            number += part
        return self._noted(number)

    def _letter(self, token: str, depth: int) -> Number:
        name = token
        if self._peek() == "_":
            start = self.position
            self.position += 1
            if self._peek() != "{":
                raise NoValueError
            while self._peek() != "}":
                self._take()
            self.position += 1
            name += "".join(self.tokens[start : self.position])
        if self._peek() == "(" or depth > _MAX_DEPTH:
            raise NoValueError  # f(x) may be a product or a call
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        self.names.add(name)
        return _stand_in(name)

    def _function(self, function: Callable[[float], float], depth: int) -> Number:
        argument = self._base(depth + 1, is_first=True)
        if self._starts_factor() or self._peek() in ("^", "!"):
            raise NoValueError  # \sin 2x and \sin x^2 are read in two ways
        if isinstance(argument, complex):
            raise NoValueError
        return function(float(argument))

    def _root(self, depth: int) -> Number:
        index: Number = Fraction(2)
        if self._peek() == "[":
            index = self._bracketed(depth, "[")
        return root(self._group(depth), index)

    def _group(self, depth: int) -> Number:
        if self._peek() != "{":
            raise NoValueError
        return self._bracketed(depth, "{")

    def _bracketed(self, depth: int, opening: str) -> Number:
        self.position += 1
        number = self.expression(depth + 1)
        if self._take() != {"(": ")", "{": "}", "[": "]"}[opening]:
            raise NoValueError
        return number

    def _starts_factor(self) -> bool:
        token = self._peek()
        return token in _STARTS or token[:1].isalnum() or token[:1] == "."

    def _take_sign(self) -> int:
        if self._peek() not in _SIGNS:
            return 1
        return -1 if self._take() == "-" else 1

    def _peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        if not token:
            raise NoValueError
        self.position += 1
        return token

    def _noted(self, number: Number) -> Number:
        if (
            isinstance(number, Fraction)
            and max(number.numerator.bit_length(), number.denominator.bit_length()) > MAX_BITS
        ):
            number = float(number)
        self.scale = max(self.scale, magnitude(number))
        return number

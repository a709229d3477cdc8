r"""Evaluation of answers that are expressions. Rational values are exact, and others are inexact.

The evaluator supports the unambiguous part of LaTeX: numbers, fractions, mixed numbers, roots, powers,
products, sums, factorials, binomials, functions, absolute values, degrees, the imaginary unit, and letters. A
letter is replaced by a number, by default one that depends only on the letter's name. A `Field` computes the
values. Floats distinguish most values, and `identity` decides the remaining cases, by exact evaluation at
rational points or with arbitrary precision.

Anything ambiguous (`f(x)`, `1/2x`, `\sin x/2`, a word, a set, a relation) has no value in this module and is
left to math-verify. This is not a general parser of answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import comb

from atrium.grading.fields import FLOATS, FUNCTIONS, MAX_EXACT, Amount, Field
from atrium.grading.notation import word_set
from atrium.grading.tokens import MAX_DEPTH, content, is_text
from atrium.grading.values import NoValueError, Value, is_nan

LOG = r"\log"
"""Entry in an evaluator's `names` for the unknown base of a logarithm without a base."""

GREEK = word_set(
    r"\alpha \beta \gamma \delta \epsilon \theta \lambda \mu \nu \rho \sigma \tau \phi \psi \omega "
    r"\varepsilon \varphi \eta \kappa \xi \chi \zeta \Delta \Omega \Gamma \Lambda \hbar \ell"
)
"""LaTeX commands for letters that may be variables."""
_CONSTANTS = frozenset((r"\pi", "e", "E", "i"))
_SHORT_WORDS = word_set(
    "pi sin cos tan cot sec csc log ln exp mod max min gcd lcm inf deg rad and or not is no yes cm mm km ft "
    "in kg mg ml mi hr sq lb oz mph am pm dx dy dt any all one two six ten odd"
)
_SIGNS = ("+", "-")
_PRODUCTS = (r"\cdot", r"\times", "*")
_BRACKETS = {"(": ")", "{": "}", "[": "]", "|": "|", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_STARTS = frozenset(
    ("(", "{", r"\frac", r"\sqrt", r"\binom", r"\lfloor", r"\lceil", *_CONSTANTS, *GREEK, *FUNCTIONS)
)
_CALLED = frozenset("fghuFGHPQTU")  # letters in front of a bracket that are functions rather than factors
_DEGREE = ["{", r"\circ", "}"]
_DEGREE_WORDS = ("degree", "degrees", "deg")
_INVERSES = {r"\sin": r"\arcsin", r"\cos": r"\arccos", r"\tan": r"\arctan"}


@lru_cache(maxsize=4_096)
def evaluate(tokens: tuple[str, ...]) -> Value | None:
    """Return the value of canonical tokens, or None if they are not unambiguous arithmetic."""
    if r"\log" in tokens:
        return None  # the base may be 10 or e
    evaluator = Evaluator(tokens, FLOATS).run()
    number = evaluator.result
    if number is None:
        return None
    scale = max(evaluator.scale, FLOATS.magnitude(number))
    return Value(number, scale, evaluator.is_decimal, frozenset(evaluator.names))


def _spelled_out(tokens: Sequence[str]) -> list[str]:
    r"""Split tokens such as `xy` into letters, except known words, and unify the spellings of `\cis`."""
    spelled: list[str] = []
    for token in tokens:
        is_run = 1 < len(token) <= 3 and token.isascii() and token.isalpha()
        if is_run and token.lower() not in _SHORT_WORDS and token != "cis":
            spelled.extend(token)
        else:
            spelled.append(r"\cis" if token in ("cis", r"\text{cis}") else token)
    return spelled


@lru_cache(maxsize=4_096)
def _stand_in(name: str) -> float:
    """Return the value substituted for a letter: between 0.5 and 1.5, and the same in every process."""
    digest = hashlib.blake2b(name.encode(), digest_size=6).digest()
    return 0.5 + int.from_bytes(digest, "big") / 2**48


class Evaluator:
    """A recursive-descent evaluator for one answer's tokens; nesting is limited by `MAX_DEPTH`.

    After `run`, `result` is the value or None. `names` are the letters read, and `rooted` are the letters
    under a root or in a logarithm. `is_decimal` tells whether there was a decimal fraction, and `scale` is
    the largest intermediate magnitude. `num_bits` sums the sizes of all intermediate values, `degree` is the
    product of the root degrees, and `is_algebraic` tells whether all operations were algebraic.
    """

    def __init__(
        self, tokens: tuple[str, ...], field: Field, points: Mapping[str, Fraction] | None = None
    ) -> None:
        self.tokens = _spelled_out(tokens)
        self.field = field
        self.points = points
        self.position = 0
        self.scale: Amount = 0.0
        self.is_decimal = False
        self.names: set[str] = set()
        self.rooted: set[str] = set()
        self.num_bits = 0
        self.degree = 1
        self.is_algebraic = True
        self.result: Amount = None
        self._bars = 0
        self._in_function = 0

    def run(self) -> Evaluator:
        """Evaluate the tokens and return this evaluator. `result` stays None if the tokens have no value."""
        try:
            number = self.expression(0)
        except (NoValueError, ZeroDivisionError, ValueError, OverflowError, RecursionError):
            return self
        if self.position == len(self.tokens) and not is_nan(number):
            self.result = number
        return self

    def expression(self, depth: int) -> Amount:
        """Parse and evaluate a sum with an optional leading sign, at nesting depth `depth`.

        Raises `NoValueError` beyond the depth `MAX_DEPTH` and for tokens without a value.
        """
        if depth > MAX_DEPTH:
            raise NoValueError
        sign = self._take_sign()
        total = self._noted(sign * self._term(depth))
        while self._peek() in _SIGNS:
            total = self._noted(self.field.add(total, self._take_sign() * self._term(depth)))
        return total

    def _term(self, depth: int) -> Amount:
        product = self._factor(depth, is_first=True)
        while True:
            token = self._peek()
            if token in _PRODUCTS:
                self.position += 1
                product = self._noted(self.field.multiply(product, self._factor(depth, is_first=True)))
            elif token in ("/", r"\div"):
                self.position += 1
                product = self._noted(self.field.divide(product, self._factor(depth, is_first=True)))
                if self._starts_factor():
                    raise NoValueError  # 1/2x is ambiguous
            elif self._starts_factor():
                product = self._noted(self.field.multiply(product, self._factor(depth, is_first=False)))
            else:
                return product

    def _factor(self, depth: int, *, is_first: bool) -> Amount:
        before = set(self.names)
        base = self._base(depth, is_first=is_first)
        while True:
            token = self._peek()
            if token == "!":
                base = self._noted(self.field.factorial(base, step=self._num_marks()))
            elif token == "^" and self.tokens[self.position + 1 : self.position + 4] == _DEGREE:
                self.position += 4
                base = self._degrees(base)
            elif token == "^":
                self.position += 1
                exponent = self._group(depth, is_exponent=True, takes_numbers=True)
                if not isinstance(exponent, Fraction) or exponent.denominator > 1:
                    self._note_root(exponent, before)
                base = self._noted(self.field.power(base, exponent))
            elif self._in_function and is_text(token) and content(token) in _DEGREE_WORDS:
                self.position += 1
                base = self._degrees(base)
            else:
                return base

    def _num_marks(self) -> int:
        """Consume exclamation marks, and return 1 for a factorial or 2 for a double factorial.

        Raises `NoValueError` for more than two marks.
        """
        start = self.position
        while self._peek() == "!":
            self.position += 1
        if self.position - start > 2:
            raise NoValueError
        return self.position - start

    def _degrees(self, number: Amount) -> Amount:
        """Convert degrees to radians in a function's argument; elsewhere return the number unchanged."""
        if not self._in_function:
            return number
        self.is_algebraic = False
        return self.field.divide(self.field.multiply(number, self.field.pi), Fraction(180))

    def _note_root(self, exponent: Amount, before: set[str]) -> None:
        self.rooted |= self.names - before
        if isinstance(exponent, Fraction) and exponent.denominator <= 10_000:
            self.degree *= exponent.denominator
        else:
            self.is_algebraic = False

    def _base(self, depth: int, *, is_first: bool) -> Amount:
        token = self._take()
        if token[0] in ".0123456789":
            return self._number(token, depth, is_first=is_first)
        if token in _CONSTANTS or token in GREEK or (len(token) == 1 and token.isascii() and token.isalpha()):
            return self._letter(token, depth)
        if token in _BRACKETS and token != "[":
            self.position -= 1
            number = self._bracketed(depth, token)
            if token == "{" and (not is_first or self._starts_factor()):
                raise NoValueError  # {4}{2} is displayed as 42
            return number
        if token == r"\frac":
            upper = self._group(depth)
            return self._noted(self.field.divide(upper, self._group(depth)))
        if token == r"\binom":
            return self._binomial(self._group(depth), self._group(depth))
        if token == r"\sqrt":
            return self._root(depth)
        if token in FUNCTIONS:
            return self._function(token, depth)
        raise NoValueError

    def _number(self, token: str, depth: int, *, is_first: bool) -> Amount:
        if not is_first or len(token) > 1_000:
            raise NoValueError
        self.is_decimal |= "." in token
        number = Fraction(token)
        if self._peek() == r"\frac":  # a mixed number if the fraction is proper
            start = self.position
            part = self._base(depth + 1, is_first=True)
            digits = [t for t in self.tokens[start + 1 : self.position] if t not in "{}"]
            is_plain = "." not in token and all(map(str.isdigit, digits)) and self._peek() not in ("^", "!")
            if not is_plain or not isinstance(part, Fraction) or part >= 1 or self._starts_factor():
                raise NoValueError
            number += part
        return self._noted(number)

    def _letter(self, token: str, depth: int) -> Amount:
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
        if depth > MAX_DEPTH or (
            self._peek() == "(" and name not in _CONSTANTS and not self._is_factor(name)
        ):
            raise NoValueError  # f(x) may be a product or a call
        if name in _CONSTANTS:
            self.is_algebraic &= name == "i"
            return {r"\pi": self.field.pi, "i": self.field.i}.get(name, self.field.e)
        self.names.add(name)
        return _stand_in(name) if self.points is None else self.points[name]

    def _is_factor(self, name: str) -> bool:
        """Return whether the letter `name` is a factor of the bracket after it, as in `n(n+1)`.

        It is a factor if the bracket contains a sum and the letter does not usually denote a function.
        """
        rest = self.tokens[self.position : self.position + 8]
        inner = rest[1 : rest.index(")")] if ")" in rest else rest[1:]
        return name not in _CALLED and not {"+", "-"}.isdisjoint(inner[1:])

    def _function(self, name: str, depth: int) -> Amount:
        self.is_algebraic = False
        exponent: Amount = None
        base: Amount = None
        if self._peek() == "_" and name == r"\log":
            self.position += 1
            base = self._group(depth)
        if self._peek() == "^":
            self.position += 1
            exponent = self._group(depth)
            if exponent == -1 and name in _INVERSES:
                name, exponent = _INVERSES[name], None
            elif not isinstance(exponent, Fraction) or exponent <= 0:
                raise NoValueError
        before = set(self.names)
        self._in_function += 1
        argument = self._argument(depth + 1)
        self._in_function -= 1
        if name in (r"\log", r"\lg", r"\ln"):
            self.rooted |= self.names - before
        if name == r"\log" and base is None:
            self.names.add(LOG)
            base = Fraction(10) if self.points is None else self.points[LOG]
        if name in (r"\log", r"\lg"):
            number = self.field.logarithm(argument, Fraction(10) if base is None else base)
        else:
            number = self.field.function(name, argument)
        return self._noted(number if exponent is None else self.field.power(number, exponent))

    def _argument(self, depth: int) -> Amount:
        r"""Parse a function's argument: a bracket, or the factors up to the next sign or function."""
        if self._peek() in ("(", "{"):
            argument = self._bracketed(depth, self._peek())
            if self._peek() in ("^", "!", "("):
                raise NoValueError  # \sin(x)^2
            return argument
        argument = self._factor(depth, is_first=True)
        while self._starts_factor() and self._peek() not in FUNCTIONS:
            argument = self._noted(self.field.multiply(argument, self._factor(depth, is_first=False)))
        after = "".join(self.tokens[self.position + 1 : self.position + 2])
        if self._peek() in ("/", r"\div") or (self._peek() in _PRODUCTS and after not in FUNCTIONS):
            raise NoValueError  # \sin x/2
        return argument

    def _root(self, depth: int) -> Amount:
        index: Amount = Fraction(2)
        before = set(self.names)
        if self._peek() == "[":
            index = self._bracketed(depth, "[")
        radicand = self._group(depth, takes_numbers=True)
        self._note_root(1 / index if isinstance(index, Fraction) and index else index, before)
        return self._noted(self.field.root(radicand, index, is_constant=not self.names))

    def _binomial(self, upper: Amount, lower: Amount) -> Amount:
        if not (isinstance(upper, Fraction) and isinstance(lower, Fraction)):
            raise NoValueError
        if max(upper, lower) > min(self.field.max_bits, MAX_EXACT):
            raise NoValueError
        if upper.denominator != 1 or lower.denominator != 1 or min(upper, lower) < 0:
            raise NoValueError
        return self._noted(Fraction(comb(int(upper), int(lower))))

    def _group(self, depth: int, *, is_exponent: bool = False, takes_numbers: bool = False) -> Amount:
        r"""Parse an argument: in braces, in parentheses as in `\sqrt(3)`, or one token as in `\frac\pi 2`.

        An exponent (`is_exponent`) may begin with a sign. A number of several characters without brackets
        raises `NoValueError` unless `takes_numbers` is set.
        """
        token = self._peek()
        if token in ("{", "("):
            return self._bracketed(depth, token)
        if is_exponent and token in _SIGNS:
            return self._take_sign() * self._group(depth + 1)
        is_ambiguous = token[:1].isdigit() and len(token) > 1 and not takes_numbers
        if token == "[" or token in FUNCTIONS or is_ambiguous:
            raise NoValueError
        return self._base(depth + 1, is_first=True)

    def _bracketed(self, depth: int, opening: str) -> Amount:
        self.position += 1
        outer, self._bars = self._bars, int(opening == "|")
        number = self.expression(depth + 1)
        self._bars = outer
        if self._take() != _BRACKETS[opening]:
            raise NoValueError
        if opening == "|":
            return self._noted(abs(number))
        if opening in (r"\lfloor", r"\lceil"):
            if not isinstance(number, Fraction):
                raise NoValueError
            return Fraction(-(-number // 1) if opening == r"\lceil" else number // 1)
        return number

    def _starts_factor(self) -> bool:
        token = self._peek()
        if token == "|":
            return not self._bars
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

    def _noted(self, number: Amount) -> Amount:
        number = self.field.reduced(number)
        self.num_bits += self.field.size(number)
        self.scale = max(self.scale, self.field.magnitude(number))
        return number

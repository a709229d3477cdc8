r"""Restatement of reference answers, to test that a grader parses answers instead of comparing texts.

`7e37` becomes `7\times 10^{37}`, 0.25 becomes `\frac{2}{8}`, a set is reordered, the sides of an equation are
exchanged, conditions become a set, a set becomes a condition, words become upper case, and any other
expression is multiplied by 1.
"""

from __future__ import annotations

import re
from fractions import Fraction

from atrium.grading.arithmetic import evaluate
from atrium.grading.domains import domain
from atrium.grading.linear import REVERSED
from atrium.grading.normalization import read
from atrium.grading.notation import CONJUNCTIONS, RELATIONS
from atrium.grading.qualifiers import qualified
from atrium.grading.structure import elements, unlabelled, without_base
from atrium.grading.tokens import Tokens, enclosed, join, split

_EXPONENT = re.compile(r"\s*\$?\s*([-+]?[0-9]*\.?[0-9]+|[0-9]+\.)[eE]([-+]?[0-9]+)\s*\$?\s*")
_MAX_DIGITS = 60
_CONJUNCTIONS = CONJUNCTIONS | {";"}
_NAMED = frozenset((r"\mathbb", r"\emptyset", r"\notin"))


def restated(gold: str) -> str:
    """Return the reference answer in another notation: an equal answer with a different text."""
    exponent = _EXPONENT.fullmatch(gold)
    if exponent:  # parsed here from the text, to detect a parser that reads e as Euler's number
        return rf"{exponent[1]} \times 10^{{{int(exponent[2])}}}"
    form = read(gold)
    if form.words is not None and len(form.words) > 1:
        return rf"\text{{{form.words.upper()}}}"
    if form.words is not None and form.words.isupper():
        return rf"\text{{({form.words})}}"  # a choice
    other = _restated(form.tokens)
    if other != form.text:
        return other
    value = join(unlabelled(form.tokens))
    return value if value != other else f"A = {value}"  # a name has no other form


def _restated(tokens: Tokens) -> str:
    family = qualified(tokens)[0]
    if family == tokens[: len(family)] != tokens:
        excluded = family[:2] if family[1:2] == (r"\neq",) else ()
        return join(excluded) + _restated(family[len(excluded) :]) + join(tokens[len(family) :])
    numbers = _set_of_numbers(tokens)
    if numbers:
        return numbers
    value = unlabelled(tokens)
    if value != tokens:
        return join(tokens[: len(tokens) - len(value)]) + _restated(value)
    several = elements(tokens)
    if tokens[:1] == (r"\begin",):
        return join(tokens).replace("pmatrix", "bmatrix") if "pmatrix" in tokens else join(tokens)
    if several is not None:
        parts = [_restated(part) for part in several.parts]
        listed = ", ".join(reversed(parts) if several.is_bare else parts)
        brackets = several.brackets.replace("{", r"\{").replace("}", r"\}")
        middle = len(brackets) // 2
        return brackets[:middle] + listed + brackets[middle:]
    union = split(tokens, frozenset((r"\cup",)))
    if len(union) > 1:
        return r" \cup ".join(map(join, reversed(union)))
    sides = split(tokens, frozenset(("=",)))
    reversed_relation = _read_backwards(tokens)
    if reversed_relation:
        return reversed_relation
    if len(sides) == 2:
        return f"{join(sides[1])} = {join(sides[0])}"
    return _restated_value(tokens)


def _set_of_numbers(tokens: Tokens) -> str:
    r"""Restate conditions as a set builder and sets of numbers as conditions, or return an empty text."""
    is_builder = tokens[:1] == (r"\{",) and not RELATIONS.isdisjoint(tokens)
    is_joined = len(split(tokens, RELATIONS)) > 1 and len(split(tokens, _CONJUNCTIONS)) > 1
    is_named = not _NAMED.isdisjoint(tokens)
    if not (is_builder or is_joined or is_named):
        return ""
    found = domain(tokens)
    name = join(found.variable) if found else ""
    if found and len(split(tokens, RELATIONS)) > 1:
        return rf"\{{{name} : {join(tokens)}\}}"
    value = unlabelled(tokens)
    if value[:1] == (r"\mathbb",) and enclosed(value[1:]) and value != tokens:
        return join(value)
    return rf"{name or 'x'} \in {join(tokens)}" if found or value[:1] == (r"\mathbb",) else ""


def _read_backwards(tokens: Tokens) -> str:
    """Return inequalities from right to left, `7 > x > 2` for `2 < x < 7`.

    The result is empty for other answers.
    """
    signs = [token for token in tokens if token in REVERSED]
    parts = split(tokens, frozenset(REVERSED))
    if (
        not signs
        or len(parts) != len(signs) + 1
        or any(len(split(part, _CONJUNCTIONS)) > 1 for part in parts)
    ):
        return ""
    pairs = zip(reversed(parts), [*map(REVERSED.__getitem__, reversed(signs)), ""], strict=True)
    return " ".join(f"{join(part)} {sign}" for part, sign in pairs).strip()


def _restated_value(tokens: Tokens) -> str:
    is_percent = tokens[-1:] == ("%",)
    value = evaluate(tokens[:-1] if is_percent else tokens)
    if without_base(tokens) != tokens:
        return "0" + join(tokens)
    if r"\infty" in tokens or (value is not None and join(tokens) in value.names):
        return join(tokens)
    if value is not None and not value.names and isinstance(value.number, Fraction):
        upper, lower = 2 * abs(value.number.numerator), 2 * value.number.denominator
        if max(upper, lower) < 10**_MAX_DIGITS:
            sign = "-" if value.number < 0 else ""
            return rf"{sign}\frac{{{upper}}}{{{lower}}}" + (r"\%" if is_percent else "")
    return rf"1 \cdot \left({join(tokens)}\right)"

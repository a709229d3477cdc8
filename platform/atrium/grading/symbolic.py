r"""Comparison by math-verify, for expressions that `identity` cannot decide: integrals, sums, equations.

Both answers are passed to math-verify inside `\boxed{}`, with LaTeX extraction only and without a fallback.
Math-verify may never terminate, so only worker processes call it. Source: math-verify 0.9.0,
https://github.com/huggingface/Math-Verify.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from atrium.grading.arithmetic import GREEK
from atrium.grading.normalization import read
from atrium.grading.structure import unlabelled
from atrium.grading.tokens import Tokens, join

PERCENT = ("%",)
"""The tokens at the end of a percentage."""
_NAMES = frozenset("abcfghjkmnopqrstuvwyzABFGHJKMPQRTUVWYZ")  # letters without a meaning of their own


def numeric_value(text: str) -> complex | None:
    """Return the value of a text that math-verify parses as a number, or None. Only workers call this."""
    tokens = unlabelled(read(text).tokens)
    is_percent = tokens[-1:] == PERCENT
    found = parsed(join(tokens[:-1] if is_percent else tokens))
    try:
        return complex(found[0].evalf()) / (100 if is_percent else 1) if found else None
    except (TypeError, ValueError, AttributeError):  # it contains letters, or is no number at all
        return None


def equal_by_math_verify(wanted: Tokens, given: Tokens) -> bool:
    """Return whether math-verify finds two expressions equal.

    Constants must also agree in more digits than math-verify compares (`_differ`). A percentage and a number
    without a percent sign are unequal here, since `settle` has already compared them. Expressions that SymPy
    cannot compare are unequal.
    """
    from math_verify import verify as math_verify  # takes half a second, so only if it is used

    is_percent = wanted[-1:] == PERCENT
    if is_percent != (given[-1:] == PERCENT):
        return False  # a number and a percentage have already been compared by `settle`
    end = -1 if is_percent else None  # math-verify's grammar for antlr 4.9 has no percent sign
    gold, answer = map(parsed, map(join, plainly_named(wanted[:end], given[:end])))
    try:
        is_equal = bool(math_verify(gold, answer, timeout_seconds=None, raise_on_error=True))
        has_decimals = any("." in token for token in (*wanted, *given))
        return is_equal and not _differ(gold[:1], answer[:1], 1e-5 if has_decimals else 1e-12)
    except (MemoryError, RecursionError):
        raise
    except Exception:
        # SymPy raises no common error for incomparable objects, such as a set and a matrix: TypeError,
        # KeyError, AttributeError, NotImplementedError and others all mean that the two are not equal.
        return False


def _differ(gold: list[Any], answer: list[Any], relative: float) -> bool:
    """Return whether two constants differ by more than `relative` times the larger magnitude.

    `gold` and `answer` are lists of one parsed expression. The result is False unless both expressions are
    constants. This check is necessary because math-verify compares only six decimal places, so that 1/100!
    would equal 0.
    """
    sides = [side for side in (*gold, *answer) if getattr(side, "is_number", False)]
    if len(sides) < 2:
        return False
    (a, b), (c, d) = ([side.evalf(digits) for side in sides] for digits in (40, 20))
    is_far = (a - b).is_finite and abs(a - b) > relative * max(abs(a), abs(b))
    is_known = all(getattr(number, "_prec", 2) > 1 for number in (a, b))  # 0.e-107 is rounding error
    return bool(is_known and is_far and abs((a - b) - (c - d)) < abs(a - b) / 4)


def plainly_named(wanted: Tokens, given: Tokens) -> tuple[Tokens, Tokens]:
    r"""Replace subscripted names by unused letters, since math-verify cannot parse `E_{1}` or `L_{\odot}`."""
    letters = iter(sorted(_NAMES - {letter for token in (*wanted, *given) for letter in token}))
    names: dict[Tokens, str] = {}
    try:
        return _renamed(wanted, names, letters), _renamed(given, names, letters)
    except StopIteration:  # more names than letters
        return wanted, given


def _renamed(tokens: Tokens, names: dict[Tokens, str], letters: Iterator[str]) -> Tokens:
    renamed: list[str] = []
    index = 0
    while index < len(tokens):
        end = index + 1
        is_name = (len(tokens[index]) == 1 and tokens[index].isalpha()) or tokens[index] in GREEK
        if is_name and tokens[end : end + 2] == ("_", "{") and "}" in tokens[end:]:
            end = tokens.index("}", end) + 1
            names[tokens[index:end]] = names.get(tokens[index:end]) or next(letters)
            renamed.append(names[tokens[index:end]])
        else:
            renamed.append(tokens[index])
        index = end
    return tuple(renamed)


@lru_cache(maxsize=4_096)
def parsed(latex: str) -> list[Any]:
    """Return math-verify's parse of LaTeX, empty if parsing fails.

    The result is cached, so that a reference answer is parsed only once.
    """
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    spelling = NormalizationConfig(units=False, malformed_operators=True, nits=True)
    parsed: list[Any] = parse(
        rf"\boxed{{{latex}}}",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=0, normalization_config=spelling)],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return parsed

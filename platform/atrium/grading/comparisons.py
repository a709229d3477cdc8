r"""The choice of graders: how an extracted answer is compared with the gold answer.

A comparison settles what it can in the caller and returns None where only a worker process may go on;
`exact` and `multiple_choice` settle everything. Which one a dataset needs is its configuration's choice.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from atrium.grading import equivalence
from atrium.grading.arithmetic import evaluate
from atrium.grading.equivalence import Finding
from atrium.grading.normalization import MAX_ANSWER_CHARS, read
from atrium.grading.structure import unlabelled
from atrium.grading.values import Value, close

Comparison = Callable[[str, str, float], Finding | None]
"""(gold, answer, relative tolerance) to a finding, or to None: ask a worker."""

_FONT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*(?=\{)|[{}$*]|\\[() ,;]")
_LEADING_LETTER = re.compile(r"\s*[(\[]?\s*([A-Za-z])\s*(?:[)\].:,]|\s|$)")
_ONLY_LETTERS = re.compile(r"(?:[\s,;()\[\].]|\b(?:and|or)\b|\b[A-Za-z]\b)+")
_LETTER = re.compile(r"\b[A-Za-z]\b")


def compare_math(gold: str, answer: str, relative_tolerance: float) -> Finding | None:
    """Mathematical equality, see `equivalence`; the tolerance plays no part."""
    del relative_tolerance
    return equivalence.settle(gold, answer)


def compare_exact(gold: str, answer: str, relative_tolerance: float) -> Finding:
    """Equality of the two texts, but for space around them and runs of space within."""
    del relative_tolerance
    return Finding(gold.split() == answer.split(), "compared as text")


def compare_numeric(gold: str, answer: str, relative_tolerance: float) -> Finding | None:
    r"""Whether two numbers differ by at most the tolerance, relative to the larger one.

    Numbers may be written as `1/3`, `\frac{1}{3}`, `1.5\times 10^{-3}`, `1.5e-3`, `30\%`, or as any
    expression that has a value; a unit behind the number is ignored.
    """
    if len(gold) > MAX_ANSWER_CHARS or len(answer) > MAX_ANSWER_CHARS:
        return Finding(False, "too long for a number")
    wanted, given = _number(gold), _number(answer)
    if wanted is None or given is None:
        return None
    is_close = close(wanted, given, relative_tolerance=relative_tolerance)
    return Finding(bool(is_close), f"numbers compared to a relative {relative_tolerance:g}")


def compare_multiple_choice(gold: str, answer: str, relative_tolerance: float) -> Finding:
    r"""Equality of the letters chosen: `C`, `(C)`, `\text{C. 12}`; several letters as a set."""
    del relative_tolerance
    wanted, given = _letters(gold), _letters(answer)
    if not given:
        return Finding(False, "no letter chosen")
    return Finding(wanted == given, "letters compared")


def verify_numeric(gold: str, answer: str, relative_tolerance: float) -> Finding:
    """Numeric comparison of expressions that only math-verify can read: for a worker process."""
    numbers = [equivalence.numeric_value(text) for text in (gold, answer)]
    values = [None if n is None else Value(n, abs(n), True, frozenset()) for n in numbers]
    if values[0] is None or values[1] is None:
        return Finding(False, "not a number")
    is_close = close(values[0], values[1], relative_tolerance=relative_tolerance)
    return Finding(bool(is_close), f"numbers compared to a relative {relative_tolerance:g}")


def verify_math(gold: str, answer: str, relative_tolerance: float) -> Finding:
    """Mathematical equality by math-verify: for a worker process."""
    del relative_tolerance
    return equivalence.verify(gold, answer)


def _number(text: str) -> Value | None:
    bare = text.strip().replace(",", "")
    try:
        number = float(bare)
    except ValueError:
        tokens = unlabelled(read(text).tokens)
        percent = tokens[-1:] == ("%",)
        value = evaluate(tokens[:-1] if percent else tokens)
        if value is None or value.names:
            return None
        return Value(value.number / 100, value.scale, True, value.names) if percent else value
    return Value(number, abs(number), True, frozenset())


def _letters(text: str) -> frozenset[str]:
    plain = _FONT.sub(" ", text)
    if _ONLY_LETTERS.fullmatch(plain):
        return frozenset(letter.upper() for letter in _LETTER.findall(plain))
    leading = _LEADING_LETTER.match(plain)
    return frozenset((leading[1].upper(),)) if leading else frozenset()


COMPARISONS: dict[str, Comparison] = {
    "math": compare_math,
    "exact": compare_exact,
    "numeric": compare_numeric,
    "multiple_choice": compare_multiple_choice,
}
WORKER_COMPARISONS: dict[str, Callable[[str, str, float], Finding]] = {
    "math": verify_math,
    "numeric": verify_numeric,
}

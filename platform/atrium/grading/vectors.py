r"""Conversion of sums of unit vectors to tuples.

`2\hat{i}-3\hat{j}` and `2\mathbf{i}-3\mathbf{j}` become `(2,-3)`.

A sum must contain at least two different unit vectors, each once: `2+3\mathbf{i}` is a complex number.
Letters without a hat or a font are unit vectors only if the reference answer contains unit vectors.
"""

from __future__ import annotations

import re

_FONT = r"\\(?:hat|widehat|vec|mathbf|bm|boldsymbol)(?![a-zA-Z])"
_UNIT = re.compile(
    rf"{_FONT}\s*(?:\{{\s*(?:{_FONT}\s*\{{\s*)?\\?([ijk])(?:math)?\s*\}}(?:\s*\}})?|\\?([ijk])(?:math)?(?![a-zA-Z]))"
)
_LETTER = re.compile(r"(?<![\\a-zA-Z{])([ijk])(?![a-zA-Z])")
_LABEL = re.compile(r"[^=]*=")
_COEFFICIENT = re.compile(
    r"([-+]?)((?:[^-+,;=<>(){}]|\([^(),;=<>]*\)|\{[^{},;=<>]*(?:\{[^{}]*\}[^{}]*)*\})*)"
)


def as_tuple(text: str) -> str:
    """Convert a sum of multiples of unit vectors to a tuple; return any other text unchanged."""
    if "\\" not in text or not _UNIT.search(text):
        return text
    units = list(_UNIT.finditer(text))
    names = [unit[1] or unit[2] for unit in units]
    if len(names) < 2 or len(set(names)) < len(names) or text[units[-1].end() :].strip(" .$"):
        return text
    label = _LABEL.match(text)
    starts = [label.end() if label else 0, *(unit.end() for unit in units)]
    entries: dict[str, str] = {}
    for name, start, unit in zip(names, starts, units, strict=False):
        coefficient = _COEFFICIENT.fullmatch(text[start : unit.start()].replace("$", "").strip())
        if coefficient is None or (entries and not coefficient[1]):
            return text
        entries[name] = coefficient[1] + (coefficient[2].strip() or "1")
    letters = "ijk" if "k" in entries else "ij"
    return f"({','.join(entries.get(letter, '0').lstrip('+') for letter in letters)})"


def beside(gold: str, answer: str) -> str:
    """Mark the letters i, j and k of an answer as unit vectors if the reference answer has unit vectors."""
    if "\\" not in gold or as_tuple(gold) == gold or as_tuple(answer) != answer:
        return answer
    return _LETTER.sub(r"\\mathbf{\1}", answer)

r"""Answers with a conventional meaning: choices with their values, ratios, and times of day.

A choice is a capital letter from A to J in brackets, or before a colon, a period or a closing bracket,
followed by its value: `\textbf{(C)}\ 12`, `C: 12`. Ratios such as `3:4`, `3 \text{ to } 4` and `6:8` are
equal if they reduce to the same ratio. A reference answer that may be a time of day, such as `10:30`, does
not equal the ratio `1:3`.
"""

from __future__ import annotations

import re

from atrium.grading.tokens import Leaf, Tokens, content, is_text, split
from atrium.grading.units import changes_value

CHOICES = frozenset("ABCDEFGHIJ")
"""Letters that stand for a choice."""
_COLON = frozenset((":",))
_SET_CHOICE = re.compile(
    r"(?P<before>(?:.*\b)?(?:is|option|choice|answer)\b\s*:?\s*)?\(?(?P<letter>(?-i:[A-J]))\)?[).:]*",
    re.IGNORECASE,
)
_WORDY_CHOICE = re.compile(
    r"(?:(?:option|choice|answer)\s*:?\s*)?\(?(?P<letter>[A-J])[).:]\s*(?!.*(?:\b(?:or|and|not)\b|\([A-J]\))).+"
)
_OPERATORS = frozenset("+-*/^!_=,;<>)") | {r"\cdot", r"\times", r"\in", r"\pm", r"\leq", r"\geq", r"\cup"}
_ENDS = frozenset((")", ":", "."))


def choice(tokens: Tokens) -> tuple[str, Tokens] | None:
    """Return the letter and value of a multiple-choice answer (the value may be empty), or None."""
    if not (tokens and (tokens[0] == "(" or tokens[0] in CHOICES or is_text(tokens[0]))):
        return None
    letter, start = _choice_start(tokens)
    rest = tokens[start:]
    while rest[:1] and rest[0] in _ENDS:
        rest = rest[1:]
    is_product = rest and (rest[0] in _OPERATORS - {"-"} or _choice_start((*rest, "1"))[0])
    if not letter or is_product:
        return None
    return letter, rest


def letter_of(words: str) -> str:
    """Return the letter in words such as `Option B:` and `The answer is (B)`.

    The result is empty for other words.
    """
    found = _SET_CHOICE.fullmatch(words)
    return "" if found is None or changes_value(found["before"] or "") else found["letter"]


def _choice_start(tokens: Tokens) -> tuple[str, int]:
    if tokens[:1] and is_text(tokens[0]):
        words = content(tokens[0]).strip()
        wordy = _WORDY_CHOICE.fullmatch(words) if len(tokens) == 1 else None
        letter = letter_of(words) or (wordy["letter"] if wordy else "")
        return letter, int(bool(letter))
    for start, end in ((0, 1), (1, 2)):
        is_open = start == 0 or tokens[:1] == ("(",)
        letter = tokens[start] if is_open and len(tokens) > end else ""
        if is_open and is_text(letter):
            letter = content(letter)
        is_letter = len(letter) == 1 and letter in CHOICES
        if is_letter and tokens[end] in (_ENDS if start == 0 else (")",)) and len(tokens) > end + 1:
            return letter, end + 1
    return "", 0


def compare_by_convention(wanted: Tokens, given: Tokens, leaf: Leaf) -> bool | None:
    """Compare times of day and ratios. Returns None for other answers, or if `leaf` cannot decide."""
    first, second = time_of_day(wanted), time_of_day(given)
    if first and second and (first[1] or second[1] or (":" in wanted and ":" in given)):
        return _same_time(first, second)
    is_time = first is not None and ":" in wanted
    if (first and first[1]) or (second and second[1]) or (is_time and ":" in given):
        return False
    sides = [split(tokens, _COLON) for tokens in (wanted, given)]
    if max(map(len, sides)) < 2 or max(map(len, sides)) > 9:
        return None
    if min(map(len, sides)) == 1 and max(map(len, sides)) == 2:
        ratio, single = sorted(sides, key=len, reverse=True)
        return leaf(_product(ratio[0], ("1",)), _product(single[0], ratio[1]))
    if len(sides[0]) != len(sides[1]):
        return False
    results = [
        leaf(_product(a, sides[1][0]), _product(b, sides[0][0]))
        for a, b in zip(sides[0][1:], sides[1][1:], strict=True)
    ]
    return False if False in results else None if None in results else True


def time_of_day(tokens: Tokens) -> tuple[int, str] | None:
    """Return the time of day denoted by the tokens, as minutes and a mark, or None for other tokens.

    The mark is `am`, `pm`, or empty. The minutes do not depend on the mark: 1:30 pm gives 90 and `pm`.
    """
    mark = ""
    if tokens and (is_text(tokens[-1]) or tokens[-1].isalpha()):
        words = content(tokens[-1]) if is_text(tokens[-1]) else tokens[-1]
        mark = words.replace(".", "").replace(" ", "").lower()
        if mark not in ("am", "pm"):
            return None
        tokens = tokens[:-1]
    if (
        len(tokens) == 3
        and tokens[1] == ":"
        and len(tokens[2]) == 2
        and tokens[0].isdecimal()
        and tokens[2].isdecimal()
    ):
        hours, minutes = int(tokens[0]), int(tokens[2])
    elif len(tokens) == 1 and tokens[0].isdecimal() and len(tokens[0]) <= 2:
        hours, minutes = int(tokens[0]), 0
    else:
        return None
    is_valid = minutes < 60 and hours <= (12 if mark else 24)
    return (60 * hours + minutes, mark) if is_valid else None


def _same_time(first: tuple[int, str], second: tuple[int, str]) -> bool:
    if bool(first[1]) == bool(second[1]):
        return first == second
    (marked, mark), (bare, _) = (first, second) if first[1] else (second, first)
    of_day = marked % 720 + 720 * (mark == "pm")
    return bare in (marked, of_day)


def _product(first: Tokens, second: Tokens) -> Tokens:
    return ("(", *first, ")", r"\cdot", "(", *second, ")")

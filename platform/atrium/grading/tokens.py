r"""Canonical tokens of an answer: LaTeX words, numbers and signs, and where brackets open and close.

A token is `\frac`, `12.5`, `x`, `(` or a run of set words, `\text{even}`. What spellings become which tokens
is `normalization`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

Tokens = tuple[str, ...]
Leaf = Callable[[Tokens, Tokens], bool | None]
"""Whether two values without a structure are equal; None where that is not known."""

REALS: Tokens = (r"\mathbb", "{", "R", "}")
SUCH_THAT = frozenset((r"\mid", ":", "|"))
"""Tokens between a member of a set and its conditions."""

MAX_DEPTH = 24
"""Brackets within brackets that are read."""

NESTING = {**dict.fromkeys(("(", "[", "{", r"\{"), 1), **dict.fromkeys((")", "]", "}", r"\}"), -1)}
"""By how much a token changes the depth of brackets."""


def join(tokens: Sequence[str]) -> str:
    """LaTeX from canonical tokens, with a space only where two tokens would run into one."""
    parts: list[str] = []
    for token in tokens:
        if parts and token[0].isalpha() and parts[-1][-1].isalpha():
            parts.append(" ")
        parts.append(token)
    return "".join(parts)


def is_text(token: str) -> bool:
    """Whether the token is a run of words set as text."""
    return token.startswith(r"\text{")


def has_digit(text: str) -> bool:
    """Whether there is a digit of any script in the text."""
    return any(map(str.isdigit, text))


def content(token: str) -> str:
    r"""The words of a token that is set as text: `even` of `\text{even}`."""
    return token[len(r"\text{") : -1]


def split(tokens: Sequence[str], separators: frozenset[str]) -> tuple[Tokens, ...]:
    """The parts between those separators that stand outside of all brackets; empty parts left out."""
    if separators.isdisjoint(tokens):
        return (tuple(tokens),) if tokens else ()
    parts: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += NESTING.get(token, 0)
        if depth <= 0 and token in separators:
            parts.append([])
        else:
            parts[-1].append(token)
    return tuple(tuple(part) for part in parts if part)


def enclosed(tokens: Sequence[str]) -> bool:
    """Whether one pair of brackets encloses all tokens, as in `(1, 2]` but not in `(1)(2)`."""
    if len(tokens) < 2 or NESTING.get(tokens[0]) != 1 or NESTING.get(tokens[-1]) != -1:
        return False
    depth = 0
    for token in tokens[:-1]:
        depth += NESTING.get(token, 0)
        if depth == 0:
            return False
    return depth == 1


def is_too_deep(tokens: Sequence[str], limit: int = MAX_DEPTH) -> bool:
    """Whether brackets stand in more others than the limit, deeper than anything is read."""
    if len(tokens) <= limit:
        return False
    return max(accumulate(NESTING.get(token, 0) for token in tokens)) > limit


def group_start(tokens: Sequence[str], end: int) -> int:
    """Where the bracket opens that `tokens[end - 1]` closes; -1 where none does."""
    depth = 0
    for index in range(end - 1, -1, -1):
        depth -= NESTING.get(tokens[index], 0)
        if depth == 0:
            return index
    return -1


def substituted(tokens: Tokens, letter: str, value: Tokens) -> Tokens:
    """The tokens with a value in brackets for a letter, also in runs of letters such as `ab`."""
    spelled: list[str] = []
    for token in tokens:
        for part in token if token.isalpha() and len(token) <= 3 else (token,):
            if part != letter:
                spelled.append(part)
                continue
            is_behind = spelled and (spelled[-1][-1].isalnum() or spelled[-1] in (")", "}"))
            spelled += [*([r"\cdot"] if is_behind else []), "(", *value, ")"]
    return tuple(spelled)

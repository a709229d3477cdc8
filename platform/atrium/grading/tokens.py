r"""Canonical tokens of an answer: LaTeX words, numbers and signs, and the positions of brackets.

A token is `\frac`, `12.5`, `x`, `(` or a run of words set as text, `\text{even}`. `normalization` maps
spellings to tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

Tokens = tuple[str, ...]
Leaf = Callable[[Tokens, Tokens], bool | None]
"""Decides whether two values without a structure are equal; None if unknown."""

REALS: Tokens = (r"\mathbb", "{", "R", "}")
SUCH_THAT = frozenset((r"\mid", ":", "|"))
"""Tokens between a member of a set and its conditions."""

MAX_DEPTH = 24
"""Maximum nesting depth of brackets that is parsed."""

NESTING = {**dict.fromkeys(("(", "[", "{", r"\{"), 1), **dict.fromkeys((")", "]", "}", r"\}"), -1)}
"""Change of the bracket depth by a token."""


def join(tokens: Sequence[str]) -> str:
    """Return LaTeX for canonical tokens, with spaces only where two tokens would merge."""
    parts: list[str] = []
    for token in tokens:
        if parts and token[0].isalpha() and parts[-1][-1].isalpha():
            parts.append(" ")
        parts.append(token)
    return "".join(parts)


def is_text(token: str) -> bool:
    """Return whether the token is a run of words set as text."""
    return token.startswith(r"\text{")


def has_digit(text: str) -> bool:
    """Return whether there is a digit of any script in the text."""
    return any(map(str.isdigit, text))


def content(token: str) -> str:
    r"""Return the words of a token that is set as text: `even` of `\text{even}`."""
    return token[len(r"\text{") : -1]


def split(tokens: Sequence[str], separators: frozenset[str]) -> tuple[Tokens, ...]:
    """Split at separators outside all brackets; empty parts are dropped."""
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
    """Return whether one pair of brackets encloses all tokens, as in `(1, 2]` but not in `(1)(2)`."""
    if len(tokens) < 2 or NESTING.get(tokens[0]) != 1 or NESTING.get(tokens[-1]) != -1:
        return False
    depth = 0
    for token in tokens[:-1]:
        depth += NESTING.get(token, 0)
        if depth == 0:
            return False
    return depth == 1


def is_too_deep(tokens: Sequence[str], limit: int = MAX_DEPTH) -> bool:
    """Return whether brackets are nested more deeply than the limit."""
    if len(tokens) <= limit:
        return False
    return max(accumulate(NESTING.get(token, 0) for token in tokens)) > limit


def group_start(tokens: Sequence[str], end: int) -> int:
    """Return the position of the bracket that `tokens[end - 1]` closes; -1 if there is none."""
    depth = 0
    for index in range(end - 1, -1, -1):
        depth -= NESTING.get(tokens[index], 0)
        if depth == 0:
            return index
    return -1


def substituted(tokens: Tokens, letter: str, value: Tokens) -> Tokens:
    """Return the tokens with a letter replaced by a value in brackets, also in runs such as `ab`."""
    spelled: list[str] = []
    for token in tokens:
        for part in token if token.isalpha() and len(token) <= 3 else (token,):
            if part != letter:
                spelled.append(part)
                continue
            is_behind = spelled and (spelled[-1][-1].isalnum() or spelled[-1] in (")", "}"))
            spelled += [*([r"\cdot"] if is_behind else []), "(", *value, ")"]
    return tuple(spelled)

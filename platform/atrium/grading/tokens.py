r"""Operations on the canonical tokens of an answer: splitting, joining, matching brackets, substitution.

A token is a command (`\frac`), a number (`12.5`), letters (`x`), a sign (`(`), or words set as text
(`\text{even}`). `normalization` converts an answer to tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

Tokens = tuple[str, ...]
Leaf = Callable[[Tokens, Tokens], bool | None]
"""A function that decides whether two single values are equal; it returns None if it cannot decide."""

REALS: Tokens = (r"\mathbb", "{", "R", "}")
SUCH_THAT = frozenset((r"\mid", ":", "|"))
"""Tokens between the members and the conditions in a set builder."""

MAX_DEPTH = 24
"""Maximum nesting depth of brackets in an answer that is parsed."""

NESTING = {**dict.fromkeys(("(", "[", "{", r"\{"), 1), **dict.fromkeys((")", "]", "}", r"\}"), -1)}
"""Brackets, with the change of the nesting depth at each of them."""


def join(tokens: Sequence[str]) -> str:
    """Return LaTeX for canonical tokens, with spaces only where two tokens would merge."""
    parts: list[str] = []
    for token in tokens:
        if parts and token[0].isalpha() and parts[-1][-1].isalpha():
            parts.append(" ")
        parts.append(token)
    return "".join(parts)


def is_text(token: str) -> bool:
    r"""Return whether the token consists of words set as text, `\text{even}`."""
    return token.startswith(r"\text{")


def has_digit(text: str) -> bool:
    """Return whether the text contains a digit of any script."""
    return any(map(str.isdigit, text))


def content(token: str) -> str:
    r"""Return the words of a token that is set as text: `even` for `\text{even}`."""
    return token[len(r"\text{") : -1]


def split(tokens: Sequence[str], separators: frozenset[str]) -> tuple[Tokens, ...]:
    """Split tokens at separators outside all brackets; empty parts are dropped."""
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
    """Return the position of the bracket that `tokens[end - 1]` closes, or -1 if there is none."""
    depth = 0
    for index in range(end - 1, -1, -1):
        depth -= NESTING.get(tokens[index], 0)
        if depth == 0:
            return index
    return -1


def substituted(tokens: Tokens, letter: str, value: Tokens) -> Tokens:
    """Replace a letter by a value in brackets, also in tokens with several letters such as `ab`."""
    spelled: list[str] = []
    for token in tokens:
        for part in token if token.isalpha() and len(token) <= 3 else (token,):
            if part != letter:
                spelled.append(part)
                continue
            is_behind = spelled and (spelled[-1][-1].isalnum() or spelled[-1] in (")", "}"))
            spelled += [*([r"\cdot"] if is_behind else []), "(", *value, ")"]
    return tuple(spelled)

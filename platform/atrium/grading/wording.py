r"""Conversion of sets of real numbers from words to symbols.

`\text{all reals except } 4` becomes `\mathbb{R} \setminus \{4\}`. An answer remains unchanged if a word is
unknown, or if the answer is not a set of numbers.
"""

from __future__ import annotations

import re

from atrium.grading.notation import CONJUNCTIONS, RELATIONS, word_set
from atrium.grading.tokens import REALS, Tokens, content, enclosed, is_text, split

_PHRASES = {
    "such that": r"\mid",
    "for which": r"\mid",
    "satisfying": r"\mid",
    "where": r"\mid",
    "with": r"\mid",
    "except for": r"\setminus",
    "except": r"\setminus",
    "excluding": r"\setminus",
    "other than": r"\setminus",
    "greater than or equal to": r"\geq",
    "at least": r"\geq",
    "greater than": ">",
    "more than": ">",
    "larger than": ">",
    "less than or equal to": r"\leq",
    "at most": r"\leq",
    "less than": "<",
    "smaller than": "<",
    "not equal to": r"\neq",
    "but": r"\setminus",
    "is": r"\in",
    "can be": r"\in",
    "and": r"\land",
    "or": r"\lor",
}
_LONGEST = max(len(phrase.split()) for phrase in _PHRASES)
_OF_REALS = word_set("the set of all any every real reals number numbers value values")
_SIGNS = frozenset((r"\mid", r"\setminus"))
_KNOWN = _OF_REALS | {word for phrase in _PHRASES for word in phrase.split()}
_BETWEEN = frozenset((",", ";"))
_INTRODUCING = frozenset((r"\mid", ",", ":", "|"))
_ATOM = re.compile(r"[A-Za-z]+|[0-9]+(?:\.[0-9]+)?|\S")


def in_symbols(tokens: Tokens) -> Tokens:
    """Convert a set of real numbers from words to symbols; return any other tokens unchanged."""
    if not any(is_text(token) or (len(token) > 2 and token.isalpha()) for token in tokens):
        return tokens
    atoms = [
        atom for token in tokens for atom in (_ATOM.findall(content(token)) if is_text(token) else (token,))
    ]
    words = {atom.lower() for atom in atoms if len(atom) > 1 and atom.isalpha()}
    if not words or not words <= _KNOWN:
        return tokens
    found = _symbols(atoms)
    if found is None or (_SIGNS.isdisjoint(found) and found[:4] != REALS):
        return tokens
    if found[:1] == (r"\{",) and enclosed(found):
        inner = found[1:-1]
        return _of_reals(inner[4:]) or tokens if inner[:4] == REALS else found
    if found[:4] == REALS and tokens[0] != REALS[0]:
        return _of_reals(found[4:]) or tokens
    return _without(found) or _built(found) or tokens


def _symbols(atoms: list[str]) -> Tokens | None:
    """Replace phrases, and words for the real numbers, by symbols. Returns None if a word has no symbol."""
    found: list[str] = []
    index = 0
    while index < len(atoms):
        end = index
        while end < len(atoms) and atoms[end].lower() in _OF_REALS:
            end += 1
        if end > index:
            if {"all", "any", "every", "real", "reals"}.isdisjoint(map(str.lower, atoms[index:end])):
                return None
            found += REALS
            index = end
            continue
        for length in range(_LONGEST, 0, -1):
            sign = _PHRASES.get(" ".join(atoms[index : index + length]).lower())
            if sign:
                break
        else:
            sign, length = atoms[index], 1
            if len(sign) > 1 and sign.isalpha():
                return None
        found.append(sign)
        index += length
    return tuple(found)


def _of_reals(rest: Tokens) -> Tokens | None:
    """Return the set of real numbers with the property `rest`, or None if `rest` is not a known property.

    Words in `rest` have already been replaced by symbols, such as `> 2` for `greater than 2`.
    """
    is_named = bool(rest) and len(rest[0]) == 1 and rest[0].isalpha()
    name, rest = rest[: int(is_named)], rest[int(is_named) :]
    if not rest:
        return REALS
    if rest[0] == r"\setminus":
        return _without((*REALS, *rest))
    if rest[0] in _INTRODUCING:
        return None if RELATIONS.isdisjoint(rest) else rest[1:]
    if rest[0] not in RELATIONS:
        return None
    if name:
        return (*name, *rest)
    sign, bound = rest[0], rest[1:]
    if not (CONJUNCTIONS | RELATIONS).isdisjoint(bound):
        return None
    if sign == r"\neq":
        return _without((*REALS, r"\setminus", *bound))
    if sign in (">", r"\geq"):
        return ("(" if sign == ">" else "[", *bound, ",", r"\infty", ")")
    return ("(", "-", r"\infty", ",", *bound, ")" if sign == "<" else "]")


def _without(tokens: Tokens) -> Tokens | None:
    r"""Return a difference of sets, with braces added around bare points.

    For example, `\mathbb{R} \setminus 4` becomes `\mathbb{R} \setminus \{4\}`. Returns None if the tokens are
    not a difference of two sets.
    """
    parts = split(tokens, frozenset((r"\setminus",)))
    if len(parts) != 2 or not RELATIONS.isdisjoint(parts[1]) or r"\mid" in tokens:
        return None
    if parts[1][0] in (r"\{", "(", "["):
        return tokens
    points = [split(point, frozenset(("=",))) for point in split(parts[1], CONJUNCTIONS)]
    if not (points and all(points)):
        return None
    listed = [token for point in points for token in (",", *point[-1])][1:]
    return (*parts[0], r"\setminus", r"\{", *listed, r"\}")


def _built(tokens: Tokens) -> Tokens | None:
    r"""Add the braces of a set builder, `\{x \mid x > 2\}` for `x \mid x > 2`; None for other tokens."""
    head = next(iter(split(tokens, frozenset((r"\mid",)))), ("",))
    is_named = len(head[0]) == 1 and head[0].isalpha() and (len(head) == 1 or head[1] == r"\in")
    return (r"\{", *tokens, r"\}") if is_named and not RELATIONS.isdisjoint(tokens) else None


def with_round_brackets(tokens: Tokens) -> Tokens:
    r"""Replace square brackets that point outward, which mark open ends: `(2,3]` for `]2,3]`."""
    if "[" not in tokens and "]" not in tokens:
        return tokens
    result = list(tokens)
    opened: list[tuple[str, int]] = []
    for index, token in enumerate(tokens):
        is_open = bool(opened) and opened[-1][0] in ("[", "]")
        is_end = token == "[" and is_open and not _BETWEEN.isdisjoint(tokens[opened[-1][1] : index - 1])
        before = tokens[index - 1] if index else ""
        if is_end and before not in (r"\sqrt", ",", ";"):
            result[index] = ")"
            opened.pop()
        elif token == "]" and not is_open:
            if opened and opened[-1][0] == "(":
                opened.pop()  # `(2,3]`
            elif before[-1:].isdigit() or before in (")", "}", "]"):
                return tokens
            else:
                result[index] = "("
                opened.append(("]", index))
        elif token in ("(", "[", "{", r"\{"):
            opened.append((token, index))
        elif token in (")", "]", "}", r"\}"):
            if not opened:
                return tokens
            opened.pop()
    return tokens if opened else tuple(result)

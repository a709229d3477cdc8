r"""One spelling for what is written in many ways: the canonical tokens of an answer.

Every rule here keeps the meaning: spacing, size and font commands go, synonyms become one, arguments get
their braces, units behind a number are dropped as math-verify drops them. Two answers with equal canonical
text therefore say the same thing. Rules that could change a value are not here (`4\quad 2` is not 42, and
`1, 234` is not 1234). No value is computed and nothing is compared.

A bounded number of passes over at most `MAX_ANSWER_CHARS` characters, without recursion.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from atrium.grading.extraction import extract_answer
from atrium.grading.notation import (
    DROPPED,
    MATH_FONTS,
    REWRITES,
    SPACES,
    SYNONYMS,
    TEXT_FONTS,
    UNICODE,
    WORD_SYNONYMS,
)

Tokens = tuple[str, ...]

MAX_ANSWER_CHARS = 2_000
"""Longer answers are settled unread; the longest gold answer in common use has about 200."""

_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[0-9]+(?:\.[0-9]+)?|\.[0-9]+|[a-zA-Z]+|\s+|.", re.DOTALL)
_THIN = r"(?:,?(?:\\[,!;: ]|\{,\}|\{\\,\})\s*)"
_THIN_GROUPED = re.compile(rf"(?<![0-9.])([0-9]{{1,3}})((?:{_THIN}[0-9]{{3}})+)(?![0-9])")
_COMMA_GROUPED = re.compile(r"[^0-9,()\[\]{}]*[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?[^0-9,]*")
_SPACE_GROUPED = re.compile(r"\s*[-+]?[0-9]{1,3}(?: [0-9]{3})+\s*")
_PLAIN_WORDS = re.compile(r"[A-Za-z][A-Za-z ,'-]*\.?")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_DELIMITER = re.compile(r"(?<!\\)(?:\\[\[\]()]|\$\$?)")
# Words without digits around the only mathematics: `so $x < 3$ is our answer`, `The answer is 42`.
_ONLY_MATH = re.compile(r"(?s)(?!.*\b(?:and|or|but|percent|pct)\b)[A-Za-z\s.:]*\$([^$]+)\$[A-Za-z\s.!]*")
_DENIAL = re.compile(
    r"(?<!\\)\b(?:not|never|wrong|incorrect|false|neither|nor|cannot|isn't)\b", re.IGNORECASE
)
_LEAD_IN = re.compile(r"\s*[A-Za-z][A-Za-z ,.'\n]*(?:\b(?:is|are)\b|:(?=\s))\s*(?=[-+0-9$\\(])")

_NOT_A_UNIT = frozenset(("sqrt", "infinity", "infty", "choose"))
_TRAILING = frozenset((".", ",", ";", ":", r"\\", " ", "?"))
_LEADING = frozenset(("=", ":", ",", ";", ".", r"\\", " "))
_DEGREE = ["^", "{", r"\circ", "}"]
_UNIT_POWERS = (["^", "{", "2", "}"], ["^", "{", "3", "}"])
_MAX_TRIMS = 32


@dataclass(frozen=True, slots=True)
class Form:
    r"""An answer in canonical tokens.

    `words` is set where it holds nothing but words, in lower case and without spaces (one letter keeps
    its case). `has_text` tells words set as text, `\text{even}`, from letters that may be variables.
    `has_stray_digits`: there are digits in set text and outside of it, so no unit can be dropped.
    `has_denial`: there is more than words, and one of the words denies something.
    """

    tokens: Tokens
    text: str
    words: str | None
    has_text: bool
    has_stray_digits: bool
    has_denial: bool


@lru_cache(maxsize=4_096)
def read(answer: str) -> Form:
    """The canonical form of an answer without its box, or of a gold answer with or without one."""
    if r"\boxed" in answer:
        answer = extract_answer(answer, thinking=False) or answer
    tokens = _trimmed(_tokens(_prepared(answer)))
    texts = [token for token in tokens if is_text(token)]
    has_stray_digits = any(map(_has_digit, texts)) and any(
        _has_digit(token) for token in tokens if not is_text(token)
    )
    words = _words(tokens)
    if words is None and not has_stray_digits:
        tokens = _without_unit(tokens)
    has_denial = words is None and _DENIAL.search(answer) is not None
    return Form(tuple(tokens), join(tokens), words, bool(texts), has_stray_digits, has_denial)


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


def split(tokens: Sequence[str], separators: frozenset[str]) -> tuple[Tokens, ...]:
    """The parts between those separators that stand outside of all brackets; empty parts left out."""
    if separators.isdisjoint(tokens):
        return (tuple(tokens),) if tokens else ()
    parts: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += _NESTING.get(token, 0)
        if depth <= 0 and token in separators:
            parts.append([])
        else:
            parts[-1].append(token)
    return tuple(tuple(part) for part in parts if part)


def enclosed(tokens: Sequence[str]) -> bool:
    """Whether one pair of brackets encloses all tokens, as in `(1, 2]` but not in `(1)(2)`."""
    if len(tokens) < 2 or _NESTING.get(tokens[0]) != 1 or _NESTING.get(tokens[-1]) != -1:
        return False
    depth = 0
    for token in tokens[:-1]:
        depth += _NESTING.get(token, 0)
        if depth == 0:
            return False
    return depth == 1


_NESTING = {**dict.fromkeys(("(", "[", "{", r"\{"), 1), **dict.fromkeys((")", "]", "}", r"\}"), -1)}


def _prepared(text: str) -> str:
    if not text.isascii():
        text = "".join(map(_ascii_digit, text.translate(UNICODE)))
    if r"\begin" not in text:  # there a doubled backslash ends a row; elsewhere it is an escaping slip
        text = re.sub(r"\\\\(?=[a-zA-Z{}])", r"\\", text)
    text = _DELIMITER.sub("$", text)
    only_math = _ONLY_MATH.fullmatch(text)
    lead_in = _LEAD_IN.match(text)
    text = only_math[1] if only_math else text[lead_in.end() :] if lead_in else text
    text = _THIN_GROUPED.sub(lambda match: re.sub(r"[^0-9]", "", match[0]), text)
    if _COMMA_GROUPED.fullmatch(text):
        text = text.replace(",", "")
    elif _SPACE_GROUPED.fullmatch(text):
        text = text.replace(" ", "")
    for pattern, replacement in REWRITES:
        text = pattern.sub(replacement, text)
    return text


def _ascii_digit(char: str) -> str:
    digit = unicodedata.decimal(char, None) if char > "\x7f" else None
    return char if digit is None else str(int(digit))


def _tokens(text: str) -> list[str]:
    raw = _TOKEN.findall(text)
    tokens: list[str] = []
    space = False
    index = 0
    while index < len(raw):
        token = raw[index]
        index += 1
        if token in SPACES or token.lstrip("\\").isspace():
            space = True
            continue
        if token in (r"\left", r"\right") and raw[index : index + 1] == ["."]:
            index += 1
        if token in DROPPED:
            space = True
            continue
        if token in TEXT_FONTS or token in MATH_FONTS:
            content, end = _group(raw, index)
            if content is None:
                continue
            if token in MATH_FONTS and any(char in content for char in "\\^_{"):
                continue  # mathematics in bold: its content follows as a plain group
            index = end
            token = _set_text(content)
        token = SYNONYMS.get(token, token)
        token = WORD_SYNONYMS.get(token.lower(), token)
        if token == "" or (token == "," and tokens[-1:] == [","]):
            continue
        if space and tokens and tokens[-1][-1].isdigit() and token[0] in ".0123456789":
            tokens.append(" ")
        tokens.append(token)
        space = False
    return tokens


def _group(raw: list[str], start: int) -> tuple[str | None, int]:
    """The text of the brace group at `start`, and where it ends; None where there is none."""
    while start < len(raw) and raw[start].isspace():
        start += 1
    depth = 0
    for index in range(start, len(raw)):
        depth += {"{": 1, "}": -1}.get(raw[index], 0)
        if depth == 0:
            return (None, start) if index == start else ("".join(raw[start + 1 : index]), index + 1)
    return None, start


def _set_text(content: str) -> str:
    r"""What stands for `\text{content}`: a number or a letter itself, a conjunction as a comma."""
    content = " ".join(re.sub(r"~|\\[,;:! $]|\$", " ", content).split())
    bare = content.replace(" ", "").lower()
    if bare in WORD_SYNONYMS:
        return WORD_SYNONYMS[bare]
    if content == "" or (len(content) == 1 and content.isalpha()) or _NUMBER.fullmatch(content):
        return content
    return rf"\text{{{content}}}"


def _trimmed(tokens: list[str]) -> list[str]:
    for _ in range(_MAX_TRIMS):
        if tokens and tokens[-1] in _TRAILING:
            tokens = tokens[:-1]
        elif tokens and tokens[0] in _LEADING:
            tokens = tokens[1:]
        elif tokens and tokens[0] == "{" and enclosed(tokens):
            tokens = tokens[1:-1]
        elif len(tokens) > len(_DEGREE) and tokens[-len(_DEGREE) :] == _DEGREE:
            tokens = tokens[: -len(_DEGREE)]
        else:
            break
    return tokens


def _words(tokens: list[str]) -> str | None:
    if enclosed(tokens) and tokens[0] == "(":
        tokens = tokens[1:-1]
    words = []
    for token in tokens:
        content = token[len(r"\text{") : -1] if is_text(token) else token
        content = content.removeprefix("(").removesuffix(")") if is_text(token) else content
        if not _PLAIN_WORDS.fullmatch(content):
            return None
        words.append(content.rstrip(".").replace(" ", ""))
    text = "".join(words)
    return (text if len(text) == 1 else text.lower()) or None


def _without_unit(tokens: list[str]) -> list[str]:
    """The tokens without the words, and their power, that follow a number, a group or a letter."""
    end = len(tokens) - 4 if tokens[-4:] in _UNIT_POWERS else len(tokens)
    words_end = end
    while end > 1 and _is_unit_word(tokens[end - 1]):
        end -= 1
    before = tokens[end - 1] if end else ""
    if end == words_end or is_text(before):
        return tokens
    if before[-1].isdigit() or before in ("}", ")", "%"):
        return tokens[:end]
    is_symbol = len(before) == 1 and before.isalpha()
    return tokens[:end] if is_symbol and all(map(is_text, tokens[end:words_end])) else tokens


def _is_unit_word(token: str) -> bool:
    return is_text(token) or (len(token) > 3 and token.isalpha() and token not in _NOT_A_UNIT)


def _has_digit(token: str) -> bool:
    return any(char.isdigit() for char in token)

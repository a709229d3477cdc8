r"""Conversion of an answer to canonical tokens, which have one spelling for equivalent notations.

Every rule in this module preserves the meaning: white space, size and font commands are dropped, synonyms are
unified, missing braces around arguments are added, numbers get one notation (`numerals`), and units after a
value are dropped (`units`). Two answers with equal canonical text therefore mean the same. Rules that could
change a value are excluded: `4\quad 2` is not 42, and `1, 234` is not 1234. No values are compared. Values
are computed only for repeating decimals and for numbers in words.

The text has at most `MAX_ANSWER_CHARS` characters, and is scanned a fixed number of times without recursion.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from atrium.grading.extraction import extract_answer
from atrium.grading.notation import (
    CONJUNCTIONS,
    DROPPED,
    MATH_FONTS,
    RELATIONS,
    REWRITES,
    SPACES,
    SYNONYMS,
    TEXT_FONTS,
    UNICODE,
    WORD_SYNONYMS,
    word_set,
)
from atrium.grading.numerals import spell_numbers, spell_unicode
from atrium.grading.prose import is_lead_in, unwrapped, without_remark
from atrium.grading.qualifiers import is_quantifier
from atrium.grading.tokens import NESTING, Tokens, content, enclosed, has_digit, is_text, join, split
from atrium.grading.units import LETTERS, bare_words, changes_value, without_unit
from atrium.grading.vectors import as_tuple
from atrium.grading.wording import in_symbols, with_round_brackets

MAX_ANSWER_CHARS = 2_000
"""Length above which answers are not parsed; the longest reference answer in common use has about 200."""

_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[0-9]+(?:\.[0-9]+)?|\.[0-9]+|[a-zA-Z]+|\s+|.", re.DOTALL)
_THIN = r"(?:,?(?:\\[,!;: ]|\{,\}|\{\\,\})\s*)"
_THIN_GROUPED = re.compile(rf"(?<![0-9.])([0-9]{{1,3}})((?:{_THIN}[0-9]{{3}})+)(?![0-9])")
_COMMA_GROUPED = re.compile(r"[^0-9,()\[\]{}]*[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?[^0-9,]*")
_SPACE_GROUPED = re.compile(r"\s*[-+]?[0-9]{1,3}(?: [0-9]{3})+\s*")
_PLAIN_WORDS = re.compile(r"[A-Za-z][A-Za-z ,'-]*\.?")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_DELIMITER = re.compile(r"(?<!\\)(?:\\[\[\]()]|\$\$?)")
# Words without digits around the only mathematics: `so $x < 3$ is our answer`, `The answer is $42$`.
_ONLY_MATH = re.compile(
    r"(?s)(?!.*\b(?:and|or|but|percent|pct|except|excluding|than)\b)[A-Za-z\s.:]*\$([^$]+)\$[A-Za-z\s.!]*"
)
_DENIAL = re.compile(
    r"(?<!\\)\b(?:not|never|wrong|incorrect|false|neither|nor|cannot|isn't)\b", re.IGNORECASE
)
_LEAD_IN = re.compile(
    r"(?!(?:.* )?\(?[A-J]\)?\s*:)\s*[A-Za-z][A-Za-z ,.'\n]*(?:\b(?:is|are)\b|:(?=\s))\s*"
    r"(?=[-+0-9$\\(]|[A-J]\.?\s*$)"
)

_TRAILING = frozenset((".", ",", ";", ":", r"\\", " ", "?"))
_LEADING = frozenset(("=", ":", ",", ";", ".", r"\\", " ", r"\approx", r"\simeq", r"\sim"))
_COMMA = frozenset((",",))
_MULTIPLES = {  # words after a number that multiply it
    word: (r"\times", "10", "^", "{", str(exponent), "}")
    for word, exponent in (("hundred", 2), ("thousand", 3), ("million", 6), ("billion", 9), ("trillion", 12))
} | {"dozen": (r"\times", "12")}
_MAX_TRIMS = 32
_OF_NUMBER_SETS = RELATIONS | {r"\infty"}
_PLURAL = re.compile(r"(?<=[a-z]{3}[a-rt-z])s$")
_FILLERS = word_set("a an the there is are exist exists")
_SAYINGS = tuple(  # phrases: the canonical name, the required words, and the optional words
    (name, word_set(needed), word_set(needed) | word_set(others))
    for name, needed, others in (
        ("none", "no solution", "real such valid possible equation system inequality it has have"),
        ("none", "no root", "real such valid possible equation it has have"),
        ("none", "none", ""),
        ("none", "empty set", ""),
        ("infinitely many", "infinitely many", "solution root value"),
        ("infinitely many", "infinite", "many number of solution root value"),
        ("does not exist", "dne", ""),
        ("does not exist", "does not", "limit it"),
    )
)


@dataclass(frozen=True, slots=True)
class Form:
    r"""An answer in canonical tokens.

    If the answer consists of words only, `words` is their text in lower case and without spaces (a single
    letter keeps its case); otherwise it is None. `has_text` tells whether the answer contains words set as
    text, such as `\text{even}`, which cannot be variables. `has_stray_digits` tells whether digits occur both
    inside and outside such text, in which case no unit can be dropped. `has_change` tells whether the answer
    has a value and words that negate something or change that value.
    """

    tokens: Tokens
    text: str
    words: str | None
    has_text: bool
    has_stray_digits: bool
    has_change: bool


@lru_cache(maxsize=4_096)
def read(answer: str) -> Form:
    """Return the canonical form of an extracted answer or a reference answer."""
    if r"\boxed" in answer:
        answer = extract_answer(answer, thinking=False) or answer
    answer = without_remark(answer)
    tokens = tuple(_without_lead_in(_trimmed(_collapsed(_tokens(_prepared(answer))))))
    texts = [content(token) for token in tokens if is_text(token)]
    has_stray_digits = any(has_digit(bare_words(words)) for words in texts) and any(
        has_digit(token) for token in tokens if not is_text(token)
    )
    words = _words(tokens)
    is_read = len(tokens) > 1 or bool(texts) if words is None else words.startswith("allreal")
    symbols = in_symbols(with_round_brackets(tokens)) if is_read else tokens
    if symbols != tokens and not any(map(is_text, symbols)):
        has_change = _DENIAL.search(answer.replace("not equal to", "")) is not None
        return Form(symbols, join(symbols), None, False, False, has_change)
    if words is None and not has_stray_digits and not (texts and any(map(is_quantifier, tokens))):
        tokens = without_unit(tokens)
    if texts:  # letters such as `\mathrm{m}` that turned out not to be units
        tokens = tuple(
            content(token) if is_text(token) and len(content(token)) == 1 else token for token in tokens
        )
    has_change = words is None and (
        _DENIAL.search(answer) is not None or (bool(texts) and _is_changed(tokens))
    )
    has_text = bool(texts) and any(map(is_text, tokens))
    return Form(tokens, join(tokens), words, has_text, has_stray_digits, has_change)


def with_tokens(form: Form, tokens: Tokens) -> Form:
    """Return the form of one part of an answer.

    `form` is the form of the whole answer, and `tokens` are the tokens of the part.
    """
    tokens = without_unit(tokens)
    return replace(
        form, tokens=tokens, text=join(tokens), words=_words(tokens), has_text=any(map(is_text, tokens))
    )


def _is_changed(tokens: Tokens) -> bool:
    r"""Return whether words after a value change it: `5\text{ or six}`."""
    if not any(map(is_text, tokens)):
        return False
    parts = split(tokens, _COMMA)
    return any(len(part) > 1 and is_text(part[-1]) and changes_value(content(part[-1])) for part in parts)


def _prepared(text: str) -> str:
    if not text.isascii():
        text = "".join(map(_ascii_digit, spell_unicode(text).translate(UNICODE)))
    if text.isdecimal():
        return text
    text = as_tuple(unwrapped(text))
    text = _DELIMITER.sub("$", text)
    only_math = _ONLY_MATH.fullmatch(text) if "$" in text else None
    lead_in = _LEAD_IN.match(text)
    text = only_math[1] if only_math else text[lead_in.end() :] if lead_in else text
    if "," in text or "\\" in text:
        text = _THIN_GROUPED.sub(lambda match: re.sub(r"[^0-9]", "", match[0]), text)
    if _COMMA_GROUPED.fullmatch(text):
        text = text.replace(",", "")
    elif _SPACE_GROUPED.fullmatch(text):
        text = text.replace(" ", "")
    text = spell_numbers(text)
    for sign, pattern, replacement in REWRITES:
        if sign in text:
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
            words, end = _group(raw, index)
            if words is None:
                continue
            if token in MATH_FONTS and any(char in words for char in "\\^_{"):
                continue  # bold mathematics: its content follows as a plain group
            index = end
            first, _, rest = words.strip("~ ").partition(" ")
            multiple = _multiple(first, tokens)
            token = _set_text(rest if multiple else words)
        else:
            multiple = _multiple(token, tokens)
            token = "" if multiple else token
        tokens += multiple
        token = SYNONYMS.get(token, token)
        token = WORD_SYNONYMS.get(token.lower(), token)
        if token == "" or (token in CONJUNCTIONS and tokens[-1:] == [token]):
            continue
        if token in CONJUNCTIONS and tokens[-1:] == [","]:  # `1, 2, and 3`
            tokens.pop()
        if space and tokens and tokens[-1][-1].isdigit() and token[0] in ".0123456789":
            tokens.append(" ")
        tokens.append(token)
        space = False
    if {r"\land", r"\lor"}.isdisjoint(tokens) or not _OF_NUMBER_SETS.isdisjoint(tokens):
        return tokens
    return ["," if token in CONJUNCTIONS else token for token in tokens]  # a list of values


def _collapsed(tokens: list[str]) -> list[str]:
    """Drop the outer one of two pairs of brackets that enclose the same tokens: `((x))` becomes `(x)`."""
    if not any(a == b and a in ("{", "(") for a, b in pairwise(tokens)):
        return tokens
    closings, opened = {}, []
    for index, token in enumerate(tokens):
        if NESTING.get(token) == 1:
            opened.append(index)
        elif NESTING.get(token) == -1 and opened:
            closings[opened.pop()] = index
    dropped = set()
    for start, end in closings.items():
        is_double = tokens[start] in ("{", "(") and tokens[start + 1] == tokens[start]
        if is_double and closings.get(start + 1) == end - 1:
            dropped |= {start, end}
    return [token for index, token in enumerate(tokens) if index not in dropped]


def _without_lead_in(tokens: list[str]) -> list[str]:
    """Drop introductory words before the value."""
    start = 0
    while start + 1 < len(tokens) and is_text(tokens[start]) and tokens[start + 1] not in ("=", r"\in"):
        if not is_lead_in(content(tokens[start])):
            break
        start += 1
        start += tokens[start] == ":" and start + 1 < len(tokens)
    return tokens[start:]


def _multiple(word: str, tokens: list[str]) -> Tokens:
    """Return the tokens for a word that multiplies the number before it, such as `million`.

    `tokens` precede the word. The result is empty for other words, and if the last token is not a number.
    """
    is_behind_number = tokens and tokens[-1][-1].isdigit()
    return _MULTIPLES.get(word.lower(), ()) if is_behind_number else ()


def _group(raw: list[str], start: int) -> tuple[str | None, int]:
    """Return the content of the brace group at `start`, and the index after the group.

    White space before the group is skipped. Without a group, the content is None, and the index is that of
    the first token that is not white space.
    """
    while start < len(raw) and raw[start].isspace():
        start += 1
    depth = 0
    for index in range(start, len(raw)):
        depth += {"{": 1, "}": -1}.get(raw[index], 0)
        if depth == 0:
            return (None, start) if index == start else ("".join(raw[start + 1 : index]), index + 1)
    return None, start


def _set_text(words: str) -> str:
    r"""Return the token for `\text{words}`.

    A synonym such as `and` becomes its symbol (`\land`). A number, or a single letter that is not the symbol
    of a unit, loses the `\text`. Other words remain text.
    """
    words = " ".join(re.sub(r"~|\\[,;:! $]|\$", " ", words).split())
    bare = words.replace(" ", "").lower()
    if bare in WORD_SYNONYMS:
        return WORD_SYNONYMS[bare]
    is_letter = len(words) == 1 and words.isalpha() and words not in LETTERS
    if words == "" or is_letter or _NUMBER.fullmatch(words):
        return words
    return rf"\text{{{words}}}"


def _trimmed(tokens: list[str]) -> list[str]:
    for _ in range(_MAX_TRIMS):
        if tokens and tokens[-1] in _TRAILING:
            tokens = tokens[:-1]
        elif tokens and tokens[0] in _LEADING:
            tokens = tokens[1:]
        elif tokens and tokens[0] == "{" and enclosed(tokens):
            tokens = tokens[1:-1]
        else:
            break
    return tokens


def _words(tokens: Tokens) -> str | None:
    if tokens in ((r"\emptyset",), (r"\{", r"\}")):
        return "none"
    if enclosed(tokens) and tokens[0] == "(":
        tokens = tokens[1:-1]
    words = []
    for token in tokens:
        word = content(token).removeprefix("(").removesuffix(")") if is_text(token) else token
        if not _PLAIN_WORDS.fullmatch(word):
            return None
        words.append(word.rstrip("."))
    text = _phrase(" ".join(words))
    return (text if len(text) == 1 else text.lower()) or None


def _phrase(words: str) -> str:
    """Join words without spaces, or return the canonical name of a phrase such as `no solution`.

    In a phrase of several words, articles, plural endings, and words such as `there is` are dropped first.
    """
    found = words.split()
    if len(found) > 1:
        found = [_PLURAL.sub("", word) for word in found if word.lower() not in _FILLERS]
    said = {word.lower() for word in found}
    for name, needed, allowed in _SAYINGS:
        if needed <= said <= allowed:
            return name
    return "".join(found)

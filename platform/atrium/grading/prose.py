r"""What surrounds an answer: escapes, emphasis, sentences, words and numbers in one `\text`, bases in words.

`unwrapped` works on the text before it is cut into tokens. `is_lead_in` says which set words may stand before
a value without changing it: `The answer is`, `Alice has`, but not `more than` or `multiples of`.
"""

from __future__ import annotations

import re

from atrium.grading.notation import word_set
from atrium.grading.units import bare_words, changes_value

_COMMAND = re.compile(r"(?<!\\)\\[a-zA-Z]")
_ESCAPED_COMMAND = re.compile(r"\\\\(?=[a-zA-Z{}])")
_LOST_ROW_END = re.compile(r"(?<!\\)\\(?=\s*[-0-9])")
_EMPHASIS = re.compile(r"\s*(\*{1,3}|`{1,3}|_{2})([^*`]+)\1\s*\.?\s*")
_STRONG = re.compile(r"(?<![\w)}])\*\*([^*]+)\*\*(?![\w({])")
_SET = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mbox)\s*\{([^{}]*)\}(?:\s*\^\s*(?:[1-4]|\{\s*[1-4]\s*\}))?"
)
_WORDS = re.compile(r"[A-Za-z]+(?:[ '-]+[A-Za-z]+)*\.?")
_SENTENCE = re.compile(r"\s*([A-Z][a-z]+(?: [a-z]+)+) (?=[-+$\\0-9(])")
_ORDINAL = re.compile(r"(?<=[0-9])(?:st|nd|rd|th)(?![a-z])")
_CURRENCY = re.compile(r"\\?[$€£¥₹]|(?:USD|EUR|GBP|INR|Rs\.?|US)(?=\s*[0-9]|\s*$)")
_FONT = r"\\(?:text|mathrm|textrm|textbf)\s*"
_FROM_TWO = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_BASES = {word: str(base) for base, word in enumerate(_FROM_TWO.split(), start=2)}
_BASE = rf"(?:base[\s-]*)?({'|'.join(_BASES)}|[0-9]{{1,2}})\s*"
_SPELLED_BASES = tuple(
    re.compile(rf"(?<=[0-9)])\s*{pattern}", re.IGNORECASE)
    for pattern in (
        rf"_\s*\{{\s*{_FONT}\{{\s*{_BASE}\}}\s*\}}",
        rf"_\s*{_FONT}\{{\s*{_BASE}\}}",
        rf"_\s*\{{\s*{_BASE}\}}",
        rf"{_FONT}\{{\s*\(?\s*(?:in\s+)?(?=base){_BASE}\)?\s*\}}",
        rf"{_FONT}\{{\s*\(?\s*(?:in\s+)?base\s*\}}\s*{_BASE}",
        rf"(?:\(\s*)?(?:in\s+)?(?=base){_BASE}\)?$",
    )
)
_BRACKETED_BASE = re.compile(r"\(\s*([0-9]+)\s*\)\s*_\s*(?=[0-9{])")

_COPULAS = word_set("is are was were be equals equal has have had gives gets yields becomes answer")
_LIMITING = word_set(
    "of to by from over above under below before after beyond within about around near up off out every each "
    "per only some any all than as at in on with without for into more less fewer greater larger smaller "
    "multiple multiples factor factors square cube root reciprocal option choice exactly"
)
_WORD = re.compile(r"[A-Za-z'-]+")


def unwrapped(text: str) -> str:
    """The text without doubled backslashes, emphasis and currencies, its words apart from its numbers."""
    if "\\\\" in text:
        text = _unescaped(text)
    if "*" in text or "`" in text or "__" in text:
        emphasis = _EMPHASIS.fullmatch(text)
        text = emphasis[2] if emphasis else _STRONG.sub(r"\1", text)
    if "_" in text or "base" in text:
        for pattern in _SPELLED_BASES:
            text = pattern.sub(lambda match: f"_{{{_BASES.get(match[1].lower(), match[1])}}}", text)
        text = _BRACKETED_BASE.sub(r"\1_", text)
    sentence = _SENTENCE.match(text)
    if sentence and is_lead_in(sentence[1]):
        text = text[sentence.end() :]
    if "\\" in text:
        text = _SET.sub(_without_currency, text)
        parts = [bare_words(match[1]) for match in _SET.finditer(text)]
        if any(map(_has_digit, parts)) and not _has_digit(_SET.sub("", text)):
            text = _SET.sub(lambda match: _told_apart(match[1]) if _has_digit(match[1]) else match[0], text)
    return text


def is_lead_in(words: str) -> bool:
    """Whether a value behind these words is what they say it is."""
    found = _WORD.findall(words.lower())
    if not found:
        return words.strip() in ("", ":")
    if found[-1] in _COPULAS or words.rstrip().endswith(":"):
        return not changes_value(words, by_numerals=False)
    return len(found) > 1 and _LIMITING.isdisjoint(found) and not changes_value(words)


def _unescaped(text: str) -> str:
    r"""A text in which all backslashes are doubled, or those of commands, as LaTeX."""
    if r"\begin" not in text:  # there a doubled backslash ends a row; elsewhere it is an escaping slip
        return _ESCAPED_COMMAND.sub(r"\\", text)
    if _COMMAND.search(text):
        return text
    halved = text.replace("\\\\", "\\")
    return halved if "\\\\" in halved else _LOST_ROW_END.sub(r"\\\\\\\\", halved)


def _without_currency(match: re.Match[str]) -> str:
    bare = _CURRENCY.sub("", match[1])
    return "" if not bare.strip() and match[1].strip() else match[0].replace(match[1], bare)


def _told_apart(words: str) -> str:
    r"""`15\text{ apples}` for `15 apples`."""
    return _WORDS.sub(lambda match: rf" \text{{{match[0]}}} ", _ORDINAL.sub("", words))


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))

r"""Cleaning of the text around an answer: escapes, emphasis, sentences, `\text` with numbers, bases in words.

`unwrapped` cleans the text before tokenization. `is_lead_in` decides which words may precede a value without
changing it: `The answer is` and `Alice has`, but not `more than` or `multiples of`.
"""

from __future__ import annotations

import re

from atrium.grading.labels import letter_of
from atrium.grading.notation import word_set
from atrium.grading.tokens import has_digit
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
_CURRENCY = re.compile(
    r"(?:US|[ACS]|CA|AU|NZ|HK)?\s*(?:\\?\$|[€£¥₹])|(?:USD|EUR|GBP|INR|Rs\.?|US)(?=\s*[0-9]|\s*$)"
)
_BARE_CURRENCY = re.compile(
    r"(?<![A-Za-z\\])(?:(?:US|CA|AU|NZ|HK)\s*\\?\$|(?:USD|EUR|GBP|INR)(?=\s*(?:\\?\$\s*)?[0-9]|\s*$))"
)
_FONT = r"\\(?:text|mathrm|textrm|textbf)\s*"
_TO_NINETEEN = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
_TO_NINETY = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL, _TENS = _TO_NINETEEN.split(), _TO_NINETY.split()
_NAMED = {word: number for number, word in enumerate(_SMALL)} | {
    word: 10 * number for number, word in enumerate(_TENS, start=2)
}
_POWERS = {"hundred": 100, "thousand": 1_000, "million": 1_000_000}
_BASES = {word: str(_NAMED[word]) for word in _SMALL[2:17]}
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
_IN_WORDS = re.compile(rf"(?:{_FONT}\{{)?\s*([A-Za-z]+(?:[\s-][A-Za-z]+)*)\s*\}}?")
_NUMBER_AND_WORDS = re.compile(
    rf"\s*([0-9,]+)\s*(?:{_FONT}\{{\s*)?\(\s*([A-Za-z][A-Za-z\s-]*)\)\s*\}}?\s*|"
    rf"\s*(?:{_FONT}\{{\s*)?([A-Za-z][A-Za-z\s-]*)\}}?\s*\(\s*([0-9,]+)\s*\)\s*\}}?\s*"
)
_REASON = r"(?:since|because|reject(?:ing|ed)?|discard(?:ing|ed)?)\b"
_REMARK = re.compile(
    rf"(?<=[^\s,;])[\s,;~]*(?:{_FONT}\{{[\s,]*)?(?:{_REASON}[^,;]*|\(\s*{_REASON}(?:[^()]|\([^()]*\))*\)\s*\}}?\s*)$",
    re.IGNORECASE,
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
    r"""Clean the text of an answer before tokenization.

    Doubled backslashes are halved; emphasis, currencies and an introductory sentence are removed; numbers and
    bases in words become digits; and words in `\text` are separated from numbers.
    """
    if "\\\\" in text:
        text = _unescaped(text)
    if "*" in text or "`" in text or "__" in text:
        emphasis = _EMPHASIS.fullmatch(text)
        text = emphasis[2] if emphasis else _STRONG.sub(r"\1", text)
    if "_" in text or "base" in text:
        for pattern in _SPELLED_BASES:
            text = pattern.sub(lambda match: f"_{{{_BASES.get(match[1].lower(), match[1])}}}", text)
        text = _BRACKETED_BASE.sub(r"\1_", text)
    text = _in_digits(_BARE_CURRENCY.sub("", text))
    sentence = _SENTENCE.match(text)
    if sentence and is_lead_in(sentence[1]):
        text = text[sentence.end() :]
    if _SET.search(text):
        text = _SET.sub(_without_currency, text)
        parts = [bare_words(match[1]) for match in _SET.finditer(text)]
        if any(map(has_digit, parts)) and not has_digit(_SET.sub("", text)):
            text = _SET.sub(lambda match: _told_apart(match[1]) if has_digit(match[1]) else match[0], text)
    return text


def without_remark(text: str) -> str:
    """Return the text without a reason after the answer, such as `(since $x > 0$)`."""
    remark = _REMARK.search(text)
    if remark is None:
        return text
    kept = text[: remark.start()]
    return kept + "}" * (kept.replace(r"\{", "").count("{") - kept.replace(r"\}", "").count("}"))


def _in_digits(text: str) -> str:
    """Convert a number in words to digits, and `25 (twenty-five)` to `25`; return other text unchanged."""
    both = _NUMBER_AND_WORDS.fullmatch(text) if "(" in text else None
    if both:
        digits, words = (both[1], both[2]) if both[1] else (both[4], both[3])
        return digits if named_number(words) == int(digits.replace(",", "") or -1) else text
    alone = _IN_WORDS.fullmatch(text)
    number = named_number(alone[1]) if alone else None
    return text if number is None else str(number)


def named_number(words: str) -> int | None:
    """Return the natural number that words such as `twenty-five` name, or None for other words."""
    total, part, room = 0, 0, 1_000
    for word in words.lower().replace("-", " ").replace(" and ", " ").split():
        if word in _NAMED and _NAMED[word] < room:
            part, room = part + _NAMED[word], 10 if word in _TENS else 1
        elif word in _POWERS and part:
            power = _POWERS[word]
            total, part = (total, part * power) if power == 100 else (total + part * power, 0)
            room = min(power, 1_000)
        else:
            return None
    return total + part if words.strip("- ") else None


def is_lead_in(words: str) -> bool:
    """Return whether words introduce a value without changing it."""
    found = _WORD.findall(words.lower())
    if not found or letter_of(words.strip()):
        return words.strip() in ("", ":")
    if found[-1] in _COPULAS or words.rstrip().endswith(":"):
        return not changes_value(words, by_numerals=False)
    return len(found) > 1 and _LIMITING.isdisjoint(found) and not changes_value(words)


def _unescaped(text: str) -> str:
    r"""Undo an escaping error that doubled all backslashes, or only the backslashes of commands."""
    if r"\begin" not in text:  # there a doubled backslash ends a row; elsewhere it is an escaping error
        return _ESCAPED_COMMAND.sub(r"\\", text)
    if _COMMAND.search(text):
        return text
    halved = text.replace("\\\\", "\\")
    return halved if "\\\\" in halved else _LOST_ROW_END.sub(r"\\\\\\\\", halved)


def _without_currency(match: re.Match[str]) -> str:
    bare = _CURRENCY.sub("", match[1])
    return "" if not bare.strip() and match[1].strip() else match[0].replace(match[1], bare)


def _told_apart(words: str) -> str:
    r"""Set the words next to a number as text: `15 apples` becomes `15 \text{apples}`."""
    return _WORDS.sub(lambda match: rf" \text{{{match[0]}}} ", _ORDINAL.sub("", words))

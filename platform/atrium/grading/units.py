r"""Removal of units after a value, and recognition of words that are not units.

A unit is a product of words and symbols, each with an optional power: `5\text{ cm}^2`,
`1.6\,\mathrm{km}/\mathrm{s}`, `20^{\circ}\mathrm{C}`, `125\text{ miles}`. Units are dropped from values.
Since any noun may be counted, all words are units, except words that change a value: numerals, comparisons,
operations and negations. `5\text{ or six}` and `5\text{ million}` are not 5.

**Letters in italics** may be variables. A symbol in italics (`km`, `m`) is a unit only after a number or a
brace, and only if the other answer contains none of its letters. In a reference answer, a single letter (`m`)
is never a unit.
"""

from __future__ import annotations

import re

from atrium.grading.notation import word_set
from atrium.grading.tokens import Tokens, content, group_start, is_text

_PREFIXES = ("", "f", "p", "n", "u", "m", "c", "d", "k", "M", "G", "T")
SYMBOLS = frozenset(
    prefix + unit
    for prefix in _PREFIXES
    for unit in word_set("m g s A K mol Hz N Pa J W C V F T H L l eV pc")
) | word_set(
    "cal kcal bar atm torr psi min h hr hrs yr d day rad sr deg in ft yd mi lb lbs oz gal mph kph kmph rpm "
    "erg ergs dyn G AU ly u kWh Wh lm lx Bq Gy Sv Wb S cc sq cu sec ha amu ohm ppm dB rs"
)
"""Symbols of units in plain letters; SI units with their prefixes."""

LETTERS = frozenset("ghlmsACFHJKLNTVW")
r"""Symbols of one letter; `e`, `i` and `d` have other meanings in any font (`\mathrm{d}x`)."""

_COMMANDS = frozenset((r"\Omega", r"\AA", r"\ohm", r"\micro"))
_JOINERS = frozenset(("/", r"\cdot", r"\times", "*", "per"))
_MICRO = r"\mu"
_DEGREE = ("^", "{", r"\circ", "}")
_OF_ANGLES = frozenset(
    (r"\cis", r"\text{cis}", r"\sin", r"\cos", r"\tan", r"\cot", r"\sec", r"\csc")
)  # functions whose argument keeps its degree sign
_OF_DAY = frozenset(
    form
    for mark in ("am", "a.m.", "a.m", "AM", "A.M.", "A.M", "PM", "P.M.", "p.m.", "p.m", "P.M")
    for form in (mark, rf"\text{{{mark}}}")
)
_NOT_A_UNIT = frozenset(("sqrt", "infinity", "infty", "choose"))
# Tokens that cannot end a value, so that words after them are not a unit.
_NO_VALUE = frozenset("+-=/*^_<>,;:|([{&") | frozenset(
    (r"\cdot", r"\times", r"\leq", r"\geq", r"\neq", r"\approx", r"\in", r"\pm", r"\to", r"\{", " ", r"\\")
)

_NUMERALS = word_set(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred hundreds "
    "thousand thousands million millions billion billions trillion trillions dozen dozens half halves third "
    "thirds fourth fourths fifth fifths sixth sixths seventh eighth eighths ninth tenth tenths hundredth "
    "hundredths thousandth thousandths twice thrice double triple"
)
_CHANGES = _NUMERALS | word_set(
    "plus minus divided multiplied factorial mod modulo base power raised or and but nor to than least most "
    "under below between through until approximately roughly nearly almost except unless if maybe perhaps "
    "possibly negative either not never no none neither cannot isn't wrong incorrect false"
)
"""Words that change, extend or deny the value next to them."""

_WORD = re.compile(r"[A-Za-z'-]+")  # `two-digit` is one word, and not the numeral `two`
# Contents of unit words besides letters: the power of `cm^2`, `m2` and `m s^{-1}`, commands.
_TEXT_POWER = re.compile(
    r"(?<=[A-Za-z])\s?\^?\{?-?[1-4]\}?(?![0-9A-Za-z.])|\\(?:mu|Omega|cdot|times)(?![A-Za-z])|\^\{\\circ\s*\}"
)
_UNIT_TEXT = re.compile(r"[A-Za-z\s/.'()*·%-]*")


def changes_value(words: str, *, by_numerals: bool = True) -> bool:
    """Return whether words change a value, such as `or six`, `million` and `is wrong`.

    `squared` and `cubed` count as a change only if they are the first word. With `by_numerals=False`,
    numerals do not count as a change.
    """
    found = _WORD.findall(words.lower())
    changes = _CHANGES if by_numerals else _CHANGES - _NUMERALS
    return not changes.isdisjoint(found) or found[:1] in (["squared"], ["cubed"])


def bare_words(words: str) -> str:
    """Drop powers, degree signs and commands from the words of a unit: `cm` for `cm^2`."""
    return _TEXT_POWER.sub("", words)


def without_unit(tokens: Tokens) -> Tokens:
    """Drop the unit after a value, if its font or spelling shows that it is a unit."""
    start, is_shown = _unit_start(tokens)
    return tokens[:start] if is_shown else tokens


def without_symbols(tokens: Tokens, other: Tokens, *, is_gold: bool) -> Tokens:
    """Drop a unit in italics, unless the answer `other` contains one of its letters.

    With `is_gold`, `tokens` are the reference answer, and a unit with a symbol of one letter is kept. An
    answer `5 m` is 5 if the reference answer is 5, and it remains `5 m` if `m` is a variable of the reference
    answer.
    """
    start, _ = _unit_start(tokens)
    if start == len(tokens) or not (tokens[start - 1][-1].isdigit() or tokens[start - 1] == "}"):
        return tokens
    symbols = [token for token in tokens[start:] if token[0].isalpha()]
    letters = {letter for token in other if token.isalpha() for letter in token}
    is_variable = not letters.isdisjoint("".join(symbols)) or (is_gold and min(map(len, symbols)) == 1)
    return tokens if is_variable else tokens[:start]


def _unit_start(tokens: Tokens) -> tuple[int, bool]:
    """Return the start of the unit after a value, and whether its font or spelling identifies it as a unit.

    Without a unit, the start is the end of the tokens.
    """
    end, is_shown = len(tokens), False
    start = end
    while end > 1:
        atom, shown = _factor_start(tokens, end)
        if atom == end:
            break
        start, is_shown = atom, is_shown or shown
        end = atom - 1 if atom > 1 and tokens[atom - 1] in _JOINERS else atom
    if is_shown and start > 1 and tokens[start - 1] == "/":
        start -= 1  # `5 / \text{s}`
    before = tokens[start - 1] if 0 < start < len(tokens) else "="
    is_word = before.isalpha() and not (len(before) == 1 and all(map(is_text, tokens[start:])))
    if before in _NO_VALUE or is_text(before) or is_word:
        return len(tokens), False
    return start, is_shown


def _factor_start(tokens: Tokens, end: int) -> tuple[int, bool]:
    """Return the start of the unit factor that ends at `end`, and whether the factor is certainly a unit.

    The factor includes its power. The start is `end` if there is no such factor.
    """
    if tokens[max(end - 4, 0) : end] == _DEGREE and _OF_ANGLES.isdisjoint(tokens):
        return end - 4, True
    base = end
    if tokens[end - 1] == "}":
        opening = group_start(tokens, end)
        inner = tokens[opening + 1 : end - 1]
        if opening < 1:
            return end, False
        if tokens[opening - 1] != "^":
            return _group_start(tokens, opening, end)
        if not inner or not inner[-1].isdigit() or inner[:-1] not in ((), ("-",)):
            return end, False
        base = opening - 1
    token = tokens[base - 1]
    if token in _OF_DAY or (":" in tokens and token in (r"\text{pm}", "pm")):
        return end, False
    start = base - 2 if base > 1 and tokens[base - 2] == _MICRO else base - 1
    if is_text(token):
        words = bare_words(content(token))
        if words.startswith("degree") and not _OF_ANGLES.isdisjoint(tokens):
            return end, False
        is_unit = _UNIT_TEXT.fullmatch(words) is not None and not changes_value(words)
        return (start, True) if is_unit else (end, False)
    if len(token) > 3 and token.isalpha() and token not in _NOT_A_UNIT and not changes_value(token):
        return start, True
    if token in _COMMANDS:
        return (base - 2 if base > 1 and tokens[base - 2] in _PREFIXES else base - 1), True
    if token in SYMBOLS:
        return start, start < base - 1 or tokens[max(start - 4, 0) : start] == _DEGREE
    return end, False


def _group_start(tokens: Tokens, opening: int, end: int) -> tuple[int, bool]:
    r"""Return the result of `_factor_start` for a factor that ends with the brace group at `opening`.

    Examples: `{\mu m}`, `\frac{\text{m}}{\text{s}}`.
    """
    inner, before = tokens[opening + 1 : end - 1], tokens[opening - 1]
    upper = group_start(tokens, opening) if before == "}" else 0
    if upper > 0 and tokens[upper - 1] == r"\frac":
        parts = (tokens[upper + 1 : opening - 1], inner)
        is_unit = all(part == ("1",) or _unit_start(("1", *part)) == (1, True) for part in parts)
        return (upper - 1, True) if is_unit else (end, False)
    is_argument = before in ("_", "]") or (before[0] == "\\" and before not in (r"\cdot", r"\times"))
    is_unit = not is_argument and _unit_start(("1", *inner))[0] == 1
    return (opening, True) if is_unit else (end, False)

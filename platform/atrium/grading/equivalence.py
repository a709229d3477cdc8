r"""Equivalence of an answer and the reference answer, decided from the two texts.

The comparison has two stages. `settle` decides cheap cases: equal canonical texts, words, rational numbers,
different values, sets of numbers, and lists of these. It also refuses answers that name more than one value
(`41=42`, `42 \approx 41`, `x=41, x=42`), some of which math-verify accepts. `verify` is the second stage: it
decides expressions by `identity`, and passes only expressions that `identity` cannot decide to math-verify
(`symbolic`). `verify` may never terminate, so only worker processes call it. Another module, `extraction`,
extracts answers from completions.

Percentages: `50\%` equals 0.5. It also equals 50, because reference answers to "what percent" are bare
numbers. This second rule excludes bare numbers from -1 to 1, which may be shares: `1\%` is not 1.

This module differs from math-verify in three points. The first stage and `identity` are added. Lists are
compared element by element before they are compared as a whole. Units are removed by `units`, since the word
list of math-verify also removes variables and changes values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from atrium.grading.arithmetic import evaluate
from atrium.grading.domains import NUMBER_SETS, domain, same_domain
from atrium.grading.identity import same
from atrium.grading.labels import CHOICES, choice, compare_by_convention
from atrium.grading.normalization import MAX_ANSWER_CHARS, Form, read, with_tokens
from atrium.grading.notation import CONJUNCTIONS
from atrium.grading.qualifiers import (
    Conditions,
    agree,
    family_letters,
    is_of_fewer,
    is_one_of_family,
    qualified,
    same_family,
)
from atrium.grading.structure import (
    Elements,
    elements,
    main_value,
    objection,
    without_base,
    without_labels,
)
from atrium.grading.symbolic import PERCENT, equal_by_math_verify, parsed, plainly_named
from atrium.grading.tokens import (
    Leaf,
    Tokens,
    content,
    enclosed,
    has_digit,
    is_text,
    is_too_deep,
    join,
    split,
)
from atrium.grading.units import without_symbols, without_unit
from atrium.grading.values import EXACT, Tolerance, close, differ, rationally_equal
from atrium.grading.vectors import beside

_MAX_PAIRS = 400
_MAX_PARSED_DEPTH = 8
_SLOW_BRACKETS = frozenset("()[]")  # each level of nesting doubles the time of math-verify

_DIFFERENT = ({"{}", "()"}, {"{}", "(]"}, {"{}", "[)"})  # a set is neither a point nor an interval


@dataclass(frozen=True, slots=True)
class Finding:
    """A comparison's result: whether the answers are equal, the reason, and a partial score, if any."""

    is_equal: bool
    reason: str
    score: float | None = None


_SAME_VALUE, _OTHER_VALUE = Finding(True, "same value"), Finding(False, "other value")


def settle(gold: str, answer: str, *, tolerance: Tolerance = EXACT) -> Finding | None:
    """Compare an answer with the reference answer `gold`, or return None if `verify` has to decide.

    Numbers are compared within the tolerance. By default, decimals must agree to six places and up to a
    relative difference of 1e-5, and all other numbers are compared exactly. Texts of more than
    `MAX_ANSWER_CHARS` characters are equal only if they are identical.
    """
    if len(answer) > MAX_ANSWER_CHARS or len(gold) > MAX_ANSWER_CHARS:
        return Finding(answer == gold, "too long for an answer, compared as text")
    wanted, given = read(gold), read(beside(gold, answer))
    if is_too_deep(given.tokens) or is_too_deep(wanted.tokens):
        return Finding(wanted.text == given.text, "brackets too deep to read, compared as text")
    is_denied = given.has_change and not wanted.has_change
    if not is_denied and (wanted.text == given.text or _same_assignments(wanted, given)):
        return Finding(bool(wanted.tokens), "same text")
    is_plain = not (given.has_change or given.has_stray_digits or tolerance)
    if is_plain and wanted.text.isdecimal() and given.text.isdecimal():  # the usual case
        return _SAME_VALUE if int(wanted.text) == int(given.text) else _OTHER_VALUE
    if not given.tokens:
        return Finding(False, "nothing but spacing and punctuation")
    chosen = _compare_choices(wanted, given)
    if chosen is not None:
        return chosen
    wanted, given = _without_choices(wanted, given)
    finding = _compare_words(wanted, given)
    if finding is not None:
        return finding
    wanted, given, conditions = _without_conditions(wanted, given)
    refusal = objection(wanted, given)
    if refusal is not None:
        return Finding(False, refusal)
    leaf = partial(_compare_values, tolerance=tolerance)
    if conditions is not None and not _fit(wanted.tokens, given.tokens, conditions, leaf):
        return Finding(False, "other conditions")
    is_equal = _compare(main_value(wanted.tokens), main_value(given.tokens), leaf)
    # The same family of values can have another notation, so a difference is not final.
    if is_equal is None or (conditions is not None and not is_equal):
        return None
    return _SAME_VALUE if is_equal else _OTHER_VALUE


def verify(gold: str, answer: str) -> Finding:
    """Compare an answer with `gold` without limits on time or memory; only worker processes call this."""
    wanted, given = _without_choices(read(gold), read(beside(gold, answer)))
    wanted, given, conditions = _without_conditions(wanted, given)
    tokens = without_labels(main_value(wanted.tokens), main_value(given.tokens))
    if conditions is not None:
        families = family_letters(main_value(wanted.tokens), main_value(given.tokens), conditions)
        is_equal = _compare_families(*tokens, families)
        if is_equal is not None:
            return _SAME_VALUE if is_equal else _OTHER_VALUE
    return _verify(*tokens)


def _verify(wanted: Tokens, given: Tokens) -> Finding:
    is_equal = _compare(wanted, given, _compare_values_precisely)
    if is_equal is not None:
        return _SAME_VALUE if is_equal else _OTHER_VALUE
    if any(
        is_too_deep([t for t in side if t in _SLOW_BRACKETS], _MAX_PARSED_DEPTH) for side in (wanted, given)
    ):
        return Finding(False, "brackets too deep to read, and the texts differ")
    plain = plainly_named(wanted, given)
    if not parsed(join(plain[0])):
        return Finding(False, "the reference answer cannot be read as mathematics, and the texts differ")
    if not parsed(join(plain[1])):
        return Finding(False, "cannot be read as mathematics")
    if elements(wanted):  # one by one: math-verify tries every entry of a whole list in several ways
        is_equal = _compare(wanted, given, _compare_all_ways)
        if is_equal is not None:
            return Finding(
                is_equal, f"math-verify: {'equal' if is_equal else 'not equal'} element by element"
            )
    is_equal = equal_by_math_verify(wanted, given)
    return Finding(is_equal, "math-verify: equal" if is_equal else "math-verify: not equal")


def _compare_choices(wanted: Form, given: Form) -> Finding | None:
    """Compare the letters of two multiple-choice answers. Returns None if the letters do not decide."""
    if wanted.words is not None and wanted.words in CHOICES:
        chosen = choice(given.tokens)
        return Finding(chosen[0] == wanted.words, "the letter of the choice") if chosen else None
    by_gold = choice(wanted.tokens)
    if by_gold is None:
        return None
    letter = given.words if given.words in CHOICES else None
    by_answer = choice(given.tokens)
    letter = by_answer[0] if by_answer else letter
    is_alone = by_answer is None or not by_answer[1] or not by_gold[1]
    if letter is not None and (letter != by_gold[0] or is_alone):
        return Finding(letter == by_gold[0], "the letter of the choice")
    return None


def _without_choices(wanted: Form, given: Form) -> tuple[Form, Form]:
    """Replace a choice that includes its value by the value alone: `(B) 12` by `12`."""
    chosen = choice(given.tokens)
    by_gold = choice(wanted.tokens)
    if chosen and chosen[1] and (by_gold or not any(chosen[0] in token for token in wanted.tokens)):
        given = with_tokens(given, chosen[1])
    if by_gold and by_gold[1]:
        wanted = with_tokens(wanted, by_gold[1])
    return wanted, given


def _without_conditions(wanted: Form, given: Form) -> tuple[Form, Form, Conditions | None]:
    """Separate both values from their conditions; the conditions are None if neither answer has any."""
    if wanted.words is not None or given.words is not None:
        return wanted, given, None
    by_gold, by_answer = qualified(wanted.tokens), qualified(given.tokens)
    if not by_gold[1] and not by_answer[1]:
        return wanted, given, None
    return with_tokens(wanted, by_gold[0]), with_tokens(given, by_answer[0]), (by_gold[1], by_answer[1])


def _fit(wanted: Tokens, given: Tokens, conditions: Conditions, leaf: Leaf) -> bool:
    is_one = is_one_of_family(conditions[0], wanted, given) or is_one_of_family(conditions[1], given, wanted)
    return not (is_one or is_of_fewer(given, *conditions)) and agree(*conditions, leaf)


def _compare_families(wanted: Tokens, given: Tokens, letters: tuple[str, str]) -> bool | None:
    """Compare families such as `3k`, whose `letters` stand for all integers; return None if undecided."""
    if _compare(wanted, given, _compare_values_precisely):
        return True
    if wanted[:2] == given[:2] and wanted[1:2] == (r"\neq",):
        wanted, given = wanted[2:], given[2:]
    if not all(
        letter and any(letter in token for token in side)
        for letter, side in zip(letters, (wanted, given), strict=True)
    ):
        return None
    return same_family(wanted, given, letters, _compare_values_precisely)


def _same_assignments(wanted: Form, given: Form) -> bool:
    """Return whether the texts are the same list of equations, such as `p=5,q=2` and `p=5;q=2`."""
    if "=" not in wanted.tokens:
        return False
    return wanted.text.replace(";", ",") == given.text.replace(";", ",")


def _compare_words(wanted: Form, given: Form) -> Finding | None:
    if (wanted.has_text or given.has_text) and _spelled(wanted) == _spelled(given):
        return Finding(True, "same words")
    if wanted.words is not None and wanted.words == given.words:
        return Finding(True, "same words")
    if wanted.words is not None and given.words is not None:
        return Finding(False, "other words") if wanted.has_text or given.has_text else None
    for words, other in ((wanted, given), (given, wanted)):
        is_text_alone = words.words is not None and words.has_text and not other.has_text
        if is_text_alone and has_digit(other.text):
            return Finding(False, "words and numbers")
    return None


def _spelled(form: Form) -> str:
    r"""Return the text in lower case, without spaces or the markup of words: `may3` for `\text{May 3}`."""
    return (
        "".join(content(token) if is_text(token) else token for token in form.tokens).replace(" ", "").lower()
    )


def _compare(wanted: Tokens, given: Tokens, leaf: Leaf) -> bool | None:
    """Return whether two answers are equal, or None if neither their structure nor `leaf` decides.

    Lists, sets and tuples are compared element by element, and single values by `leaf`.
    """
    is_equal = _compare_domains(wanted, given, leaf)
    if is_equal is not None:
        return is_equal
    if _are_read_backwards(wanted, given, leaf):
        return True
    if elements(wanted) is None or elements(given) is None:
        wanted, given = without_labels(wanted, given)
    wanted, given = _without_braces_of_one(wanted, given)
    wanted_list, given_list = elements(wanted), elements(given)
    if wanted_list is not None and given_list is not None:
        return _compare_lists(wanted_list, given_list, leaf)
    if wanted_list is not None:
        return _compare_list_and_single(wanted_list, given)
    if given_list is not None:
        return _compare_list_and_single(given_list, wanted)
    if _is_union(wanted) != _is_union(given):
        return False if evaluate(wanted) is not None or evaluate(given) is not None else None
    wanted, given = _without_units(wanted, given)
    if wanted == given:
        return True
    is_equal = compare_by_convention(wanted, given, leaf)
    return leaf(wanted, given) if is_equal is None else is_equal


def _without_braces_of_one(wanted: Tokens, given: Tokens) -> tuple[Tokens, Tokens]:
    """Replace a set of one element by the element if the other answer is not a set."""
    sides = (wanted, given)
    is_set = [side[:1] == (r"\{",) and enclosed(side) for side in sides]
    if is_set[0] == is_set[1]:
        return sides
    is_one = [
        one and len(split(side[1:-1], CONJUNCTIONS | {";"})) == 1
        for one, side in zip(is_set, sides, strict=True)
    ]
    return (wanted[1:-1] if is_one[0] else wanted), (given[1:-1] if is_one[1] else given)


def _compare_domains(wanted: Tokens, given: Tokens, leaf: Leaf) -> bool | None:
    if NUMBER_SETS.isdisjoint(wanted) and NUMBER_SETS.isdisjoint(given):
        return None
    first = domain(wanted)
    second = domain(given, pairs_are_intervals=first is not None and first.is_shown)
    if first is None or second is None or not (first.is_shown or second.is_shown):
        return None
    return same_domain(first, second, leaf)


def _are_read_backwards(wanted: Tokens, given: Tokens, leaf: Leaf) -> bool:
    r"""Return whether the answers are `a \neq b` and `b \neq a`, which math-verify does not equate."""
    if r"\neq" not in wanted or r"\neq" not in given:
        return False
    first, second = (split(side, frozenset((r"\neq",))) for side in (wanted, given))
    is_chain = len(first) == len(second) > 1 and all(
        len(split(part, CONJUNCTIONS)) == 1 for part in (*first, *second)
    )
    return is_chain and all(
        leaf(a, b) or (a[0] == "(" and _compare(a, b, leaf))
        for a, b in zip(first, reversed(second), strict=True)
    )


def _without_units(wanted: Tokens, given: Tokens) -> tuple[Tokens, Tokens]:
    wanted, given = without_unit(wanted), without_unit(given)
    if wanted == given:
        return wanted, given
    return without_symbols(wanted, given, is_gold=True), without_symbols(given, wanted, is_gold=False)


def _is_union(tokens: Tokens) -> bool:
    return r"\cup" in tokens


def _compare_list_and_single(several: Elements, single: Tokens) -> bool | None:
    is_single = evaluate(without_base(single)) is not None and len(set(several.parts)) > 1
    return False if is_single else None


def _compare_lists(wanted: Elements, given: Elements, leaf: Leaf) -> bool | None:
    kinds = {wanted.brackets, given.brackets}
    if kinds in _DIFFERENT or (kinds == {"{}", "[]"} and len(wanted.parts) == len(given.parts) == 2):
        return False
    has_labels = any("=" in part for part in (*wanted.parts, *given.parts))
    if wanted.is_bare and given.is_bare and not has_labels:
        return _compare_unordered(wanted.parts, given.parts, leaf)
    if len(wanted.parts) != len(given.parts):
        return False if wanted.brackets == given.brackets != "" else None
    results = [_compare(a, b, leaf) for a, b in zip(wanted.parts, given.parts, strict=True)]
    if wanted.is_bare or given.is_bare:  # `3,2` may stand for the point `(3,2)`
        return True if all(results) and {wanted.brackets, given.brackets} <= {"", "()"} else None
    if False in results:
        return False
    # Other brackets have other meanings: an open and a closed interval, a point and a row.
    is_same_kind = wanted.brackets == given.brackets or (
        wanted.is_vector and given.is_vector and "()" in (wanted.brackets, given.brackets)
    )
    return True if all(results) and is_same_kind else None


def _compare_unordered(wanted: Sequence[Tokens], given: Sequence[Tokens], leaf: Leaf) -> bool | None:
    if len(wanted) * len(given) > _MAX_PAIRS:
        return None
    unused = list(given)
    is_certain = True
    for part in wanted:
        results: list[bool | None] = []
        for index, other in enumerate(unused):
            results.append(_compare(part, other, leaf))
            if results[-1]:
                del unused[index]
                break
        else:
            if len(wanted) == len(given) and is_certain and not any(result is None for result in results):
                return False  # no remaining element of the other list equals this element
            is_certain = False
    if not is_certain or unused:
        return None
    return True


def _compare_values(wanted: Tokens, given: Tokens, *, tolerance: Tolerance = EXACT) -> bool | None:
    """Compare two single values by arithmetic. Returns None if arithmetic does not decide."""
    wanted, given = without_base(wanted), without_base(given)
    wanted_percent, given_percent = wanted[-1:] == PERCENT, given[-1:] == PERCENT
    a = evaluate(wanted[:-1] if wanted_percent else wanted)
    b = evaluate(given[:-1] if given_percent else given)
    if a is None or b is None:
        return None
    if wanted_percent != given_percent:
        percent, bare = (a, b) if wanted_percent else (b, a)
        if rationally_equal(replace(percent, number=percent.number / 100), bare):
            return True
        return rationally_equal(percent, bare) and isinstance(bare.number, Fraction) and abs(bare.number) > 1
    is_equal = rationally_equal(a, b)
    if tolerance and not is_equal:
        is_equal = close(a, b, tolerance)
    return False if is_equal is None and differ(a, b) else is_equal


def _compare_values_precisely(wanted: Tokens, given: Tokens) -> bool | None:
    """Compare two single values by arithmetic, and by `identity` if arithmetic does not decide."""
    is_equal = _compare_values(wanted, given)
    wanted_percent, given_percent = wanted[-1:] == PERCENT, given[-1:] == PERCENT
    if is_equal is not None or wanted_percent != given_percent:
        return is_equal
    end = -1 if wanted_percent else None
    return same(without_base(wanted)[:end], without_base(given)[:end])


def _compare_all_ways(wanted: Tokens, given: Tokens) -> bool | None:
    is_equal = _compare_values_precisely(wanted, given)
    return equal_by_math_verify(wanted, given) if is_equal is None else is_equal

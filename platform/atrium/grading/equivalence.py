r"""Whether an answer equals the gold answer, decided from the two texts.

Two stages. `settle` decides without math-verify where it can do so with certainty: equal canonical texts,
words, rational numbers, values that differ, lists of such things; and it refuses answers that name more
than one value (`41=42`, `42 \approx 41`, `x=41, x=42`), some of which math-verify accepts. `verify` is the
second stage, math-verify with both sides in a box, LaTeX extraction only and no fallback. It can run for
ever and is called in a worker process only. Nothing is extracted from completions here.

Percentages: `50\%` equals 0.5, and also 50, because problems that ask "what percent" have bare golds; not
so between -1 and 1, where a bare number may be a share: `1\%` is not 1.

Source: math-verify 0.9.0, https://github.com/huggingface/Math-Verify. Differs: the first stage; lists are
matched element by element before they are matched as a whole; units are dropped here (`units`), not there,
where a word list drops variables and changed values too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from atrium.grading.arithmetic import GREEK, evaluate
from atrium.grading.identity import same
from atrium.grading.normalization import MAX_ANSWER_CHARS, Form, read
from atrium.grading.structure import (
    Elements,
    as_interval,
    elements,
    main_value,
    objection,
    unlabelled,
    without_base,
    without_labels,
)
from atrium.grading.tokens import Tokens, join
from atrium.grading.units import without_symbols, without_unit
from atrium.grading.values import EXACT, Tolerance, close, differ, rationally_equal

_PERCENT = ("%",)
_MAX_PAIRS = 400
_NAMES = frozenset("abcfghjkmnopqrstuvwyzABFGHJKMPQRTUVWYZ")  # letters without a meaning of their own

Leaf = Callable[[Tokens, Tokens], bool | None]


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether the answer equals the gold answer, and how that was found out."""

    is_equal: bool
    reason: str


_SAME_VALUE, _OTHER_VALUE = Finding(True, "same value"), Finding(False, "other value")


def settle(gold: str, answer: str, *, tolerance: Tolerance = EXACT) -> Finding | None:
    """Decide without math-verify, or return None where only math-verify can tell.

    Numbers are equal within the tolerance; by default exactly, decimals to six places.
    Texts of more than `MAX_ANSWER_CHARS` characters are equal if they are the same text, else not.
    """
    if len(answer) > MAX_ANSWER_CHARS or len(gold) > MAX_ANSWER_CHARS:
        return Finding(answer == gold, "too long for an answer, compared as text")
    wanted, given = read(gold), read(answer)
    is_denied = given.has_change and not wanted.has_change
    if not is_denied and (wanted.text == given.text or _same_assignments(wanted, given)):
        return Finding(bool(wanted.tokens), "same text")
    is_plain = not (given.has_change or given.has_stray_digits or tolerance)
    if is_plain and wanted.text.isdecimal() and given.text.isdecimal():  # as most answers are
        return _SAME_VALUE if int(wanted.text) == int(given.text) else _OTHER_VALUE
    if not given.tokens:
        return Finding(False, "nothing but spacing and punctuation")
    finding = _compare_words(wanted, given)
    if finding is not None:
        return finding
    refusal = objection(wanted, given)
    if refusal is not None:
        return Finding(False, refusal)
    leaf = partial(_compare_values, tolerance=tolerance)
    is_equal = _compare(main_value(wanted.tokens), main_value(given.tokens), leaf)
    if is_equal is None:
        return None
    return _SAME_VALUE if is_equal else _OTHER_VALUE


def verify(gold: str, answer: str) -> Finding:
    """Decide with math-verify, without any limit on time and memory: only for a worker process."""
    wanted, given = read(gold), read(answer)
    wanted_tokens, given_tokens = without_labels(main_value(wanted.tokens), main_value(given.tokens))
    if not elements(wanted_tokens):
        is_equal = _compare(wanted_tokens, given_tokens, _compare_values_precisely)
        if is_equal is not None:
            return _SAME_VALUE if is_equal else _OTHER_VALUE
    plain = _plainly_named(wanted_tokens, given_tokens)
    if not _parsed(join(plain[0])):
        return Finding(False, "the gold answer cannot be read as mathematics, and the texts differ")
    if not _parsed(join(plain[1])):
        return Finding(False, "cannot be read as mathematics")
    if elements(wanted_tokens):  # each once: as a whole, math-verify tries every entry in several ways
        is_equal = _compare(wanted_tokens, given_tokens, _compare_all_ways)
        if is_equal is not None:
            return Finding(
                is_equal, f"math-verify: {'equal' if is_equal else 'not equal'} element by element"
            )
    is_equal = _verify_tokens(wanted_tokens, given_tokens)
    return Finding(is_equal, "math-verify: equal" if is_equal else "math-verify: not equal")


def numeric_value(text: str) -> complex | None:
    """The number that math-verify reads, or None where there is none: only for a worker process."""
    tokens = unlabelled(read(text).tokens)
    is_percent = tokens[-1:] == _PERCENT
    parsed = _parsed(join(tokens[:-1] if is_percent else tokens))
    try:
        return complex(parsed[0].evalf()) / (100 if is_percent else 1) if parsed else None
    except (TypeError, ValueError, AttributeError):  # it has letters in it, or is no number at all
        return None


def _same_assignments(wanted: Form, given: Form) -> bool:
    """Whether both read `p=5,q=2,p=7,q=2`, whichever separators they use."""
    if "=" not in wanted.tokens:
        return False
    return wanted.text.replace(";", ",") == given.text.replace(";", ",")


def _compare_words(wanted: Form, given: Form) -> Finding | None:
    if wanted.words is not None and wanted.words == given.words:
        return Finding(True, "same words")
    if wanted.words is not None and given.words is not None:
        return Finding(False, "other words") if wanted.has_text or given.has_text else None
    for words, other in ((wanted, given), (given, wanted)):
        is_text_alone = words.words is not None and words.has_text and not other.has_text
        if is_text_alone and any(map(str.isdigit, other.text)):
            return Finding(False, "words and numbers")
    return None


def _compare(wanted: Tokens, given: Tokens, leaf: Leaf) -> bool | None:
    """Compare lists, sets, tuples and intervals element by element, anything else by `leaf`.

    True and False are as certain as `leaf` is; None means that the structure decides nothing.
    """
    if elements(wanted) is None or elements(given) is None:
        wanted, given = without_labels(wanted, given)
        if elements(wanted) is None:
            wanted = as_interval(wanted) if elements(given) else wanted
        elif elements(given) is None:
            given = as_interval(given)
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
    return True if wanted == given else leaf(wanted, given)


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
    # Other brackets mean other things: an open and a closed interval, a point and a row.
    return True if all(results) and wanted.brackets == given.brackets else None


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
                return False  # an element that equals none that is left on the other side
            is_certain = False
    if not is_certain or unused:
        return None
    return True


def _compare_values(wanted: Tokens, given: Tokens, *, tolerance: Tolerance = EXACT) -> bool | None:
    """Compare two single values by arithmetic; None where that leaves a doubt."""
    wanted, given = without_base(wanted), without_base(given)
    wanted_percent, given_percent = wanted[-1:] == _PERCENT, given[-1:] == _PERCENT
    a = evaluate(wanted[:-1] if wanted_percent else wanted)
    b = evaluate(given[:-1] if given_percent else given)
    if a is None or b is None:
        return None
    if wanted_percent != given_percent:
        percent, bare = (a, b) if wanted_percent else (b, a)
        if rationally_equal(replace(percent, number=percent.number / 100), bare):
            return True
        return rationally_equal(percent, bare) and abs(complex(bare.number)) > 1
    is_equal = rationally_equal(a, b)
    if tolerance and not is_equal:
        is_equal = close(a, b, tolerance)
    return False if is_equal is None and differ(a, b) else is_equal


def _compare_values_precisely(wanted: Tokens, given: Tokens) -> bool | None:
    """As `_compare_values`, and then by `identity`."""
    is_equal = _compare_values(wanted, given)
    wanted_percent, given_percent = wanted[-1:] == _PERCENT, given[-1:] == _PERCENT
    if is_equal is not None or wanted_percent != given_percent:
        return is_equal
    end = -1 if wanted_percent else None
    return same(without_base(wanted)[:end], without_base(given)[:end])


def _compare_all_ways(wanted: Tokens, given: Tokens) -> bool | None:
    is_equal = _compare_values_precisely(wanted, given)
    return _verify_tokens(wanted, given) if is_equal is None else is_equal


def _verify_tokens(wanted: Tokens, given: Tokens) -> bool:
    from math_verify import verify as math_verify  # takes half a second, so only where it is used

    is_percent = wanted[-1:] == _PERCENT
    if is_percent != (given[-1:] == _PERCENT):
        return False  # what could be said of a number and a percentage has been said by `settle`
    end = -1 if is_percent else None  # its grammar for antlr 4.9 cannot read a percent sign
    gold, answer = map(_parsed, map(join, _plainly_named(wanted[:end], given[:end])))
    try:
        return bool(math_verify(gold, answer, timeout_seconds=None, raise_on_error=True))
    except (MemoryError, RecursionError):
        raise
    except Exception:
        # SymPy has no common error for what it cannot compare, such as a set with a matrix: TypeError,
        # KeyError, AttributeError, NotImplementedError and others all mean that the two are not equal.
        return False


def _plainly_named(wanted: Tokens, given: Tokens) -> tuple[Tokens, Tokens]:
    r"""Both with a letter for each name with a subscript: math-verify cannot read `E_{1}` or `L_{\odot}`."""
    letters = iter(sorted(_NAMES - {letter for token in (*wanted, *given) for letter in token}))
    names: dict[Tokens, str] = {}
    try:
        return _renamed(wanted, names, letters), _renamed(given, names, letters)
    except StopIteration:  # more names than letters
        return wanted, given


def _renamed(tokens: Tokens, names: dict[Tokens, str], letters: Iterator[str]) -> Tokens:
    renamed: list[str] = []
    index = 0
    while index < len(tokens):
        end = index + 1
        is_name = (len(tokens[index]) == 1 and tokens[index].isalpha()) or tokens[index] in GREEK
        if is_name and tokens[end : end + 2] == ("_", "{") and "}" in tokens[end:]:
            end = tokens.index("}", end) + 1
            names[tokens[index:end]] = names.get(tokens[index:end]) or next(letters)
            renamed.append(names[tokens[index:end]])
        else:
            renamed.append(tokens[index])
        index = end
    return tuple(renamed)


@lru_cache(maxsize=4_096)
def _parsed(latex: str) -> list[Any]:
    """What math-verify reads, an empty list where it reads nothing; golds are so parsed once."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    spelling = NormalizationConfig(units=False, malformed_operators=True, nits=True)
    parsed: list[Any] = parse(
        rf"\boxed{{{latex}}}",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=0, normalization_config=spelling)],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return parsed

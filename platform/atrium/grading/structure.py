r"""The structure of an answer: its label, its elements, and whether it names one value or several.

The module works on canonical tokens (`normalization`). It considers only their form, with one exception: the
constants in a chain of equations must not differ (`41=42`). `equivalence` decides whether two answers are
equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from atrium.grading.arithmetic import evaluate
from atrium.grading.normalization import Form
from atrium.grading.notation import CONJUNCTIONS
from atrium.grading.tokens import Tokens, enclosed, is_text, split
from atrium.grading.values import Tolerance, Value, close, differ, is_integer

_EQUALITIES = frozenset(("=", r"\equiv", r"\simeq", r"\cong", r"\sim"))
_APPROXIMATIONS = frozenset((r"\approx",))
_LABEL_ENDS = frozenset(("=", r"\in"))
_RELATIONS = _EQUALITIES | frozenset((r"\in", "<", ">", r"\leq", r"\geq", r"\neq"))
_CONGRUENCES = frozenset((r"\pmod", r"\bmod", r"\mod", "mod"))
_COMMA, _SEMICOLON = CONJUNCTIONS, frozenset((";",))
_SEPARATORS = _COMMA | _SEMICOLON
_ROW_END, _ENTRY_END = frozenset((r"\\",)), frozenset(("&",))
_MATRICES = (("{", "pmatrix", "}"), ("{", "bmatrix", "}"), ("{", "matrix", "}"))
_OPERATORS = frozenset(("+", "-", "*", "/", "^", "!", r"\frac", r"\sqrt", r"\cdot", r"\times", "%"))
_SEVERAL = (  # a reference answer with one of these may name more than one number
    _SEPARATORS
    | frozenset((r"\cup", r"\cap", r"\in", "[", "]", r"\{", r"\}", r"\pm", r"\mp", r"\begin"))
    | frozenset(("<", ">", r"\leq", r"\geq", r"\neq", "&", r"\\"))
)


@dataclass(frozen=True, slots=True)
class Elements:
    """The elements of a list, and its brackets: `{}` for a set, empty for a list without brackets.

    For a matrix, `parts` are the entries, and `brackets` is the shape, such as `2x3`.
    """

    brackets: str
    parts: tuple[Tokens, ...]

    @property
    def is_bare(self) -> bool:
        """Whether the elements form a set or a list without brackets, so that their order is ignored."""
        return self.brackets in ("", "{}")

    @property
    def is_vector(self) -> bool:
        """Whether the elements form a tuple, or a matrix with one row or one column."""
        return self.brackets == "()" or self.brackets in (f"{len(self.parts)}x1", f"1x{len(self.parts)}")


def elements(tokens: Tokens) -> Elements | None:
    r"""Return the elements of a list, set, tuple, interval or matrix, or None for a single value.

    `a \pm b` is a list of two. In a bare list or a set with commas and semicolons, the semicolons separate
    the elements; in other brackets such a mixture has no meaning, and the result is None.
    """
    brackets = ""
    if tokens[:1] == (r"\begin",):
        return _entries(tokens)
    if enclosed(tokens) and tokens[0] in ("(", "[", r"\{"):
        brackets = "{}" if tokens[0] == r"\{" else tokens[0] + tokens[-1]
        tokens = tokens[1:-1]
    by_comma, by_semicolon = split(tokens, _COMMA), split(tokens, _SEMICOLON)
    if len(by_comma) > 1 and len(by_semicolon) > 1:
        return None if brackets not in ("", "{}") else Elements(brackets, by_semicolon)
    parts = by_comma if len(by_comma) > 1 else by_semicolon
    if len(parts) > 1 or (brackets == "{}" and parts):
        return Elements(brackets, parts)
    if brackets == "" and tokens.count(r"\pm") == 1 and r"\mp" not in tokens:
        at = tokens.index(r"\pm")
        return Elements("", tuple((*tokens[:at], sign, *tokens[at + 1 :]) for sign in "+-"))
    return None


def _entries(tokens: Tokens) -> Elements | None:
    body = tokens[4:-4]
    is_matrix = tokens[1:4] in _MATRICES and tokens[-4:] == (r"\end", *tokens[1:4])
    if not is_matrix or r"\begin" in body:
        return None
    rows = [split(row, _ENTRY_END) for row in split(body, _ROW_END)]
    if len(rows) * len(rows[0] if rows else ()) < 2 or len({len(row) for row in rows}) > 1:
        return None
    return Elements(f"{len(rows)}x{len(rows[0])}", tuple(entry for row in rows for entry in row))


def main_value(tokens: Tokens) -> Tokens:
    r"""Drop the rounded value: `7/9 \approx 0.78` becomes `7/9`.

    If the left side is a label, `\approx` becomes an equals sign: `x \approx 2` becomes `x = 2`.
    """
    parts = split(tokens, _APPROXIMATIONS)
    if len(parts) < 2 or len(split(tokens, _SEPARATORS)) > 1:
        return tokens
    return (*parts[0], "=", *parts[1]) if _is_label(parts[0]) else parts[0]


def unlabelled(tokens: Tokens) -> Tokens:
    r"""Drop a label such as `x =`, and the rounded value in answers such as `7/9 \approx 0.78`.

    For `x \approx 2`, where the left side is a label, the value 2 remains.
    """
    return _labelled(main_value(tokens))[1]


def without_labels(wanted: Tokens, given: Tokens) -> tuple[Tokens, Tokens]:
    """Drop a label such as `x =` if both answers have it, or if the other answer has no relation sign."""
    wanted_label, wanted_rest = _labelled(wanted)
    given_label, given_rest = _labelled(given)
    if wanted_label != given_label and (
        (wanted_label and not _RELATIONS.isdisjoint(given))
        or (given_label and not _RELATIONS.isdisjoint(wanted))
    ):
        return wanted, given
    return wanted_rest, given_rest


def objection(wanted: Form, given: Form) -> str | None:
    """Return the reason to reject an answer before its value is compared, or None."""
    if given.has_stray_digits and not wanted.has_stray_digits:
        return "the words in it contain further numbers"
    if given.has_change and not wanted.has_change:
        return "the words in it deny something, or change the value"
    if " " in given.tokens and " " not in wanted.tokens and not _is_mixed_number(given.tokens):
        return "numbers side by side"
    if _contradicts_itself(given.tokens):
        return "contradicts itself"
    if _SEVERAL.isdisjoint(wanted.tokens) and _num_candidates(given.tokens) > 1:
        return "several answers where one is wanted"
    base = _base_subscript(given.tokens)
    # A reference answer without a base is decimal. An answer without a base has the base of the reference
    # answer.
    is_other_base = base is not None and base != (_base_subscript(wanted.tokens) or "10")
    return "another number base" if is_other_base and evaluate(without_base(wanted.tokens)) else None


def _labelled(tokens: Tokens) -> tuple[Tokens | None, Tokens]:
    parts = split(tokens, _LABEL_ENDS)
    if len(parts) == 2 and _is_label(parts[0]):
        return parts[0], parts[1]
    return None, tokens


def _is_label(tokens: Tokens) -> bool:
    r"""Return whether tokens name a quantity, such as `x`, `x_{1}`, `f(x)`, `(p,q)` or `\text{Area}`."""
    in_subscript = False
    for token in tokens:
        if token in _OPERATORS or (token[0].isdigit() and not in_subscript):
            return False
        in_subscript = token == "_" or (in_subscript and token != "}")
    return any(token.isalpha() or is_text(token) for token in tokens)


def _is_mixed_number(tokens: Tokens) -> bool:
    after = tokens.index(" ") + 2
    return tokens.count(" ") == 1 and tokens[after : after + 1] == ("/",)


def without_base(tokens: Tokens) -> Tokens:
    """Drop the base of a number, `2516` for `2516_{8}`; `objection` checks that the bases agree."""
    return tokens if _base_subscript(tokens) is None else tokens[:-4]


def _base_subscript(tokens: Tokens) -> str | None:
    is_based = len(tokens) >= 5 and tokens[-4:-2] == ("_", "{") and tokens[-1] == "}"
    return tokens[-2] if is_based and tokens[-5].isdigit() else None


def _num_candidates(tokens: Tokens) -> int:
    if enclosed(tokens) and tokens[0] == r"\{":
        tokens = tokens[1:-1]
    return len(set(split(tokens, _SEPARATORS)))


def _contradicts_itself(tokens: Tokens) -> bool:
    """Return whether a chain of equations, in any part of a list, equates different constants."""
    if (_EQUALITIES | _APPROXIMATIONS).isdisjoint(tokens):
        return False
    for part in split(tokens, _SEPARATORS):
        if not _CONGRUENCES.isdisjoint(part):
            continue
        rounded: list[tuple[Value, Tokens]] = []
        for exact in split(part, _APPROXIMATIONS):
            values = [evaluate(member) for member in split(exact, _EQUALITIES)]
            constants = [value for value in values if value is not None and not value.names]
            if any(differ(constants[0], other) for other in constants[1:]):
                return True
            rounded += [(value, exact) for value in constants[-1:]]
        if any(
            not _may_be_rounded(first, second, tokens) for (first, _), (second, tokens) in pairwise(rounded)
        ):
            return True
    return False


def _may_be_rounded(first: Value, second: Value, numeral: Tokens) -> bool:
    r"""Return whether `first \approx second` can be true; two different integers are never approximations.

    `numeral` contains the tokens of `second`; their decimal places determine the accepted rounding error.
    """
    if not differ(first, second):
        return True
    if is_integer(first.number) and is_integer(second.number):
        return False
    places = [len(token.partition(".")[2]) for token in numeral if token[0] in ".0123456789"]
    is_numeral = len(places) == 1 and len(numeral) <= 2 and places[0] > 0
    rounding = 1.01 * 0.1 ** places[0] if is_numeral else 0.5
    return bool(close(first, second, Tolerance(0.01, rounding)))

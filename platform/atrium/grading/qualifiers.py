r"""Conditions after an answer, such as `3k, k \in \mathbb{Z}` and `2^{n-1} \text{ for all } n \geq 2`.

A condition says which values a letter of the answer takes. If the reference answer has no condition, an
answer's condition is accepted unless it leaves only finitely many values (`3k, k = 2`, `k \in \{1,2\}`) or
restricts the variable of an inequality to a kind of number (`x > 2, \text{ where } x \in \mathbb{Z}`). If
both answers have conditions on a letter, the conditions must agree. A letter that stands for all integers may
have different names in the two answers, and a family of numbers `a + bk` may have different starting points
`a` (`same_family`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from atrium.grading.arithmetic import GREEK, evaluate
from atrium.grading.domains import domain, same_domain
from atrium.grading.notation import RELATIONS, word_set
from atrium.grading.tokens import (
    NESTING,
    SUCH_THAT,
    Leaf,
    Tokens,
    content,
    enclosed,
    is_text,
    split,
    substituted,
)
from atrium.grading.values import is_infinite

_SEPARATORS = frozenset((",", ";", r"\land"))
_DOTS = frozenset((r"\ldots", r"\dots", r"\cdots", "..."))
_SIGNS = RELATIONS | _DOTS | {r"\forall"}
_QUANTIFIERS = word_set("for where with when if whenever provided given as all any every each some")
_KINDS = {
    **dict.fromkeys(("Z", "integer", "integers"), "integer"),
    **dict.fromkeys(("N", "natural"), "natural"),
    **dict.fromkeys(("R", "real", "reals", "constant", "arbitrary"), "real"),
    **dict.fromkeys(("Q", "rational", "rationals"), "rational"),
    **dict.fromkeys(("C", "complex"), "complex"),
}
_WORDS = (
    _QUANTIFIERS
    | _KINDS.keys()
    | word_set(
        "is are be an a the that such and positive nonnegative non-negative nonzero non-zero number numbers "
        "value values of x real-valued holds fixed which"
    )
)
_FONTS = frozenset((r"\mathbb", r"\mathbf"))
_WHOLE = frozenset("ijklmnpqrst")  # letters that usually stand for integers


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition: its letters, the kind of numbers they stand for, and their bounds.

    `is_narrow` tells whether the letters take only finitely many values.
    """

    names: frozenset[str]
    kind: str
    bounds: Tokens
    is_narrow: bool

    @property
    def is_family(self) -> bool:
        """Whether the letters stand for all integers."""
        return self.kind == "integer" and not self.bounds


Conditions = tuple[tuple[Condition, ...], tuple[Condition, ...]]
"""The conditions of the reference answer, and the conditions of the answer."""


def qualified(tokens: Tokens) -> tuple[Tokens, tuple[Condition, ...]]:
    """Separate an answer into its value and the conditions after the value.

    Without conditions that can be separated, the value is the whole answer, and the conditions are empty.
    """
    if tokens[:1] == (r"\{",) and enclosed(tokens):
        inner = _of_builder(tokens[1:-1])
        if inner is not None:
            return inner
    if _SIGNS.isdisjoint(tokens) and not any(map(is_quantifier, tokens)):
        return tokens, ()
    start = _start(tokens)
    if start == 0:
        return tokens, ()
    value, rest = tokens[:start], tokens[start:]
    is_quantified = any(token == r"\forall" or is_quantifier(token) for token in rest)
    while value[-1:] and value[-1] in (*_SEPARATORS, "(", ":"):
        value = value[:-1]
    conditions = _conditions(rest)
    letters = _letters(value)
    is_relation = not RELATIONS.isdisjoint(value) and not is_quantified
    if is_relation and conditions and value[1:2] == (r"\neq",) and RELATIONS.isdisjoint(value[2:]):
        is_relation = not all(c.is_family and value[0] not in c.names for c in conditions)
    if not value or conditions is None or is_relation:
        return tokens, ()
    behind_label = split(value, frozenset(("=",))) or ((),)
    named = _letters(behind_label[-1]) if "(" not in behind_label[0] else letters
    if not is_quantified and not all(condition.names <= named for condition in conditions):
        return tokens, ()
    return value, conditions


def agree(wanted: tuple[Condition, ...], given: tuple[Condition, ...], leaf: Leaf) -> bool:
    """Return whether the answer's conditions (`given`) agree with those of the reference answer (`wanted`).

    Either both answers or neither must have a narrow condition. The kind and the bounds of a letter are
    compared only if both answers have conditions on this letter. `leaf` compares the end points of bounds.
    """
    if any(condition.is_narrow for condition in given) != any(condition.is_narrow for condition in wanted):
        return False
    for name in {name for condition in (*wanted, *given) for name in condition.names}:
        both = [[c for c in side if name in c.names] for side in (wanted, given)]
        if not (both[0] and both[1]):
            continue
        kinds = [{c.kind for c in side} - {""} for side in both]
        if kinds[0] and kinds[1] and kinds[0] != kinds[1]:
            return False
        bounds = [[c.bounds for c in side if c.bounds] for side in both]
        if len(bounds[0]) == len(bounds[1]) and not all(map(_same_bounds(leaf), *bounds)):
            return False
    return True


def family_letters(wanted: Tokens, given: Tokens, conditions: Conditions) -> tuple[str, str]:
    """Return, for each answer, the letter that stands for all integers.

    An answer without such a letter has an empty text instead.
    """
    first, second = (
        next((min(c.names) for c in side if c.is_family and len(c.names) == 1), "") for side in conditions
    )
    return (
        first if conditions[0] else _undeclared(wanted, second),
        second if conditions[1] else _undeclared(given, first),
    )


def _undeclared(tokens: Tokens, declared: str) -> str:
    """Return the letter that stands for all integers in an answer without conditions, or an empty text.

    `declared` is the letter that the other answer declares, or empty if that answer declares none. `declared`
    is returned unchanged if it is empty, if the value of this answer contains it, or if this value does not
    contain exactly one letter. Otherwise the only letter is returned if it may stand for integers. After a
    label, as in `n = 3m`, this may be any letter of `_WHOLE` that the label does not contain; without a
    label, only `k`, since other letters may denote given numbers.
    """
    *label, value = split(tokens, frozenset(("=", r"\neq"))) or ((),)
    letters = _letters(value)
    if not declared or declared in letters or len(letters) != 1:
        return declared
    is_free = letters <= _WHOLE and not any(letters & _letters(part) for part in label)
    return min(letters) if is_free and (label or letters == {"k"}) else ""


def is_one_of_family(conditions: tuple[Condition, ...], family: Tokens, single: Tokens) -> bool:
    """Return whether `family`, such as `3m`, has a letter for all integers, and `single` has no letters.

    `conditions` are the conditions of the answer `family`. A label before the value of `single` is ignored.
    """
    letters = {name for condition in conditions if condition.is_family for name in condition.names}
    return bool(letters & _letters(family)) and not _letters((split(single, frozenset(("=",))) or ((),))[-1])


def is_of_fewer(given: Tokens, wanted: tuple[Condition, ...], others: tuple[Condition, ...]) -> bool:
    r"""Return whether an answer excludes numbers by their kind, as in `x > 2 \text{ for integer } x`.

    Returns True if the answer restricts its variable to integers, natural numbers or rationals, and the
    reference answer has no condition on this variable. Variables that usually stand for integers, such as
    `n`, are exempt. `given` are the answer's tokens, `others` are its conditions, and `wanted` are the
    conditions of the reference answer.
    """
    found = domain(given) if others and not RELATIONS.isdisjoint(given) else None
    names = frozenset(found.variable if found else ()) - _WHOLE
    is_kept = any(
        names & c.names and {"integer", "natural", "rational"} & set(c.kind.split()) for c in others
    )
    return is_kept and not any(names & c.names for c in wanted)


def same_family(wanted: Tokens, given: Tokens, letters: tuple[str, str], leaf: Leaf) -> bool | None:
    """Return whether `a + bk` and `c + dm` form the same set over all integers k and m, or None.

    `wanted` and `given` have these forms, and `letters` are their k and m. The result is None if either is
    not linear in its letter, or if `d` equals neither `b` nor `-b`. Otherwise, the sets are the same if `c -
    a` is an integer multiple of `b`. If (c - a) / b cannot be evaluated as a finite real number, only the
    multiples from -12 to 12 are tried.
    """
    first, second = (
        [substituted(tokens, letter, (number,)) for number in "012"]
        for tokens, letter in zip((wanted, given), letters, strict=True)
    )
    steps = [("(", *family[1], ")", "-", "(", *family[0], ")") for family in (first, second)]
    if not all(
        leaf(family[2], (*family[1], "+", *step)) for family, step in zip((first, second), steps, strict=True)
    ):
        return None
    if not (leaf(steps[0], steps[1]) or leaf(("-", "(", *steps[0], ")"), steps[1])):
        return None
    shift = ("(", *second[0], ")", "-", "(", *first[0], ")")
    ratio = evaluate((r"\frac", "{", *shift, "}", "{", *steps[0], "}"))
    if ratio is None or isinstance(ratio.number, complex) or is_infinite(ratio.number):
        counts = range(-12, 13)
    else:
        counts = range(round(ratio.number), round(ratio.number) + 1)
    factors = [("-", str(-count)) if count < 0 else (str(count),) for count in counts]
    return any(leaf(shift, (*factor, r"\cdot", "(", *steps[0], ")")) for factor in factors)


def _of_builder(inner: Tokens) -> tuple[Tokens, tuple[Condition, ...]] | None:
    r"""Separate the content of a set builder, such as `3k : k \in \mathbb{Z}`, into value and conditions."""
    parts = split(inner, SUCH_THAT)
    if len(parts) < 2 or len(parts[0]) < 2 or not RELATIONS.isdisjoint(parts[0]):
        return None
    conditions = _conditions(inner[len(parts[0]) + 1 :])
    if not conditions or not all(condition.names <= _letters(parts[0]) for condition in conditions):
        return None
    return parts[0], conditions


def _start(tokens: Tokens) -> int:
    """Return the position of the first condition, or 0 if there is none."""
    depth = 0
    for index, token in enumerate(tokens):
        if index and depth == 0 and (token == r"\forall" or is_quantifier(token)):
            return index
        if index and depth == 0 and (token in _SEPARATORS or token == "("):
            rest = tokens[index + (token != "(") :]
            is_condition = (token != "(" or enclosed(rest)) and (
                not RELATIONS.isdisjoint(rest) or not _DOTS.isdisjoint(rest) or any(map(is_quantifier, rest))
            )
            if is_condition and _conditions(rest):
                return index
        depth += NESTING.get(token, 0)
    return 0


def is_quantifier(token: str) -> bool:
    r"""Return whether a token is text that can begin a condition, such as `\text{for all}`."""
    if not is_text(token):
        return False
    words = content(token).strip("( ,").lower().split()
    return bool(words) and words[0] in _QUANTIFIERS and set(words) <= _WORDS


def _conditions(tokens: Tokens) -> tuple[Condition, ...] | None:
    """Parse tokens that consist of conditions. Returns None if the tokens contain anything else."""
    if tokens[:1] == ("(",) and enclosed(tokens):
        tokens = tokens[1:-1]
    if tokens.count("(") < tokens.count(")") and tokens[-1:] == (")",):
        tokens = tokens[:-1]  # `\text{(for } n \ge 2)`
    found: list[Condition] = []
    parts = split(tokens, _SEPARATORS)
    index = 0
    while index < len(parts):
        part = parts[index]
        index += 1
        if "=" in part or r"\in" in part:  # `k = 0, 1, 2, \ldots`
            while index < len(parts) and RELATIONS.isdisjoint(parts[index]) and "=" not in parts[index]:
                part = (*part, ",", *parts[index])
                index += 1
        condition = _condition(part)
        if condition is None:
            return None
        found.append(condition)
    return tuple(found) or None


def _condition(tokens: Tokens) -> Condition | None:
    words: list[str] = []
    rest: list[str] = []
    for token in tokens:
        if is_text(token) or token == r"\forall":
            words += ["for", "all"] if token == r"\forall" else content(token).strip("()., ").lower().split()
        else:
            rest.append(token)
    if not set(words) <= _WORDS:
        return None
    kinds = {_KINDS[word] for word in words if word in _KINDS}
    positive = {"positive", "nonnegative", "non-negative"} & set(words)
    kind = " ".join(sorted(kinds | positive))
    if not rest:
        return Condition(frozenset(), kind, (), is_narrow=False)
    return _of_letters(tuple(rest), kind)


def _of_letters(rest: Tokens, kind: str) -> Condition | None:
    members = split(rest, frozenset((r"\in",)))
    if len(members) == 2 and not _DOTS.isdisjoint(members[1]):
        return Condition(_letters(members[0]), _sequence(members[1]), (), is_narrow=False)
    if len(members) == 2 and (members[1][0] in _FONTS or members[1] in (("Z",), ("N",), ("R",))):
        name = members[1][2] if members[1][0] in _FONTS else members[1][0]
        known = _KINDS.get(name)
        suffix = "".join(members[1][4:] if members[1][0] in _FONTS else ())
        return None if known is None else Condition(_letters(members[0]), known + suffix, (), is_narrow=False)
    if len(members) == 2 and members[1] == (r"\{",):
        return None
    sides = split(rest, frozenset(("=",)))
    if len(sides) == 2 and RELATIONS.isdisjoint(rest):
        is_endless = not _DOTS.isdisjoint(sides[1]) and len(sides[0]) == 1
        kind = _sequence(sides[1]) if is_endless else kind
        return Condition(_letters(sides[0]), kind, () if is_endless else rest, is_narrow=not is_endless)
    if RELATIONS.isdisjoint(rest):  # `for all x`
        return Condition(_letters(rest), kind, (), is_narrow=False) if _is_list_of_names(rest) else None
    names = _letters(rest)
    signs = [token for token in rest if token in RELATIONS]
    is_finite = len(members) == 2 and members[1][0] == r"\{"
    is_bounded = len(signs) == 2 and not names.isdisjoint(_WHOLE)
    return Condition(names, kind, rest, is_narrow=is_finite or is_bounded)


def _sequence(tokens: Tokens) -> str:
    r"""Return the kind of numbers that a sequence with dots lists, such as `1, 2, \dots`.

    The kind is `integer` if the sequence contains `-` or `\pm`. Otherwise it is `natural` followed by the
    first token, such as `natural1`.
    """
    return "integer" if {"-", r"\pm"} & set(tokens) else "natural" + "".join(tokens[:1])


def _letters(tokens: Tokens) -> frozenset[str]:
    runs = [token for token in tokens if token.isalpha() and len(token) <= 3]
    return frozenset(letter for run in runs for letter in run) | (GREEK & set(tokens))


def _is_list_of_names(tokens: Tokens) -> bool:
    return all((len(token) == 1 and token.isalpha()) or token in GREEK for token in tokens)


def _same_bounds(leaf: Leaf) -> Callable[[Tokens, Tokens], bool]:
    def compare(wanted: Tokens, given: Tokens) -> bool:
        first, second = domain(wanted), domain(given)
        if first is None or second is None:
            return wanted == given
        return same_domain(first, second, leaf) is True

    return compare

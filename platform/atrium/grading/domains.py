r"""Sets of real numbers, in every common notation, as conditions on one variable.

Supported notations: intervals and their unions; inequalities and chains of inequalities, which are solved if
they are linear; `x \ne 1`; `|x-2| < 3`; differences such as `\mathbb{R} \setminus \{0\}`; set builders such
as `\{x : x > 2\}`; and all of these joined by "and", "or" or a comma. A comma between conditions means "and",
unless no number satisfies all conditions: `x<1, x>3` are two rays.

Two sets are equal if they contain the same end points and the same gaps between end points. The caller's
`Leaf` decides whether two end points are equal; if it cannot decide, the comparison of the sets returns None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from atrium.grading.arithmetic import GREEK, evaluate
from atrium.grading.linear import REVERSED, isolated
from atrium.grading.notation import RELATIONS
from atrium.grading.tokens import REALS, SUCH_THAT, Leaf, Tokens, content, enclosed, is_text, split

_ORDERS = frozenset(("<", ">", r"\leq", r"\geq"))
_UNIONS = frozenset((r"\cup", r"\lor", "U"))
_DIFFERENCES = frozenset((r"\setminus", r"\backslash", r"\smallsetminus"))
_INTERSECTIONS = frozenset((r"\cap",))
_OR, _AND = frozenset((r"\lor",)), frozenset((",", ";", r"\land"))
_POSITIVE = {
    ("^", "+"): ">",
    ("^", "{", "+", "}"): ">",
    ("_", "{", ">", "0", "}"): ">",
    ("_", "{", r"\geq", "0", "}"): r"\geq",
    ("_", "{", "<", "0", "}"): "<",
}
NUMBER_SETS = RELATIONS | _UNIONS | _DIFFERENCES | {r"\mathbb", r"\infty", r"\emptyset"}
"""Tokens that mark an answer as a set of numbers."""
_LOWEST, _HIGHEST = ("-", r"\infty"), (r"\infty",)
_MAX_ENDS = 24


@dataclass(frozen=True, slots=True)
class Node:
    r"""A condition: a relation to an end point, or a combination of conditions.

    `kind` is a relation (<, >, \leq, \geq, =), `and`, `or`, `not`, or `comma`; an empty `and` is always true.
    """

    kind: str
    parts: tuple[Node, ...] = ()
    end: Tokens = ()


@dataclass(frozen=True, slots=True)
class Domain:
    """A set of real numbers; `variable` is the name of its variable, empty if the notation has none."""

    node: Node
    variable: Tokens
    is_shown: bool
    """Whether the notation always denotes a set of numbers; `(1,2)` may also be a point."""

    @property
    def ends(self) -> tuple[Tokens, ...]:
        """The tokens of each finite end point, without repetitions."""
        return tuple(end for end in dict.fromkeys(_ends(self.node)) if end not in (_LOWEST, _HIGHEST))


_ALL, _NONE = Node("and"), Node("or")


def domain(tokens: Tokens, *, pairs_are_intervals: bool = False) -> Domain | None:
    """Return the set of real numbers that an answer denotes, or None if it denotes something else.

    Also returns None for a set with more than 24 end points. With `pairs_are_intervals`, `(1,2), (3,4)` are
    two intervals instead of two points.
    """
    head = split(tokens, SUCH_THAT)[0] if r"\in" in tokens else ()
    if r"\in" in head and tokens[len(head) : len(head) + 1] and tokens[0] != r"\{":
        tokens = (r"\{", *tokens, r"\}")  # `x \in \mathbb{R} : x > 2`
    reader = _Reader(pairs_are_intervals=pairs_are_intervals)
    node = reader.condition(tokens) or reader.set_of_numbers(tokens)
    if node is None or len(reader.variables) > 1:
        return None
    variable = next(iter(reader.variables), ())
    result = Domain(node, variable, not NUMBER_SETS.isdisjoint(tokens))
    is_own_bound = any(len(variable) == 1 and variable[0] in end for end in result.ends)
    return None if is_own_bound or len(result.ends) > _MAX_ENDS else result


def same_domain(wanted: Domain, given: Domain, leaf: Leaf) -> bool | None:
    """Return whether two domains are the same set, or None if that cannot be decided.

    The result is False for domains that name different variables, or None if an end point contains letters.
    """
    if wanted.variable and given.variable and wanted.variable != given.variable:
        return None if any(_names(end) for end in (*wanted.ends, *given.ends)) else False
    places: dict[Tokens, int] = {}
    distinct: list[Tokens] = []
    for end in dict.fromkeys((*wanted.ends, *given.ends)):
        results = [leaf(end, other) for other in distinct]
        if True in results:
            places[end] = results.index(True)
        elif None in results:
            return None
        else:
            places[end] = len(distinct)
            distinct.append(end)
    if any(map(_names, distinct)):
        return _same_pieces(wanted.node, given.node, places)
    values = [evaluate(end) for end in distinct]
    numbers = [value.number if value is not None else 1j for value in values]
    if any(isinstance(number, complex) for number in numbers):
        return _same_pieces(wanted.node, given.node, places)
    order = sorted(range(len(distinct)), key=lambda index: _sortable(numbers[index]))
    rank = {place: 2 * position + 1 for position, place in enumerate(order)}
    ranks = {end: rank[place] for end, place in places.items()} | {
        _LOWEST: -1,
        _HIGHEST: 2 * len(distinct) + 1,
    }
    positions = range(2 * len(distinct) + 1)
    return _members(wanted.node, positions, ranks) == _members(given.node, positions, ranks)


def _names(end: Tokens) -> frozenset[str]:
    value = evaluate(end)
    return value.names if value is not None else frozenset()


def _sortable(number: object) -> Fraction | float:
    return number if isinstance(number, Fraction | float) else 0.0


def _ends(node: Node) -> Iterator[Tokens]:
    if node.end:
        yield node.end
    for part in node.parts:
        yield from _ends(part)


def _members(node: Node, positions: range, ranks: dict[Tokens, int]) -> frozenset[int]:
    """Return the positions that satisfy a condition. Odd positions are end points, and even ones are gaps.

    `ranks` maps each end point to its position.
    """
    parts = [_members(part, positions, ranks) for part in node.parts]
    match node.kind:
        case "or":
            return frozenset().union(*parts)
        case "and":
            return frozenset(positions).intersection(*parts)
        case "comma":
            return frozenset(positions).intersection(*parts) or frozenset().union(*parts)
        case "not":
            return frozenset(positions) - parts[0]
    rank = ranks[node.end]
    holds = {
        "<": lambda place: place < rank,
        ">": lambda place: place > rank,
        r"\leq": lambda place: place <= rank,
        r"\geq": lambda place: place >= rank,
        "=": lambda place: place == rank,
    }[node.kind]
    return frozenset(filter(holds, positions))


def _same_pieces(wanted: Node, given: Node, places: dict[Tokens, int]) -> bool | None:
    """Return True if two conditions combine the same relations to the same end points, else None.

    `places` maps equal end points to the same number. The result is never False, since the order of the end
    points is not known: conditions that are composed differently may still describe the same set.
    """

    def form(node: Node) -> object:
        end = places.get(node.end, node.end)
        kind = "and" if node.kind == "comma" else node.kind
        parts = frozenset(map(form, node.parts))
        if kind in ("and", "or") and len(parts) == 1:
            return next(iter(parts))
        return kind, end, parts - {form(_ALL)} if node.parts and kind == "and" else parts

    return form(_simplified(wanted)) == form(_simplified(given)) or None


def _simplified(node: Node) -> Node:
    """Replace each bound at infinity by a condition that is always or never true.

    Conditions that are always true are then dropped from conjunctions.
    """
    if node.end in (_LOWEST, _HIGHEST):
        return _ALL if (node.end == _LOWEST) == (node.kind in (">", r"\geq")) else _NONE
    parts = tuple(map(_simplified, node.parts))
    if node.kind == "and" and any(part != _ALL for part in parts):
        parts = tuple(part for part in parts if part != _ALL)
    return Node(node.kind, parts, node.end)


class _Reader:
    """A parser of conditions and sets that collects their variables."""

    def __init__(self, *, pairs_are_intervals: bool) -> None:
        self.variables: set[Tokens] = set()
        self.pairs_are_intervals = pairs_are_intervals

    def condition(self, tokens: Tokens) -> Node | None:
        """Parse relations joined by "and", "or" or commas. Returns None for other tokens."""
        if RELATIONS.isdisjoint(tokens):
            return None
        several = split(tokens, _OR)
        if len(several) > 1:
            return _joined("or", [self._either(part) for part in several])
        return self._all_of(tokens)

    def _either(self, tokens: Tokens) -> Node | None:
        sides = split(tokens, frozenset(("=",)))
        if RELATIONS.isdisjoint(tokens) and len(sides) == 2 and _is_name(sides[0]):
            self.variables.add(sides[0])
            return _points(sides[1])
        return self.condition(tokens)

    def _all_of(self, tokens: Tokens) -> Node | None:
        parts: list[Tokens] = []
        for part in split(tokens, _AND):
            if parts and r"\in" in parts[-1] and RELATIONS.isdisjoint(part):
                parts[-1] = (*parts[-1], ",", *part)  # `x \in [1, 2], [3, 4]`
                continue
            if parts and RELATIONS.isdisjoint(part) and r"\neq" in parts[-1]:
                part = (*parts[-1][: parts[-1].index(r"\neq") + 1], *part)  # `x \neq 1, 2`
            parts.append(part)
        kind = "comma" if r"\land" not in tokens else "and"
        return _joined(kind, [self._relation(part) for part in parts])

    def _relation(self, tokens: Tokens) -> Node | None:
        for sign in (r"\in", r"\notin"):
            sides = split(tokens, frozenset((sign,)))
            if len(sides) == 2 and _is_name(sides[0]):
                self.variables.add(sides[0])
                inner = self.set_of_numbers(sides[1])
                return inner if inner is None or sign == r"\in" else Node("not", (inner,))
        sides = split(tokens, frozenset((r"\neq",)))
        if len(sides) == 2 and not _is_name(sides[0]):
            sides = sides[::-1]
        if len(sides) == 2 and _is_name(sides[0]):
            self.variables.add(sides[0])
            points = _points(sides[1])
            return points if points is None else Node("not", (points,))
        return self._linear(sides, (r"\neq",)) if len(sides) == 2 else self._inequality(tokens)

    def _linear(self, sides: Sequence[Tokens], signs: Sequence[str]) -> Node | None:
        found = isolated(sides, signs)
        if found is None:
            return None
        self.variables.add((found[0],))
        relations = [
            Node("not", (Node("=", end=end),)) if order == r"\neq" else Node(order, end=end)
            for order, end in found[1]
        ]
        return _joined("and", [*relations])

    def _inequality(self, tokens: Tokens) -> Node | None:
        signs = [token for token in tokens if token in _ORDERS]
        sides = split(tokens, frozenset(_ORDERS))
        if not 1 <= len(signs) <= 2 or len(sides) != len(signs) + 1:
            return None
        center = 1 if len(signs) == 2 or not _variable(sides[0])[0] else 0
        variable, shift = _variable(sides[center])
        if not variable or any(variable[0] in side for side in (*sides[:center], *sides[center + 1 :])):
            return self._linear(sides, signs)
        self.variables.add(variable)
        bounds = [
            (sign, sides[index + 1]) if index == center else (REVERSED[sign], sides[index])
            for index, sign in enumerate(signs)
        ]
        if sides[center][0] != "|":
            return _joined("and", [Node(order, end=end) for order, end in bounds])
        return _joined("and", [_around(shift, order, end) for order, end in bounds])

    def set_of_numbers(self, tokens: Tokens) -> Node | None:
        """Parse intervals, points, the real numbers, set builders, and operations on sets, or return None."""
        for separators, kind in ((_UNIONS, "or"), (_INTERSECTIONS, "and"), (_AND, "or")):
            parts = split(tokens, separators)
            if separators is _AND and not all(map(self._is_interval, parts)):
                break
            if len(parts) > 1:
                return _joined(kind, [self.set_of_numbers(part) for part in parts])
        parts = split(tokens, _DIFFERENCES)
        if len(parts) == 1 and tokens[:5] == (*REALS, "-"):
            parts = (REALS, tokens[5:])
        if len(parts) == 2:
            whole, taken = map(self.set_of_numbers, parts)
            return None if taken is None else _joined("and", [whole, Node("not", (taken,))])
        if tokens == REALS or (len(tokens) == 1 and is_text(tokens[0]) and _is_all_reals(content(tokens[0]))):
            return _ALL
        if tokens[:4] == REALS and tokens[4:] in _POSITIVE:
            return Node(_POSITIVE[tokens[4:]], end=("0",))
        if tokens in ((r"\emptyset",), (r"\{", r"\}")):
            return _NONE
        return self._bracketed(tokens) if enclosed(tokens) else None

    def _is_interval(self, tokens: Tokens) -> bool:
        """Return whether the tokens denote an interval.

        `(1,2)` is an interval if `pairs_are_intervals` is set, and a point otherwise. Brackets such as
        `[1,2)` and infinite bounds always mean an interval.
        """
        is_enclosed = enclosed(tokens) and tokens[0] in ("(", "[") and len(split(tokens[1:-1], _AND)) == 2
        is_shown = tokens[0] == "[" or tokens[-1] == "]" or r"\infty" in tokens
        return is_enclosed and (is_shown or self.pairs_are_intervals)

    def _bracketed(self, tokens: Tokens) -> Node | None:
        inner = tokens[1:-1]
        if tokens[0] == r"\{":
            parts = split(inner, SUCH_THAT)
            if len(parts) < 2 or RELATIONS.isdisjoint(inner):
                return _points(inner)
            at = len(parts[0])
            head, condition = inner[:at], self.condition(inner[at + 1 :])
            if _is_name(head):
                self.variables.add(head)
                return condition
            return _joined("and", [self._relation(head), condition])
        bounds = split(inner, _AND)
        if tokens[0] not in ("(", "[") or len(bounds) != 2 or r"\land" in inner:
            return None
        lower = Node(r"\geq" if tokens[0] == "[" else ">", end=_end(bounds[0]))
        upper = Node(r"\leq" if tokens[-1] == "]" else "<", end=_end(bounds[1]))
        return Node("and", (lower, upper))


def _end(tokens: Tokens) -> Tokens:
    return tokens[1:] or tokens if tokens[:1] == ("+",) else tokens


def _joined(kind: str, parts: list[Node | None]) -> Node | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or not known:
        return None
    return known[0] if len(known) == 1 else Node(kind, tuple(known))


def _points(tokens: Tokens) -> Node | None:
    if tokens[:1] == (r"\{",) and enclosed(tokens):
        tokens = tokens[1:-1]
    values = [
        value
        for part in split(tokens, _AND)
        for value in (((s, *part[1:]) for s in "+-") if part[0] == r"\pm" else (part,))
    ]
    if not values or any(evaluate(value) is None for value in values):
        return None
    return Node("or", tuple(Node("=", end=_end(value)) for value in values))


def _around(shift: Tokens, order: str, end: Tokens) -> Node:
    """Return the condition on x that is equivalent to `|x + shift| ORDER end`, such as `|x-2| < 3`."""
    middle = ("-", "(", *shift, ")") if shift else ("0",)
    upper = Node(order, end=(*middle, "+", "(", *end, ")"))
    lower = Node(REVERSED[order], end=(*middle, "-", "(", *end, ")"))
    return Node("and" if order in ("<", r"\leq") else "or", (upper, lower))


def _is_name(tokens: Tokens) -> bool:
    is_letter = bool(tokens) and ((len(tokens[0]) == 1 and tokens[0].isalpha()) or tokens[0] in GREEK)
    is_bare = len(tokens) == 1 or (tokens[1:3] == ("_", "{") and tokens.count("}") == 1 and tokens[-1] == "}")
    if tokens[1:2] == ("(",) and tokens[3:] == (")",):  # a function value, such as `f(x)`
        is_bare = tokens[2].isalpha()
    return is_letter and is_bare and tokens[0] not in ("e", "i")


def _variable(tokens: Tokens) -> tuple[Tokens, Tokens]:
    """Split a side of an inequality, such as `|x-2|`, into the variable `x` and the added term `-2`.

    The term is empty for `x` and `|x|`. Both parts are empty for any other side.
    """
    if _is_name(tokens):
        return tokens, ()
    if len(tokens) < 3 or tokens[0] != "|" or tokens[-1] != "|":
        return (), ()
    inner = tokens[1:-1]
    is_shifted = len(inner) > 2 and inner[1] in ("+", "-") and "|" not in inner
    if not _is_name(inner[:1]) or not (len(inner) == 1 or is_shifted):
        return (), ()
    return inner[:1], inner[1:]


def _is_all_reals(words: str) -> bool:
    found = set(words.lower().replace("numbers", "number").split())
    return "all" in found and found <= {"all", "real", "reals", "number"} and len(found) > 1

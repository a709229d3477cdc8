"""Names of arms, the same in every view, file, table and command.

An arm is named after its algorithm, or after the label that its runs record. If several arms share that name,
the settings that distinguish an arm from the others are appended. If an algorithm or label has arms with
several seeds, its arms with a single seed are called "other runs". They do not affect the names of the
remaining arms, with one exception: if rounding would give one of these arms the same name as one of the other
runs, the numbers in both names are not rounded. If the user chooses the settings that group the runs, the
values of these settings name the arms instead, and there are no other runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from atrium.base.errors import ConfigError
from atrium.compare.run_settings import ABSENT, SEED, Settings, label, labels, method_keys

ALGORITHM, LABEL = "algorithm.name", "label"
_TELLING_FIRST = ("divergence.kind", "divergence.delta", "regularizer.kl.kind", "model.kind")
"""The settings that are tried first to distinguish arms with the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedArm:
    """An arm: its name, its algorithm and the names of its runs.

    `algorithm` is empty if the runs differ in it. `is_other` marks "other runs": an arm with a single seed
    whose algorithm or label also has arms with several seeds. `difference` describes the settings that
    distinguish such an arm, and is empty for all other arms. Views list other runs separately, and
    comparisons count them only if the user names them.
    """

    name: str
    algorithm: str
    runs: tuple[str, ...]
    is_other: bool = False
    difference: str = ""


def name_arms(
    settings: Mapping[str, Settings],
    *,
    by: Sequence[str] = (),
    at_last_step: bool = True,
    chosen: Collection[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> tuple[NamedArm, ...]:
    """Group runs into arms, in the order of their first runs; `settings` maps run names to settings.

    Runs form an arm if they agree in the settings `by`, or, if `by` is empty, in all settings that
    distinguish methods. If `at_last_step` is set, the runs are compared at their last steps, so the run
    length is one of the settings that distinguish methods. `chosen` are runs that the user named
    individually; their arms are never marked as "other runs". `renamed` maps arms, named as in `find_arm`, to
    display names. Raises `ConfigError` if `renamed` contains an unknown or ambiguous arm, or if two arms
    would have the same name.
    """
    keys = list(by) or method_keys(list(settings.values()), at_last_step=at_last_step)
    members: dict[tuple[str, ...], list[str]] = {}
    for name, run in settings.items():
        members.setdefault(tuple(run.get(key, ABSENT) for key in keys), []).append(name)
    groups = [_Group(values, tuple(names), settings) for values, names in members.items()]
    if by:
        names_by_values = labels(keys, members)
        arms = [group.named(names_by_values[group.values]) for group in groups]
    else:
        arms = _by_algorithm(keys, groups, frozenset(chosen))
    return _renamed(arms, renamed or {})


def find_arm(arms: Sequence[NamedArm], wanted: str, role: str) -> NamedArm:
    """Return the arm with the name or algorithm `wanted`, or with a run whose name ends in `wanted`.

    Names of arms take precedence over algorithms, and algorithms over runs. Raises `ConfigError`, with a
    message that starts with `role`, if no arm or more than one matches.
    """
    by_name = [arm for arm in arms if arm.name == wanted]
    by_algorithm = [arm for arm in arms if arm.algorithm == wanted and not arm.is_other]
    by_run = [arm for arm in arms if any(run.endswith(wanted) for run in arm.runs)]
    found = by_name or by_algorithm or by_run
    if len(found) == 1:
        return found[0]
    fitting = ", ".join(arm.name for arm in found or arms)
    raise ConfigError(
        f"{role} {wanted} matches {len(found)} arms ({fitting}); give the full name of one of them"
        if found
        else f"{role} {wanted}: unknown arm; use one of {fitting}"
    )


@dataclass(frozen=True, slots=True)
class _Group:
    values: tuple[str, ...]
    runs: tuple[str, ...]
    settings: Mapping[str, Settings]

    @property
    def algorithm(self) -> str:
        found = {self.settings[run].get(ALGORITHM, "") for run in self.runs}
        return found.pop() if len(found) == 1 else ""

    @property
    def base(self) -> str:
        """The name before settings are appended: the latest recorded label, or else the algorithm.

        The name is `all runs` if there is neither a label nor a single algorithm.
        """
        recorded = [self.settings[run].get(LABEL, ABSENT) for run in self.runs]
        return next((text for text in reversed(recorded) if text != ABSENT), self.algorithm) or "all runs"

    @property
    def has_one_seed(self) -> bool:
        return len({self.settings[run].get(SEED, "") for run in self.runs}) == 1

    def named(self, name: str) -> NamedArm:
        return NamedArm(name=name, algorithm=self.algorithm, runs=self.runs)


def _by_algorithm(keys: Sequence[str], groups: Sequence[_Group], chosen: frozenset[str]) -> list[NamedArm]:
    namesakes: dict[str, list[_Group]] = {}
    for group in groups:
        namesakes.setdefault(group.base, []).append(group)
    found = {}
    for base, family in namesakes.items():
        several = [group for group in family if not group.has_one_seed]
        main = several or family
        suffixes = _suffixes(keys, [(group, main if group in main else family) for group in family])
        for group in family:
            is_other = group not in main and not chosen & set(group.runs)
            name = f"{base} · {suffixes[group.values]}" if suffixes[group.values] else base
            arm = group.named(name)
            difference = suffixes[group.values] if is_other else ""
            found[group.values] = replace(arm, is_other=is_other, difference=difference)
    return [found[group.values] for group in groups]


def _suffixes(
    keys: Sequence[str], groups: Sequence[tuple[_Group, Sequence[_Group]]]
) -> dict[tuple[str, ...], str]:
    """Return the suffix of each group's name: the settings that distinguish it from other groups.

    `keys` are the settings whose values are the `values` of the groups. `groups` pairs each group with the
    groups that it must be distinguished from. The result is keyed by the group's `values`. A suffix is empty
    if nothing distinguishes its group.
    """
    first = [key for key in _TELLING_FIRST if key in keys]
    ordered = [*first, *(key for key in keys if key not in first and key != ALGORITHM)]
    order = [keys.index(key) for key in ordered if key in keys]
    told = {group.values: _telling(group, among, order) for group, among in groups}

    def words(values: tuple[str, ...], *, is_short: bool) -> str:
        places = told[values]
        if not places:
            return ""
        return label([keys[at] for at in places], [values[at] for at in places], is_short=is_short)

    short = {values: words(values, is_short=True) for values in told}
    alike = {text for text in short.values() if list(short.values()).count(text) > 1}
    return {
        values: words(values, is_short=False) if text in alike else text for values, text in short.items()
    }


def _telling(group: _Group, among: Iterable[_Group], order: Sequence[int]) -> list[int]:
    """Return the indices of a few settings that together distinguish a group from the groups in `among`.

    `order` contains the indices of the settings that may be used. They are chosen greedily; in a tie, the
    first in `order` is chosen. Groups with equal values of all these settings are not distinguished.
    """
    remaining = [other for other in among if other is not group]
    chosen: list[int] = []
    while remaining:
        alike = {
            place: [one for one in remaining if one.values[place] == group.values[place]] for place in order
        }
        best = min(order, key=lambda place: len(alike[place]), default=None)
        if best is None or len(alike[best]) == len(remaining):
            break
        chosen.append(best)
        remaining = alike[best]
    return [place for place in order if place in chosen]


def _renamed(arms: Sequence[NamedArm], renamed: Mapping[str, str]) -> tuple[NamedArm, ...]:
    new = {find_arm(arms, old, "label").name: name for old, name in renamed.items()}
    names = [new.get(arm.name, arm.name) for arm in arms]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(
            f"label: each arm must have a different name, but two would be named {twice}; choose other labels"
        )
    return tuple(replace(arm, name=name) for arm, name in zip(arms, names, strict=True))

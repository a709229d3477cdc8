"""Planned numbers of seeds, and planned looks: interim verdicts before all seeds are finished.

Testing after each new seed until a verdict appears finds differences between equal methods. A plan that is
recorded before the first run fixes when verdicts are given: once, at the planned number of seeds, or at J
looks with the level alpha / J each. This module only reads runs and counts seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from atrium.base.recorded import read_object
from atrium.compare.arms import Arm
from atrium.compare.counted_runs import MissingRun
from atrium.runs.find import started
from atrium.runs.run_folder import RunFolder

NOT_PLANNED = (
    "the number of seeds was not fixed in advance; stopping when a result looks good raises false verdicts "
    "from 5 % to up to 16 % in ten seeds"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedPlan:
    """A planned number of seeds per arm, and the numbers of seeds at which verdicts are given (looks).

    The last look is at all planned seeds.
    """

    num_seeds: int
    looks: tuple[int, ...] = ()

    @property
    def all_looks(self) -> tuple[int, ...]:
        """The planned looks in seeds per arm. If none are planned, there is one look at all planned seeds."""
        return self.looks or (self.num_seeds,)

    def look(self, num_in: int) -> int | None:
        """Return the latest look that `num_in` finished seeds per arm have reached, or None before the first.

        A look is identified by its number of seeds per arm.
        """
        return max((look for look in self.all_looks if look <= num_in), default=None)

    def words(self, num_in: int) -> str:
        """Return the progress as text, such as `3 of 5 planned seeds`."""
        return f"{min(num_in, self.num_seeds)} of {self.num_seeds} planned seeds"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedArms:
    """The runs of all arms by their place in the plan: planned with an outcome, missing, or beyond the plan.

    `arms` has the planned runs with an outcome, `missing` the planned runs without an outcome, and `beyond`
    the unplanned runs with an outcome. If no planned run of an arm has an outcome, all of its runs stay in
    `arms`. `num_in` is the number of planned seeds with an outcome in the arm that has the fewest. Without a
    plan, `arms` has all runs with an outcome and `plan` is None.
    """

    arms: tuple[Arm, ...]
    missing: Mapping[str, tuple[MissingRun, ...]]
    beyond: Mapping[str, tuple[RunFolder, ...]]
    plan: SeedPlan | None = None
    num_in: int = 0

    @property
    def look(self) -> int | None:
        """The number of seeds per arm at the latest look. None without a plan and before the first look."""
        return None if self.plan is None else self.plan.look(self.num_in)

    @property
    def is_early(self) -> bool:
        """Whether the first look is still ahead, so that estimates are shown without intervals."""
        return self.plan is not None and self.look is None

    @property
    def num_looks(self) -> int:
        """The number of looks by which the level alpha is divided."""
        return 1 if self.plan is None else len(self.plan.all_looks)

    def at_look(self) -> PlannedArms:
        """Return the runs that the verdict uses: each arm's first runs, as many as the latest look needs.

        Returns this object unchanged before the first look and without a plan.
        """
        return self if self.look is None else replace(_first(self, self.look), num_in=self.num_in)

    def words(self) -> str:
        """Return the plan's progress as a line, which is shown beside the verdicts.

        The result is empty without a plan.
        """
        if self.plan is None:
            return ""
        if self.look is None or not self.plan.looks:
            return self.plan.words(self.num_in)
        looks = ", ".join(map(str, self.plan.looks))
        return f"verdict at {self.look} of {self.plan.num_seeds} planned seeds (planned looks: {looks})"


def planned_arms(arms: Sequence[Arm], missing: Mapping[str, tuple[MissingRun, ...]]) -> PlannedArms:
    """Return the arms restricted to planned runs, according to the plan that the earliest run recorded.

    `missing` contains each arm's runs without an outcome. Runs beyond the plan do not count for a verdict.
    """
    folders = [folder for arm in arms for folder in arm.runs.values()]
    folders += [run.folder for runs in missing.values() for run in runs]
    plan = _recorded_plan(min(folders, key=_by_start))
    whole = PlannedArms(arms=tuple(arms), missing=missing, beyond={}, plan=plan)
    if plan is None:
        return whole
    return _first(whole, plan.num_seeds)


def _recorded_plan(folder: RunFolder) -> SeedPlan | None:
    config, _ = read_object(folder.config_file)
    num_seeds, looks = config.get("planned_seeds"), config.get("looks")
    if not isinstance(num_seeds, int):
        return None
    known = [look for look in looks if isinstance(look, int)] if isinstance(looks, list) else []
    return SeedPlan(num_seeds=num_seeds, looks=tuple(known))


def _first(planned: PlannedArms, num: int) -> PlannedArms:
    """Return each arm's first `num` runs by start time, missing ones included.

    Outcomes cannot influence this choice, since start times precede them. If the first runs of an arm are all
    missing, the arm keeps all of its runs.
    """
    arms, missing, beyond, num_in = [], {}, {}, num
    for arm in planned.arms:
        lacking = planned.missing.get(arm.name, ())
        began = sorted([*arm.runs.values(), *(run.folder for run in lacking)], key=_by_start)
        first = {folder.name for folder in began[:num]}
        runs = {seed: folder for seed, folder in arm.runs.items() if folder.name in first}
        arms.append(replace(arm, runs=runs or arm.runs))
        num_in = min(num_in, len(runs))
        missing[arm.name] = tuple(run for run in lacking if run.folder.name in first)
        beyond[arm.name] = tuple(run for seed, run in arm.runs.items() if runs and seed not in runs)
    return replace(planned, arms=tuple(arms), missing=missing, beyond=beyond, num_in=num_in)


def _by_start(folder: RunFolder) -> tuple[float, str]:
    return started(folder), folder.name

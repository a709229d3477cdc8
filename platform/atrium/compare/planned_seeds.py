"""A planned number of seeds, and the looks at which a verdict is given before all of them are in.

Testing after each new seed until a verdict appears finds differences between equal methods. A plan that was
recorded before the first run says when verdicts are given: once, at the planned number of seeds, or at J
looks at the level alpha / J each. Reading runs only counts seeds; nothing is written.
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
    "number of seeds not planned: if tested after every new seed, up to 16 % of equal methods are called "
    "different by ten seeds"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedPlan:
    """A number of seeds per arm, and the numbers of seeds at which verdicts are given; the last is all."""

    num_seeds: int
    looks: tuple[int, ...] = ()

    @property
    def all_looks(self) -> tuple[int, ...]:
        """The looks, or the one at the end."""
        return self.looks or (self.num_seeds,)

    def look(self, num_in: int) -> int | None:
        """How many seeds per arm the latest look is over, with `num_in` in; None before the first."""
        return max((look for look in self.all_looks if look <= num_in), default=None)

    def words(self, num_in: int) -> str:
        """`3 of 5 planned seeds`."""
        return f"{min(num_in, self.num_seeds)} of {self.num_seeds} planned seeds"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedArms:
    """The planned runs of all arms: available (`arms`) and `missing`; and the runs `beyond` the plan.

    `num_in` is the smallest number of available planned seeds of any arm. Without a plan, `arms` contains
    all runs and `plan` is None.
    """

    arms: tuple[Arm, ...]
    missing: Mapping[str, tuple[MissingRun, ...]]
    beyond: Mapping[str, tuple[RunFolder, ...]]
    plan: SeedPlan | None = None
    num_in: int = 0

    @property
    def look(self) -> int | None:
        """The number of seeds of the latest look; None before the first, and without a plan."""
        return None if self.plan is None else self.plan.look(self.num_in)

    @property
    def is_early(self) -> bool:
        """Whether fewer seeds are in than the first look has: estimates are shown without intervals."""
        return self.plan is not None and self.look is None

    @property
    def num_looks(self) -> int:
        """Between how many looks the level is divided."""
        return 1 if self.plan is None else len(self.plan.all_looks)

    def at_look(self) -> PlannedArms:
        """The runs that the verdict is over: the first of each arm, as many as the latest look has."""
        return self if self.look is None else replace(_first(self, self.look), num_in=self.num_in)

    def words(self) -> str:
        """The line beside the verdicts."""
        if self.plan is None:
            return NOT_PLANNED
        if self.look is None or not self.plan.looks:
            return self.plan.words(self.num_in)
        looks = ", ".join(map(str, self.plan.looks))
        return f"verdict at {self.look} of {self.plan.num_seeds} planned seeds (planned looks: {looks})"


def planned_arms(arms: Sequence[Arm], missing: Mapping[str, tuple[MissingRun, ...]]) -> PlannedArms:
    """Apply the plan that the run which began first records; runs beyond it do not count for a verdict."""
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
    """Each arm's first `num` runs by when they began, which no outcome can influence; missing ones count.

    An arm keeps all of its runs where the first ones are all missing.
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
        beyond[arm.name] = tuple(folder for folder in arm.runs.values() if folder.name not in first)
    return replace(planned, arms=tuple(arms), missing=missing, beyond=beyond, num_in=num_in)


def _by_start(folder: RunFolder) -> tuple[float, str]:
    return started(folder), folder.name

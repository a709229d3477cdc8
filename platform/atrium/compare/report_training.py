"""What a report says of training: reward on the way, and how old batches were where they lagged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atrium.base.metrics import (
    KL_BEFORE_UPDATE,
    OUTSIDE_BEFORE_UPDATE_FRAC,
    REWARD,
    STALENESS_STEPS,
    Quantity,
)
from atrium.compare.arm_curves import compare_curves
from atrium.compare.arms import Arm
from atrium.compare.curve_index import recorded_curves
from atrium.compare.curve_tables import outcome_table
from atrium.compare.curves import Axis, Band, Column, GroupCurve, axis_values, curve, group_curve
from atrium.compare.report_tables import NOTHING, ReportTable
from atrium.runs.curve_outcomes import Area

_AGE = (
    (STALENESS_STEPS, "age of a batch, steps", 1.0),
    (KL_BEFORE_UPDATE, "KL before the update, nats", 1.0),
    (OUTSIDE_BEFORE_UPDATE_FRAC, "outside the window before it, %", 100.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Each arm's mean reward by step with the range over its seeds, None where none recorded it; tables."""

    rewards: dict[str, GroupCurve | None]
    tables: tuple[ReportTable, ...]


def read_training(arms: Sequence[Arm], *, has_intervals: bool = True) -> Training:
    """What the runs of the arms recorded while they trained; differences with intervals or without."""
    columns = {arm.name: [recorded_curves(arm.runs[seed]).columns for seed in arm.seeds] for arm in arms}
    rewards = {}
    for name, of_seeds in columns.items():
        found = [(axis_values(one, Axis.STEP), one.get(REWARD.name)) for one in of_seeds]
        drawn = [curve(x, y) for x, y in found if x is not None and y is not None]
        rewards[name] = group_curve(drawn, Band.RANGE)
    tables = (*_areas(arms, rewards, has_intervals=has_intervals), *_staleness(columns))
    return Training(rewards=rewards, tables=tables)


def _areas(
    arms: Sequence[Arm], rewards: dict[str, GroupCurve | None], *, has_intervals: bool
) -> list[ReportTable]:
    """The mean reward over the steps that all runs have; nothing where a run recorded no reward at one."""
    known = [one for one in rewards.values() if one is not None]
    whole = [one.x[one.num_runs == len(arm.seeds)] for one, arm in zip(known, arms, strict=False)]
    if len(known) < len(arms) or not all(len(steps) > 1 for steps in whole):
        return []
    until = int(min(steps[-1] for steps in whole))
    if any(len(steps[steps <= until]) < until for steps in whole):
        return []
    outcome = Area(kind="area", metric=REWARD.name, until=until)
    return [outcome_table(compare_curves(arms, outcome), has_intervals=has_intervals)]


def _staleness(columns: Mapping[str, Sequence[Mapping[str, Column]]]) -> list[ReportTable]:
    """How old batches were, and what that had done before the first update; nothing where none lagged."""

    def mean(of_seeds: Sequence[Mapping[str, Column]], quantity: Quantity) -> float | None:
        found = [one[quantity.name] for one in of_seeds if quantity.name in one]
        finite = np.concatenate([values[np.isfinite(values)] for values in found]) if found else np.zeros(0)
        return float(finite.mean()) if len(finite) else None

    if not any(mean(of_seeds, STALENESS_STEPS) for of_seeds in columns.values()):
        return []
    rows = []
    for name, of_seeds in columns.items():
        means = [(mean(of_seeds, quantity), scale) for quantity, _, scale in _AGE]
        rows.append((name, *(NOTHING if value is None else f"{scale * value:.3g}" for value, scale in means)))
    return [
        ReportTable(
            title="Staleness, means over steps and seeds",
            columns=("arm", *(title for _, title, _ in _AGE)),
            rows=tuple(rows),
        )
    ]

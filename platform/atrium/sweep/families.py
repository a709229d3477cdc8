"""Families of a sweep's arms: their points (x, y), and their differences in y at equal x.

Axes: W arms of a family, S seeds, P places (values of x).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atrium.base.records import Floats
from atrium.compare.curve_contrasts import CurveContrast
from atrium.compare.families import FamilyPoints, compare_families, places_in_common
from atrium.stats.seeds import mean_over_seeds
from atrium.sweep.contrasts import outcome_values
from atrium.sweep.definition import FamiliesConfig
from atrium.sweep.study import SweepStudies


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyArm:
    """An arm's means of x and y over seeds, and the 95 % interval of the mean of y.

    If there is no such interval, both ends of `interval` are the mean of y. `seeds` is a pair: the values of
    x for all seeds, and the values of y for all seeds.
    """

    x: float
    y: float
    interval: tuple[float, float]
    seeds: tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyCurve:
    """A family's arms, ordered by x."""

    family: str
    arms: tuple[FamilyArm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFamilies:
    """The points of all families, and their differences from the baseline.

    `differences` maps each family except the baseline to its differences at all places, followed by the
    average difference. It is empty if the families have no common x.
    """

    x: str
    y: str
    x_is_setting: bool
    baseline: str
    num_seeds: int
    places: tuple[str, ...]
    curves: tuple[FamilyCurve, ...]
    differences: Mapping[str, Sequence[CurveContrast]]


def compared_families(studies: SweepStudies) -> ComparedFamilies | None:
    """Compare the families; return None if the sweep has no families, or if a run lacks an outcome."""
    families = studies.definition.families
    if families is None:
        return None
    points = _points(studies, families)
    if any(np.isnan([one.x_WS, one.y_WS]).any() for one in points.values()):
        return None
    is_setting = families.x not in studies.definition.outcomes
    place_PS = _places(families, points, is_setting=is_setting)
    found = {} if place_PS is None else compare_families(points, families.baseline, place_PS)
    places = [] if place_PS is None else [f"{place:.3g}" for place in place_PS.mean(axis=1)]
    return ComparedFamilies(
        x=families.x,
        y=families.y,
        x_is_setting=is_setting,
        baseline=families.baseline,
        num_seeds=len(studies.definition.seeds),
        places=(*places, "on average"),
        curves=tuple(_curve(family, points[family]) for family in points),
        differences=found,
    )


def _points(studies: SweepStudies, families: FamiliesConfig) -> dict[str, FamilyPoints]:
    """Return the points of each family's arms, with NaN where a run lacks an outcome."""
    definition = studies.definition
    outcomes = {
        name: outcome_values(studies, definition.outcomes[name])
        for name in {families.x, families.y} & definition.outcomes.keys()
    }

    def along(name: str, arm: str) -> list[float]:
        if name not in outcomes:
            return [float(str(definition.arms[arm][name]))] * len(definition.seeds)
        found = [outcomes[name].get(arm, {}).get(seed) for seed in definition.seeds]
        return [np.nan if value is None else value for value in found]

    return {
        family: FamilyPoints(
            x_WS=np.array([along(families.x, arm) for arm in arms]),
            y_WS=np.array([along(families.y, arm) for arm in arms]),
        )
        for family, arms in families.members.items()
    }


def _places(
    families: FamiliesConfig, points: Mapping[str, FamilyPoints], *, is_setting: bool
) -> Floats | None:
    """Return the values of x [P, S] at which families are compared, or None if they have no x in common.

    If x is a setting, these are the values that all families have in common. Otherwise, they are positions
    in the range of x that the families have in common, for each seed.
    """
    if not is_setting:
        return places_in_common(list(points.values()), families.shares)
    shared = set[float].intersection(*(set(one.x_WS[:, 0].tolist()) for one in points.values()))
    num_seeds = next(iter(points.values())).x_WS.shape[1]
    return np.repeat(np.array(sorted(shared))[:, None], num_seeds, axis=1) if shared else None


def _curve(family: str, points: FamilyPoints) -> FamilyCurve:
    arms = []
    for x_S, y_S in zip(points.x_WS.tolist(), points.y_WS.tolist(), strict=True):
        x, y = mean_over_seeds(x_S), mean_over_seeds(y_S)
        interval = y.interval() or (y.value, y.value)
        arms.append(FamilyArm(x=x.value, y=y.value, interval=interval, seeds=(tuple(x_S), tuple(y_S))))
    return FamilyCurve(family=family, arms=tuple(sorted(arms, key=lambda arm: arm.x)))

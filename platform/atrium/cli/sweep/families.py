"""Families of a sweep's arms: their points, how they differ where they are equal, and that in words.

Axes: W arms of a family, S seeds, P places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atrium.cli.sweep.contrasts import contrast_text, outcome_values
from atrium.sweep.definition import FamiliesConfig
from atrium.sweep.results import mean_over_seeds
from atrium.sweep.study import SweepStudies

if TYPE_CHECKING:
    from rich.table import Table

    from atrium.compare.families import FamilyPoints, Points

Answer = dict[str, Any]


def compared_families(studies: SweepStudies) -> Answer | None:
    """The families' points and differences; None where there are none, or a run of them has no outcome."""
    import numpy as np

    from atrium.compare.families import compare_families

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
    return {
        "x": families.x,
        "y": families.y,
        "x_is_setting": is_setting,
        "baseline": families.baseline,
        "num_seeds": len(studies.definition.seeds),
        "places": [*places, "on average"],
        "curves": [_curve(family, points[family]) for family in points],
        "rows": [
            {
                "family": family,
                "differences": [
                    {"difference": one.difference, "interval": one.interval and list(one.interval)}
                    for one in contrasts
                ],
            }
            for family, contrasts in found.items()
        ],
    }


def family_table(found: Mapping[str, Any]) -> Table:
    """A row per family: what it differs by from the baseline at each place."""
    from rich import box
    from rich.table import Table

    title = (
        f"{found['y']} at equal {found['x']}, less that of {found['baseline']}: mean and interval over "
        f"{found['num_seeds']} seeds, together over {len(found['rows'])} families at each place"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for heading in ("family", *found["places"]):
        table.add_column(heading, overflow="fold")
    for row in found["rows"]:
        table.add_row(row["family"], *(contrast_text(one) for one in row["differences"]))
    return table


def family_sentences(found: Mapping[str, Any]) -> list[str]:
    """What may be said of each family, on average over the places."""
    if not found["rows"]:
        return [f"the families have no {found['x']} in common, so that nothing compares them"]
    said = []
    for row in found["rows"]:
        average = row["differences"][-1]
        interval = average["interval"]
        of_both = f"{found['y']} of {row['family']} and {found['baseline']} at equal {found['x']}, on average"
        if interval is None:
            said.append(f"{of_both}: {contrast_text(average)}, without an interval")
        elif interval[0] <= 0.0 <= interval[1]:
            most = max(-interval[0], interval[1])
            said.append(f"{of_both}: not distinguishable; a difference above {most:.3g} is excluded")
        else:
            said.append(f"{of_both} differ by {contrast_text(average)}")
    return said


def _points(studies: SweepStudies, families: FamiliesConfig) -> dict[str, FamilyPoints]:
    """The arms of every family; NaN where a run lacks an outcome."""
    import numpy as np

    from atrium.compare.families import FamilyPoints

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
) -> Points | None:
    """Where families are compared [P, S]: at the values that a setting has in all of them, or at shares."""
    import numpy as np

    from atrium.compare.families import places_in_common

    if not is_setting:
        return places_in_common(list(points.values()), families.shares)
    shared = set[float].intersection(*(set(one.x_WS[:, 0].tolist()) for one in points.values()))
    num_seeds = next(iter(points.values())).x_WS.shape[1]
    return np.repeat(np.array(sorted(shared))[:, None], num_seeds, axis=1) if shared else None


def _curve(family: str, points: FamilyPoints) -> Answer:
    """A family's arms in the order of x: means, the 95 % interval of y, and every seed."""
    arms = []
    for x_S, y_S in zip(points.x_WS.tolist(), points.y_WS.tolist(), strict=True):
        x, y = mean_over_seeds(x_S), mean_over_seeds(y_S)
        assert x is not None
        assert y is not None
        interval = list(y.interval() or (y.value, y.value))
        arms.append({"x": x.value, "y": y.value, "interval": interval, "seeds": [x_S, y_S]})
    return {"family": family, "arms": sorted(arms, key=lambda arm: arm["x"])}

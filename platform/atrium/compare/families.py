"""Families of arms, compared where they are equal along an axis: a setting, or another outcome.

A family is one method at several widths, or at several values of a setting. Its arms are points (x, y) of
every seed, joined by straight lines in the order of x, and families are compared seed by seed at equal x.
Nothing is read off beyond a family's own ends.

Axes: W arms of a family, S seeds, P places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atrium.compare.curve_contrasts import CurveContrast, curve_contrast

Points = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyPoints:
    """A family's arms: x and y [W, S], the seeds in the same order as those of all other families."""

    x_WS: Points
    y_WS: Points

    def y_at(self, place_PS: Points) -> Points:
        """The y at places that lie within each seed's x."""
        columns = []
        for place_P, x_W, y_W in zip(place_PS.T, self.x_WS.T, self.y_WS.T, strict=True):
            order = np.argsort(x_W, kind="stable")
            columns.append(np.interp(place_P, x_W[order], y_W[order]))
        return np.stack(columns, axis=1)


def places_in_common(families: Sequence[FamilyPoints], shares: Sequence[float]) -> Points | None:
    """Places [P, S] at these shares of the range of x that all families reach; None where a seed has none."""
    low_S = np.max([family.x_WS.min(axis=0) for family in families], axis=0)
    high_S = np.min([family.x_WS.max(axis=0) for family in families], axis=0)
    if (low_S >= high_S).any():
        return None
    share_P1 = np.asarray(shares, dtype=np.float64)[:, None]
    places: Points = low_S + share_P1 * (high_S - low_S)
    return places


def compare_families(
    families: Mapping[str, FamilyPoints], baseline: str, place_PS: Points
) -> dict[str, list[CurveContrast]]:
    """Each other family's y less the baseline's at every place, and last their mean over places.

    The intervals of one place hold together over the families; those of several places do not.
    """
    y_by_family = {name: family.y_at(place_PS) for name, family in families.items()}
    base_PS = y_by_family.pop(baseline)
    return {
        name: [
            curve_contrast(candidate_S.tolist(), base_S.tolist(), num_together=len(y_by_family))
            for candidate_S, base_S in zip(
                [*y_PS, y_PS.mean(axis=0)], [*base_PS, base_PS.mean(axis=0)], strict=True
            )
        ]
        for name, y_PS in y_by_family.items()
    }

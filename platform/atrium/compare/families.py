"""Comparison of families of arms at equal values of x, where x is a setting or another outcome.

A family is one method with several values of a setting, such as the width of its window; each value is an
arm. An arm has a point (x, y) per seed, and straight lines join the points of a seed in the order of x.
Families are compared seed by seed at equal x, without extrapolation beyond a family's range.

Axes: W arms of a family, S seeds, P places (values of x).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atrium.base.records import Floats
from atrium.compare.curve_contrasts import CurveContrast, curve_contrast


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyPoints:
    """The points of a family's arms: x and y [W, S]; all families have their seeds in the same order."""

    x_WS: Floats
    y_WS: Floats

    def y_at(self, place_PS: Floats) -> Floats:
        """Return y [P, S] at the x-values `place_PS` [P, S], by linear interpolation for each seed."""
        columns = []
        for place_P, x_W, y_W in zip(place_PS.T, self.x_WS.T, self.y_WS.T, strict=True):
            order = np.argsort(x_W, kind="stable")
            columns.append(np.interp(place_P, x_W[order], y_W[order]))
        return np.stack(columns, axis=1)


def places_in_common(families: Sequence[FamilyPoints], shares: Sequence[float]) -> Floats | None:
    """Return x-values [P, S] at the given shares (0 to 1) of the range of x that all families have in common.

    The common range is determined for each seed. Returns None if the range of some seed is empty or a single
    point.
    """
    low_S = np.max([family.x_WS.min(axis=0) for family in families], axis=0)
    high_S = np.min([family.x_WS.max(axis=0) for family in families], axis=0)
    if (low_S >= high_S).any():
        return None
    share_P1 = np.asarray(shares, dtype=np.float64)[:, None]
    places: Floats = low_S + share_P1 * (high_S - low_S)
    return places


def compare_families(
    families: Mapping[str, FamilyPoints], baseline: str, place_PS: Floats
) -> dict[str, list[CurveContrast]]:
    """Return the contrasts in y between each other family and the family `baseline`, keyed by family.

    A family has one contrast per place, at the x-values `place_PS` [P, S], followed by the contrast of the
    averages over places. The intervals hold simultaneously over the families, but not over the places.
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

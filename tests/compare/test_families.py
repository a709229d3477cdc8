"""Families of arms compared where they are equal along an axis."""

from __future__ import annotations

import numpy as np
import pytest

from atrium.compare.families import FamilyPoints, compare_families, places_in_common

SHIFT_S = np.array([0.0, 0.2, -0.1])


def family(x_W, above=0.0):
    """Points of the line y = 1 - x / 2, lifted by `above`, shifted along it from seed to seed."""
    x_WS = np.array(x_W)[:, None] + SHIFT_S
    return FamilyPoints(x_WS=x_WS, y_WS=1.0 - x_WS / 2 + above + np.array([0.001, -0.001, 0.0]))


def test_families_on_one_front_do_not_differ_at_any_widths():
    families = {"clip": family([0.1, 0.4, 0.9]), "kl3": family([0.8, 0.2])}
    places = places_in_common(list(families.values()), (0.25, 0.5, 0.75))
    np.testing.assert_allclose(places[:, 0], [0.35, 0.5, 0.65])
    [*at_places, average] = compare_families(families, "clip", places)["kl3"]
    assert [one.difference for one in [*at_places, average]] == pytest.approx([0.0] * 4, abs=1e-12)


def test_a_family_above_the_front_differs_by_its_height_at_every_place():
    families = {"clip": family([0.1, 0.9]), "high": family([0.2, 0.7], above=0.05), "low": family([0.0, 1.0])}
    places = places_in_common(list(families.values()), (0.0, 1.0))
    np.testing.assert_allclose(places[:, 1], [0.4, 0.9])
    found = compare_families(families, "clip", places)
    assert [one.difference for one in found["high"]] == pytest.approx([0.05] * 3)
    assert set(found) == {"high", "low"}


def test_families_without_a_common_range_on_a_seed_are_not_compared():
    families = [family([0.1, 0.2]), family([0.3, 0.9])]
    assert places_in_common(families, (0.5,)) is None


def test_arms_are_joined_in_the_order_of_x_and_not_of_widths():
    points = FamilyPoints(x_WS=np.array([[0.0], [2.0], [1.0]]), y_WS=np.array([[0.0], [5.0], [1.0]]))
    np.testing.assert_allclose(points.y_at(np.array([[0.5], [1.5]])), [[0.5], [3.0]])

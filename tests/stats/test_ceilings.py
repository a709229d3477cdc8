"""Ceilings of learning curves: found on made curves that show one, and called unknown where none shows."""

from __future__ import annotations

import numpy as np
import pytest

from atrium.stats.ceilings import fit_ceiling


def made_curve(ceiling, *, until, steepness=2.0, noise=0.01, num=60, seed=0):
    """Points of a curve from 0.1 whose midpoint is at 1000 tokens, spent evenly up to `until`."""
    spent_N = np.linspace(0.0, until, num + 1)[1:]
    clean_N = 0.1 + (ceiling - 0.1) / (1.0 + (1000.0 / spent_N) ** steepness)
    return spent_N, clean_N + np.random.default_rng(seed).normal(0.0, noise, num)


@pytest.mark.parametrize("ceiling", [0.4, 0.8, 0.95])
@pytest.mark.parametrize("steepness", [1.5, 3.0])
def test_a_ceiling_that_a_curve_shows_is_found(ceiling, steepness):
    found = fit_ceiling(*made_curve(ceiling, until=8000.0, steepness=steepness), start=0.1)
    assert found.is_known
    assert found.ceiling == pytest.approx(ceiling, abs=0.03)
    assert found.midpoint == pytest.approx(1000.0, rel=0.1)
    assert found.steepness == pytest.approx(steepness, rel=0.15)


@pytest.mark.full
def test_intervals_hold_the_ceiling_about_as_often_as_they_say():
    curves = (made_curve(0.7, until=5000.0, seed=seed) for seed in range(12))
    held = [
        low <= 0.7 <= high
        for curve in curves
        for low, high in [fit_ceiling(*curve, start=0.1).ceiling_interval]
    ]
    assert sum(held) >= 10


@pytest.mark.parametrize("until", [400.0, 900.0])
def test_a_curve_that_ends_before_it_bends_has_no_known_ceiling(until):
    assert not fit_ceiling(*made_curve(0.7, until=until), start=0.1).is_known


def test_a_straight_line_has_no_known_ceiling():
    spent_N = np.arange(1.0, 41.0)
    line_N = 0.1 + 0.01 * spent_N + np.random.default_rng(0).normal(0.0, 0.01, 40)
    assert not fit_ceiling(spent_N, line_N, start=0.1).is_known


@pytest.mark.parametrize(
    ("spent_N", "score_N"),
    [
        (np.arange(1.0, 8.0), np.linspace(0.2, 0.6, 7)),
        (np.arange(1.0, 41.0), np.full(40, 0.1)),
        (np.arange(1.0, 41.0), np.full(40, np.nan)),
    ],
    ids=["few points", "no rise", "nothing recorded"],
)
def test_nothing_is_fitted_where_there_is_nothing_to_fit(spent_N, score_N):
    assert fit_ceiling(spent_N, score_N, start=0.1) is None

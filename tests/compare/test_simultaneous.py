"""Intervals of several candidates hold together: quantiles, pooling, and joint coverage by simulation."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import stdtrit

from atrium.compare.crossed import crossed_mean
from atrium.compare.simultaneous import SINGLE, Family, SeedSpread, family_of

POOLED = SeedSpread(1.0, 1.0)


@pytest.mark.parametrize(
    ("num_seeds", "points"), [(5, (2.67, 2.68, 2.73, 2.78)), (10, (2.40, 2.49, 2.61, 2.69))]
)
def test_dunnetts_points_are_those_of_tables(num_seeds, points):
    for num_candidates, point in zip((2, 3, 5, 7), points, strict=True):
        family = Family(num_candidates=num_candidates, pooled=POOLED)
        quantile = family.quantile(num_candidates * (num_seeds - 1))
        assert_allclose(quantile, point, atol=0.006)
        assert_allclose(family.p_value(quantile, num_candidates * (num_seeds - 1)), 0.05, atol=1e-5)


def test_a_single_difference_has_students_point_and_own_errors_have_bonferronis():
    assert_allclose(SINGLE.quantile(4.0), stdtrit(4.0, 0.975))
    assert_allclose(Family(num_candidates=3).quantile(4.0), stdtrit(4.0, 1 - 0.025 / 3))
    assert_allclose(Family(num_candidates=3, num_benchmarks=2).quantile(4.0), stdtrit(4.0, 1 - 0.025 / 6))
    assert_allclose(SINGLE.p_value(stdtrit(4.0, 0.975), 4.0), 0.05)


@pytest.mark.parametrize(
    ("scores", "reason"),
    [
        (None, "not all pairs are of the same seeds"),
        (np.arange(12.0).reshape(3, 4) ** 2, "fewer than 5 seeds"),
        (
            np.array([[0.0, 9.0, -9.0, 8.0, -8.0], [0.1, 0.0, 0.2, 0.1, 0.0], [0, 0.1, 0, 0.2, 0.1]]),
            "unequally",
        ),
    ],
)
def test_variances_are_pooled_only_where_they_can_be_seen_to_agree(scores, reason):
    family = family_of(scores, 2)
    assert family.pooled is None
    assert reason in family.words
    assert "Bonferroni" in family.words


def test_the_pooled_variance_is_the_mean_over_all_pairs_of_arms():
    score_AS = np.random.default_rng(1).normal(size=(3, 6)) + np.arange(6.0)
    family = family_of(score_AS, 2)
    assert family.words == "2 candidates (Dunnett)"
    by_pair = [(score_AS[a] - score_AS[b]).var(ddof=1) / 6 for a, b in combinations(range(3), 2)]
    assert_allclose(family.pooled, (np.mean(by_pair), 10.0))


@pytest.mark.parametrize(("num_seeds", "collapse"), [(3, 0.0), (5, 0.0), (5, 0.3), (10, 0.3)])
def test_all_intervals_of_a_study_hold_at_once(num_seeds, collapse):
    """Four arms that are equal; a run collapses by chance to a tenth of its score."""
    generator = np.random.default_rng(num_seeds)
    num_held, num_studies = 0, 300
    for _ in range(num_studies):
        score_AS = 0.6 + generator.normal(0.0, 0.03, (4, num_seeds)) + generator.normal(0.0, 0.02, num_seeds)
        score_AS = np.where(generator.random(score_AS.shape) < collapse, score_AS / 10, score_AS)
        share_ASP = np.clip(score_AS[..., None] + generator.normal(0.0, 0.2, (4, num_seeds, 40)), 0.0, 1.0)
        family = family_of(share_ASP.mean(axis=-1), 3)
        found = [crossed_mean([share_ASP[a] - share_ASP[0]], family=family).another_exam for a in (1, 2, 3)]
        num_held += all(one.interval.low <= 0.0 <= one.interval.high for one in found)
    # At most 7 % of studies name a difference, and two standard errors of 300 studies.
    assert num_held / num_studies >= 0.93 - 2 * (0.07 * 0.93 / num_studies) ** 0.5

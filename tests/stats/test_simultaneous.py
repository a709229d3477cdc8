"""Intervals of several candidates hold together: quantiles, moderated variances, and the best arm."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import stdtrit

from atrium.stats.crossed import crossed_mean
from atrium.stats.simultaneous import SINGLE, Family, moderated_spreads


def test_a_single_difference_has_students_point_and_several_have_bonferronis():
    assert_allclose(SINGLE.quantile(4.0), stdtrit(4.0, 0.975))
    many = Family(num_candidates=3, num_benchmarks=2, num_looks=2)
    assert_allclose(many.quantile(4.0), stdtrit(4.0, 1 - 0.025 / 12))
    assert_allclose(many.p_value(many.quantile(4.0), 4.0), 0.05)
    assert (
        many.words
        == "3 candidates (Bonferroni) and 2 benchmarks (Bonferroni) and 2 planned looks (Bonferroni)"
    )


def test_a_moderated_variance_weighs_the_other_arms_as_one_further_seed():
    score_AS = np.random.default_rng(1).normal(size=(4, 3)) + np.arange(3.0)
    residual = score_AS - score_AS.mean(1, keepdims=True) - score_AS.mean(0) + score_AS.mean()
    shared = (residual**2).sum() / (3 * 2)
    own = (score_AS[1:] - score_AS[0]).var(axis=1, ddof=1)
    found = moderated_spreads(score_AS)
    assert_allclose([one.variance for one in found], np.maximum(own, (2 * shared + 2 * own) / 3) / 3)
    assert [one.degrees_of_freedom for one in found] == [3.0] * 3


def test_a_noisy_arm_keeps_its_own_variance():
    score_AS = np.array([[0.0, 0.0, 0.0], [0.1, 0.1, 0.1], [0.9, -0.9, 0.0]])
    own = (score_AS[2] - score_AS[0]).var(ddof=1)
    assert_allclose(moderated_spreads(score_AS)[1].variance, own / 3)


def test_two_arms_or_one_seed_have_nothing_to_moderate():
    assert moderated_spreads(np.zeros((2, 5))) is None
    assert moderated_spreads(np.zeros((5, 1))) is None


def test_moderated_intervals_of_four_candidates_at_three_seeds_are_a_quarter_narrower():
    generator = np.random.default_rng(0)
    ratios = []
    for _ in range(200):
        score_AS = generator.normal(0.0, 0.03, (5, 3)) + generator.normal(0.0, 0.02, 3)
        family = Family(num_candidates=4)
        own = (score_AS[1] - score_AS[0]).var(ddof=1) / 3
        found = moderated_spreads(score_AS)[0]
        ratios.append(family.quantile(3.0) * found.variance**0.5 / (family.quantile(2.0) * own**0.5))
    assert np.median(ratios) < 0.75


@pytest.mark.parametrize(("num_seeds", "collapse"), [(3, 0.0), (5, 0.0), (5, 0.3), (10, 0.3)])
def test_all_intervals_of_a_study_hold_at_once(num_seeds, collapse):
    """Four arms that are equal; a run collapses by chance to a tenth of its score."""
    generator = np.random.default_rng(num_seeds)
    num_held, num_studies = 0, 300
    family = Family(num_candidates=3)
    for _ in range(num_studies):
        score_AS = 0.6 + generator.normal(0.0, 0.03, (4, num_seeds)) + generator.normal(0.0, 0.02, num_seeds)
        score_AS = np.where(generator.random(score_AS.shape) < collapse, score_AS / 10, score_AS)
        share_ASP = np.clip(score_AS[..., None] + generator.normal(0.0, 0.2, (4, num_seeds, 40)), 0.0, 1.0)
        spreads = moderated_spreads(share_ASP.mean(axis=-1))
        found = [
            crossed_mean([share_SP - share_ASP[0]], family=family, spread=spread).new_seeds_and_problems
            for share_SP, spread in zip(share_ASP[1:], spreads, strict=True)
        ]
        num_held += all(one.interval.low <= 0.0 <= one.interval.high for one in found)
    # At most 7 % of studies name a difference, and two standard errors of 300 studies.
    assert num_held / num_studies >= 0.93 - 2 * (0.07 * 0.93 / num_studies) ** 0.5

"""Statistics over seeds that assume no distribution."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from atrium.stats.robust import (
    bootstrap_interval,
    interquartile_mean,
    permutation_p_value,
    probability_of_improvement,
)


@pytest.mark.parametrize("num_scores", [1, 3, 4, 10, 13])
def test_the_interquartile_mean_is_the_mean_trimmed_by_a_quarter(num_scores):
    scores = np.random.default_rng(num_scores).normal(size=(num_scores, 1))
    assert_allclose(interquartile_mean(scores), stats.trim_mean(scores, 0.25, axis=None))


def test_the_probability_of_improvement_is_that_of_mann_and_whitney():
    generator = np.random.default_rng(0)
    after, before = generator.integers(0, 6, size=(7, 1)), generator.integers(0, 6, size=(9, 1))
    u = stats.mannwhitneyu(after[:, 0], before[:, 0]).statistic
    assert_allclose(probability_of_improvement(after, before), u / 63)
    assert probability_of_improvement([[1.0]], [[1.0]]) == 0.5


def test_the_permutation_test_enumerates_signs_and_needs_six_seeds():
    assert permutation_p_value([0.1] * 5, seed=0) is None
    assert permutation_p_value([0.1, 0.2, 0.1, 0.3, 0.2, 0.4], seed=0) == 2 / 64
    many = np.random.default_rng(1).normal(0.5, 1.0, size=20)
    exact = stats.permutation_test((many,), np.mean, permutation_type="samples", n_resamples=20_000, rng=0)
    assert_allclose(permutation_p_value(many, seed=0), exact.pvalue, atol=0.01)


def test_the_bootstrap_needs_ten_seeds_and_repeats_itself():
    generator = np.random.default_rng(2)
    arms = [generator.normal(center, 0.1, size=(12, 2)) for center in (0.4, 0.6)]

    def gap(scores):
        return interquartile_mean(scores[1]) - interquartile_mean(scores[0])

    low, high = bootstrap_interval(arms, gap, seed=1)
    assert 0.05 < low < 0.2 < high < 0.35
    assert bootstrap_interval(arms, gap, seed=1) == (low, high)
    assert bootstrap_interval([arm[:9] for arm in arms], gap, seed=1) is None


def test_statistics_of_many_resamples_at_once_are_those_of_each():
    generator = np.random.default_rng(4)
    after_RSB, before_RSB = (generator.integers(0, 5, size=(7, num, 2)) / 4.0 for num in (11, 9))
    assert_allclose(interquartile_mean(after_RSB), [interquartile_mean(one) for one in after_RSB])
    each = [probability_of_improvement(*pair) for pair in zip(after_RSB, before_RSB, strict=True)]
    assert_allclose(probability_of_improvement(after_RSB, before_RSB), each)


def test_seeds_drawn_in_pairs_see_that_their_arms_move_together():
    seed_SB = np.random.default_rng(3).normal(0.5, 0.2, size=(12, 1))
    arms = [seed_SB, seed_SB + 0.01]

    def gap(scores):
        return scores[1].mean(axis=(-2, -1)) - scores[0].mean(axis=(-2, -1))

    assert_allclose(bootstrap_interval(arms, gap, seed=0, paired=True), (0.01, 0.01))
    low, high = bootstrap_interval(arms, gap, seed=0)
    assert high - low > 0.1

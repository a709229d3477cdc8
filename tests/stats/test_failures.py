"""Rates of failures and their exact intervals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from atrium.stats.failures import FailureRate, exact_interval, fell_below_start


@pytest.mark.parametrize(("count", "num"), [(0, 5), (2, 5), (5, 5), (1, 1), (17, 200)])
def test_intervals_are_those_of_clopper_and_pearson(count, num):
    expected = binomtest(count, num).proportion_ci(method="exact")
    assert exact_interval(count, num) == pytest.approx((expected.low, expected.high))


def test_a_share_of_nothing_is_refused():
    with pytest.raises(ValueError, match="count=0 and num=0"):
        exact_interval(0, 0)


@pytest.mark.parametrize(("seeds", "said"), [((3,), ", seed 3)"), ((1, 3), ", seeds 1, 3)")])
def test_words_of_one_failed_seed_are_singular(seeds, said):
    assert FailureRate(seeds=seeds, num_runs=5).words.endswith(said)


def test_a_score_fell_where_it_is_below_its_start_by_more_than_the_interval():
    start_P = np.linspace(0.2, 0.8, 24)
    wobble_P = 0.2 * np.sin(np.arange(24.0))
    assert fell_below_start([start_P], [start_P - 0.15 + wobble_P])
    assert not fell_below_start([start_P], [start_P - 0.02 + wobble_P])
    assert not fell_below_start([start_P], [start_P + 0.15 + wobble_P])


def test_a_fall_by_the_same_on_every_problem_counts_and_one_problem_says_nothing():
    assert fell_below_start([[0.5] * 24], [[0.0] * 24])
    assert not fell_below_start([[0.0] * 8], [[0.0] * 8])
    assert not fell_below_start([[1.0]], [[0.0]])
    assert not fell_below_start([], [])

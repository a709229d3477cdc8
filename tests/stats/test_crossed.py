"""Means over seeds crossed with problems: exact small tables, and the coverage that the intervals promise."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import expit, stdtrit

from atrium.stats.crossed import SHARES, crossed_mean
from atrium.stats.estimates import interval_over_problems

DRIFT_SHARE = 5.6
"""Variance of a seeds' mean over that of the problems' mean, where ignoring seeds covers about 60 %."""


def test_the_standard_error_for_new_seeds_and_problems_is_that_of_the_two_way_table():
    table = np.array([[0.3, 0.1, -0.7, 0.9], [0.4, 0.2, -0.4, 0.8], [0.3, 0.0, -0.8, 0.8]])
    mean = crossed_mean([table])
    num_seeds, num_problems = table.shape
    row, column, grand = table.mean(1), table.mean(0), table.mean()
    ms_seed = num_problems * ((row - grand) ** 2).sum() / 2
    ms_problem = num_seeds * ((column - grand) ** 2).sum() / 3
    ms_resid = ((table - row[:, None] - column + grand) ** 2).sum() / 6
    variance = (ms_seed + ms_problem - ms_resid) / 12
    assert_allclose(mean.new_seeds_and_problems.standard_error, variance**0.5)
    spread = (ms_seed**2 / 2 + ms_problem**2 / 3 + ms_resid**2 / 6) / 12**2
    assert_allclose(mean.new_seeds_and_problems.degrees_of_freedom, variance**2 / spread)
    assert_allclose(mean.value, grand)
    margin = stdtrit(2, 0.975) * row.std(ddof=1) / 3**0.5
    assert_allclose(mean.new_seeds.interval, (grand - margin, grand + margin))


def test_components_of_variance_add_up_to_the_standard_error():
    table = (
        np.random.default_rng(0).normal(size=(5, 1)) / 50 + np.random.default_rng(1).normal(size=(5, 40)) / 5
    )
    mean = crossed_mean([table + np.linspace(-0.8, 0.8, 40)])
    parts = mean.components
    assert_allclose(
        mean.new_seeds_and_problems.standard_error**2, parts.seed / 5 + parts.problem + parts.residual / 5
    )


def test_benchmarks_count_equally_and_share_their_seeds():
    generator = np.random.default_rng(2)
    seed_S1 = generator.normal(0.0, 0.2, size=(4, 1))
    tables = [0.5 * seed_S1 + generator.normal(0.0, 0.1, size=(4, p)) for p in (10, 300)]
    both = crossed_mean(tables)
    assert_allclose(both.value, (tables[0].mean() + tables[1].mean()) / 2)
    seeds = (tables[0].mean(1) + tables[1].mean(1)) / 2
    assert_allclose(both.value_S, seeds)
    assert_allclose(both.new_seeds.standard_error, seeds.std(ddof=1) / 2)
    # What the benchmarks' seeds share does not average out over benchmarks.
    assert both.new_seeds_and_problems.standard_error > 0.05


def test_one_seed_has_an_interval_for_new_problems_and_none_for_new_seeds():
    share_SP = np.array([[0.0, 0.25, 0.5, 1.0, 0.75, 0.25]])
    mean = crossed_mean([share_SP], limits=SHARES)
    assert mean.new_seeds_and_problems is None
    assert mean.new_seeds is None
    assert mean.components is None
    assert_allclose(mean.new_problems.interval, interval_over_problems(share_SP[0]))


def test_what_cannot_be_estimated_is_none_instead_of_certain():
    assert crossed_mean([np.full((3, 8), 0.1)]).new_seeds is None
    assert crossed_mean([[[0.2]]]).new_problems is None
    assert crossed_mean([[[0.2], [0.3]]]).new_seeds_and_problems is None


def test_checkpoints_that_are_always_wrong_have_intervals_too():
    """As if one more problem had told them apart."""
    known = crossed_mean([np.zeros((1, 30))]).new_problems
    reach = (1 - stdtrit(known.degrees_of_freedom, 0.025)) / 31
    assert_allclose(known.interval, (-reach, reach))
    assert known.p_value == 1.0
    assert_allclose(crossed_mean([np.zeros((3, 30))]).new_seeds_and_problems.interval, known.interval)
    opposite = crossed_mean([np.ones((3, 30))])
    assert (
        0.7
        < opposite.new_seeds_and_problems.interval.low
        < opposite.new_seeds_and_problems.interval.high
        == 1.0
    )
    assert opposite.new_seeds_and_problems.p_value < 1e-6


@pytest.mark.parametrize(
    "tables", [[], [np.zeros(3)], [np.zeros((2, 3)), np.zeros((3, 3))], [np.full((2, 2), np.nan)]]
)
def test_values_that_are_no_crossed_table_are_refused(tables):
    with pytest.raises(ValueError, match=r"seed|finite"):
        crossed_mean(tables)


def coverages(num_seeds, num_problems, seed_share, *, num_repeats, seed):
    """Coverage of no difference: for new problems, and with problems clustered and seeds as strata.

    Outcomes are shares of eight samples; arms have ability that varies by seed, by problem, and by both.
    `seed_share` is the variance that seeds give the mean, over what everything else gives.
    """
    generator = np.random.default_rng(seed)
    # A seed's shift of all logits moves shares by about its 0.13-fold here, a problem's own part of both
    # arms gives a difference per problem with a standard deviation of about 0.1 over the seeds' mean.
    rest = 0.0075 / num_problems + 0.0175 / (num_problems * num_seeds)
    seed_sd = (seed_share * rest * num_seeds / 2) ** 0.5 / 0.13
    hits = np.zeros(2)
    for _ in range(num_repeats):
        difficulty_P = generator.normal(0.0, 2.0, size=num_problems)
        arms = []
        for _ in range(2):
            logit_SP = difficulty_P + generator.normal(0.0, 0.45, size=num_problems)
            logit_SP = logit_SP + generator.normal(0.0, seed_sd, size=(num_seeds, 1))
            logit_SP = logit_SP + generator.normal(0.0, 0.3, size=(num_seeds, num_problems))
            arms.append(generator.binomial(8, expit(logit_SP)) / 8)
        mean = crossed_mean([arms[1] - arms[0]])
        value_P = (arms[1] - arms[0]).mean(axis=0)
        clustered = 1.96 * (value_P.var(ddof=1) / num_problems) ** 0.5
        low, high = mean.new_seeds_and_problems.interval
        hits += (low <= 0 <= high, abs(mean.value) <= clustered)
    return hits / num_repeats


@pytest.mark.parametrize(("num_seeds", "num_problems"), [(3, 100), (5, 30), (10, 30)])
def test_intervals_cover_no_difference_where_clustering_by_problem_covers_little_more_than_half(
    num_seeds, num_problems
):
    another, clustered = coverages(num_seeds, num_problems, DRIFT_SHARE, num_repeats=1500, seed=3)
    assert 0.93 <= another <= 0.985
    assert 0.54 <= clustered <= 0.66


@pytest.mark.full
@pytest.mark.parametrize("seed_share", [1.0, 20.0, pytest.param(DRIFT_SHARE, marks=pytest.mark.release)])
@pytest.mark.parametrize("num_problems", [30, 500, pytest.param(100, marks=pytest.mark.release)])
@pytest.mark.parametrize("num_seeds", [3, 10, pytest.param(5, marks=pytest.mark.release)])
def test_intervals_cover_no_difference_for_all_numbers_of_seeds_and_problems(
    num_seeds, num_problems, seed_share
):
    another, clustered = coverages(
        num_seeds, num_problems, seed_share, num_repeats=1000, seed=num_seeds + num_problems
    )
    assert 0.925 <= another <= 0.985
    if seed_share == DRIFT_SHARE:
        assert 0.54 <= clustered <= 0.66


def test_new_seeds_covers_the_difference_on_these_very_problems():
    generator = np.random.default_rng(5)
    effect_P = generator.normal(0.05, 0.2, size=60)
    hits = 0
    for _ in range(2000):
        table = effect_P + generator.normal(0.0, 0.05, size=(4, 1)) + generator.normal(0.0, 0.2, size=(4, 60))
        low, high = crossed_mean([table]).new_seeds.interval
        hits += low <= effect_P.mean() <= high
    assert 0.935 <= hits / 2000 <= 0.965

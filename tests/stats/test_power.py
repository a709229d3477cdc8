"""What a design detects, against simulation and against itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from atrium.stats.crossed import VarianceComponents, crossed_mean
from atrium.stats.power import (
    assured_error,
    detectable_difference,
    num_seeds_needed,
    plan,
    power,
    standard_error,
)

COMPONENTS = VarianceComponents(
    seed=0.0004,
    problem=0.0001,
    residual=0.0002,
    seed_degrees_of_freedom=4.0,
    problem_degrees_of_freedom=99.0,
)


@pytest.mark.parametrize("degrees_of_freedom", [2, 4, 30, 1e6])
def test_power_is_alpha_without_an_effect_and_grows_to_one(degrees_of_freedom):
    assert_allclose(power(0.0, 0.01, degrees_of_freedom), 0.05, atol=1e-6)
    values = [power(effect, 0.01, degrees_of_freedom) for effect in (0.005, 0.01, 0.03, 0.1, 0.5)]
    assert values == sorted(values)
    assert values[-1] > 0.99


@pytest.mark.parametrize(("num_seeds", "num_problems"), [(3, 30), (5, 200)])
def test_a_plan_keeps_its_promise_for_four_pilots_in_five(num_seeds, num_problems):
    """Pilots and studies are drawn from one population; power is that of the study's own t test."""
    generator = np.random.default_rng(0)
    truth = replace(COMPONENTS, problem=0.0005 / num_problems, residual=0.002 / num_problems)

    def differences():
        return (
            generator.normal(0.0, truth.seed**0.5, (num_seeds, 1))
            + generator.normal(0.0, 0.0005**0.5, num_problems)
            + generator.normal(0.0, 0.002**0.5, (num_seeds, num_problems))
        )

    error, degrees = standard_error(replace(truth, problem_degrees_of_freedom=num_problems - 1.0), num_seeds)
    kept = []
    for _ in range(400):
        promised = detectable_difference(crossed_mean([differences()]).components, num_seeds)
        kept.append(power(promised, error, degrees) >= 0.8)
    # Three standard errors of 400 pilots are 6 points; Satterthwaite's degrees of freedom are approximate.
    assert np.mean(kept) > 0.72


def test_a_pilot_of_few_seeds_promises_less():
    sure = replace(COMPONENTS, seed_degrees_of_freedom=1e6, problem_degrees_of_freedom=1e6)
    for problems in ("new", "same"):
        assert_allclose(assured_error(sure, 5, problems)[0], standard_error(sure, 5, problems)[0], rtol=0.002)
    assert_allclose(
        assured_error(COMPONENTS, 5, "same")[0] / standard_error(COMPONENTS, 5, "same")[0], 1.557, rtol=1e-3
    )


def test_no_plan_promises_more_than_the_whole_scale():
    wild = replace(COMPONENTS, seed=1.0)
    assert detectable_difference(wild, 3) == 1.0
    assert detectable_difference(replace(COMPONENTS, seed=0.0, problem=0.0, residual=0.0), 3) == 0.0


def test_the_seeds_needed_are_the_fewest_that_detect_the_effect():
    num_seeds = num_seeds_needed(COMPONENTS, 0.06)
    assert num_seeds > 2
    assert power(0.06, *assured_error(COMPONENTS, num_seeds, "new")) >= 0.8
    assert power(0.06, *assured_error(COMPONENTS, num_seeds - 1, "new")) < 0.8
    assert (
        detectable_difference(COMPONENTS, num_seeds)
        <= 0.06
        < detectable_difference(COMPONENTS, num_seeds - 1)
    )


def test_no_number_of_seeds_makes_up_for_too_few_problems():
    assert num_seeds_needed(COMPONENTS, 0.02) is None
    assert num_seeds_needed(COMPONENTS, 0.02, problems="same") is not None


def test_a_plan_pools_what_arms_share_and_needs_two_seeds():
    assert plan([], 0.02) is None
    assert plan([replace(COMPONENTS, seed=0.0, problem=0.0, residual=0.0)], 0.02) is None
    double = replace(COMPONENTS, seed=3 * COMPONENTS.seed)
    both = plan([COMPONENTS, double], 0.05)
    between = [detectable_difference(one, 5) for one in (COMPONENTS, double)]
    assert between[0] < both.detectable["new"][5] < between[1]
    assert list(both.detectable["same"]) == [3, 5, 10, 20]


def test_a_plan_says_whether_seeds_or_problems_are_too_few():
    assert plan([COMPONENTS], 0.02).seeds_words("new") == "more problems"
    assert plan([COMPONENTS], 0.02).seeds_words("same").isdecimal()
    assert plan([replace(COMPONENTS, seed=1.0)], 0.02).seeds_words("new") == "over 1,000"


def test_the_design_of_a_table_has_about_the_table_s_own_standard_error():
    generator = np.random.default_rng(1)
    table = (
        generator.normal(0, 0.05, (5, 1)) + generator.normal(0, 0.1, 80) + generator.normal(0, 0.2, (5, 80))
    )
    mean = crossed_mean([table])
    assert_allclose(standard_error(mean.components, 5)[0], mean.new_seeds_and_problems.standard_error)
    assert_allclose(standard_error(mean.components, 5, "same")[0], mean.new_seeds.standard_error)


def test_one_seed_and_no_effect_are_refused():
    with pytest.raises(ValueError, match="at least 2"):
        standard_error(COMPONENTS, 1)
    with pytest.raises(ValueError, match="effect must not be 0"):
        num_seeds_needed(COMPONENTS, 0.0)

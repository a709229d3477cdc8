"""What a design detects, against simulation and against itself."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from atrium.compare.crossed import VarianceComponents, crossed_mean
from atrium.compare.power import minimum_detectable_difference, num_seeds_needed, power, standard_error

COMPONENTS = VarianceComponents(seed=0.0004, problem=0.0001, residual=0.0002, problem_degrees_of_freedom=99.0)


@pytest.mark.parametrize("degrees_of_freedom", [2, 4, 30, 1e6])
def test_power_is_alpha_without_an_effect_and_grows_to_one(degrees_of_freedom):
    assert_allclose(power(0.0, 0.01, degrees_of_freedom), 0.05, atol=1e-6)
    values = [power(effect, 0.01, degrees_of_freedom) for effect in (0.005, 0.01, 0.03, 0.1, 0.5)]
    assert values == sorted(values)
    assert values[-1] > 0.99


def test_the_detectable_difference_is_found_with_the_power_promised():
    detectable = minimum_detectable_difference(0.02, 4)
    generator = np.random.default_rng(0)
    seeds_RS = generator.normal(detectable, 0.02 * 5**0.5, size=(20_000, 5))
    t_R = seeds_RS.mean(1) / (seeds_RS.std(1, ddof=1) / 5**0.5)
    assert_allclose(np.mean(np.abs(t_R) > 2.776445), 0.8, atol=0.01)


def test_the_seeds_needed_are_the_fewest_that_detect_the_effect():
    num_seeds = num_seeds_needed(COMPONENTS, 0.04)
    assert num_seeds > 2
    assert power(0.04, *standard_error(COMPONENTS, num_seeds)) >= 0.8
    assert power(0.04, *standard_error(COMPONENTS, num_seeds - 1)) < 0.8


def test_no_number_of_seeds_makes_up_for_too_few_problems():
    assert num_seeds_needed(COMPONENTS, 0.02) is None
    assert num_seeds_needed(COMPONENTS, 0.02, exam="this") is not None


def test_the_design_of_a_table_has_about_the_table_s_own_standard_error():
    generator = np.random.default_rng(1)
    table = (
        generator.normal(0, 0.05, (5, 1)) + generator.normal(0, 0.1, 80) + generator.normal(0, 0.2, (5, 80))
    )
    mean = crossed_mean([table])
    assert_allclose(standard_error(mean.components, 5)[0], mean.another_exam.standard_error)
    assert_allclose(standard_error(mean.components, 5, "this")[0], mean.this_exam.standard_error)


def test_one_seed_and_no_effect_are_refused():
    with pytest.raises(ValueError, match="one seed"):
        standard_error(COMPONENTS, 1)
    with pytest.raises(ValueError, match="effect of 0"):
        num_seeds_needed(COMPONENTS, 0.0)

"""Search spaces: what is in them, and which overrides it becomes."""

from __future__ import annotations

import itertools
import math

import pytest

from atrium.base.errors import ConfigError
from atrium.config.compose import compose
from atrium.sweep.definition import ParameterConfig
from atrium.sweep.space import (
    corners,
    from_unit,
    grid,
    grid_points,
    overrides_of,
    planned,
    settings_of,
    unit_points,
)
from atrium.sweep.study import distribution_of


def test_a_logarithmic_grid_has_equal_ratios_and_both_ends():
    points = grid_points(ParameterConfig(low=0.002, high=0.2, log=True, num=5))
    assert points[0] == 0.002
    assert points[-1] == 0.2
    ratios = [b / a for a, b in itertools.pairwise(points)]
    assert all(math.isclose(ratio, 10**0.5, rel_tol=1e-4) for ratio in ratios)


def test_whole_numbers_and_steps_are_their_own_grid():
    assert grid_points(ParameterConfig(low=1, high=4)) == [1, 2, 3, 4]
    assert grid_points(ParameterConfig(low=0.0, high=1.0, step=0.25)) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_a_point_of_the_unit_interval_stays_in_the_range():
    whole, real = ParameterConfig(low=2, high=5), ParameterConfig(low=0.1, high=10.0, log=True)
    assert {from_unit(whole, unit / 100) for unit in range(100)} == {2, 3, 4, 5}
    assert [from_unit(real, unit) for unit in (0.0, 0.5)] == [0.1, 1.0]
    assert from_unit(ParameterConfig(choices=("a", None, 3)), 0.99) == 3


def test_a_condition_hides_a_parameter_where_it_does_not_hold(define):
    space = define(
        space={
            "divergence": {"choices": ["none", "kl3"]},
            "divergence.delta": {"low": 0.01, "high": 0.1, "num": 2, "when": {"divergence": ["kl3"]}},
        }
    )
    assert list(grid(space)) == [
        {"divergence": "none"},
        {"divergence": "kl3", "divergence.delta": 0.01},
        {"divergence": "kl3", "divergence.delta": 0.1},
    ]


def test_corners_satisfy_the_conditions_of_what_they_try(define):
    space = define(
        space={
            "divergence": {"choices": ["none", "kl3"]},
            "divergence.delta": {"low": 0.01, "high": 0.1, "when": {"divergence": ["kl3"]}},
        }
    )
    tried = [assignment for name, assignment in corners(space) if name == "divergence.delta"]
    assert tried == [{"divergence": "kl3", "divergence.delta": delta} for delta in (0.01, 0.1)]


def test_a_budget_is_derived_from_a_target_upper_bound(define):
    space = define(
        space={},
        variables={"upper": {"low": 1.05, "high": 1.6}},
        derived={"divergence.delta": {"function": "budget_for_upper", "of": "upper", "kind": "kl3"}},
    )
    settings = settings_of(space, {"upper": 1.28})
    assert settings == {"divergence.delta": pytest.approx(0.03314, abs=5e-6)}


def test_a_budget_that_does_not_exist_is_said_in_one_line(define):
    space = define(
        space={},
        variables={"upper": {"low": 0.5, "high": 1.6}},
        derived={"divergence.delta": {"function": "budget_for_upper", "of": "upper"}},
    )
    with pytest.raises(
        ConfigError,
        match=r"divergence.delta cannot be derived as budget_for_upper of 0.5: upper must be at least 1",
    ):
        settings_of(space, {"upper": 0.5})


def test_an_arm_sets_several_keys_and_crosses_the_space(define):
    space = define(
        arms={"clip": {"algorithm": "grpo"}, "none": {"algorithm": "grpo", "divergence": "none"}},
        space={"optimizer.learning_rate": {"choices": [1e-4, 3e-4]}},
    )
    settings = [settings_of(space, assignment) for assignment in grid(space)]
    assert len(settings) == 4
    assert settings[-1] == {"algorithm": "grpo", "divergence": "none", "optimizer.learning_rate": 3e-4}


@pytest.mark.parametrize("kind", ["quasi_random", "random"])
def test_planned_settings_repeat_and_grow_without_changing(define, kind):
    space = define()
    few, many = (planned(space, kind=kind, num=num, seed=3) for num in (5, 9))
    assert few == many[:5]
    assert len({one["divergence.delta"] for one in many}) == 9


def test_quasi_random_points_cover_the_square_evenly():
    points = unit_points(2, 16, kind="quasi_random", seed=0)
    cells = {(int(4 * x), int(4 * y)) for x, y in points}
    assert len(cells) == 16


def test_a_grid_that_is_too_large_is_thinned_to_its_ends(define):
    space = define(space={"divergence.delta": {"low": 0.01, "high": 0.09, "num": 9}})
    deltas = [one["divergence.delta"] for one in planned(space, kind="grid", num=3, seed=0)]
    assert deltas == [0.01, 0.05, 0.09]


def test_overrides_read_back_as_the_values_that_were_meant():
    settings = {
        "optimizer.max_grad_norm": None,
        "optimizer.learning_rate": 2.5e-05,
        "checkpoint.keep_best": True,
        "experiment_name": "a-b",
        "algorithm": "grpo",
    }
    config = compose(overrides_of(settings))
    assert config.optimizer.max_grad_norm is None
    assert config.optimizer.learning_rate == 2.5e-05
    assert config.checkpoint.keep_best is True
    assert (config.experiment_name, config.algorithm.name) == ("a-b", "grpo")


def test_a_budget_of_an_arm_is_derived_from_a_variable(define):
    budget = {"function": "budget_for_upper", "of": "upper"}
    space = define(
        space={}, variables={"upper": {"low": 1.05, "high": 1.6}}, arms={"a": {"divergence.delta": budget}}
    )
    settings = settings_of(space, {"arm": "a", "upper": 1.28})
    assert settings == {"divergence.delta": pytest.approx(0.03314, abs=5e-6)}


def test_points_of_a_grid_are_multiples_of_the_step_that_a_sampler_accepts():
    whole = ParameterConfig(low=1, high=10, step=3, num=5)
    assert grid_points(whole) == [1, 4, 7, 10]
    assert all(distribution_of(whole)._contains(point) for point in grid_points(whole))
    assert grid_points(ParameterConfig(low=1, high=9, step=3, num=5)) == [1, 4, 7]
    assert grid_points(ParameterConfig(low=0.0, high=1.0, step=0.4, num=2)) == [0.0, 0.8]

"""The two sides of a run, on made numbers: what overlap allows, and how many devices each side wants."""

from __future__ import annotations

import math

import pytest

from atrium.base import metrics
from atrium.planning.sides import Sides, sides_of

STEP = {
    metrics.ROLLOUT_S.name: 5.0,
    metrics.GRADE_WAIT_S.name: 1.0,
    metrics.SCORE_S.name: 0.5,
    metrics.UPDATE_S.name: 2.5,
    metrics.KL_S.name: 1.0,
    metrics.WEIGHTS_S.name: 0.25,
    metrics.STEP_S.name: 10.5,
}
ONE = {"num_engines": 1, "num_trainers": 1, "overlaps": False}


def test_a_run_whose_sides_take_turns_could_take_as_long_as_the_longer_one():
    first = STEP | {metrics.ROLLOUT_S.name: 50.0, metrics.STEP_S.name: 55.0}
    evaluated = STEP | {metrics.EVALUATE_S.name: 30.0, metrics.STEP_S.name: 40.5}
    sides = sides_of([first, STEP, evaluated, STEP], **ONE)
    assert sides == Sides(
        sampling_s=6.0, training_s=4.0, rest_s=0.5, step_s=10.5, num_engines=1, num_trainers=1, num_steps=3
    )
    assert sides.bound_s == 6.5
    assert sides.bound_with(2) == 4.5


def test_where_sampling_runs_beside_training_only_what_is_waited_for_takes_time_of_a_step():
    beside = STEP | {metrics.BATCH_WAIT_S.name: 2.25, metrics.STEP_S.name: 6.75}
    sides = sides_of([beside] * 3, num_engines=2, num_trainers=1, overlaps=True)
    assert (sides.step_s, sides.rest_s, sides.bound_s) == (6.75, 0.5, 6.5)
    assert sides.engines_per_trainer == 3.0
    assert sides.bound_with(3) == 4.5


@pytest.mark.parametrize(
    ("sampling_s", "num_engines", "num_trainers", "balance"),
    [
        (4.0, 1, 1, (1, 1)),
        (24.0, 1, 2, (3, 1)),
        (1.0, 1, 1, (1, 4)),
        (4.0, 2, 8, (1, 4)),
        (1e-9, 1, 1, (1, 4 * 10**9)),
    ],
)
def test_devices_are_balanced_where_both_sides_have_equal_work(
    sampling_s, num_engines, num_trainers, balance
):
    sides = Sides(
        sampling_s=sampling_s,
        training_s=4.0,
        rest_s=0.0,
        step_s=9.0,
        num_engines=num_engines,
        num_trainers=num_trainers,
        num_steps=2,
    )
    assert sides.balance == balance


def test_steps_that_do_not_tell_give_nothing():
    silent = STEP | {metrics.UPDATE_S.name: math.nan, metrics.SCORE_S.name: 0.0, metrics.KL_S.name: 0.0}
    assert sides_of([STEP, STEP], **ONE) is None
    assert sides_of([STEP, silent, STEP], **ONE) is None
    assert sides_of([], **ONE) is None
    assert sides_of([STEP, silent, STEP, STEP], **ONE).num_steps == 2

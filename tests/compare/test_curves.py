from __future__ import annotations

import numpy as np
import pytest

from atrium.compare.curves import (
    Band,
    Curve,
    XAxis,
    at_steps,
    axis_values,
    curve,
    group_curve,
    moving_mean,
)

COLUMNS = {
    "step": np.array([1.0, 2.0, 3.0]),
    "rollout/num_tokens": np.array([10.0, np.nan, 30.0]),
    "time/step_s": np.array([2.0, 2.0, 4.0]),
}


def test_x_values_are_steps_or_cumulative_sums():
    assert axis_values(COLUMNS, XAxis.STEP).tolist() == [1, 2, 3]
    assert axis_values(COLUMNS, XAxis.TOKENS).tolist() == [10, 10, 40]
    assert axis_values(COLUMNS, XAxis.WALL_CLOCK).tolist() == [2, 4, 8]
    assert axis_values({"step": COLUMNS["step"]}, XAxis.TOKENS) is None


def test_an_evaluation_before_training_has_cost_nothing():
    assert at_steps(np.array([0.0, 1.0, 3.0]), COLUMNS, XAxis.WALL_CLOCK).tolist() == [0, 2, 8]
    assert at_steps(np.array([0.0, 5.0]), {}, XAxis.STEP).tolist() == [0, 5]
    assert at_steps(np.array([0.0]), {}, XAxis.TOKENS) is None


def test_the_moving_mean_is_centered_and_uses_fewer_values_at_the_ends():
    values = np.array([1.0, 2.0, 6.0, 3.0])
    np.testing.assert_allclose(moving_mean(values, 3), [1.5, 3.0, 11 / 3, 4.5])
    np.testing.assert_allclose(moving_mean(values, 1), values)
    np.testing.assert_allclose(moving_mean(values, 99), np.full(4, 3.0))
    assert len(moving_mean(np.zeros(0), 5)) == 0


@pytest.mark.parametrize("width", [2, 3, 4, 7])
def test_the_moving_mean_is_the_mean_of_the_neighbors(width):
    values = np.random.default_rng(0).normal(size=30)
    expected = [values[max(i - (width - 1) // 2, 0) : i + width // 2 + 1].mean() for i in range(len(values))]
    np.testing.assert_allclose(moving_mean(values, width), expected, atol=1e-12)


def test_points_that_are_not_finite_are_left_out():
    made = curve(np.arange(4.0), np.array([1.0, np.nan, np.inf, 2.0]))
    assert made.x.tolist() == [0, 3]
    assert made.y.tolist() == [1, 2]


def test_a_group_is_the_mean_with_its_range_or_deviation():
    x = np.arange(3.0)
    curves = [Curve(x=x, y=np.array([0.0, 1.0, 2.0])), Curve(x=x, y=np.array([2.0, 3.0, 6.0]))]
    ranged = group_curve(curves, Band.RANGE)
    assert ranged.mean.tolist() == [1, 2, 4]
    assert (ranged.low.tolist(), ranged.high.tolist()) == ([0, 1, 2], [2, 3, 6])
    deviated = group_curve(curves, Band.DEVIATION)
    np.testing.assert_allclose(deviated.high - deviated.mean, np.std([[0, 1, 2], [2, 3, 6]], axis=0, ddof=1))
    assert group_curve(curves, Band.NONE).low is None


def test_after_the_end_of_one_run_the_mean_is_over_the_others_and_says_so():
    short, long = Curve(x=np.arange(2.0), y=np.zeros(2)), Curve(x=np.arange(4.0), y=np.full(4, 2.0))
    grouped = group_curve([short, long], Band.RANGE)
    assert grouped.x.tolist() == [0, 1, 2, 3]
    assert grouped.mean.tolist() == [1, 1, 2, 2]
    assert grouped.num_runs.tolist() == [2, 2, 1, 1]


def test_runs_with_different_x_values_are_interpolated_within_their_range():
    one = Curve(x=np.array([0.0, 2.0]), y=np.array([0.0, 2.0]))
    other = Curve(x=np.array([1.0, 3.0]), y=np.array([3.0, 5.0]))
    grouped = group_curve([one, other], Band.NONE)
    assert grouped.x.tolist() == [0, 1, 2, 3]
    assert grouped.mean.tolist() == [0, 2, 3, 5]


def test_a_group_without_points_is_none_and_one_run_has_no_band():
    assert group_curve([Curve(x=np.zeros(0), y=np.zeros(0))], Band.RANGE) is None
    alone = group_curve([Curve(x=np.arange(2.0), y=np.ones(2))], Band.RANGE)
    assert alone.low is None


def test_a_window_longer_than_the_run_does_not_flatten_it():
    steps = np.arange(8.0)
    smoothed = curve(steps, steps, smoothing=1001)
    assert smoothed.y[-1] - smoothed.y[0] > 6.0

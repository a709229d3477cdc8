"""What a recorded curve comes to: areas and steps to a value."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from atrium.base.section import Section
from atrium.runs.curve_outcomes import Area, CurveOutcome, StepsTo

STEPS = np.arange(1.0, 7.0)
RISING = np.array([0.05, 0.1, 0.2, 0.4, 0.7, 0.9])


class Asked(Section):
    outcome: CurveOutcome


def steps_to(value, until=6, scale="linear"):
    return StepsTo(kind="steps_to", metric="rollout/reward", value=value, until=until, scale=scale)


def test_an_area_is_the_mean_over_its_span():
    area = Area(kind="area", metric="rollout/reward", start=2, until=4)
    assert area.of_curve(STEPS, RISING) == pytest.approx((0.1 + 0.2 + 0.4) / 3)


@pytest.mark.parametrize("broken", [RISING[:3], np.where(STEPS == 3, np.nan, RISING)])
def test_area_of_a_curve_with_a_missing_step_is_none(broken):
    area = Area(kind="area", metric="rollout/reward", until=4)
    assert area.of_curve(STEPS[: len(broken)], broken) is None


def test_the_step_that_reaches_a_value_is_interpolated():
    assert steps_to(0.25).of_curve(STEPS, RISING) == pytest.approx(3.25)
    by_log_odds = steps_to(0.5, scale="log_odds").of_curve(STEPS, RISING)
    assert by_log_odds == pytest.approx(4 + np.log(1.5) / (np.log(0.7 / 0.3) - np.log(0.4 / 0.6)))


def test_the_first_of_several_passings_counts():
    assert steps_to(0.5).of_curve(STEPS, np.array([0.0, 1.0, 0.0, 1.0, 1.0, 1.0])) == 1.5


def test_a_value_that_is_not_reached_counts_with_the_horizon():
    assert steps_to(0.95).of_curve(STEPS, RISING) == 6.0
    assert steps_to(0.5, until=4).of_curve(STEPS, RISING) == 4.0


def test_steps_to_of_a_curve_that_ends_early_is_known_only_if_the_value_was_reached():
    assert steps_to(0.15).of_curve(STEPS[:3], RISING[:3]) == pytest.approx(2.5)
    assert steps_to(0.5).of_curve(STEPS[:3], RISING[:3]) is None


def test_a_run_that_begins_beyond_the_value_counts_with_its_first_step():
    assert steps_to(0.01).of_curve(STEPS, RISING) == 1.0


def test_shares_of_0_and_1_have_log_odds_that_can_be_interpolated():
    passed = steps_to(0.5, scale="log_odds").of_curve(STEPS[:2], np.array([0.0, 1.0]))
    assert passed == pytest.approx(1.5)


@pytest.mark.parametrize(("value", "curve"), [(1e-6, [0.0, 5e-6]), (0.999999, [0.999995, 1.0])])
def test_log_odds_that_are_clamped_to_one_value_give_the_step_that_reaches_it(value, curve):
    assert steps_to(value, scale="log_odds").of_curve(STEPS[:2], np.array(curve)) == 2.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kind": "area", "metric": "rollout/reward", "start": 5, "until": 4}, "start=5 must be at most"),
        ({"kind": "area", "metric": "rollout/reward", "until": 1}, "until"),
        (
            {"kind": "steps_to", "metric": "rollout/reward", "value": 1.0, "until": 4, "scale": "log_odds"},
            "value must be above 0 and below 1",
        ),
        ({"kind": "slope", "metric": "rollout/reward", "until": 4}, "slope"),
    ],
)
def test_outcomes_that_cannot_be_are_refused(settings, said):
    with pytest.raises(ValidationError, match=said):
        Asked(outcome=settings)

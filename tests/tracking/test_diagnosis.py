"""Rules over recorded metrics."""

from __future__ import annotations

from atrium.tracking.diagnosis import NUM_STEPS, collapsed

STUCK = {"rollout/no_signal_frac": 1.0, "rollout/correct_frac": 0.25}
SOLVED = {"rollout/no_signal_frac": 1.0, "rollout/correct_frac": 1.0}
LEARNS = {"rollout/no_signal_frac": 0.5, "rollout/correct_frac": 0.5}


def test_a_run_that_ends_without_any_signal_has_collapsed():
    assert "in its last 10 steps" in collapsed([LEARNS] * 3 + [STUCK] * NUM_STEPS)


def test_a_run_that_has_solved_its_task_has_not_collapsed():
    assert collapsed([SOLVED] * 20) is None
    assert collapsed([STUCK] * 9 + [SOLVED] + [STUCK] * 9) is None


def test_one_signal_among_the_last_steps_or_too_few_of_them_are_no_collapse():
    assert collapsed([STUCK] * 5 + [LEARNS] + [STUCK] * 9) is None
    assert collapsed([STUCK] * 9) is None
    assert collapsed([]) is None

"""Using a batch several times: what is the same for all methods, and what the boundary changes."""

from __future__ import annotations

import pytest
from tests.theory.conftest import shipped

from atrium.config.presets import names
from atrium.theory.updates import BIN_EDGES, update_course

SMALL = {"num_seeds": 3, "num_updates": 5, "num_groups": 4, "vocabulary": 4}


def course(name, rewards="true", **settings):
    return update_course(shipped(name), rewards, **{**SMALL, **settings})


def test_the_first_update_is_the_same_for_every_window():
    """With one update per batch every ratio is 1 and all arms coincide."""
    grpo, atr, higher = (course(name, num_updates=1) for name in ("grpo", "atr", "clip_higher"))
    assert grpo.kl == atr.kl == higher.kl
    assert grpo.dropped_frac == (0.0,)
    assert grpo.final_entropy_S == atr.final_entropy_S


def test_a_trust_region_holds_the_policy_back_and_no_region_does_not():
    grpo, free = course("grpo", num_updates=8), course("cispo_absolute", num_updates=8)
    assert grpo.kl[-1] < 0.5 * free.kl[-1]
    assert grpo.dropped_frac[-1] > 0.1
    assert free.dropped_frac == (0.0,) * 8
    assert free.reward_change[-1] > grpo.reward_change[-1] > 0.0


def test_probability_is_moved_and_none_is_made():
    found = course("grpo")
    assert len(found.mass_change) == len(BIN_EDGES) - 1
    assert sum(found.mass_change) == pytest.approx(0.0, abs=1e-12)
    assert sum(found.rewarded_mass_change) == pytest.approx(found.reward_change[-1], rel=1e-9)
    assert all(0.0 <= distance <= 1.0 for distance in found.total_variation)


def test_equal_settings_give_equal_courses_and_random_rewards_other_ones():
    assert course("atr", num_seeds=2) == course("atr", num_seeds=2)
    assert course("atr", num_seeds=2, rewards="random") != course("atr", num_seeds=2)


@pytest.mark.full
@pytest.mark.parametrize("name", names("algorithm"))
@pytest.mark.parametrize("rewards", ["true", "random"])
def test_every_method_takes_its_updates(name, rewards):
    found = course(name, rewards=rewards, num_seeds=2, num_updates=3)
    # Pass@k trains only on groups with exactly one right answer, which these batches do not have.
    assert (found.kl[0] > 0.0) is (name != "pass_at_k")
    assert all(value == value for value in (*found.entropy_change, *found.reverse_kl, *found.mass_change))

"""DPO's optima on pairs that leave an answer out, and GVPO's one optimum from each of them."""

from __future__ import annotations

import pytest

from atrium.theory.preferences import MASSES, preference_optima


def test_any_mass_on_an_answer_that_no_pair_holds_is_optimal_for_dpo_and_one_is_for_gvpo():
    found = preference_optima()
    assert found.masses == MASSES
    assert max(found.preference_slopes) < 1e-12
    assert found.preference_losses == pytest.approx([found.preference_losses[0]] * len(MASSES), abs=1e-12)
    assert max(found.regression_errors) < 1e-5

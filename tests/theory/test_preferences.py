"""Optima of DPO and GVPO: unique where the data cover every answer, arbitrary where they do not."""

from __future__ import annotations

import pytest

from atrium.theory.preferences import MASSES, preference_optima


@pytest.fixture(scope="module")
def found():
    return preference_optima()


def test_without_full_coverage_both_methods_stay_at_any_probability_of_the_missing_answer(found):
    assert found.masses == MASSES
    assert found.dpo_on_two == pytest.approx(found.gvpo_on_two, abs=1e-6)
    assert min(found.gvpo_on_two) > 0.05


def test_with_full_coverage_both_methods_find_the_optimum_from_every_start(found):
    assert max(*found.dpo_on_three, *found.gvpo_on_three) < 1e-5

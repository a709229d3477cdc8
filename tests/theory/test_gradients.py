"""Theorems 4.1 and 4.2 on random tokens, and the coefficient of every method at w = 1."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.theory.conftest import shipped

from atrium.config.presets import names, read_preset
from atrium.method.divergences import ExplicitWindow
from atrium.method.objective import Objective
from atrium.theory import gradients
from atrium.theory.gradients import coefficient_curves, equivalence

RATIOS = (0.3, 0.79, 0.81, 1.0, 1.21, 1.25, 1.29, 2.4)


@pytest.mark.parametrize("name", names("algorithm"))
def test_the_general_surrogate_has_the_gradient_of_every_method_with_a_clip(name):
    found = equivalence(shipped(name), num_tokens=1500)
    if not found.is_clip:
        return
    assert found.general_error < 1e-12
    assert found.window_error is None or found.window_error < 1e-12
    assert found.num_disagreeing in (None, 0)


def test_most_methods_with_a_clip_are_nothing_else():
    found = {name for name in names("algorithm") if equivalence(shipped(name), num_tokens=9).is_clip}
    assert found >= {"grpo", "atr", "clip_higher", "dapo", "gspo", "dcpo", "tr_ppo", "dppo_binary_kl"}
    assert not found & {"fipo", "grpo_kl", "dual_clip", "cispo", "gvpo", "reinforce"}


def test_theorem_4_1_holds_for_random_windows():
    generator = torch.Generator().manual_seed(0)
    grpo = shipped("grpo")
    for seed in range(12):
        lower, upper = torch.rand(2, generator=generator).tolist()
        window = ExplicitWindow(lower=lower, upper=1.0 + 1.5 * upper)
        found = equivalence(Objective(replace(grpo.method, divergence=window)), num_tokens=1000, seed=seed)
        assert max(found.general_error, found.window_error) < 1e-12
        assert 0.0 < found.dropped_frac < 0.6


def test_a_constant_outside_the_region_changes_the_gradient_of_a_quarter_of_the_tokens():
    found = equivalence(shipped("atr"))
    assert 0.2 < found.wrong_constant_frac < 0.35


def test_theorem_4_2_makes_atr_its_asymmetric_clip_bit_for_bit():
    atr = shipped("atr")
    window = atr.method.divergence.window()
    twin = Objective(replace(atr.method, divergence=ExplicitWindow(lower=window.lower, upper=window.upper)))
    assert coefficient_curves(atr, RATIOS) == coefficient_curves(twin, RATIOS)


def test_a_wrong_feasibility_test_is_counted(monkeypatch):
    monkeypatch.setattr(gradients, "_feasibility", lambda _: lambda ratio: 0.8 <= ratio <= 1.2)
    found = equivalence(shipped("atr"), num_tokens=2000)
    assert found.num_disagreeing > 20


def test_curves_of_plain_clipping_are_those_of_ppo():
    curves = coefficient_curves(shipped("grpo"), RATIOS)
    assert curves.raised == pytest.approx((0.3, 0.79, 0.81, 1.0, 0.0, 0.0, 0.0, 0.0))
    assert curves.lowered == pytest.approx((0.0, 0.0, -0.81, -1.0, -1.21, -1.25, -1.29, -2.4))


@pytest.mark.parametrize("name", names("algorithm"))
def test_the_coefficient_at_one_is_what_the_on_policy_law_says(name):
    preset = read_preset(name)
    curves = coefficient_curves(shipped(name), RATIOS)
    law = preset.algorithm.on_policy
    scale = law.scale or 1.0
    assert len(curves.raised) == len(curves.lowered) == len(RATIOS)
    if law.law in ("exact", "scaled"):
        assert curves.at_one == pytest.approx((scale, -scale), rel=1e-9)


def test_state_divergences_are_those_of_a_token_against_all_others():
    curves = coefficient_curves(shipped("tr_ppo"), (0.5, 0.9, 1.1, 2.0))
    assert curves.raised == pytest.approx((0.5, 0.9, 1.1, 0.0))
    assert curves.lowered == pytest.approx((0.0, -0.9, -1.1, -2.0))

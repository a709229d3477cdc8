"""RPG's forms have the gradient of a reward less a KL, and those of one divergence the same."""

from __future__ import annotations

import pytest

from atrium.config.presets import read_preset
from atrium.theory.regularized_forms import form_gradients


def test_all_eight_forms_have_the_true_gradient_and_both_forms_of_a_divergence_one_variance():
    for divergence in ("fkl", "rkl", "ufkl", "urkl"):
        names = [f"rpg_{divergence}_unclipped", f"rpg_reinforce_{divergence}_unclipped"]
        found = form_gradients([read_preset(name).method for name in names], num_seeds=2)
        assert [one.name for one in found] == names
        assert max(one.error for one in found) < 1e-12
        assert found[0].variance == pytest.approx(found[1].variance, rel=1e-9)


def test_a_form_of_another_divergence_does_not_have_the_gradient(monkeypatch):
    monkeypatch.setattr("atrium.theory.regularized_forms._FORWARD", ())
    (found,) = form_gradients([read_preset("rpg_fkl_unclipped").method], num_seeds=1)
    assert found.error > 0.01


def test_a_method_without_a_kl_is_refused():
    with pytest.raises(ValueError, match="grpo must have exactly one KL penalty, got 0"):
        form_gradients([read_preset("grpo").method])

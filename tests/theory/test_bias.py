"""Expected gradients by enumeration: which estimators are exact, at which level, and on whose samples."""

from __future__ import annotations

import pytest
from tests.theory.conftest import shipped

from atrium.config.presets import names
from atrium.theory.bias import ESTIMATORS, estimator_biases, faithfulness

EXACT_OFF_POLICY = {"w k1", "sg(w) k2", "w k3", "fkl", "ufkl", "rkl", "urkl"}


def test_estimators_are_exact_for_one_decision_and_at_sequence_level_only():
    biases = estimator_biases(lengths=(1, 2), num_seeds=2)
    assert len(biases) == 4 * len(ESTIMATORS)
    for bias in biases:
        is_exact = bias.name in EXACT_OFF_POLICY | ({"k2"} if bias.is_on_policy else set())
        assert (bias.sequence_error < 1e-12) == is_exact, bias
        if bias.num_tokens == 1:
            assert bias.token_error == pytest.approx(bias.sequence_error, rel=1e-9, abs=1e-13)
        else:
            assert bias.token_error > 0.02, bias


def test_on_policy_every_exact_law_points_along_the_true_gradient():
    for name in ("grpo", "atr", "cispo", "gspo", "rpg_ufkl", "gvpo"):
        found = faithfulness(shipped(name), distances=(0.0,), num_seeds=2)
        assert found.distance_kl == (0.0,)
        assert found.cosine[0] == pytest.approx(1.0, abs=1e-9), name


def test_clipped_tokens_stop_following_the_gradient_and_others_do_not():
    near, far = faithfulness(shipped("grpo"), distances=(0.05, 0.6), num_seeds=2).cosine
    _, kept = faithfulness(shipped("topr"), distances=(0.05, 0.6), num_seeds=2).cosine
    assert near > 0.99
    assert far < 0.5 < kept


@pytest.mark.full
@pytest.mark.parametrize("name", names("algorithm"))
def test_every_method_has_an_expected_gradient(name):
    found = faithfulness(shipped(name), distances=(0.0, 0.3), num_seeds=1)
    assert all(-1.0 - 1e-9 <= cosine <= 1.0 + 1e-9 for cosine in found.cosine)

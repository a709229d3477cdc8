"""The laws of every preset for values that no preset chooses."""

from __future__ import annotations

import pytest
from tests.method.conftest import Executed
from tests.method.test_preset_laws import (  # noqa: F401 - collected here, with this module's `method`
    assert_the_gradient_is_that_of_the_value,
    test_degenerate_batches_are_finite,
    test_equal_rewards_on_policy_pull_nowhere_without_a_regularizer,
    test_log_ratios_of_60_stay_finite_in_float32,
    test_masked_positions_are_inert_even_as_nan,
    test_no_advantage_and_no_regularizer_give_no_gradient,
    test_padding_does_not_matter,
    test_rows_without_tokens_do_not_count,
    test_the_declared_on_policy_law_holds,
    test_the_order_of_rows_does_not_matter,
    test_the_split_into_micro_batches_does_not_matter,
    test_two_ranks_have_the_gradient_of_one,
)

from atrium import load_method

MASK = "{kind: masked_importance, lower: 0.97, upper: 1.03}"
CURRENT = "{kind: masked_importance, policy: current, lower: 0.8, upper: 1.2, keep_weight: false}"
TRUNCATION = "{kind: truncated_importance, cap: 1.02, normalize: batch}"
SEQUENCE = "{kind: truncated_importance, cap: null, level: sequence, normalize: batch, policy: current}"
REJECTION = "{kind: sequence_rejection, estimator: k2, bound: 0.0015}"
KEPT = "algorithm.reduction.counts=kept"
KL = "{estimator: k3, anchor: reference, placement: loss, coefficient: 0.1"
WEIGHTED = "correction: weight, correction_level: sequence"
SEQUENCE_GATE = ("kind=sequence_mean", "estimator=total_variation", "over=sum", "delta=0.6")
VARIANTS = {
    "kept": ("grpo_kl", f"algorithm.correction={MASK}", KEPT),
    "kept_rows_of_sequence_ratios": ("gspo", f"algorithm.correction={REJECTION}", KEPT),
    "kept_by_the_current_policy": ("reinforce", f"algorithm.correction={CURRENT}", KEPT),
    "kept_right_answers": ("positive_nll", f"algorithm.correction={MASK}", KEPT),
    "current": ("grpo", f"algorithm.correction={CURRENT}"),
    "normalized": ("grpo", f"algorithm.correction={TRUNCATION}"),
    "product": ("dapo", f"algorithm.correction=[{SEQUENCE}, {REJECTION}, {CURRENT}]", KEPT),
    "penalties": ("grpo_kl", f"regularizer.kl=[{KL}, value_limit: 0.02}}, {KL}, {WEIGHTED}}}]"),
    "k2_gradient": ("grpo_kl", f"regularizer.kl={KL}, gradient: k2}}"),
    "shuffled_prefix": ("cppo", "divergence.order=shuffled"),
    "fixed_prefix": ("cppo", "divergence.quantile=null"),
    "both_directions": ("dppo_binary_kl", "divergence.direction=both"),
    "two_budgets": ("dppo_binary_kl", "divergence.delta_low=0.02"),
    "sequence_gate": ("grpo", *(f"divergence.{one}" for one in SEQUENCE_GATE)),
    "by_sign_of_the_reward": ("up_grpo", "algorithm.surrogate.of=reward"),
}


@pytest.fixture(params=VARIANTS)
def method(request):
    name, *settings = VARIANTS[request.param]
    loaded = load_method(name, *settings, max_new_tokens=8).method
    return Executed(loaded.algorithm, loaded.divergence, loaded.regularizer)


DETACHED = {"cppo", "dppo_binary_kl", "reinforce"}
"""Presets whose weight or gate makes the gradient another than the value's."""


def test_finite_differences_of_the_whole_loss_are_its_gradient(method, make_case, step):
    penalties = method.regularizer.penalties
    if method.algorithm.name in DETACHED or any(kl.gradient == "k2" for kl in penalties):
        pytest.skip("the gradient is not meant to be the value's")
    case = make_case(3, num_groups=2, group_size=3, num_tokens=4)
    assert_the_gradient_is_that_of_the_value(method, case, step)

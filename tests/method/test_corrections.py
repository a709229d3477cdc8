"""Corrections of the mismatch between engine and trainer, against their definitions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from atrium import load_method
from atrium.base.errors import ConfigError
from atrium.method.batch import Batch
from atrium.method.corrections import MaskedImportance, SequenceRejection, TruncatedImportance
from atrium.method.objective import Objective
from atrium.method.reductions import Totals

MASK_BT = torch.tensor([[True, True, True], [True, True, False], [False, False, False]])
RATIO_BT = torch.tensor([[0.4, 1.0, 3.0], [2.0, 0.5, torch.nan], [torch.nan] * 3], dtype=torch.float64)


def make_batch(mask_BT=MASK_BT, advantage_BT=None):
    return Batch(
        mask_BT=mask_BT,
        reward_B=torch.zeros(len(mask_BT), dtype=torch.float64),
        group_B=torch.zeros(len(mask_BT), dtype=torch.long),
        sample_key_B=torch.arange(len(mask_BT)),
        rollout_logprob_BT=torch.zeros(mask_BT.shape, dtype=torch.float64),
        advantage_BT=advantage_BT,
        is_trained_B=torch.ones(len(mask_BT), dtype=torch.bool),
    )


def factors(correction):
    return correction.factor(RATIO_BT.log(), make_batch())


def test_truncated_importance_caps_the_ratio():
    assert factors(TruncatedImportance(cap=2.0))[MASK_BT].tolist() == pytest.approx([0.4, 1.0, 2.0, 2.0, 0.5])
    sequence_BT = factors(TruncatedImportance(cap=1.1, level="sequence"))
    assert sequence_BT[:, 0].tolist() == pytest.approx([1.1, 1.0, 1.0])


def test_masked_importance_drops_what_lies_outside():
    chosen = MaskedImportance(lower=0.5, upper=2.0)
    assert factors(chosen)[MASK_BT].tolist() == pytest.approx([0.0, 1.0, 0.0, 2.0, 0.5])
    kept = factors(chosen.model_copy(update={"keep_weight": False}))
    assert kept[MASK_BT].tolist() == [0.0, 1.0, 0.0, 1.0, 1.0]


def test_masked_importance_judges_rows_by_product_or_geometric_mean():
    product_BT = factors(MaskedImportance(lower=0.9, upper=1.1, level="sequence"))
    assert product_BT[:, 0].tolist() == pytest.approx([0.0, 1.0, 1.0])
    mean_BT = factors(MaskedImportance(lower=0.9, upper=1.1, level="sequence_mean"))
    assert mean_BT[:, 0].tolist() == pytest.approx([1.2 ** (1 / 3), 1.0, 1.0])


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_sequence_rejection_compares_the_rows_mean_estimate(estimator):
    log_ratio_BT = -RATIO_BT.log()  # so that every mean is positive, as bounds are
    estimate_BT = {
        "k1": -log_ratio_BT,
        "k2": 0.5 * log_ratio_BT**2,
        "k3": 1 / RATIO_BT - 1 - log_ratio_BT,
    }[estimator]
    mean_B = [estimate_BT[row][MASK_BT[row]].mean().item() for row in range(2)]
    middle = 0.5 * (mean_B[0] + mean_B[1])
    rejection = SequenceRejection(estimator=estimator, bound=middle)
    kept_B = rejection.factor(log_ratio_BT, make_batch())[:, 0].tolist()
    assert kept_B[:2] == [float(mean <= middle) for mean in mean_B]


def test_sequence_rejection_by_maximum_drops_a_completion_for_one_token():
    """arXiv 2512.23075: a sequence is masked if any token violates; its mean would pass."""
    log_ratio_BT = torch.tensor([[0.0, 0.0, 0.0, 0.6], [0.2, 0.2, 0.2, 0.2], [0.0, 0.0, 0.0, 0.6]]).double()
    mask_BT = torch.ones(3, 4, dtype=torch.bool)
    mask_BT[2, 3] = False
    kept = {
        over: SequenceRejection(estimator="k2", bound=0.1, over=over).factor(
            log_ratio_BT, make_batch(mask_BT)
        )[:, 0]
        for over in ("mean", "maximum")
    }
    assert kept["mean"].tolist() == [1.0, 1.0, 1.0]
    assert kept["maximum"].tolist() == [0.0, 1.0, 1.0]


def test_truncated_importance_has_a_floor_and_needs_no_cap():
    floored = factors(TruncatedImportance(cap=2.0, lower=0.8))[MASK_BT]
    assert floored.tolist() == pytest.approx([0.8, 1.0, 2.0, 2.0, 0.8])
    uncapped = factors(TruncatedImportance(cap=None))[MASK_BT]
    assert uncapped.tolist() == pytest.approx([0.4, 1.0, 3.0, 2.0, 0.5])
    with pytest.raises(ValueError, match="lower must be less than cap"):
        TruncatedImportance(cap=2.0, lower=2.0)


def test_sequence_rejection_takes_a_sum_or_the_total_variation():
    log_ratio_BT = torch.tensor([[0.1, 0.1, 0.1], [0.2, 0.2, torch.nan], [0.0, 0.0, 0.0]]).double()
    by_sum = SequenceRejection(estimator="k2", over="sum", bound=0.016)
    assert by_sum.factor(log_ratio_BT, make_batch())[:, 0].tolist() == [1.0, 0.0, 1.0]
    variation = SequenceRejection(estimator="total_variation", bound=math.expm1(0.15))
    assert variation.factor(log_ratio_BT, make_batch())[:, 0].tolist() == [1.0, 0.0, 1.0]


def test_outward_rejection_keeps_tokens_that_move_back():
    log_ratio_BT = torch.tensor([[1.0, -1.0, 1.0, 0.0]]).double()
    advantage_BT = torch.tensor([[1.0, 1.0, -1.0, 1.0]]).double()
    batch = make_batch(torch.ones(1, 4, dtype=torch.bool), advantage_BT)
    rejection = SequenceRejection(estimator="k2", bound=0.1, direction="outward")
    assert rejection.factor(log_ratio_BT, batch).tolist() == [[0.0, 1.0, 1.0, 1.0]]


REJECTION = "{kind: sequence_rejection, estimator: k2, bound: 0.02, policy: proximal, anchor: behavior}"
TRUNCATION = "{kind: truncated_importance, cap: 1.02, policy: proximal, anchor: behavior}"


def test_list_of_corrections_is_their_product_in_any_order(make_case, step):
    case = make_case(7)
    gradients = {}
    for name, steps in {
        "both": [REJECTION, TRUNCATION],
        "turned": [TRUNCATION, REJECTION],
        "rejection": [REJECTION],
        "truncation": [TRUNCATION],
        "none": [],
    }.items():
        listed = load_method("decoupled", f"algorithm.correction=[{', '.join(steps)}]")
        proximal_BT = case.batch.behavior_logprob_BT + 0.1 * torch.sin(
            torch.arange(case.batch.mask_BT.numel(), dtype=torch.float64)
        ).reshape(case.batch.mask_BT.shape)
        moved = replace(case, batch=replace(case.batch, proximal_logprob_BT=proximal_BT))
        gradients[name] = step(Objective(listed.method), moved).gradient_BT
    torch.testing.assert_close(gradients["both"], gradients["turned"], rtol=1e-14, atol=0.0)
    expected_BT = gradients["rejection"] * gradients["truncation"] / gradients["none"]
    where_BT = gradients["none"] != 0.0
    torch.testing.assert_close(gradients["both"][where_BT], expected_BT[where_BT], rtol=1e-12, atol=1e-15)
    assert 0 < (gradients["both"] == 0.0).sum() < where_BT.numel()


def test_one_listed_correction_is_itself_and_an_empty_list_none():
    one = load_method("grpo", "algorithm.correction=[{kind: truncated_importance, cap: 2.0}]")
    named = load_method("grpo", "algorithm.correction={kind: truncated_importance, cap: 2.0}")
    assert one.method == named.method
    assert load_method("grpo", "algorithm.correction=[]").method == load_method("grpo").method


def test_rejected_tokens_stay_in_the_denominators(compose_method, make_case, step):
    settings = "+algorithm.correction={kind:masked_importance,lower:0.97,upper:1.03}"
    case = make_case(0)
    for reduction in ("token_mean", "sequence_mean_token_mean"):
        choice = f"algorithm.reduction={{kind:{reduction}}}"
        masked = step(compose_method("grpo", settings, choice).objective, case)
        plain = step(compose_method("grpo", choice).objective, case)
        assert torch.equal(masked.prepared.row_factor_B, plain.prepared.row_factor_B)
        rejected_BT = (masked.gradient_BT == 0.0) & (plain.gradient_BT != 0.0)
        assert rejected_BT.any()


KEPT = "algorithm.reduction.counts=kept"


@pytest.mark.parametrize("name", ["dapo", "grpo_kl", "dr_grpo", "positive_nll"])
def test_kept_tokens_count_as_if_the_others_were_padding(make_case, step, name):
    band = "{kind: masked_importance, lower: 0.97, upper: 1.03, keep_weight: false}"
    settings = (f"algorithm.correction={band}", "regularizer.entropy={coefficient: 0.1}")
    kept = load_method(name, *settings, KEPT, max_new_tokens=7).method
    plain = load_method(name, *settings[1:], max_new_tokens=7).method
    case = make_case(0)
    batch = Objective(plain).with_advantages(case.batch)
    ratio_BT = (batch.behavior_logprob_BT - batch.rollout_logprob_BT).exp()
    mask_BT = batch.mask_BT & (ratio_BT >= 0.97) & (ratio_BT <= 1.03)
    assert 0 < mask_BT.sum() < batch.mask_BT.sum()
    by_hand = step(Objective(plain), replace(case, batch=replace(batch, mask_BT=mask_BT)), scored=True)
    counted = step(Objective(kept), replace(case, batch=batch), scored=True)
    torch.testing.assert_close(counted.loss, by_hand.loss, rtol=1e-12, atol=0.0)
    for one in ("gradient_BT", "entropy_gradient_BT"):
        torch.testing.assert_close(getattr(counted, one), getattr(by_hand, one), rtol=1e-12, atol=0.0)


def test_counting_kept_tokens_changes_no_bit_where_none_is_rejected(make_case, step):
    wide = "algorithm.correction={kind: masked_importance, lower: 0.01, upper: 100.0}"
    case = make_case(0)
    gradients = [step(Objective(load_method("gspo", wide, *more).method), case) for more in ((), (KEPT,))]
    assert torch.equal(gradients[0].gradient_BT, gradients[1].gradient_BT)


def test_loss_is_0_where_everything_is_rejected(make_case, step):
    none = "algorithm.correction={kind: masked_importance, lower: 10.0, upper: 100.0}"
    result = step(Objective(load_method("grpo_kl", none, KEPT).method), make_case(0))
    assert result.loss == 0.0
    assert not result.gradient_BT.any()


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_normalized_weights_have_mean_1_and_no_scale(make_case, step, level):
    settings = f"{{kind: truncated_importance, cap: null, level: {level}, normalize: batch}}"
    method = load_method("grpo", f"algorithm.correction={settings}").method
    case = make_case(0)
    if level == "sequence":  # a factor common to all completions needs equal lengths
        case = make_case(0, mask_BT=torch.ones(16, 7, dtype=torch.bool))
    scaled_BT = case.batch.rollout_logprob_BT - 0.4
    far = replace(case, batch=replace(case.batch, rollout_logprob_BT=scaled_BT))
    results = [step(Objective(method), one) for one in (case, far)]
    torch.testing.assert_close(results[0].gradient_BT, results[1].gradient_BT, rtol=1e-12, atol=1e-15)
    factor_BT, mask_BT = results[0].prepared.correction_BT, case.batch.mask_BT
    mean = factor_BT[mask_BT].mean() if level == "token" else factor_BT[:, 0].mean()
    assert mean.item() == pytest.approx(1.0, abs=1e-12)


def test_constant_ratio_is_no_correction_once_normalized(make_case, step):
    case = make_case(0)
    batch = replace(case.batch, rollout_logprob_BT=case.batch.behavior_logprob_BT - 0.3)
    settings = "algorithm.correction={kind: truncated_importance, cap: 5.0, normalize: batch}"
    methods = [load_method("grpo", *more).method for more in ((settings,), ())]
    results = [step(Objective(method), replace(case, batch=batch)).gradient_BT for method in methods]
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-15)


def test_weights_whose_mean_is_almost_0_are_not_normalized():
    tiny_BT = torch.full(MASK_BT.shape, -20.0, dtype=torch.float64)
    correction = TruncatedImportance(cap=2.0, normalize="batch")
    batch = replace(make_batch(), behavior_logprob_BT=tiny_BT)
    factor_BT = correction.prepare(tiny_BT, batch, lambda value: value)
    assert factor_BT[MASK_BT].tolist() == pytest.approx([math.exp(-20.0)] * 5)


def test_current_policy_above_the_line_is_a_weight_without_gradient(make_case, step):
    """REINFORCE with the weight current / rollout is an unclipped surrogate on the engine's ratio."""
    weight = "algorithm.correction={kind: truncated_importance, policy: current, cap: null}"
    weighted = load_method("reinforce", weight).method
    anchors = [f"algorithm.ratio.{side}.anchor=rollout" for side in ("gate", "weight")]
    levels = [f"algorithm.ratio.{side}.level=token" for side in ("gate", "weight")]
    unclipped = load_method("reinforce", *anchors, *levels).method
    case = make_case(0)
    results = [step(Objective(method), case).gradient_BT for method in (weighted, unclipped)]
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-15)


def test_current_policy_is_the_proximal_one_at_the_first_update(make_case, step):
    case = make_case(0)
    batch = replace(case.batch, proximal_logprob_BT=case.policy.logprob_BT)
    text = "algorithm.correction={{kind: masked_importance, policy: {}, lower: 0.8, upper: 1.2}}"
    methods = [load_method("grpo", text.format(policy)).method for policy in ("current", "proximal")]
    results = [step(Objective(method), replace(case, batch=batch)).gradient_BT for method in methods]
    assert torch.equal(*results)


def test_pass_before_the_loss_is_only_needed_where_sums_depend_on_the_current_policy():
    band = "algorithm.correction={kind: masked_importance, lower: 0.8, upper: 1.2}"
    current = "algorithm.correction.policy=current"
    needs = [
        load_method("grpo", band, *more).needs.prepare_pass
        for more in ((), (current,), (KEPT,), (current, KEPT))
    ]
    assert needs == [False, False, False, True]


def test_counts_that_no_correction_changes_are_refused():
    for more in ((), ("algorithm.correction={kind: truncated_importance, cap: 2.0}",)):
        with pytest.raises(ConfigError, match=r"counts=kept has no effect, since .* rejects no token"):
            load_method("grpo", *more, KEPT)


def test_totals_of_the_caller_do_not_go_with_kept_tokens():
    band = "algorithm.correction={kind: masked_importance, lower: 0.8, upper: 1.2}"
    method = load_method("dapo", band, KEPT)
    zero_BT = torch.zeros(2, 3)
    tensors = {"old_logprob_BT": zero_BT, "rollout_logprob_BT": zero_BT, "advantage_BT": zero_BT}
    with pytest.raises(ValueError, match="totals cannot be given"):
        method.loss(zero_BT, torch.ones(2, 3), totals=Totals(tokens=6, rows=2, groups=1), **tensors)


def test_a_correction_multiplies_the_policy_term_alone(compose_method, make_case, step):
    method = compose_method("grpo_kl", "+algorithm.correction={kind:truncated_importance,cap:1.02}")
    case, free = make_case(0), compose_method("grpo_kl")
    batch = case.batch
    factor_BT = (batch.behavior_logprob_BT - batch.rollout_logprob_BT).exp().clamp(max=1.02)
    corrected, plain = step(method.objective, case), step(free.objective, case)
    penalty = step(free.objective, replace(case, batch=replace(batch, reward_B=torch.zeros(16).double())))
    policy_term_BT = plain.gradient_BT - penalty.gradient_BT
    torch.testing.assert_close(
        corrected.gradient_BT,
        torch.where(batch.mask_BT, factor_BT * policy_term_BT, 0.0) + penalty.gradient_BT,
        rtol=1e-11,
        atol=1e-14,
    )


def test_a_correction_may_compare_the_start_of_the_step_with_the_weights_that_sampled(
    compose_method, make_case, step
):
    case = make_case(0)
    moved_BT = case.batch.behavior_logprob_BT + 0.3
    case = replace(case, batch=replace(case.batch, proximal_logprob_BT=moved_BT))
    settings = "+algorithm.correction={kind:truncated_importance,cap:10.0,policy:proximal,anchor:behavior}"
    plain, corrected = (step(compose_method("grpo", *lines).objective, case) for lines in ((), (settings,)))
    torch.testing.assert_close(corrected.gradient_BT, math.exp(0.3) * plain.gradient_BT)


def test_a_correction_that_compares_a_policy_with_itself_is_refused():
    with pytest.raises(ValueError, match="got behavior for both"):
        TruncatedImportance(cap=2.0, anchor="behavior")

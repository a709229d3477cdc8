"""The composition: what it needs, the state it carries, what it measures, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch

from atrium.base import metrics
from atrium.method.needs import Needs
from atrium.method.objective import Objective, ObjectiveState
from atrium.method.regularizers import EntropyBonus, Regularizer


def needs_of(compose_method, name, *overrides):
    return compose_method(name, *overrides).objective.needs


def test_needs_are_those_of_the_axes_together(compose_method):
    plain = needs_of(compose_method, "grpo")
    assert plain == Needs()
    assert needs_of(compose_method, "grpo_kl").reference_pass
    assert needs_of(compose_method, "rloo").anchor_pass
    assert needs_of(compose_method, "rloo").reference_pass
    gvpo = needs_of(compose_method, "gvpo")
    assert gvpo.prepare_pass
    assert gvpo.whole_groups
    assert needs_of(compose_method, "bapo").prepare_pass
    assert needs_of(compose_method, "eighty_twenty").entropy == "value"
    assert needs_of(compose_method, "grpo", "regularizer=entropy").entropy == "gradient"
    assert needs_of(compose_method, "tr_ppo").distribution == "full"
    top = needs_of(compose_method, "dppo_top_k_kl")
    assert (top.distribution, top.top_k) == ("top_k", 20)


def test_what_is_not_needed_is_not_read(compose_method, make_case, step):
    """Behavior log-probabilities may be absent where the policy is the behavior policy: w is exactly 1."""
    case = make_case(0).on_policy()
    absent = replace(
        case,
        batch=replace(
            case.batch, behavior_logprob_BT=None, proximal_logprob_BT=None, reference_logprob_BT=None
        ),
        policy=replace(case.policy, entropy_BT=case.policy.entropy_BT),
    )
    for name in ("grpo", "atr", "gspo", "gvpo", "rpg_urkl", "minirl"):
        objective = compose_method(name).objective
        present, missing = step(objective, case), step(objective, absent)
        assert torch.equal(present.gradient_BT, missing.gradient_BT)
        assert torch.equal(missing.output.details.log_ratio_BT, torch.zeros_like(case.policy.logprob_BT))


def test_a_missing_reference_or_behavior_is_said(compose_method, make_case, step):
    case = make_case(0)
    case = replace(case, batch=replace(case.batch, behavior_logprob_BT=None, reference_logprob_BT=None))
    with pytest.raises(ValueError, match="reference"):
        step(compose_method("grpo_kl").objective, case)
    with pytest.raises(ValueError, match="behavior"):
        step(compose_method("rloo").objective, case)


def test_an_adaptive_entropy_bonus_grows_below_its_target_and_rests_above(compose_method):
    method = compose_method("grpo", "regularizer=paper/entropy_adaptive")
    objective, bonus = method.objective, method.regularizer.entropy
    state = objective.initial_state()
    assert state == ObjectiveState(entropy_coefficient=0.01)
    low = objective.update_state(state, {metrics.ENTROPY.name: 0.15}, step=1)
    assert low.entropy_coefficient == pytest.approx(0.015)
    assert bonus.in_force(low.entropy_coefficient, low.last_entropy) == low.entropy_coefficient
    high = objective.update_state(low, {metrics.ENTROPY.name: 0.7}, step=1)
    assert high.entropy_coefficient == pytest.approx(0.01)
    assert bonus.in_force(high.entropy_coefficient, high.last_entropy) == 0.0
    for _ in range(5):
        high = objective.update_state(high, {metrics.ENTROPY.name: 0.7}, step=1)
    assert high.entropy_coefficient == 0.0
    assert ObjectiveState.from_record(json.loads(json.dumps(asdict(high)))) == high
    assert objective.update_state(high, {}, step=1) == high
    plain = compose_method("grpo").objective
    assert (
        plain.update_state(plain.initial_state(), {metrics.ENTROPY.name: 0.1}, step=1)
        == plain.initial_state()
    )


def test_a_fixed_entropy_bonus_keeps_its_coefficient():
    bonus = EntropyBonus(coefficient=0.02)
    assert bonus.next_coefficient(0.02, 0.0) == 0.02
    assert bonus.in_force(0.02, None) == 0.02


def test_an_entropy_bonus_pulls_on_entropy_by_the_reductions_factor(compose_method, make_case, step):
    method = compose_method("grpo", "regularizer=entropy")
    objective = method.objective
    case = make_case(1)
    result = step(objective, case)
    factor_BT = result.prepared.row_factor_B[:, None] * case.batch.mask_BT
    torch.testing.assert_close(result.entropy_gradient_BT, -0.001 * factor_BT, rtol=1e-12, atol=0.0)
    without = step(Objective(replace(method, regularizer=Regularizer())), case)
    bonus = 0.001 * (factor_BT * case.policy.entropy_BT).sum()
    torch.testing.assert_close(result.loss, without.loss - bonus, rtol=1e-12, atol=1e-15)


def test_an_entropy_bonus_may_be_a_mean_per_token_whatever_the_loss_is(compose_method, make_case, step):
    case = make_case(4)
    num_tokens = case.batch.mask_BT.sum()
    for preset in ("dr_grpo", "grpo", "dapo"):
        bonus = [f"regularizer.entropy.{name}" for name in ("coefficient=0.5", "reduction=token_mean")]
        method = compose_method(preset, "regularizer=entropy", *bonus)
        whole = step(method.objective, case)
        expected_BT = torch.where(case.batch.mask_BT, -0.5 / num_tokens, 0.0).double()
        torch.testing.assert_close(whole.entropy_gradient_BT, expected_BT)
        split = step(method.objective, case, parts=[torch.arange(3), torch.arange(3, 16)])
        torch.testing.assert_close(split.entropy_gradient_BT, expected_BT)
        assert method.words()["regularizer"] == "entropy bonus 0.5, mean per token"


def test_measurements_are_means_over_unmasked_tokens(compose_method, make_case, step):
    case = make_case(2, spread=0.6)
    result = step(compose_method("rpg_ufkl", "algorithm.surrogate.cap=1.5").objective, case)
    mask_BT = case.batch.mask_BT
    log_ratio_N = (case.policy.logprob_BT - case.batch.behavior_logprob_BT)[mask_BT]
    ratio_N, advantage_N = log_ratio_N.exp(), result.batch.advantage_BT[mask_BT]
    found = {name: (total / count).item() for name, (total, count) in result.output.sums.items()}

    def share(condition_N):
        return condition_N.double().mean().item()

    above_N, below_N = ratio_N > 1.28, ratio_N < 0.8
    expected = {
        metrics.RATIO_MEAN: ratio_N.mean(),
        metrics.RATIO_SQUARED: (ratio_N**2).mean(),
        metrics.OUTSIDE_HIGH_FRAC: share(above_N),
        metrics.OUTSIDE_LOW_FRAC: share(below_N),
        metrics.CLIP_HIGH_FRAC: share(above_N & (advantage_N > 0)),
        metrics.CLIP_LOW_FRAC: share(below_N & (advantage_N < 0)),
        metrics.CLIP_RUNAWAY_FRAC: share((ratio_N >= 1.5) & (advantage_N < 0)),
        metrics.KL_K1: -log_ratio_N.mean(),
        metrics.KL_K2: (0.5 * log_ratio_N**2).mean(),
        metrics.KL_K3: (ratio_N - 1 - log_ratio_N).mean(),
        metrics.ADVANTAGE_ABS: advantage_N.abs().mean(),
        metrics.ENTROPY: case.policy.entropy_BT[mask_BT].mean(),
        metrics.STATE_DIVERGENCE: case.policy.divergence_BT[mask_BT].mean(),
        metrics.LOSS: result.loss,
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(float(value), rel=1e-9), name.name
    assert found[metrics.CLIP_RUNAWAY_FRAC] > 0
    assert result.output.sums[metrics.RATIO_MAX][0] == ratio_N.max()
    assert result.output.sums[metrics.RATIO_MIN][0] == ratio_N.min()


def test_the_gradient_is_made_of_the_slopes_that_are_public(compose_method, make_case, step):
    case = make_case(2, spread=0.6)
    for name in ("atr", "gspo", "gvpo", "rpg_reinforce_urkl"):
        objective = compose_method(name).objective
        result = step(objective, case)
        slopes = objective.slopes(result.batch, case.policy, result.prepared)
        torch.testing.assert_close(slopes.slope_BT, -result.gradient_BT, rtol=1e-12, atol=0.0)


def test_runaway_tokens_and_the_heaviest_one_are_measured_by_their_slopes(compose_method, make_case, step):
    case = make_case(2, spread=0.6)
    shares = {}
    for name in ("grpo", "dual_clip"):
        result = step(compose_method(name, "algorithm.reduction={kind: token_mean}").objective, case)
        mask_BT, details = case.batch.mask_BT, result.output.details
        slope_N = result.gradient_BT[mask_BT].double()
        runaway_N = ((details.gate_BT > 1.2) & (details.advantage_BT < 0.0))[mask_BT]
        sums = {
            name.name: (float(total), float(count)) for name, (total, count) in result.output.sums.items()
        }
        assert sums["objective/slope_squared_sum"][0] == pytest.approx(float((slope_N**2).sum()))
        assert sums["objective/slope_squared_max"][0] == pytest.approx(float((slope_N**2).max()))
        runaway, total = sums["objective/runaway_slope_frac"]
        assert runaway == pytest.approx(float(slope_N[runaway_N].abs().sum()))
        assert total == pytest.approx(float(slope_N.abs().sum()))
        shares[name] = runaway / total
    assert 0.0 < shares["dual_clip"] <= shares["grpo"] < 1.0


def test_the_regularizers_part_of_the_loss_is_measured(compose_method, make_case, step):
    method, case = compose_method("grpo_kl"), make_case(3)
    result, without = (
        step(method.objective, case),
        step(Objective(replace(method, regularizer=Regularizer())), case),
    )
    total, _ = result.output.sums[metrics.REGULARIZER]
    torch.testing.assert_close(total, result.loss - without.loss, rtol=1e-10, atol=1e-14)


def test_a_constant_window_of_any_name_runs_the_code_of_plain_clipping(compose_method):
    methods = [
        compose_method("grpo", f"divergence={kind}")
        for kind in ("ratio", "kl3", "chi2", "hellinger", "jensen_shannon", "alpha", "k2", "none")
    ]
    assert len({type(method.divergence).region for method in methods}) == 1
    assert len({replace(method, divergence=methods[0].divergence) for method in methods}) == 1


def test_a_method_reads_as_its_settings(compose_method):
    shown = repr(compose_method("atr"))
    for part in ("Advantage(baseline='group_mean'", "BudgetDivergence(kind='kl3'", "Clip(", "level='token'"):
        assert part in shown

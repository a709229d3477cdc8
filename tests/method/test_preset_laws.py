"""Laws that every preset obeys, from one table: the YAML files of conf/algorithm.

On-policy law, micro-batches, order, padding, masked positions, zero advantages, extreme ratios, degenerate
batches, and finite differences wherever a loss is meant to have the gradient of its value.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from atrium.method.batch import PolicyTokens
from atrium.method.objective import Objective
from atrium.method.regularizers import Regularizer

REGRESSION = "implicit_reward_regression"


def keeps_a_term_of_its_own(method):
    """Whether the surrogate itself pulls on the policy, even without an advantage and at its anchor."""
    return method.algorithm.surrogate.kind == REGRESSION and method.algorithm.surrogate.without != "nothing"


def reinforce_gradient(objective, case):
    """What A grad log pi with the objective's own reduction puts on each token's log-probability."""
    batch = objective.with_advantages(case.batch)
    policy = case.policy if objective.needs.prepare_pass else None
    prepared = objective.prepare(batch, policy, objective.initial_state())
    return -prepared.row_factor_B[:, None] * torch.where(batch.mask_BT, batch.advantage_BT, 0.0)


def test_every_preset_names_itself(preset, method):
    assert method.algorithm.name == preset


def test_the_declared_on_policy_law_holds(method, make_case, step):
    case = make_case(1).on_policy()
    objective, law = method.objective, method.algorithm.on_policy
    expected_BT = reinforce_gradient(objective, case)
    gradient_BT = step(objective, case).gradient_BT
    if law.law in ("exact", "scaled"):
        scale = 1.0 if law.scale is None else law.scale
        torch.testing.assert_close(gradient_BT, scale * expected_BT, rtol=1e-11, atol=1e-14)
        assert expected_BT.abs().sum() > 0
    else:
        assert law.reason
        assert not torch.allclose(gradient_BT, expected_BT, rtol=1e-6, atol=0.0)


def test_the_gradient_is_the_coefficient_times_the_rows_factor(method, make_case, step):
    result = step(method.objective, make_case(2))
    slope_BT = result.prepared.row_factor_B[:, None] * result.output.details.coefficient_BT
    torch.testing.assert_close(
        result.gradient_BT, -torch.where(result.batch.mask_BT, slope_BT, 0.0), rtol=1e-12, atol=1e-15
    )


def value_is_differentiated(method):
    """Whether the loss is a function whose own gradient is meant, rather than a weight times log pi."""
    surrogate = method.algorithm.surrogate
    detached_kl = any(
        kl.placement == "weight" or kl.correction == "detached_weight" or kl.without_alias().gradient == "k2"
        for kl in method.regularizer.penalties
    )
    detached_factor = method.algorithm.token_weight.kind == "future_ratio"
    preserves_gradient = surrogate.kind == "gradient_preserving_clip"
    return surrogate.form == "pathwise" and not (detached_kl or detached_factor or preserves_gradient)


def test_finite_differences_of_the_whole_loss_are_its_gradient(presets, compose_method, make_case, step):
    methods = {name: compose_method(name) for name in presets}
    checked = {name: method for name, method in methods.items() if value_is_differentiated(method)}
    assert {"atr", "grpo", "grpo_kl_corrected", "gspo", "gvpo", "rpg_fkl", "rpg_ufkl"} <= checked.keys()
    case = make_case(3, num_groups=2, group_size=3, num_tokens=4)
    for method in checked.values():
        assert_the_gradient_is_that_of_the_value(method, case, step)


def assert_the_gradient_is_that_of_the_value(method, case, step):
    size = 1e-6
    base = step(method.objective, case)
    for index in map(tuple, case.batch.mask_BT.nonzero().tolist()):
        ends = []
        for sign in (1.0, -1.0):
            moved_BT = case.policy.logprob_BT.clone()
            moved_BT[index] += sign * size
            moved = replace(case, policy=replace(case.policy, logprob_BT=moved_BT))
            ends.append(step(method.objective, moved, prepared=base.prepared).loss)
        numeric = ((ends[0] - ends[1]) / (2 * size)).item()
        expected = pytest.approx(base.gradient_BT[index].item(), rel=2e-6, abs=2e-9)
        assert numeric == expected, method.algorithm.name


def test_masked_positions_are_inert_even_as_nan(method, make_case, step):
    case = make_case(4)
    for clean in (case, case.on_policy()):
        poisoned = step(method.objective, clean.poisoned())
        plain = step(method.objective, clean.poisoned(-0.5))
        assert torch.equal(plain.loss, poisoned.loss)
        assert torch.equal(plain.gradient_BT, poisoned.gradient_BT)
        assert torch.equal(plain.entropy_gradient_BT, poisoned.entropy_gradient_BT)
        assert poisoned.gradient_BT[~clean.batch.mask_BT].abs().sum() == 0
        for name, (total, _) in poisoned.output.sums.items():
            assert torch.equal(total, plain.output.sums[name][0]), name.name


def test_the_split_into_micro_batches_does_not_matter(method, make_case, step):
    case = make_case(5)
    whole = step(method.objective, case)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    for parts in ([order[:3], order[3:4], order[4:]], [torch.tensor([row]) for row in order.tolist()]):
        split = step(method.objective, case, parts=parts)
        torch.testing.assert_close(split.loss, whole.loss, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(split.gradient_BT, whole.gradient_BT, rtol=1e-12, atol=1e-15)


def test_the_order_of_rows_does_not_matter(method, make_case, step):
    case = make_case(6)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1))
    plain, shuffled = step(method.objective, case), step(method.objective, case.select(order))
    torch.testing.assert_close(shuffled.loss, plain.loss, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(shuffled.gradient_BT, plain.gradient_BT[order], rtol=1e-12, atol=1e-15)


def test_rows_without_tokens_do_not_count(method, make_case, step):
    """Two more rows, one in a group of the batch and one of its own, all of whose tokens are masked."""
    case = make_case(13)
    batch = replace(case.batch, advantage_BT=method.objective.with_advantages(case.batch).advantage_BT)
    plain = step(method.objective, replace(case, batch=batch), scored=True)
    more = replace(case, batch=batch).select(torch.cat([torch.arange(16), torch.tensor([2, 9])]))
    mask_BT, group_B = more.batch.mask_BT.clone(), more.batch.group_B.clone()
    mask_BT[16:], group_B[17] = False, 1000
    more = replace(more, batch=replace(more.batch, mask_BT=mask_BT, group_B=group_B)).poisoned()
    result = step(method.objective, more, scored=True)
    torch.testing.assert_close(result.loss, plain.loss, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(result.gradient_BT[:16], plain.gradient_BT, rtol=1e-12, atol=1e-15)


def test_two_ranks_have_the_gradient_of_one(method, make_case, step, over_ranks):
    case, objective = make_case(12), method.objective
    whole = step(objective, case)
    halves = [case.select(torch.arange(4)), case.select(torch.arange(4, 16))]

    def prepared(half, sum_over_ranks):
        batch = objective.with_advantages(half.batch, sum_over_ranks)
        policy = half.policy if objective.needs.prepare_pass else None
        return batch, objective.prepare(batch, policy, objective.initial_state(), sum_over_ranks)

    parts = over_ranks([partial(prepared, half) for half in halves])
    steps = [
        step(objective, replace(half, batch=batch), prepared=constants, scored=True)
        for half, (batch, constants) in zip(halves, parts, strict=True)
    ]
    gradient_BT = torch.cat([part.gradient_BT for part in steps])
    torch.testing.assert_close(gradient_BT, whole.gradient_BT, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(steps[0].loss + steps[1].loss, whole.loss, rtol=1e-11, atol=1e-13)


def padded(case, num_columns):
    def pad(value):
        if isinstance(value, torch.Tensor) and value.dim() == 2:
            return torch.nn.functional.pad(value, (0, num_columns))
        return value

    batch = replace(
        case.batch,
        mask_BT=pad(case.batch.mask_BT),
        rollout_logprob_BT=pad(case.batch.rollout_logprob_BT),
        behavior_logprob_BT=pad(case.batch.behavior_logprob_BT),
        proximal_logprob_BT=pad(case.batch.proximal_logprob_BT),
        reference_logprob_BT=pad(case.batch.reference_logprob_BT),
    )
    policy = PolicyTokens(
        logprob_BT=pad(case.policy.logprob_BT),
        entropy_BT=pad(case.policy.entropy_BT),
        divergence_BT=pad(case.policy.divergence_BT),
    )
    return replace(case, batch=batch, policy=policy).poisoned()


def test_padding_does_not_matter(method, make_case, step):
    case = make_case(7)
    plain, longer = step(method.objective, case), step(method.objective, padded(case, 3))
    torch.testing.assert_close(longer.loss, plain.loss, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(longer.gradient_BT[:, :7], plain.gradient_BT, rtol=1e-12, atol=1e-15)


def test_no_advantage_and_no_regularizer_give_no_gradient(method, make_case, step):
    objective = Objective(replace(method, regularizer=Regularizer()))
    case = make_case(8)
    if method.algorithm.surrogate.kind == REGRESSION:  # its loss holds a KL, which is 0 at the anchor
        case = case.on_policy()
    batch = replace(case.batch, advantage_BT=torch.zeros_like(case.policy.logprob_BT))
    result = step(objective, replace(case, batch=batch), scored=True)
    assert (result.gradient_BT.abs().max() == 0) != keeps_a_term_of_its_own(method)


def test_log_ratios_of_60_stay_finite_in_float32(method, make_case, step):
    case = make_case(9).to(torch.float32)
    generator = torch.Generator().manual_seed(2)
    sign_BT = torch.sign(torch.randn(case.batch.mask_BT.shape, generator=generator))
    for far in ("policy", "rollout", "reference"):
        batch, policy = case.batch, case.policy
        near_BT = torch.full_like(policy.logprob_BT, -70.0)
        moved_BT = near_BT + 60.0 * sign_BT
        policy = replace(policy, logprob_BT=moved_BT if far == "policy" else near_BT)
        batch = replace(
            batch,
            behavior_logprob_BT=near_BT,
            proximal_logprob_BT=near_BT,
            rollout_logprob_BT=moved_BT if far == "rollout" else near_BT,
            reference_logprob_BT=moved_BT if far == "reference" else near_BT,
        )
        result = step(method.objective, replace(case, batch=batch, policy=policy))
        assert result.loss.isfinite()
        assert result.gradient_BT.isfinite().all()
        for name, (total, _) in result.output.sums.items():
            assert total.isfinite(), name.name


@pytest.mark.parametrize(
    "degenerate", ["no_rows", "no_columns", "all_masked", "single_tokens", "single_rows"]
)
def test_degenerate_batches_are_finite(method, make_case, step, degenerate):
    full = make_case(10)
    none_BT = torch.zeros_like(full.batch.mask_BT)
    case = {
        "no_rows": lambda: full.select(torch.zeros(0, dtype=torch.long)),
        "no_columns": lambda: make_case(10, num_tokens=0),
        "all_masked": lambda: make_case(10, mask_BT=none_BT).poisoned(),
        "single_tokens": lambda: make_case(10, num_tokens=1),
        "single_rows": lambda: make_case(10, num_groups=5, group_size=1),
    }[degenerate]()
    result = step(method.objective, case)
    assert result.loss.isfinite()
    assert result.gradient_BT.isfinite().all()
    if not case.batch.mask_BT.any():
        assert result.loss == 0
        assert result.gradient_BT.abs().sum() == 0


def test_equal_rewards_on_policy_pull_nowhere_without_a_regularizer(method, make_case, step):
    advantage = method.algorithm.advantage
    pulls = bool(advantage.offset) or keeps_a_term_of_its_own(method)
    rewards = torch.full((16,), 9999.7, dtype=torch.float64)
    case = make_case(11, reward_B=rewards).on_policy()
    objective = Objective(replace(method, regularizer=Regularizer()))
    assert (step(objective, case).gradient_BT.abs().max() <= 1e-6) != pulls

"""Choices of tokens: by rank, at random, by covariance, by what follows; alike however rows are split."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from atrium.method.batch import Batch, local_sum
from atrium.method.objective import Objective
from atrium.method.regularizers import Regularizer
from atrium.method.selection import largest, uniform
from atrium.method.token_weights import (
    FutureRatio,
    OffPolicyMask,
    RandomCovarianceDrop,
    SelectionInputs,
    TopCovariancePenalty,
    TopEntropy,
)


def inputs_of(case, advantage_BT, dropped_BT=None):
    batch = replace(case.batch, advantage_BT=advantage_BT)
    dropped_BT = torch.zeros_like(batch.mask_BT) if dropped_BT is None else dropped_BT
    return SelectionInputs(batch=batch, policy=case.policy, dropped_BT=dropped_BT)


def random_advantage(case, seed=0):
    return torch.randn(
        case.batch.mask_BT.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2, 7, 50, 999])
def test_the_largest_values_are_those_that_topk_finds(count, dtype):
    generator = torch.Generator().manual_seed(count)
    value_BT = torch.randn(12, 9, generator=generator).to(dtype) * 10.0 ** torch.randint(
        -20, 20, (12, 9), generator=generator
    )
    mask_BT = torch.rand(12, 9, generator=generator) < 0.7
    chosen_BT = largest(value_BT, mask_BT, torch.tensor(float(count)), local_sum)
    num_chosen = min(count, int(mask_BT.sum()))
    threshold = value_BT[mask_BT].topk(num_chosen).values[-1]
    assert torch.equal(chosen_BT, mask_BT & (value_BT >= threshold))


def test_the_largest_of_nothing_is_nothing_and_ties_stay_together():
    empty = torch.zeros(2, 3)
    assert not largest(empty, torch.zeros(2, 3, dtype=torch.bool), torch.tensor(1.0), local_sum).any()
    tied = torch.tensor([[1.0, 2.0, 2.0], [-0.0, 0.0, -5.0]])
    everything = torch.ones(2, 3, dtype=torch.bool)
    assert largest(tied, everything, torch.tensor(1.0), local_sum).sum() == 2
    assert largest(tied, everything, torch.tensor(4.0), local_sum).sum() == 5
    poisoned = torch.where(torch.tensor([[True, False, True]]), tied, torch.nan)
    assert largest(poisoned, ~poisoned.isnan(), torch.tensor(1.0), local_sum).sum() == 1


def test_the_largest_over_two_ranks_are_those_of_the_whole(over_ranks):
    generator = torch.Generator().manual_seed(3)
    value_BT = torch.randn(10, 8, generator=generator, dtype=torch.float64)
    mask_BT = torch.rand(10, 8, generator=generator) < 0.8
    count = torch.tensor(11.0)
    ranks = [partial(largest, value_BT[rows], mask_BT[rows], count) for rows in (slice(0, 4), slice(4, 10))]
    whole_BT = largest(value_BT, mask_BT, count, local_sum)
    assert torch.equal(torch.cat(over_ranks(ranks)), whole_BT)


def test_random_numbers_depend_on_row_key_token_and_purpose_alone():
    key_B = torch.tensor([5, 2**62, -3, 0, 1])
    draws = uniform(key_B, 200, 1)
    assert torch.equal(uniform(key_B.flip(0), 50, 1), draws.flip(0)[:, :50])
    assert not torch.equal(uniform(key_B, 200, 2), draws)
    many = uniform(torch.arange(2000), 100, 1)
    assert (many >= 0).all()
    assert (many < 1).all()
    assert many.mean().item() == pytest.approx(0.5, abs=3e-3)
    assert many.var().item() == pytest.approx(1 / 12, abs=1e-3)
    for lagged in (many[1:, :] * many[:-1, :], many[:, 1:] * many[:, :-1]):
        assert lagged.mean().item() == pytest.approx(0.25, abs=3e-3)
    assert len(many.unique()) == many.numel()


def test_top_entropy_keeps_what_the_quantile_keeps(make_case):
    case = make_case(1, num_groups=10)
    entropy_N = case.policy.entropy_BT[case.batch.mask_BT]
    for frac in (0.05, 0.2, 0.5, 1.0):
        factor_BT = TopEntropy(frac=frac).select(inputs_of(case, random_advantage(case)), local_sum)
        expected_N = entropy_N >= torch.quantile(entropy_N, 1 - frac)
        assert torch.equal(factor_BT[case.batch.mask_BT] == 1, expected_N)
        assert factor_BT[~case.batch.mask_BT].abs().sum() == 0


def covariance_of(case, advantage_BT):
    mask_BT = case.batch.mask_BT
    centred = [value - value[mask_BT].mean() for value in (advantage_BT, case.policy.logprob_BT)]
    return torch.where(mask_BT, centred[0] * centred[1], -math.inf)


def test_kl_cov_penalises_the_tokens_of_highest_covariance(make_case):
    case = make_case(2, num_groups=20)
    advantage_BT = random_advantage(case)
    factor_BT = TopCovariancePenalty(frac=0.05).select(inputs_of(case, advantage_BT), local_sum)
    count = int(0.05 * int(case.batch.mask_BT.sum()))
    covariance_BT = covariance_of(case, advantage_BT)
    threshold = covariance_BT.flatten().topk(count).values[-1]
    assert torch.equal(factor_BT == 1, covariance_BT >= threshold)


def test_kl_cov_adds_the_absolute_log_ratio_to_the_chosen_tokens_loss(compose_method, make_case, step):
    method = compose_method("kl_cov", "algorithm.token_weight.frac=0.2")
    case = make_case(3)
    with_penalty = step(method.objective, case)
    without = step(Objective(replace(method, regularizer=Regularizer())), case)
    chosen_BT = with_penalty.prepared.token_weight_BT
    sign_BT = torch.sign(case.policy.logprob_BT - case.batch.behavior_logprob_BT)
    expected_BT = chosen_BT * sign_BT / case.batch.mask_BT.sum()
    torch.testing.assert_close(
        with_penalty.gradient_BT - without.gradient_BT, expected_BT, rtol=1e-9, atol=1e-14
    )
    assert 0 < chosen_BT.sum() < case.batch.mask_BT.sum()


@pytest.mark.parametrize("frac", [0.05, 0.5, 1e-4])
def test_kl_cov_penalises_exactly_its_share_even_where_all_are_equal(make_case, over_ranks, frac):
    case = make_case(2, num_groups=20)
    num_tokens = int(case.batch.mask_BT.sum())
    expected = max(1, math.floor(frac * num_tokens))
    for advantage_BT in (torch.ones_like(case.policy.logprob_BT), random_advantage(case)):
        scored = replace(case, batch=replace(case.batch, advantage_BT=advantage_BT))
        whole_BT = kl_cov_choice(frac, scored, local_sum)
        assert int(whole_BT.sum()) == expected
        halves = [scored.select(torch.arange(30)), scored.select(torch.arange(30, 80))]
        found = over_ranks([partial(kl_cov_choice, frac, half) for half in halves])
        assert torch.equal(torch.cat(found), whole_BT)


def kl_cov_choice(frac, case, sum_over_ranks):
    dropped_BT = torch.zeros_like(case.batch.mask_BT)
    inputs = SelectionInputs(batch=case.batch, policy=case.policy, dropped_BT=dropped_BT)
    return TopCovariancePenalty(frac=frac).select(inputs, sum_over_ranks)


def test_clip_cov_drops_a_share_of_the_kept_tokens_within_its_bounds(make_case):
    case = make_case(4, num_groups=200)
    advantage_BT = random_advantage(case)
    dropped_BT = torch.rand(advantage_BT.shape, generator=torch.Generator().manual_seed(9)) < 0.3
    chosen = RandomCovarianceDrop(frac=0.02, lower=0.5, upper=1.5)
    factor_BT = chosen.select(inputs_of(case, advantage_BT, dropped_BT), local_sum)
    covariance_BT = covariance_of(case, advantage_BT)
    candidate_BT = (covariance_BT > 0.5) & (covariance_BT < 1.5) & ~dropped_BT
    taken_BT = factor_BT == 0
    assert not (taken_BT & ~candidate_BT).any()
    expected = 0.02 * int(case.batch.mask_BT.sum())
    assert abs(int(taken_BT.sum()) - expected) < 4 * expected**0.5
    assert int(candidate_BT.sum()) > 2 * expected
    everything = chosen.model_copy(update={"frac": 1.0})
    all_BT = everything.select(inputs_of(case, advantage_BT, dropped_BT), local_sum)
    assert torch.equal(all_BT == 0, candidate_BT)


def test_the_off_policy_mask_drops_far_rows_with_a_negative_advantage(make_case):
    case = make_case(5)
    advantage_BT = torch.where(torch.arange(16)[:, None] % 2 == 0, -1.0, 1.0).double().expand(16, 7)
    log_ratio_BT = case.policy.logprob_BT - case.batch.behavior_logprob_BT
    mask_BT = case.batch.mask_BT
    mean_B = torch.stack([-log_ratio_BT[row][mask_BT[row]].mean() for row in range(16)])
    delta = mean_B[mean_B > 0].median().item()
    batch = replace(case.batch, advantage_BT=advantage_BT)
    factor_BT = OffPolicyMask(delta=delta).weigh(None, torch.where(mask_BT, log_ratio_BT, 0.0), batch)
    assert torch.equal(factor_BT[:, 0] == 0, (mean_B > delta) & (advantage_BT[:, 0] < 0))


def test_the_off_policy_mask_judges_by_what_the_engine_sampled_with(compose_method, make_case, step):
    """The recomputed policy is the current one; the engine's is `distance` nats per known token above it."""
    current = make_case(5).on_policy()
    mask_BT = current.batch.mask_BT
    unknown_BT = torch.zeros_like(mask_BT)
    unknown_BT[::2, 0] = True
    known_frac_B = (mask_BT & ~unknown_BT).sum(dim=1) / mask_BT.sum(dim=1)
    for distance in (0.4, 0.6, 2.0):
        rollout_BT = (current.policy.logprob_BT + distance).masked_fill(unknown_BT, torch.nan)
        case = replace(current, batch=replace(current.batch, rollout_logprob_BT=rollout_BT))
        details = step(compose_method("dsv32_mask").objective, case).output.details
        far_B = distance * known_frac_B > 0.5
        expected_BT = mask_BT & (details.advantage_BT < 0.0) & far_B[:, None]
        dropped_BT = mask_BT & (details.advantage_BT != 0.0) & (details.coefficient_BT == 0.0)
        assert torch.equal(dropped_BT, expected_BT)
        assert bool(expected_BT.any()) is (distance > 0.5)


def test_future_ratio_is_the_bounded_exponential_of_discounted_log_ratios(make_case):
    case = make_case(6)
    mask_BT = case.batch.mask_BT
    log_ratio_BT = torch.where(mask_BT, case.policy.logprob_BT - case.batch.behavior_logprob_BT, 0.0)
    factor_BT = FutureRatio(half_life=3.0, lower=0.7, upper=1.4).weigh(None, log_ratio_BT, case.batch)
    for row in range(16):
        total = 0.0
        for position in reversed(range(7)):
            total = log_ratio_BT[row, position].item() + 2 ** (-1 / 3) * total
            assert factor_BT[row, position].item() == pytest.approx(min(max(math.exp(total), 0.7), 1.4))


def test_fipo_bounds_the_weight_of_runaway_tokens_and_leaves_them_out_of_sums(make_case):
    """Swift: f in [0.8, 1] where A < 0 and w > 3; tokens with w > 10 add nothing to the sums."""
    case = make_case(6)
    mask_BT = torch.ones_like(case.batch.mask_BT)
    advantage_BT = torch.where(torch.arange(16)[:, None] % 2 == 0, -1.0, 1.0).double().expand(16, 7)
    batch = replace(case.batch, mask_BT=mask_BT, advantage_BT=advantage_BT)
    log_ratio_BT = 2.0 * torch.randn(16, 7, generator=torch.Generator().manual_seed(1)).double()
    chosen = FutureRatio(half_life=32.0, lower=0.8, upper=1.2, safe_ratio=3.0, max_ratio=10.0)
    factor_BT = chosen.weigh(None, log_ratio_BT, batch)
    capped = 0
    for row in range(16):
        total = 0.0
        for position in reversed(range(7)):
            own = log_ratio_BT[row, position].item()
            total = (0.0 if own > math.log(10.0) else own) + 2 ** (-1 / 32) * total
            expected = min(max(math.exp(total), 0.8), 1.2)
            if row % 2 == 0 and own > math.log(3.0):
                capped += expected > 1.0
                expected = min(expected, 1.0)
            assert factor_BT[row, position].item() == pytest.approx(expected)
    assert capped
    assert (log_ratio_BT > math.log(10.0)).any()


def test_fipo_needs_no_matrix_of_positions_by_positions():
    log_ratio_BT = torch.zeros(1, 60_000)
    log_ratio_BT[0, -1] = 0.1
    batch = Batch(
        mask_BT=torch.ones(1, 60_000, dtype=torch.bool),
        reward_B=torch.ones(1).double(),
        group_B=torch.zeros(1, dtype=torch.int64),
        sample_key_B=torch.zeros(1, dtype=torch.int64),
        rollout_logprob_BT=log_ratio_BT,
        is_trained_B=torch.ones(1, dtype=torch.bool),
        advantage_BT=torch.ones(1, 60_000),
    )
    factor_BT = FutureRatio(half_life=1000.0, lower=0.5, upper=2.0).weigh(None, log_ratio_BT, batch)
    for distance in (0, 1, 999, 59_999):
        expected = math.exp(0.1 * 2 ** (-distance / 1000))
        assert factor_BT[0, 59_999 - distance].item() == pytest.approx(expected, rel=1e-5)

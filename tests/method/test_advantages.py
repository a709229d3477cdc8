"""Advantages against hand calculation, and where float32 or careless statistics go wrong."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from atrium.method.advantages import Advantage
from atrium.method.batch import Batch, local_sum


def make_batch(reward_B, *, group_B=None, mask_BT=None):
    reward_B = torch.as_tensor(reward_B, dtype=torch.float64)
    num_rows = len(reward_B)
    if mask_BT is None:
        mask_BT = torch.ones(num_rows, 3, dtype=torch.bool)
    return Batch(
        mask_BT=mask_BT,
        reward_B=reward_B,
        group_B=torch.zeros(num_rows, dtype=torch.long) if group_B is None else torch.tensor(group_B),
        sample_key_B=torch.arange(num_rows),
        rollout_logprob_BT=torch.zeros(mask_BT.shape, dtype=torch.float64),
        is_trained_B=torch.ones(num_rows, dtype=torch.bool),
    )


def of_rows(advantage, batch, penalty_BT=None):
    return advantage.compute(batch, penalty_BT, local_sum)[:, 0]


GROUPED = {"reward_B": [1.0, 0.0, 0.0, 1.0, 3.0, 3.5], "group_B": [5, 5, 5, 5, 2, 2]}


def test_group_mean_subtracts_the_mean_of_the_rows_own_group():
    found_B = of_rows(Advantage(), make_batch(**GROUPED))
    assert found_B.tolist() == pytest.approx([0.5, -0.5, -0.5, 0.5, -0.25, 0.25])


@pytest.mark.parametrize(("ddof", "deviation"), [(1, (1 / 3) ** 0.5), (0, 0.5)])
def test_the_deviation_divides_by_n_minus_ddof(ddof, deviation):
    advantage = Advantage(scale="group_std", ddof=ddof, epsilon=1e-4)
    found_B = of_rows(advantage, make_batch([1.0, 0.0, 0.0, 1.0]))
    assert found_B.tolist() == pytest.approx([x * 0.5 / (deviation + 1e-4) for x in (1, -1, -1, 1)])


def test_sample_and_population_deviation_differ_by_seven_percent_at_eight():
    batch = make_batch([1.0, 0, 0, 1, 1, 0, 0, 1])
    ratio = (
        of_rows(Advantage(scale="group_std", ddof=0, epsilon=0.0), batch)[0]
        / of_rows(Advantage(scale="group_std", ddof=1, epsilon=0.0), batch)[0]
    )
    assert ratio.item() == pytest.approx((8 / 7) ** 0.5)


def test_leave_one_out_subtracts_the_mean_of_the_others():
    reward_B = [1.0, 0.25, 0.5, 0.0]
    found_B = of_rows(Advantage(baseline="leave_one_out"), make_batch(reward_B))
    others = [reward - (sum(reward_B) - reward) / 3 for reward in reward_B]
    assert found_B.tolist() == pytest.approx(others)


def test_batch_statistics_run_over_all_rows():
    rewards = torch.tensor(GROUPED["reward_B"], dtype=torch.float64)
    found_B = of_rows(Advantage(baseline="batch_mean", scale="batch_std", epsilon=0.0), make_batch(**GROUPED))
    torch.testing.assert_close(found_B, (rewards - rewards.mean()) / rewards.std())
    lite_B = of_rows(Advantage(baseline="group_mean", scale="batch_std", epsilon=0.0), make_batch(**GROUPED))
    torch.testing.assert_close(lite_B, of_rows(Advantage(), make_batch(**GROUPED)) / rewards.std())


def test_an_offset_is_part_of_the_baseline():
    found_B = of_rows(Advantage(offset=-0.1), make_batch([1.0, 0.0]))
    assert found_B.tolist() == pytest.approx([0.6, -0.4])


@pytest.mark.parametrize("scale", ["none", "group_std", "batch_std", "token_std"])
@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
def test_large_rewards_lose_nothing(baseline, scale):
    advantage = Advantage(baseline=baseline, scale=scale)
    small = [0.0, 1e-3, 2e-3, 5e-3]
    near_zero_BT = advantage.compute(make_batch(small), None, local_sum)
    shifted_BT = advantage.compute(make_batch([1e4 + reward for reward in small]), None, local_sum)
    torch.testing.assert_close(shifted_BT, near_zero_BT, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("reward", [0.1, 1e4 + 0.1, -7.3])
@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
def test_equal_rewards_give_exactly_nothing(reward, baseline):
    advantage = Advantage(baseline=baseline, scale="group_std")
    assert of_rows(advantage, make_batch([reward] * 7)).tolist() == [0.0] * 7


def test_a_group_of_one_has_no_advantage():
    for scale in ("none", "group_std"):
        for baseline in ("group_mean", "leave_one_out"):
            advantage = Advantage(baseline=baseline, scale=scale)
            assert of_rows(advantage, make_batch([4.0, 2.0], group_B=[0, 1])).tolist() == [0.0, 0.0]


def test_groups_need_not_be_contiguous():
    reward_B, order = torch.tensor(GROUPED["reward_B"]), torch.tensor([4, 0, 5, 1, 3, 2])
    advantage = Advantage(scale="group_std")
    plain_B = of_rows(advantage, make_batch(**GROUPED))
    group_B = torch.tensor(GROUPED["group_B"])[order].tolist()
    assert torch.equal(of_rows(advantage, make_batch(reward_B[order], group_B=group_B)), plain_B[order])


def test_token_returns_are_discounted_sums_of_reward_less_penalties():
    mask_BT = torch.tensor([[True, True, True], [True, True, False]])
    penalty_BT = torch.tensor([[0.1, 0.2, 0.3], [0.5, 0.25, torch.nan]], dtype=torch.float64)
    advantage = Advantage(baseline="none", returns="token", discount=0.5)
    found_BT = advantage.compute(make_batch([1.0, 2.0], mask_BT=mask_BT), penalty_BT, local_sum)
    second = [2.0 - 0.25, -0.5 + 0.5 * (2.0 - 0.25)]
    first = [0.7, -0.2 + 0.35, -0.1 + 0.5 * 0.15]
    assert found_BT[0].tolist() == pytest.approx(first[::-1])
    assert found_BT[1].tolist() == pytest.approx([*second[::-1], 0.0])


def test_whitening_runs_over_unmasked_tokens():
    mask_BT = torch.tensor([[True, True, True], [True, False, False]])
    advantage = Advantage(baseline="none", whiten="tokens", whiten_epsilon=0.01)
    found_BT = advantage.compute(make_batch([1.0, 4.0], mask_BT=mask_BT), None, local_sum)
    values = torch.tensor([1.0, 1.0, 1.0, 4.0], dtype=torch.float64)
    expected = (values - values.mean()) * torch.rsqrt(values.var() + 0.01)
    torch.testing.assert_close(found_BT[mask_BT], expected, rtol=1e-12, atol=0.0)
    assert found_BT[~mask_BT].abs().sum() == 0


def test_a_penalty_in_the_reward_lowers_a_sequences_return_by_its_sum():
    penalty_BT = torch.tensor([[0.1, 0.2, 0.3], [0.0, 0.0, torch.nan]], dtype=torch.float64)
    mask_BT = torch.tensor([[True, True, True], [True, True, False]])
    found_B = of_rows(Advantage(baseline="none"), make_batch([1.0, 2.0], mask_BT=mask_BT), penalty_BT)
    assert found_B.tolist() == pytest.approx([0.4, 2.0])


@pytest.mark.parametrize("scale", ["none", "group_std", "batch_std", "token_std"])
@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out", "batch_mean", "none"])
def test_statistics_add_up_over_ranks(over_ranks, baseline, scale):
    whole = make_batch(**GROUPED)
    advantage = Advantage(baseline=baseline, scale=scale)
    halves = [whole.select(torch.arange(4)), whole.select(torch.arange(4, 6))]
    parts = over_ranks([partial(advantage.compute, half, None) for half in halves])
    torch.testing.assert_close(
        torch.cat(parts), advantage.compute(whole, None, local_sum), rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("reward", [0.0, 0.1])
@pytest.mark.parametrize("offset", [0.0, 0.25])
@pytest.mark.parametrize("baseline", ["none", "group_mean", "leave_one_out", "batch_mean"])
@pytest.mark.parametrize("scale", ["group_std", "batch_std", "token_std"])
@pytest.mark.parametrize("returns", ["sequence", "token"])
def test_epsilon_0_gives_equal_rewards_advantage_0(scale, baseline, offset, reward, returns):
    advantage = Advantage(scale=scale, baseline=baseline, offset=offset, epsilon=0.0, returns=returns)
    found_BT = advantage.compute(make_batch([reward] * 7), None, local_sum)
    assert found_BT.tolist() == [[0.0] * 3] * 7


def test_epsilon_0_leaves_the_other_groups_of_a_silent_one_as_they_are():
    batch = make_batch([0.1, 0.1, 0.1, 1.0, 0.0, 0.0], group_B=[0, 0, 0, 1, 1, 1])
    found_B = of_rows(Advantage(scale="group_std", ddof=0, epsilon=0.0), batch)
    assert found_B[:3].tolist() == [0.0, 0.0, 0.0]
    assert found_B[3:].tolist() == pytest.approx([2**0.5, -(0.5**0.5), -(0.5**0.5)])


@pytest.mark.parametrize("scale", ["none", "group_std", "batch_std", "token_std"])
def test_reward_that_is_not_finite_stays_visible_in_the_advantage(scale):
    found_BT = Advantage(scale=scale, epsilon=0.0).compute(
        make_batch([1.0, float("nan"), 0.0]), None, local_sum
    )
    assert found_BT[1].isnan().all()


def test_scale_token_std_is_the_earlier_name_of_whitened_tokens():
    assert Advantage(scale="token_std", epsilon=0.01) == Advantage(whiten="tokens", whiten_epsilon=0.01)
    with pytest.raises(ValueError, match="earlier name"):
        Advantage(scale="token_std", whiten="rows")


def test_whitening_over_completions_divides_by_their_deviation_plus_epsilon():
    found_B = of_rows(Advantage(baseline="none", whiten="rows", whiten_epsilon=0.5), make_batch([1.0, 4.0]))
    assert found_B.tolist() == pytest.approx([-1.5 / (4.5**0.5 + 0.5), 1.5 / (4.5**0.5 + 0.5)])
    equal_B = of_rows(Advantage(baseline="none", whiten="rows", whiten_epsilon=0.0), make_batch([0.1] * 3))
    assert equal_B.tolist() == [0.0, 0.0, 0.0]


def test_length_weighted_baseline_makes_the_advantages_of_a_groups_tokens_sum_to_0():
    mask_BT = torch.tensor([[True, True, True], [True, False, False], [False, True, True]])
    advantage = Advantage(baseline="length_weighted")
    found_BT = advantage.compute(make_batch([1.0, 0.0, 0.5], mask_BT=mask_BT), None, local_sum)
    assert found_BT.sum().item() == pytest.approx(0.0, abs=1e-15)
    assert found_BT[:, 1].tolist() == pytest.approx([1.0 - 4 / 6, 0.0, 0.5 - 4 / 6])
    equal_B = of_rows(advantage, make_batch(**GROUPED))
    torch.testing.assert_close(equal_B, of_rows(Advantage(), make_batch(**GROUPED)))


def test_length_weighted_baseline_of_a_group_without_tokens_is_the_plain_mean():
    mask_BT = torch.zeros(2, 3, dtype=torch.bool)
    batch = make_batch([1.0, 0.0], mask_BT=mask_BT)
    centred_B = Advantage(baseline="length_weighted")._centred(
        batch.reward_B, batch.group_B, mask_BT.sum(dim=1).double(), local_sum
    )
    assert centred_B.tolist() == [0.5, -0.5]


@pytest.mark.parametrize(
    ("reward_B", "expected"),
    [
        ([0.0, 1.0, 0.25], [0.0, 0.75, 0.0]),
        ([1.0, 1.0, 0.0], [0.0, 0.0, 0.0]),
        ([-3.0, -1.0, -2.0], [0.0, 1.0, 0.0]),
        ([4.0], [0.0]),
    ],
)
def test_runner_up_baseline_gives_the_lead_to_the_best_completion_alone(reward_B, expected):
    assert of_rows(Advantage(baseline="runner_up"), make_batch(reward_B)).tolist() == expected


def test_group_mean_as_scale_is_invariant_to_scaling_and_0_without_a_positive_mean():
    advantage = Advantage(scale="group_mean", epsilon=0.0)
    found_B = of_rows(advantage, make_batch([1.0, 0.0, 0.0, 0.0]))
    assert found_B.tolist() == pytest.approx([3.0, -1.0, -1.0, -1.0])
    torch.testing.assert_close(of_rows(advantage, make_batch([7.0, 0.0, 0.0, 0.0])), found_B)
    assert of_rows(advantage, make_batch([-1.0, -2.0])).tolist() == [0.0, 0.0]
    assert of_rows(advantage, make_batch([0.0, 0.0])).tolist() == [0.0, 0.0]
    half = make_batch([1.0, 1.0, 0.0, 0.0])
    grpo = Advantage(scale="group_std", ddof=0, epsilon=0.0)
    torch.testing.assert_close(of_rows(advantage, half), of_rows(grpo, half))


def test_nonzero_frac_scales_by_the_share_of_rewards_other_than_0(over_ranks):
    advantage, whole = Advantage(scale="nonzero_frac"), make_batch(**GROUPED)
    found_B = of_rows(advantage, whole)
    torch.testing.assert_close(found_B, of_rows(Advantage(), whole) * 6 / 4)
    halves = [whole.select(torch.arange(4)), whole.select(torch.arange(4, 6))]
    parts = over_ranks([partial(advantage.compute, half, None) for half in halves])
    torch.testing.assert_close(torch.cat(parts)[:, 0], found_B)
    assert of_rows(advantage, make_batch([0.0, 0.0])).tolist() == [0.0, 0.0]

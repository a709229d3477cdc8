"""Advantages from several rewards: GDPO against numpy, and its laws."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

import atrium
from atrium.base.errors import ConfigError
from atrium.method.advantages import Advantage
from atrium.method.batch import Batch, local_sum

GROUP_B = np.array([3, 3, 3, 3, 8, 8, 8, 8, 5, 5])
WEIGHTS = {"correct": 1.0, "form": 0.5, "short": -0.25}


def random_rewards(seed=0, *, abstain=0.0):
    rng = np.random.default_rng(seed)
    found = {name: rng.integers(0, 3, len(GROUP_B)).astype(float) for name in WEIGHTS}
    found["form"][4:8] = 1.0  # no variance in a group
    for name in ("correct", "short"):
        found[name][rng.random(len(GROUP_B)) < abstain] = np.nan
    return found


def random_mask(seed=0):
    lengths = np.random.default_rng(seed).integers(1, 7, len(GROUP_B))
    return torch.tensor(np.arange(6) < lengths[:, None])


def gdpo(rewards, weights, mask_BT, *, epsilon, whiten, whiten_epsilon):
    """GDPO in numpy, written from the formula: loops over rewards and groups."""
    total = np.zeros(len(GROUP_B))
    has_value = ~np.isnan(np.stack([rewards[name] for name in weights])).all(axis=0)
    for name, weight in weights.items():
        for group in np.unique(GROUP_B):
            rows = np.flatnonzero((group == GROUP_B) & ~np.isnan(rewards[name]))
            if len(rows) > 1:
                values = rewards[name][rows]
                total[rows] += weight * (values - values.mean()) / (values.std(ddof=1) + epsilon)
    counted = (mask_BT.numpy() if whiten == "tokens" else np.ones((len(total), 1), bool)) & has_value[:, None]
    spread = np.broadcast_to(total[:, None], counted.shape)[counted]
    if whiten == "tokens":
        total = (total - spread.mean()) / np.sqrt(spread.var(ddof=1) + whiten_epsilon)
    elif whiten == "rows":
        total = (total - spread.mean()) / (spread.std(ddof=1) + whiten_epsilon)
    return np.where(mask_BT.numpy() & has_value[:, None], total[:, None], 0.0)


def of_method(method, rewards, weights, mask_BT):
    given = {name: torch.tensor(value) for name, value in rewards.items()}
    return method.advantages(mask_BT, rewards=given, weights=weights, group_B=torch.tensor(GROUP_B))


@pytest.mark.parametrize("abstain", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("name", ["gdpo", "gdpo_tokens"])
def test_the_preset_is_gdpo_in_numpy(name, abstain):
    method, mask_BT = atrium.load_method(name), random_mask()
    chosen = method.method.algorithm.advantage
    settings = {key: getattr(chosen, key) for key in ("epsilon", "whiten", "whiten_epsilon")}
    for seed in range(20):
        rewards = random_rewards(seed, abstain=abstain)
        expected_BT = gdpo(rewards, WEIGHTS, mask_BT, **settings)
        found_BT = of_method(method, rewards, WEIGHTS, mask_BT).double().numpy()
        np.testing.assert_allclose(found_BT, expected_BT, rtol=1e-6, atol=1e-6)
        assert np.abs(expected_BT).max() > 0.5


def make_batch(rewards, weights, mask_BT=None):
    mask_BT = random_mask() if mask_BT is None else mask_BT
    names = sorted(weights)
    reward_BK = torch.tensor(np.stack([rewards[name] for name in names], axis=1))
    weight_K = torch.tensor([weights[name] for name in names], dtype=torch.float64)
    return Batch(
        mask_BT=mask_BT,
        reward_B=(reward_BK * weight_K).nansum(dim=1),
        reward_BK=reward_BK,
        weight_BK=weight_K.expand_as(reward_BK),
        group_B=torch.tensor(GROUP_B),
        sample_key_B=torch.arange(len(GROUP_B)),
        rollout_logprob_BT=torch.zeros(mask_BT.shape, dtype=torch.float64),
        is_trained_B=mask_BT.any(dim=1),
    )


EVERY = [
    {"baseline": "group_mean", "scale": "group_std"},
    {"baseline": "group_mean", "scale": "none", "whiten": "rows"},
    {"baseline": "leave_one_out", "scale": "batch_std", "whiten": "tokens"},
    {"baseline": "batch_mean", "scale": "group_mean"},
    {"baseline": "length_weighted", "scale": "nonzero_frac"},
    {"baseline": "none", "returns": "token", "discount": 0.9},
]


@pytest.mark.parametrize("settings", EVERY)
def test_one_reward_of_weight_1_gives_todays_numbers_bit_for_bit(settings):
    batch = make_batch(random_rewards(), {"correct": 1.0})
    alone = replace(batch, reward_BK=None, weight_BK=None)
    expected_BT = Advantage(**settings).compute(alone, None, local_sum)
    for per_reward in (False, True):
        for given in (batch, alone):
            advantage = Advantage(**settings, per_reward=per_reward)
            assert torch.equal(advantage.compute(given, None, local_sum), expected_BT)
    assert expected_BT.abs().sum() > 0


def test_adding_up_first_reads_the_sum_alone():
    batch = make_batch(random_rewards(), WEIGHTS)
    advantage = Advantage(baseline="group_mean", scale="group_std")
    found_BT = advantage.compute(batch, None, local_sum)
    alone = replace(batch, reward_BK=None, weight_BK=None)
    assert torch.equal(found_BT, advantage.compute(alone, None, local_sum))
    per_reward_BT = advantage.model_copy(update={"per_reward": True}).compute(batch, None, local_sum)
    assert not torch.allclose(found_BT, per_reward_BT)


@pytest.mark.parametrize("name", ["grpo", "gdpo", "gdpo_tokens"])
def test_neither_the_order_of_rewards_nor_one_of_weight_0_changes_a_bit(name):
    method, rewards, mask_BT = atrium.load_method(name), random_rewards(abstain=0.3), random_mask()
    expected_BT = of_method(method, rewards, WEIGHTS, mask_BT)
    for order in itertools.permutations(WEIGHTS):
        ordered = {key: rewards[key] for key in order}
        assert torch.equal(of_method(method, ordered, WEIGHTS, mask_BT), expected_BT)
    idle = {**rewards, "idle": np.arange(len(GROUP_B), dtype=float)}
    assert torch.equal(of_method(method, idle, {**WEIGHTS, "idle": 0.0}, mask_BT), expected_BT)


def test_reordered_rows_reorder_advantages():
    batch = make_batch(random_rewards(abstain=0.3), WEIGHTS)
    order = torch.randperm(len(GROUP_B), generator=torch.Generator().manual_seed(0))
    for settings in EVERY:
        advantage = Advantage(**settings, per_reward=True)
        moved_BT = advantage.compute(batch.select(order), None, local_sum)
        torch.testing.assert_close(moved_BT, advantage.compute(batch, None, local_sum)[order])


def test_fewer_tokens_keep_every_reward():
    batch = make_batch(random_rewards(), WEIGHTS)
    assert batch.select(torch.arange(2), num_tokens=1).reward_BK.shape == (2, 3)


def test_a_reward_without_variance_in_a_group_adds_nothing_to_it():
    advantage = Advantage(baseline="group_mean", scale="group_std", epsilon=0.0, per_reward=True)
    rewards = random_rewards()
    rewards["form"] = np.where(GROUP_B == 8, 0.1, rewards["form"])
    rows = torch.tensor(GROUP_B == 8)
    both_BT = advantage.compute(make_batch(rewards, {"correct": 1.0, "form": 7.0}), None, local_sum)
    one_BT = advantage.compute(make_batch(rewards, {"correct": 1.0}), None, local_sum)
    assert torch.equal(both_BT[rows], one_BT[rows])
    assert not torch.allclose(both_BT[~rows], one_BT[~rows])


def test_masked_positions_may_hold_anything():
    batch = make_batch(random_rewards(abstain=0.3), WEIGHTS)
    poisoned = replace(batch, rollout_logprob_BT=torch.where(batch.mask_BT, 0.0, torch.nan).double())
    for settings in EVERY:
        advantage = Advantage(**settings, per_reward=True)
        found_BT = advantage.compute(poisoned, None, local_sum)
        assert torch.equal(found_BT, advantage.compute(batch, None, local_sum))
        assert not found_BT[~batch.mask_BT].any()


@pytest.mark.parametrize("settings", EVERY)
def test_ranks_with_whole_groups_give_the_advantages_of_one_process(settings):
    batch = make_batch(random_rewards(abstain=0.4), WEIGHTS)
    advantage = Advantage(**settings, per_reward=True)
    whole_BT = advantage.compute(batch, None, local_sum)
    shares = [torch.tensor(group == GROUP_B) for group in np.unique(GROUP_B)]
    calls = []  # the sums that each share adds, in their order

    def asks(share):
        seen = []

        def record(value):
            place = len(seen)
            seen.append(value)
            return calls[place] if place < len(calls) else value

        return seen, advantage.compute(batch.select(share.nonzero()[:, 0]), None, record)

    for _ in range(16):  # each round settles one more sum
        found = [asks(share) for share in shares]
        num = len(found[0][0])
        if len(calls) == num:
            break
        calls.append(sum(seen[len(calls)] for seen, _ in found))
    assert all(len(seen) == num for seen, _ in found), "every rank adds as often"
    for share, (_, found_BT) in zip(shares, found, strict=True):
        torch.testing.assert_close(found_BT, whole_BT[share], rtol=1e-12, atol=1e-12)


def test_what_per_reward_cannot_go_with_is_refused():
    kl = "regularizer.kl={placement: reward, coefficient: 0.1, estimator: k1, anchor: reference}"
    with pytest.raises(ConfigError, match=r"per_reward=true uses several; choose placement=loss"):
        atrium.load_method("gdpo", kl, "algorithm.reference.kind=frozen")


def test_wrong_rewards_are_named():
    method, mask_BT, rewards = atrium.load_method("gdpo"), random_mask(), random_rewards()
    with pytest.raises(ValueError, match="unknown reward 'from' in weights"):
        of_method(method, rewards, {"from": 1.0}, mask_BT)
    with pytest.raises(ValueError, match="weights\\['form'\\] must be"):
        of_method(method, rewards, {"form": float("inf")}, mask_BT)
    with pytest.raises(ValueError, match="rewards\\['form'\\] must have shape"):
        of_method(method, {**rewards, "form": np.zeros(3)}, {}, mask_BT)
    with pytest.raises(ConfigError, match="requires several rewards"):
        atrium.peers.trainers.VERL.check(method.method)

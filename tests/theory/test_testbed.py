"""The tabular policy against identities that hold for any autoregressive distribution."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.theory.conftest import shipped

from atrium.method.objective import Objective
from atrium.theory.testbed import Tabular, batch_of, kl, relative_error, tokens_of, total_variation


@pytest.mark.parametrize(("num_tokens", "vocabulary"), [(1, 5), (2, 3), (3, 4)])
def test_probabilities_of_all_completions_sum_to_one(num_tokens, vocabulary):
    policy = Tabular.random(0, num_tokens, vocabulary=vocabulary)
    assert policy.num_completions == vocabulary**num_tokens
    assert policy.logprob_BT().shape == (policy.num_completions, num_tokens)
    assert policy.logprob_B().exp().sum().item() == pytest.approx(1.0, rel=1e-12)
    rows_of_one_prefix = policy.logprob_BT()[:vocabulary, -1]
    assert rows_of_one_prefix.exp().sum().item() == pytest.approx(1.0, rel=1e-12)


def test_a_completions_tokens_have_the_probabilities_of_their_distributions():
    policy = Tabular.random(1, 3, vocabulary=2)
    next_BTV = policy.next_logprob_BTV()
    tokens_BT = torch.tensor([[row >> 2 & 1, row >> 1 & 1, row & 1] for row in range(8)])
    assert torch.equal(policy.token_BT(), tokens_BT)
    found_BT = next_BTV.gather(-1, tokens_BT[:, :, None])[:, :, 0]
    torch.testing.assert_close(found_BT, policy.logprob_BT(), rtol=0.0, atol=0.0)


def test_entropy_and_kl_obey_the_chain_rule():
    policy = Tabular.random(2, 3)
    other = policy.near(3, 0.8)
    assert policy.expected(policy.entropy_BT().sum(dim=1)).item() == pytest.approx(
        policy.entropy().item(), rel=1e-12
    )
    next_BTV = policy.next_logprob_BTV()
    state_kl_BT = (next_BTV.exp() * (next_BTV - other.next_logprob_BTV())).sum(dim=-1)
    whole = kl(policy.logprob_B(), other.logprob_B()).item()
    assert policy.expected(state_kl_BT.sum(dim=1)).item() == pytest.approx(whole, rel=1e-12)
    assert kl(policy.logprob_B(), policy.logprob_B()).item() == 0.0


def test_pinskers_inequality_bounds_total_variation():
    policy = Tabular.random(4, 2)
    for seed in range(5):
        other = policy.near(seed, 1.0)
        distance = total_variation(policy.logprob_B(), other.logprob_B()).item()
        assert 0.0 < distance <= math.sqrt(0.5 * kl(policy.logprob_B(), other.logprob_B()).item())


def test_the_gradient_of_the_expected_reward_is_its_slope():
    policy = Tabular.random(5, 2).trainable()
    reward_B = torch.linspace(-1.0, 2.0, 9, dtype=torch.float64)
    gradient = policy.gradient(policy.expected(reward_B))
    direction = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    size = 1e-5
    up, down = (policy.moved(direction, sign * size).expected(reward_B) for sign in (1.0, -1.0))
    assert ((up - down) / (2.0 * size)).item() == pytest.approx((gradient @ direction).item(), rel=1e-8)


def test_equal_seeds_give_equal_policies_and_near_ones_are_at_the_distance():
    a, b = Tabular.random(6, 2, spread=0.5), Tabular.random(6, 2, spread=0.5)
    assert all(torch.equal(x, y) for x, y in zip(a.logits, b.logits, strict=True))
    assert relative_error(a.near(7, 0.0).logprob_B(), a.logprob_B()) == 0.0
    moved = torch.cat([(x - y).flatten() for x, y in zip(a.near(7, 2.0).logits, a.logits, strict=True)])
    expected = torch.cat([part.flatten() for part in Tabular.random(7, 2, spread=2.0).logits])
    torch.testing.assert_close(moved, expected)


@pytest.mark.parametrize("name", ["tr_ppo", "dppo_top_k_kl", "dppo_top_k_tv", "eighty_twenty", "grpo"])
def test_an_objective_gets_what_it_needs_and_no_more(name):
    objective = shipped(name)
    behavior = Tabular.random(8, 2, vocabulary=4)
    policy = behavior.near(9, 0.5)
    rows = torch.tensor([3, 3, 15, 0])
    tokens = tokens_of(policy, rows, objective, behavior)
    assert (tokens.entropy_BT is None) == (objective.needs.entropy == "none")
    assert (tokens.divergence_BT is None) == (objective.needs.distribution == "none")
    torch.testing.assert_close(tokens.logprob_BT, policy.logprob_BT()[rows])
    if name == "tr_ppo":
        next_BTV = behavior.next_logprob_BTV()
        truth_BT = (next_BTV.exp() * (next_BTV - policy.next_logprob_BTV())).sum(dim=-1)
        torch.testing.assert_close(tokens.divergence_BT, truth_BT[rows])
    batch = batch_of(rows, behavior=behavior, reward_B=rows.double(), group_B=torch.tensor([0, 0, 1, 1]))
    torch.testing.assert_close(batch.behavior_logprob_BT, behavior.logprob_BT()[rows])
    assert torch.equal(batch.reference_logprob_BT, batch.behavior_logprob_BT)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dppo_top_k_tv", 0.29),
        ("dppo_top_k_kl", 0.01 * math.log(0.01 / 0.30) + 0.69 * math.log(0.69 / 0.40)),
    ],
)
def test_a_top_k_divergence_sees_an_unlikely_sampled_token_move(name, expected):
    before, after = [0.30, 0.25, 0.22, 0.22, 0.01], [0.30, 0.25, 0.075, 0.075, 0.30]
    behavior, policy = (Tabular((torch.tensor(p, dtype=torch.float64).log(),)) for p in (before, after))
    objective = shipped(name)
    two = objective.method.divergence.model_copy(update={"top_k": 2})
    objective = Objective(replace(objective.method, divergence=two))
    tokens = tokens_of(policy, torch.tensor([4]), objective, behavior)
    assert tokens.divergence_BT.item() == pytest.approx(expected)

"""GVPO's optimum does not depend on who wrote the completions; GRPO's does. By enumeration, no sampling.

Groups of two, as `gvpo_offpolicy` makes them: one completion of the policy at the start of the step, one
stored. All pairs are enumerated, each weighted by its probability, so that losses are exact expectations
over groups and minimising them finds the method's optimum. Source: arXiv 2504.19599, Theorems 1 and 2.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from atrium.method.batch import Batch, PolicyTokens

VOCABULARY, LENGTH = 3, 2
NUM_COMPLETIONS = VOCABULARY**LENGTH
BETA = 0.4


class Table:
    """An autoregressive softmax policy of two tokens: logits of the first, and of the second given it."""

    def __init__(self, seed, spread=1.0):
        generator = torch.Generator().manual_seed(seed)
        shapes = [(VOCABULARY,), (VOCABULARY, VOCABULARY)]
        self.logits = [spread * torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]

    def logprob_CT(self):
        """Log-probabilities of each completion's tokens, completions in lexicographic order."""
        first_C = self.logits[0].log_softmax(-1).repeat_interleave(VOCABULARY)
        return torch.stack([first_C, self.logits[1].log_softmax(-1).flatten()], dim=1)

    def probability_C(self):
        return self.logprob_CT().sum(dim=1).exp().detach()


def all_pairs(behavior, stored):
    """Every group of a live and a stored completion as a batch, which completion each row is, its weight."""
    pairs = list(itertools.product(range(NUM_COMPLETIONS), repeat=2))
    row_B = torch.tensor(pairs).flatten()
    live_C, stored_C = behavior.probability_C(), stored.probability_C()
    weight_P = torch.stack([live_C[one] * stored_C[other] for one, other in pairs])
    behavior_BT = behavior.logprob_CT().detach()[row_B]
    generator = torch.Generator().manual_seed(99)
    reward_C = torch.rand(NUM_COMPLETIONS, generator=generator, dtype=torch.float64)
    batch = Batch(
        mask_BT=torch.ones(len(row_B), LENGTH, dtype=torch.bool),
        reward_B=reward_C[row_B],
        group_B=torch.arange(len(pairs)).repeat_interleave(2),
        sample_key_B=torch.arange(len(row_B)),
        rollout_logprob_BT=behavior_BT,
        behavior_logprob_BT=behavior_BT,
        proximal_logprob_BT=behavior_BT,
        reference_logprob_BT=behavior_BT,
        is_trained_B=torch.ones(len(row_B), dtype=torch.bool),
    )
    return batch, row_B, weight_P.repeat_interleave(2) * len(pairs), reward_C


def expected_loss(objective, policy, batch, row_B, weight_B):
    batch = objective.with_advantages(batch)
    tokens = PolicyTokens(logprob_BT=policy.logprob_CT()[row_B])
    prepared = objective.prepare(batch, tokens, objective.initial_state())
    return objective.loss(
        batch, tokens, replace(prepared, row_factor_B=prepared.row_factor_B * weight_B)
    ).loss


def optimum(objective, behavior, stored, *, start):
    """The probabilities of all completions at the minimum of the expected loss."""
    batch, row_B, weight_B, _ = all_pairs(behavior, stored)
    policy = Table(start)
    for logits in policy.logits:
        logits.requires_grad_()
    optimizer = torch.optim.LBFGS(
        policy.logits,
        max_iter=400,
        tolerance_grad=1e-13,
        tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimizer.zero_grad()
        loss = expected_loss(objective, policy, batch, row_B, weight_B)
        loss.backward()
        return loss

    optimizer.step(closure)
    return policy.probability_C()


def distance(one_C, other_C):
    """Total variation."""
    return float((one_C - other_C).abs().sum() / 2)


@pytest.fixture
def behavior():
    return Table(0)


STORED = {"the_policy_itself": Table(0), "another_policy": Table(7), "one_far_away": Table(3, spread=2.5)}


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("start", [0, 11])
def test_the_optimum_of_gvpo_is_the_same_whoever_wrote_the_stored_half(
    compose_method, behavior, stored, start
):
    objective = compose_method(
        "gvpo_offpolicy", f"algorithm.surrogate.beta={BETA}", "+rollout.source=x"
    ).objective
    reward_C = all_pairs(behavior, STORED[stored])[-1]
    exact_C = behavior.probability_C() * (reward_C / BETA).exp()
    exact_C = exact_C / exact_C.sum()
    assert distance(optimum(objective, behavior, STORED[stored], start=start), exact_C) < 1e-5


def test_the_optimum_of_grpo_moves_with_who_wrote_the_stored_half(compose_method, behavior):
    objective = compose_method(
        "dr_grpo",
        "divergence=none",
        "algorithm.surrogate.kind=none",
        "regularizer=paper/k3_reference_corrected",
        "regularizer.kl.coefficient=0.05",
        "++algorithm.reference={kind:frozen}",
    ).objective
    at_home_C = optimum(objective, behavior, STORED["the_policy_itself"], start=0)
    assert distance(optimum(objective, behavior, STORED["the_policy_itself"], start=11), at_home_C) < 1e-4
    for stored in ("another_policy", "one_far_away"):
        assert distance(optimum(objective, behavior, STORED[stored], start=0), at_home_C) > 0.03


def test_the_preset_composes_to_half_stored_groups_of_gvpo(compose_method):
    offpolicy = compose_method("gvpo_offpolicy", "+rollout.source=x")
    gvpo = compose_method("gvpo").algorithm
    of_the_file = {"name": gvpo.name, "on_policy": gvpo.on_policy}
    assert offpolicy.algorithm.model_copy(update=of_the_file) == gvpo
    assert offpolicy.divergence == compose_method("gvpo").divergence

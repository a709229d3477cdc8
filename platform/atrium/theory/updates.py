"""Changes of probability and entropy during several updates on one batch.

Updates use the full objective: groups are sampled and scored, and each update prepares and differentiates the
whole batch. Only the resulting policies are evaluated by enumeration. Updates are plain gradient ascent on
the logits. The step size is chosen so that the first update, at ratios of 1, has the same length for every
method. Later differences are therefore due to the trust region.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from atrium.method.objective import Objective
from atrium.theory.results import UpdateCourse
from atrium.theory.testbed import Tabular, batch_of, kl, prepared, tokens_of, total_variation

Rewards = Literal["true", "random"]
BIN_EDGES = (0.0, 0.01, 0.03, 0.1, 1.0)
"""Edges of bins of completions by behavior probability."""


_GROUP_SIZE, _NUM_TOKENS, _SPREAD, _REWARDED_FRAC, _STEP_LENGTH = 8, 2, 1.2, 0.3, 0.3


def update_course(
    objective: Objective,
    rewards: Rewards,
    *,
    num_seeds: int = 8,
    num_updates: int = 8,
    num_groups: int = 8,
    vocabulary: int = 6,
) -> UpdateCourse:
    """Return the effect of several updates on one batch, averaged over seeds.

    All methods use the same batches. With `rewards="true"`, rewards are a fixed property of each
    completion. With `"random"`, they are independent coin flips, so that all effects are due to the
    objective alone.
    """
    courses = [
        _one_course(objective, rewards, seed, num_updates, num_groups, vocabulary)
        for seed in range(num_seeds)
    ]
    mean = {name: torch.stack([course[name] for course in courses]).mean(dim=0) for name in courses[0]}
    return UpdateCourse(
        name=objective.method.algorithm.name,
        final_entropy_S=tuple(course["entropy_change"][-1].item() for course in courses),
        final_mass_S=tuple(course["mass_change"][-1].item() for course in courses),
        **{name: tuple(values.tolist()) for name, values in mean.items()},
    )


def _one_course(
    objective: Objective, rewards: Rewards, seed: int, num_updates: int, num_groups: int, vocabulary: int
) -> dict[str, Tensor]:
    behavior = Tabular.random(1000 + seed, _NUM_TOKENS, vocabulary=vocabulary, spread=_SPREAD)
    generator = torch.Generator().manual_seed(seed)
    rewarded_B = torch.rand(behavior.num_completions, generator=generator) < _REWARDED_FRAC
    num_rows = num_groups * _GROUP_SIZE
    old_B = behavior.logprob_B()
    rows = torch.multinomial(old_B.exp(), num_rows, replacement=True, generator=generator)
    coins_B = torch.rand(num_rows, generator=generator) < 0.5
    reward_B = rewarded_B[rows] if rewards == "true" else coins_B
    group_B = torch.arange(num_groups).repeat_interleave(_GROUP_SIZE)
    batch = objective.with_advantages(
        batch_of(rows, behavior=behavior, reward_B=reward_B.double(), group_B=group_B)
    )

    policy = behavior.trainable()
    rate = None
    points: list[dict[str, Tensor]] = []
    for _ in range(num_updates):
        tokens = tokens_of(policy, rows, objective, behavior)
        output = objective.loss(batch, tokens, prepared(objective, batch, tokens))
        gradient = -policy.gradient(output.loss)
        if rate is None:
            rate = _STEP_LENGTH / max(gradient.norm().item(), 1e-300)
        policy = policy.moved(gradient, rate).trainable()
        dropped = {"dropped_frac": output.details.dropped_BT.double().mean()}
        points.append(_point(behavior, policy, rewarded_B) | dropped)
    course = {name: torch.stack([point[name] for point in points]) for name in points[0]}
    moved_B = (policy.logprob_B().exp() - old_B.exp()).detach()
    course["mass_change"] = _by_bin(moved_B, old_B)
    course["rewarded_mass_change"] = _by_bin(moved_B * rewarded_B, old_B)
    return course


@torch.no_grad()
def _point(behavior: Tabular, policy: Tabular, rewarded_B: Tensor) -> dict[str, Tensor]:
    """Return the changes of entropy and reward, and the distances between the two policies, by name."""
    old_B, new_B = behavior.logprob_B(), policy.logprob_B()
    reward_B = rewarded_B.double()
    return {
        "entropy_change": policy.entropy() - behavior.entropy(),
        "reward_change": policy.expected(reward_B) - behavior.expected(reward_B),
        "kl": kl(old_B, new_B),
        "reverse_kl": kl(new_B, old_B),
        "total_variation": total_variation(old_B, new_B),
    }


def _by_bin(moved_B: Tensor, old_B: Tensor) -> Tensor:
    """Return the sum of `moved_B` over the completions in each bin of behavior probability.

    `moved_B` is the change of each completion's probability, `old_B` its behavior log-probability.
    """
    bins_B = torch.bucketize(old_B.exp(), torch.tensor(BIN_EDGES[1:-1], dtype=torch.float64))
    return moved_B.new_zeros(len(BIN_EDGES) - 1).index_add(0, bins_B, moved_B)

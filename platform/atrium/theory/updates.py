"""Where probability mass goes when a batch is used for several updates, and what happens to the entropy.

The objective is the real one: sampled groups are scored, and each update prepares and differentiates the
whole batch. Only the outcome is enumerated. Plain gradient ascent on the logits, with one step size per
batch, chosen so that the first update, where every ratio is 1, has the same length for every method: what
differs afterwards is the rule at the boundary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from atrium.method.objective import Objective
from atrium.theory.gradients import NamedObjective
from atrium.theory.results import Numbers, UpdateCourse
from atrium.theory.testbed import Tabular, batch_of, kl, tokens_of, total_variation

Rewards = Literal["true", "random"]
BIN_EDGES = (0.0, 0.01, 0.03, 0.1, 1.0)
"""Bins of completions by their behavior probability."""


@dataclass(frozen=True, kw_only=True)
class UpdateSetting:
    """The batch, the updates made with it, and the policies over which results are averaged.

    `rewards` are a property of the completion (`true`) or coin flips that have nothing to do with it
    (`random`), under which whatever happens is due to the objective alone.
    """

    rewards: Rewards
    num_seeds: int = 8
    num_updates: int = 8
    step_length: float = 0.3
    num_groups: int = 8
    group_size: int = 8
    vocabulary: int = 6
    num_tokens: int = 2
    spread: float = 1.2
    rewarded_frac: float = 0.3


def update_course(method: NamedObjective, setting: UpdateSetting) -> UpdateCourse:
    """The effect of the updates on the policy, averaged over seeds; the same batches for every method."""
    courses = [_one_course(method.objective, setting, seed) for seed in range(setting.num_seeds)]
    mean = {name: torch.stack([course[name] for course in courses]).mean(dim=0) for name in courses[0]}
    return UpdateCourse(
        name=method.name,
        final_entropy_S=tuple(course["entropy_change"][-1].item() for course in courses),
        final_mass_S=tuple(course["mass_change"][-1].item() for course in courses),
        **{name: _numbers(values) for name, values in mean.items()},
    )


def _one_course(objective: Objective, setting: UpdateSetting, seed: int) -> dict[str, Tensor]:
    behavior = Tabular.random(
        1000 + seed, setting.num_tokens, vocabulary=setting.vocabulary, spread=setting.spread
    )
    generator = torch.Generator().manual_seed(seed)
    rewarded_B = torch.rand(behavior.num_completions, generator=generator) < setting.rewarded_frac
    num_rows = setting.num_groups * setting.group_size
    old_B = behavior.logprob_B()
    rows = torch.multinomial(old_B.exp(), num_rows, replacement=True, generator=generator)
    coins_B = torch.rand(num_rows, generator=generator) < 0.5
    reward_B = rewarded_B[rows] if setting.rewards == "true" else coins_B
    group_B = torch.arange(setting.num_groups).repeat_interleave(setting.group_size)
    batch = objective.score(batch_of(rows, behavior=behavior, reward_B=reward_B.double(), group_B=group_B))

    policy = behavior.trainable()
    rate = None
    points: list[dict[str, Tensor]] = []
    for _ in range(setting.num_updates):
        tokens = tokens_of(policy, rows, objective, behavior)
        prepared = objective.prepare(
            batch, tokens if objective.needs.prepare_pass else None, objective.initial_state()
        )
        output = objective.loss(batch, tokens, prepared)
        gradient = -policy.gradient(output.loss)
        if rate is None:
            rate = setting.step_length / max(gradient.norm().item(), 1e-300)
        policy = policy.moved(gradient, rate).trainable()
        points.append(
            _point(behavior, policy, rewarded_B) | {"dropped_frac": _mean(output.details.dropped_BT)}
        )
    course = {name: torch.stack([point[name] for point in points]) for name in points[0]}
    moved_B = (policy.logprob_B().exp() - old_B.exp()).detach()
    course["mass_change"] = _by_bin(moved_B, old_B)
    course["rewarded_mass_change"] = _by_bin(moved_B * rewarded_B, old_B)
    return course


@torch.no_grad()
def _point(behavior: Tabular, policy: Tabular, rewarded_B: Tensor) -> dict[str, Tensor]:
    """How the policy differs from the behavior policy, enumerated."""
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
    """Probability summed over the completions of each bin."""
    bins_B = torch.bucketize(old_B.exp(), torch.tensor(BIN_EDGES[1:-1], dtype=torch.float64))
    return moved_B.new_zeros(len(BIN_EDGES) - 1).index_add(0, bins_B, moved_B)


def _mean(flags_BT: Tensor) -> Tensor:
    return flags_BT.double().mean()


def _numbers(values: Tensor) -> Numbers:
    return tuple(values.tolist())

"""Comparison of methods by their gradients on the same rollouts: equal gradients and equal directions.

A method's loss depends on the policy through two numbers per token: its log-probability and its entropy. The
derivatives with respect to these two therefore determine the update of any network, and they follow from
stored log-probabilities alone. Methods with equal derivatives make the same update; methods whose derivatives
differ by one factor per batch make updates in the same direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atrium.base.records import Floats
from atrium.method.batch import Batch, PolicyTokens
from atrium.method.method import Method
from atrium.method.objective import Objective
from atrium.theory.testbed import prepared

TOLERANCE = 1e-9
"""Relative distance below which gradients count as equal. Float64 rounding causes distances below 1e-13, and
the smallest effect of a setting of a shipped method (1e-6 added to a standard deviation) exceeds 1e-7;
`Partition.within` and `Partition.between` contain the actual numbers."""
NEARLY = 1e-3
"""Relative distance of gradients that no comparison of runs can detect."""
_REFERENCE_SPREAD = 0.2
_LEAST_LOGPROB = -1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Distances between policies at sampled tokens: standard deviations of log-ratios, in nats.

    Attributes
    ----------
    spread
        Distance of the current policy from the policy at the start of the step. None uses the log-ratios
        recorded in the rollouts.
    staleness
        Distance of the policy at the start of the step from the sampling policy.
    mismatch
        Distance between the engine's and the trainer's log-probabilities of the sampling policy.
    """

    name: str
    spread: float | None = 0.0
    staleness: float = 0.0
    mismatch: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """Sampled completions: mask, rewards, groups, and the sampling log-probabilities [B, T] in nats.

    `log_ratio_BT` is the recorded log-ratio of each token at its last update, if any.
    """

    mask_BT: Tensor
    reward_B: Tensor
    group_B: Tensor
    logprob_BT: Tensor
    log_ratio_BT: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Partition:
    """Classes of methods under one drift.

    `equal` lists classes of methods with equal gradients. `directions` lists classes of methods whose
    gradients are equal up to one factor per batch, and `num_nearly` is the number of such classes if
    distances up to `NEARLY` count as 0. `within` is the largest distance between methods of the same
    direction, `between` the smallest distance between methods of different directions, or 2 if there is only
    one direction. `distances` [M, M] are distances of unit gradients, from 0 to 2, in the order of `names`.
    """

    drift: Drift
    names: tuple[str, ...]
    equal: tuple[tuple[str, ...], ...]
    directions: tuple[tuple[str, ...], ...]
    num_nearly: int
    within: float
    between: float
    distances: Floats


def synthetic(seed: int, *, num_groups: int = 8, group_size: int = 6, num_tokens: int = 12) -> Rollouts:
    """Return random rollouts whose rewards are 0 or 1.

    The expected reward rises from 0 in the first group to 1 in the last group.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (num_groups * group_size, num_tokens)
    length_B1 = torch.randint(1, num_tokens + 1, (shape[0], 1), generator=generator)
    rate_G = torch.linspace(0.0, 1.0, num_groups, dtype=torch.float64)[:, None]
    reward_GN = torch.rand(num_groups, group_size, generator=generator, dtype=torch.float64) < rate_G
    return Rollouts(
        mask_BT=torch.arange(num_tokens) < length_B1,
        reward_B=reward_GN.double().flatten(),
        group_B=torch.arange(num_groups).repeat_interleave(group_size),
        logprob_BT=-torch.randn(shape, generator=generator, dtype=torch.float64).abs() - 0.01,
    )


def recorded(rows: Sequence[Mapping[str, Any]], max_groups: int) -> Rollouts | None:
    """Return the first `max_groups` groups of a step's stored rollouts.

    Tokens that the policy did not sample, and tokens with non-finite values or a ratio of 0, are masked. Rows
    that no update used have log-ratios of 0. The result is None if no row has both log-probabilities and a
    reward.
    """
    kept = [row for row in rows if row.get("logprobs") and row.get("reward") is not None]
    places = {name: place for place, name in enumerate(dict.fromkeys(row["problem_id"] for row in kept))}
    kept = [row for row in kept if places[row["problem_id"]] < max_groups]
    if not kept:
        return None
    shape = (len(kept), max(len(row["logprobs"]) for row in kept))
    logprob_BT, ratio_BT = np.full(shape, np.nan), np.ones(shape)
    for place, row in enumerate(kept):
        own = np.asarray(row.get("own") or [True] * len(row["logprobs"]), dtype=bool)
        logprob_BT[place, : len(own)] = np.where(own, np.asarray(row["logprobs"], dtype=float), np.nan)
        if row.get("ratio"):
            ratio_BT[place, : len(own)] = row["ratio"]
    mask_BT = np.isfinite(logprob_BT) & (ratio_BT > 0.0) & np.isfinite(ratio_BT)
    return Rollouts(
        mask_BT=torch.from_numpy(mask_BT),
        reward_B=torch.tensor([float(row["reward"]) for row in kept], dtype=torch.float64),
        group_B=torch.tensor([places[row["problem_id"]] for row in kept]),
        logprob_BT=torch.from_numpy(np.where(mask_BT, logprob_BT, 0.0)),
        log_ratio_BT=torch.from_numpy(np.log(np.where(mask_BT, ratio_BT, 1.0))),
    )


def moved(rollouts: Rollouts, drift: Drift, seed: int) -> tuple[Batch, PolicyTokens]:
    """Return the rollouts as a batch, and the token values of a policy displaced by `drift`.

    The stored log-probabilities become the trainer's log-probabilities of the sampling policy. Normal noise,
    with the drift's distances as standard deviations, turns them into those of the engine, of the policy at
    the start of the step and of the current policy. With a spread of None, the current policy has the
    recorded log-ratios instead of noise. Stored and noisy log-probabilities are clamped to stay below 0. The
    reference policy differs from the sampling policy by noise of 0.2 nats, and entropies are random.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = rollouts.logprob_BT.shape

    def away(logprob_BT: Tensor, deviation: float) -> Tensor:
        noise_BT = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (logprob_BT + deviation * noise_BT).clamp(max=_LEAST_LOGPROB)

    behavior_BT = rollouts.logprob_BT.clamp(max=_LEAST_LOGPROB)
    proximal_BT = away(behavior_BT, drift.staleness)
    if drift.spread is not None:
        current_BT = away(proximal_BT, drift.spread)
    else:
        assert rollouts.log_ratio_BT is not None, "only recorded rollouts have a drift of their own"
        current_BT = proximal_BT + rollouts.log_ratio_BT
    batch = Batch(
        mask_BT=rollouts.mask_BT,
        reward_B=rollouts.reward_B,
        group_B=rollouts.group_B,
        sample_key_B=torch.randint(0, 2**60, shape[:1], generator=generator),
        rollout_logprob_BT=away(behavior_BT, drift.mismatch),
        behavior_logprob_BT=behavior_BT,
        proximal_logprob_BT=proximal_BT,
        reference_logprob_BT=away(behavior_BT, _REFERENCE_SPREAD),
        is_trained_B=torch.ones(shape[0], dtype=torch.bool),
    )
    entropy_BT = torch.randn(shape, generator=generator, dtype=torch.float64).abs()
    return batch, PolicyTokens(
        logprob_BT=current_BT, entropy_BT=entropy_BT, divergence_BT=torch.zeros_like(current_BT)
    )


def slopes(method: Method, batch: Batch, policy: PolicyTokens) -> Tensor:
    """Return the loss's derivatives [2, B, T] with respect to log-probabilities and entropies.

    The whole batch is one minibatch. Groups that the method drops or skips have derivatives of 0 and are not
    replaced.
    """
    groups_B, rules = batch.group_B, method.algorithm.group_filter
    kept_B, trained_B = torch.ones(2, len(groups_B), dtype=torch.bool)
    for group in groups_B.unique():
        differs = len(batch.reward_B[groups_B == group].unique()) > 1
        kept_B[groups_B == group] = rules.keeps(differs=differs)
        trained_B[groups_B == group] = rules.computes(differs=differs)
    rows = kept_B.nonzero()[:, 0]
    objective = Objective(method)
    scored = objective.with_advantages(replace(batch, is_trained_B=trained_B).select(rows))
    assert policy.entropy_BT is not None
    assert policy.divergence_BT is not None
    leaves = [one[rows].requires_grad_() for one in (policy.logprob_BT, policy.entropy_BT)]
    tokens = PolicyTokens(
        logprob_BT=leaves[0], entropy_BT=leaves[1], divergence_BT=policy.divergence_BT[rows]
    )
    loss = objective.loss(scored, tokens, prepared(objective, scored, tokens)).loss
    found = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    slope_BT = torch.zeros(2, *batch.mask_BT.shape, dtype=torch.float64)
    slope_BT[:, rows] = torch.stack(found) * trained_B[rows][None, :, None]
    return slope_BT


def can_compute(method: Method, drift: Drift) -> bool:
    """Return whether log-probabilities of sampled tokens determine the method's gradient under `drift`.

    They do so unless the method needs the divergence between whole distributions and the policy has moved
    away from the sampling policy.
    """
    return method.needs.distribution == "none" or (drift.spread == 0.0 and drift.staleness == 0.0)


def partition(methods: Mapping[str, Method], rollouts: Iterable[Rollouts], drift: Drift) -> Partition:
    """Return the classes of methods whose gradients, or whose directions, are equal on every batch.

    Each element of `rollouts` gives one batch. Batches are read one at a time, and only distances are kept.
    """
    num = len(methods)
    equal, direction = np.zeros((num, num)), np.zeros((num, num))
    for seed, one in enumerate(rollouts):
        batch, policy = moved(one, drift, seed)
        slope_MN = torch.stack([slopes(method, batch, policy).flatten() for method in methods.values()])
        norm_M1 = slope_MN.norm(dim=1, keepdim=True).clamp(min=1e-300)
        larger_MM = torch.maximum(norm_M1, norm_M1.T)
        equal = np.maximum(equal, (_distances(slope_MN) / larger_MM).numpy())
        direction = np.maximum(direction, _distances(slope_MN / norm_M1).numpy())
    names = tuple(methods)
    directions = _classes(names, direction, TOLERANCE)
    place = {name: number for number, group in enumerate(directions) for name in group}
    together = np.equal.outer(*[np.array([place[name] for name in names])] * 2)
    return Partition(
        drift=drift,
        names=names,
        equal=_classes(names, equal, TOLERANCE),
        directions=directions,
        num_nearly=len(_classes(names, direction, NEARLY)),
        within=float(direction[together].max()),
        between=float(direction[~together].min(initial=2.0)),
        distances=direction,
    )


def _distances(rows_MN: Tensor) -> Tensor:
    # Products of rows would give squared distances an error of 1e-16 times the squared norm.
    return torch.cdist(rows_MN, rows_MN, compute_mode="donot_use_mm_for_euclid_dist")


def _classes(names: Sequence[str], distances: Floats, tolerance: float) -> tuple[tuple[str, ...], ...]:
    """Group the names by single-linkage clustering: names at distances up to `tolerance` share a group.

    The largest group comes first.
    """
    left, found = list(range(len(names))), []
    while left:
        group = {left[0]}
        while more := {
            other for other in left if other not in group and any(distances[other, list(group)] <= tolerance)
        }:
            group |= more
        found.append(tuple(names[place] for place in sorted(group)))
        left = [place for place in left if place not in group]
    return tuple(sorted(found, key=lambda group: (-len(group), group)))

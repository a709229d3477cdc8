"""How good was a completion: advantages from rewards, by a baseline, a scale and a kind of return.

Statistics are taken in float64 after subtracting one reward per group, so that equal rewards give exactly
0 and large rewards lose nothing. Their scope is the whole rollout batch; groups never span ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atrium.method.advantages import Advantage
from atrium.method.batch import Batch, Sum, neutral

_ROUNDING = 1e-12
"""Deviations of a batch below this share of its mean are rounding: all values are equal."""


def compute_advantages(
    advantage: Advantage, batch: Batch, penalty_BT: Tensor | None, sum_over_ranks: Sum
) -> Tensor:
    """Advantages [B, T] in the log-probabilities' dtype, 0 at masked positions.

    Parameters
    ----------
    batch
        The rollout batch.
    penalty_BT
        What a regularizer placed in the reward takes off at each token, or None.
    sum_over_ranks
        Adds batch-wide sums over ranks.
    """
    reward_B = batch.reward_B.double()
    if advantage.returns == "sequence" and penalty_BT is not None:
        reward_B = reward_B - neutral(penalty_BT.double(), batch.mask_BT).sum(dim=1)
    centred_B = _centred(advantage.baseline, reward_B, batch.group_B, sum_over_ranks) - advantage.offset
    if advantage.scale == "group_std":
        deviation_B = _group_std(reward_B, batch.group_B, advantage.ddof)
        centred_B = _divided(centred_B, deviation_B + advantage.epsilon)
    elif advantage.scale == "batch_std":
        deviation = _batch_std(reward_B, advantage.ddof, sum_over_ranks)
        centred_B = _divided(centred_B, deviation + advantage.epsilon)
    advantage_BT = centred_B[:, None] * batch.mask_BT
    if advantage.returns == "token":
        advantage_BT = _token_returns(centred_B, batch.mask_BT, penalty_BT, advantage.discount)
    if advantage.scale == "token_std":
        advantage_BT = _whiten(advantage_BT, batch.mask_BT, advantage.epsilon, sum_over_ranks)
    return advantage_BT.to(batch.rollout_logprob_BT.dtype)


def _divided(value: Tensor, scale: Tensor) -> Tensor:
    """The values over their scale, and 0 where the scale is 0: equal rewards say nothing about an answer."""
    return torch.where(scale == 0.0, 0.0, value / scale)  # NaN stays NaN, so that the update is skipped


def _centred(baseline: str, reward_B: Tensor, group_B: Tensor, sum_over_ranks: Sum) -> Tensor:
    if baseline == "none":
        return reward_B
    if baseline == "batch_mean":
        total, count = _all_ranks(reward_B.sum(), reward_B.new_tensor(len(reward_B)), sum_over_ranks)
        return reward_B - total / count.clamp(min=1.0)
    shifted_B, mean_B, size_B = _group_moments(reward_B, group_B)
    centred_B = shifted_B - mean_B
    if baseline == "leave_one_out":
        return centred_B * size_B / (size_B - 1.0).clamp(min=1.0)
    return centred_B


def _token_returns(reward_B: Tensor, mask_BT: Tensor, penalty_BT: Tensor | None, discount: float) -> Tensor:
    position_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    last_B = torch.where(mask_BT, position_T, -1).amax(dim=1) if mask_BT.numel() else reward_B.long()
    token_reward_BT = (position_T == last_B[:, None]) * reward_B[:, None]
    if penalty_BT is not None:
        token_reward_BT = token_reward_BT - neutral(penalty_BT.double(), mask_BT)
    returns_BT = torch.zeros_like(token_reward_BT)
    running_B = torch.zeros_like(reward_B)
    for position in reversed(range(mask_BT.shape[1])):
        trained_B = mask_BT[:, position]
        running_B = torch.where(trained_B, token_reward_BT[:, position] + discount * running_B, running_B)
        returns_BT[:, position] = torch.where(trained_B, running_B, 0.0)
    return returns_BT


def group_mean(value_B: Tensor, group_B: Tensor, counts_B: Tensor | None = None) -> Tensor:
    """The mean of each row's group, at every row [B]; over the rows where `counts_B` is True, if given."""
    counts_B = torch.ones_like(group_B) if counts_B is None else counts_B
    return group_sum(value_B * counts_B, group_B) / group_sum(counts_B.to(value_B), group_B).clamp(min=1.0)


def group_sum(value_B: Tensor, group_B: Tensor) -> Tensor:
    """The sum over each row's group, at every row [B]."""
    _, group_index_B, size_P = torch.unique(group_B, return_inverse=True, return_counts=True)
    return value_B.new_zeros(len(size_P)).index_add(0, group_index_B, value_B)[group_index_B]


def _group_moments(reward_B: Tensor, group_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards less one reward of their group, the group mean of those, and the group size, all [B]."""
    _, group_index_B, size_P = torch.unique(group_B, return_inverse=True, return_counts=True)
    least_P = reward_B.new_full((len(size_P),), torch.inf)
    least_P = least_P.scatter_reduce(0, group_index_B, reward_B, "amin")
    shifted_B = reward_B - least_P[group_index_B]
    total_P = reward_B.new_zeros(len(size_P)).index_add(0, group_index_B, shifted_B)
    size_P = size_P.to(reward_B.dtype)
    return shifted_B, (total_P / size_P)[group_index_B], size_P[group_index_B]


def _group_std(reward_B: Tensor, group_B: Tensor, ddof: int) -> Tensor:
    shifted_B, mean_B, size_B = _group_moments(reward_B, group_B)
    variance_B = group_mean(torch.square(shifted_B - mean_B), group_B)
    return torch.sqrt(variance_B * size_B / (size_B - ddof).clamp(min=1.0))


def _batch_std(reward_B: Tensor, ddof: int, sum_over_ranks: Sum) -> Tensor:
    num = reward_B.new_tensor(len(reward_B))
    total, count = _all_ranks(reward_B.sum(), num, sum_over_ranks)
    mean = total / count.clamp(min=1.0)
    square = sum_over_ranks(torch.square(reward_B - mean).sum())
    deviation = torch.sqrt(square / (count - ddof).clamp(min=1.0))
    return torch.where(deviation <= _ROUNDING * mean.abs(), 0.0, deviation)


def _whiten(value_BT: Tensor, mask_BT: Tensor, epsilon: float, sum_over_ranks: Sum) -> Tensor:
    """Zero mean and unit variance (divided by n - 1) over all tokens, as REINFORCE++ does in verl."""
    total, count = _all_ranks(value_BT.sum(), mask_BT.sum().double(), sum_over_ranks)
    mean = total / count.clamp(min=1.0)
    centred_BT = (value_BT - mean) * mask_BT
    variance = sum_over_ranks(torch.square(centred_BT).sum()) / (count - 1.0).clamp(min=1.0)
    variance = torch.where(variance <= torch.square(_ROUNDING * mean), 0.0, variance) + epsilon
    return torch.where(variance == 0.0, 0.0, centred_BT * torch.rsqrt(variance))


def _all_ranks(total: Tensor, count: Tensor, sum_over_ranks: Sum) -> tuple[Tensor, Tensor]:
    both = sum_over_ranks(torch.stack([total, count]))
    return both[0], both[1]

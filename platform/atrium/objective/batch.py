"""What an objective is given, and what it declares that it needs. Tensors only; no tokens, no models.

Axes: B rows (completions), T completion tokens. Padding and other untrained positions are False in
`mask_BT` and may hold anything, NaN included, in every other tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal, Self

import torch
from torch import Tensor

Sum = Callable[[Tensor], Tensor]
"""Adds a tensor over all ranks that share a batch; the identity on one process."""


def local_sum(value: Tensor) -> Tensor:
    """The sum over the only rank there is."""
    return value


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of completions, their rewards, and the log-probabilities of policies other than the trained one.

    Attributes
    ----------
    mask_BT
        Bool; True at completion tokens that are trained on.
    reward_B
        Float64 rewards.
    group_B
        Int64; rows with equal values answer one prompt. Any values; groups need not be contiguous.
    sample_key_B
        Int64; a key per row for random choices, independent of the row's place in the batch. Each update is
        prepared with new ones, made of these.
    rollout_logprob_BT
        Log-probabilities, in nats, of the engine that sampled the tokens.
    behavior_logprob_BT
        Those of the policy at the start of the step, or None when that policy is the current one at this
        update, its only one: the ratio is then exactly 1.
    reference_logprob_BT
        Those of the regularizer's reference policy, where one is needed.
    advantage_BT
        Filled in by `Objective.score`.
    trains_B
        False for rows that count in denominators but whose groups have no signal.
    """

    mask_BT: Tensor
    reward_B: Tensor
    group_B: Tensor
    sample_key_B: Tensor
    rollout_logprob_BT: Tensor
    trains_B: Tensor
    behavior_logprob_BT: Tensor | None = None
    reference_logprob_BT: Tensor | None = None
    advantage_BT: Tensor | None = None

    @property
    def num_rows(self) -> int:
        """The number of rows B."""
        return self.mask_BT.shape[0]

    def select(self, rows: Tensor, num_tokens: int | None = None) -> Self:
        """The given rows, in the given order, cut to their first `num_tokens` tokens."""
        chosen: dict[str, Tensor] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                picked = value[rows]
                chosen[field.name] = picked[:, :num_tokens] if picked.dim() == 2 else picked
        return replace(self, **chosen)


@dataclass(frozen=True, kw_only=True)
class PolicyTokens:
    """What the trained policy says about a batch's tokens.

    `logprob_BT` carries the gradient. `entropy_BT` (nats, of the distribution sampled from) carries one
    only where the objective needs it. `divergence_BT` is the detached state divergence, where needed.
    """

    logprob_BT: Tensor
    entropy_BT: Tensor | None = None
    divergence_BT: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The passes and tensors that a part of an objective needs beyond the policy's log-probabilities.

    Attributes
    ----------
    behavior_pass
        Log-probabilities of the step's starting policy even when each batch is used for one update.
    reference_pass
        Log-probabilities of the reference policy.
    prepare_pass
        A gradient-free pass over the whole minibatch at the current parameters before its loss.
    entropy
        Entropy per token: not at all, as a value, or with its gradient.
    whole_groups
        Minibatches hold all rows of a group.
    distribution
        `PolicyTokens.divergence_BT`: not at all, over the vocabulary, or over the anchor's `top_k` tokens
        and a bucket for the rest.
    """

    behavior_pass: bool = False
    reference_pass: bool = False
    prepare_pass: bool = False
    entropy: Literal["none", "value", "gradient"] = "none"
    whole_groups: bool = False
    distribution: Literal["none", "full", "top_k"] = "none"
    top_k: int = 0

    def __or__(self, other: Needs) -> Needs:
        """What both parts together need."""
        order = ("none", "value", "gradient")
        distributions = ("none", "top_k", "full")
        return Needs(
            behavior_pass=self.behavior_pass or other.behavior_pass,
            reference_pass=self.reference_pass or other.reference_pass,
            prepare_pass=self.prepare_pass or other.prepare_pass,
            entropy=max(self.entropy, other.entropy, key=order.index),
            whole_groups=self.whole_groups or other.whole_groups,
            distribution=max(self.distribution, other.distribution, key=distributions.index),
            top_k=max(self.top_k, other.top_k),
        )


def neutral(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The values, with 0 at masked positions, so that NaN there reaches neither value nor gradient."""
    return torch.where(mask_BT, value_BT, 0.0)


def row_sum(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The sum [B] over each row's unmasked tokens."""
    return neutral(value_BT, mask_BT).sum(dim=1)


def row_mean(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The mean [B] over each row's unmasked tokens; 0 for rows without any."""
    return row_sum(value_BT, mask_BT) / num_tokens(mask_BT)[:, 0]


def num_tokens(mask_BT: Tensor) -> Tensor:
    """The number [B, 1] of each row's unmasked tokens, at least 1."""
    return mask_BT.sum(dim=1, keepdim=True).clamp(min=1)

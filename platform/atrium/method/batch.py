"""The input of an objective: rows of completions as tensors, without token ids or models.

Axes: B rows (completions), T completion tokens. Padding and other untrained positions are False in `mask_BT`,
and other tensors may have any value there, including NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from torch import Tensor

Sum = Callable[["Tensor"], "Tensor"]
"""A function that sums a tensor over all ranks that share a batch; the identity for a single process."""


def local_sum(value: Tensor) -> Tensor:
    """Return the value unchanged: the sum over a single rank."""
    return value


@dataclass(frozen=True, kw_only=True)
class RowTensors:
    """Base class for records of tensors. The suffix of a field's name lists the axes of its tensor."""

    def select(self, rows: Tensor, num_tokens: int | None = None) -> Self:
        """Return the given rows, in the given order, truncated to their first `num_tokens` tokens.

        Fields without a row axis are unchanged.
        """
        chosen: dict[str, Tensor] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and field.name.endswith(("_B", "_BK", "_BT")):
                picked = value[rows]
                chosen[field.name] = picked[:, :num_tokens] if field.name.endswith("_BT") else picked
        return replace(self, **chosen)


@dataclass(frozen=True, kw_only=True)
class Batch(RowTensors):
    """Rows of completions, their rewards, and the log-probabilities of policies other than the trained one.

    Attributes
    ----------
    mask_BT
        Bool; True at completion tokens that are trained on.
    reward_B
        Float64 rewards.
    reward_BK, weight_BK
        Float64; the K named rewards (NaN where a reward function abstained) and their weights, which are
        equal in all rows. `reward_B` is their weighted sum. None for a single reward.
    group_B
        Int64 group numbers; rows with equal numbers answer the same prompt and need not be contiguous.
    sample_key_B
        Int64; a key per row for random choices, independent of the row's index in the batch. Each update
        derives new keys from these.
    rollout_logprob_BT
        Log-probabilities, in nats, that the engine returned for the tokens it sampled.
    behavior_logprob_BT
        Log-probabilities under the weights that sampled, computed by the trainer. None if the behavior policy
        is the current policy, because the batch gets a single update; the ratio is then exactly 1.
    proximal_logprob_BT
        Log-probabilities of the policy at the start of the step, which is the behavior policy if the batch
        is not stale. None if this policy is the current policy.
    reference_logprob_BT
        Log-probabilities of the regularizer's reference policy, if one is needed.
    advantage_BT
        Advantages, or None before `Objective.with_advantages`.
    is_trained_B
        False for rows whose groups have no signal. Denominators still count these rows.

    Examples
    --------
    Two completions of one prompt; the second has two tokens and one padding position:

    >>> import torch
    >>> batch = Batch(
    ...     mask_BT=torch.tensor([[True, True, True], [True, True, False]]),
    ...     reward_B=torch.tensor([1.0, 0.0], dtype=torch.float64),
    ...     group_B=torch.tensor([7, 7]),
    ...     sample_key_B=torch.tensor([11, 12]),
    ...     rollout_logprob_BT=torch.tensor([[-0.1, -0.7, -0.2], [-0.1, -1.2, torch.nan]]),
    ...     is_trained_B=torch.tensor([True, True]),
    ... )
    >>> batch.num_rows, batch.select(torch.tensor([1]), num_tokens=2).rollout_logprob_BT
    (2, tensor([[-0.1000, -1.2000]]))
    """

    mask_BT: Tensor
    reward_B: Tensor
    group_B: Tensor
    sample_key_B: Tensor
    rollout_logprob_BT: Tensor
    is_trained_B: Tensor
    reward_BK: Tensor | None = None
    weight_BK: Tensor | None = None
    behavior_logprob_BT: Tensor | None = None
    proximal_logprob_BT: Tensor | None = None
    reference_logprob_BT: Tensor | None = None
    advantage_BT: Tensor | None = None

    @property
    def num_rows(self) -> int:
        """The number of rows B."""
        return self.mask_BT.shape[0]


@dataclass(frozen=True, kw_only=True)
class PolicyTokens:
    """The trained policy's values at a batch's tokens, all [B, T].

    `logprob_BT` carries the gradient. `entropy_BT` is the entropy of the sampling distribution in nats, with
    a gradient only if the objective needs one. `divergence_BT` is the divergence of the policy's next-token
    distribution from the anchor's at each position, detached, or None if it is not needed.

    Examples
    --------
    >>> import torch
    >>> PolicyTokens(logprob_BT=torch.tensor([[-0.1, -0.7]], requires_grad=True)).entropy_BT is None
    True
    """

    logprob_BT: Tensor
    entropy_BT: Tensor | None = None
    divergence_BT: Tensor | None = None


def neutral(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Replace values at masked positions by 0, so that NaN there reaches neither results nor gradients."""
    return value_BT.where(mask_BT, 0.0)


def row_sum(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the sum [B] over each row's unmasked tokens."""
    return neutral(value_BT, mask_BT).sum(dim=1)


def row_mean(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the mean [B] over each row's unmasked tokens, or 0 for rows without unmasked tokens."""
    return row_sum(value_BT, mask_BT) / num_tokens(mask_BT)[:, 0]


def num_tokens(mask_BT: Tensor) -> Tensor:
    """Return the number [B, 1] of unmasked tokens in each row, clamped to at least 1."""
    return mask_BT.sum(dim=1, keepdim=True).clamp(min=1)

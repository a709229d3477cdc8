"""Conversion of rollout groups to the tensors that the model and the objective read.

Rows keep the order of the groups. Axes: B rows (completions), T completion tokens, L tokens of prompt and
completion together, D hidden units, K parts of the reward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from atrium.base.records import Completion, Rollout, RolloutGroup
from atrium.base.seeding import derive_seed
from atrium.method.batch import Batch


@dataclass(frozen=True, kw_only=True)
class RolloutRows:
    """A rollout batch: tokens for the model, and their data for the objective.

    Attributes
    ----------
    token_BL
        Int64 prompt and completion tokens of each row, followed by `pad_token_id` up to the longest row.
    num_prompt_tokens_B, num_tokens_B
        Int64 arrays on the host: length of the prompt, and of prompt and completion together. The mask of
        `batch` marks the completion tokens that are trained on.
    prompt_index_B
        Int64 on the host; rows with equal values have equal prompts.
    batch
        The same rows for the objective.
    live_B
        Bool; False for completions that the current weights did not sample: they were read from disk, or
        sampled before an update.
    proximal_state_BTD
        The last hidden states, from which the policy at the start of the step predicts the completion
        tokens. None unless a state divergence (`method/state_divergences.py`) needs them.

    Examples
    --------
    The completions (1, 2) and (3) of the prompt (7, 8), and the second row alone, without padding:

    >>> rows = RolloutRows(
    ...     token_BL=torch.tensor([[7, 8, 1, 2], [7, 8, 3, 0]]),
    ...     num_prompt_tokens_B=np.array([2, 2]),
    ...     num_tokens_B=np.array([4, 3]),
    ...     prompt_index_B=np.array([0, 0]),
    ...     batch=Batch(
    ...         mask_BT=torch.tensor([[True, True], [True, False]]),
    ...         reward_B=torch.tensor([1.0, 0.0], dtype=torch.float64),
    ...         group_B=torch.tensor([0, 0]),
    ...         sample_key_B=torch.tensor([11, 12]),
    ...         rollout_logprob_BT=torch.tensor([[-0.1, -0.7], [-1.2, 0.0]]),
    ...         is_trained_B=torch.tensor([True, True]),
    ...     ),
    ...     live_B=torch.tensor([True, True]),
    ... )
    >>> rows.num_completion_tokens_B
    array([2, 1])
    >>> rows.select(np.array([1])).token_BL
    tensor([[7, 8, 3]])
    """

    token_BL: Tensor
    num_prompt_tokens_B: NDArray[np.int64]
    num_tokens_B: NDArray[np.int64]
    prompt_index_B: NDArray[np.int64]
    batch: Batch
    live_B: Tensor
    proximal_state_BTD: Tensor | None = None

    @property
    def lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Three arrays [B] for counting computed tokens: prompt lengths, row lengths and prompt indices."""
        return self.num_prompt_tokens_B, self.num_tokens_B, self.prompt_index_B

    @property
    def num_completion_tokens_B(self) -> NDArray[np.int64]:
        """Number of completion tokens of each row, int64 [B] on the host."""
        return self.num_tokens_B - self.num_prompt_tokens_B

    def trained_rows(self) -> NDArray[np.int64]:
        """Return the indices of the rows that are trained on."""
        return np.flatnonzero(self.batch.is_trained_B.cpu().numpy())

    def select(self, rows: NDArray[np.int64]) -> Self:
        """Return the rows with these indices, in this order, with padding trimmed to the longest of them."""
        index = on_device(rows, self.token_BL.device)
        num_tokens_B = self.num_tokens_B[rows]
        num_prompt_tokens_B = self.num_prompt_tokens_B[rows]
        longest = int(num_tokens_B.max(initial=0))
        longest_completion = int((num_tokens_B - num_prompt_tokens_B).max(initial=0))
        state_BTD = self.proximal_state_BTD
        return replace(
            self,
            token_BL=self.token_BL[index, :longest],
            num_prompt_tokens_B=num_prompt_tokens_B,
            num_tokens_B=num_tokens_B,
            prompt_index_B=self.prompt_index_B[rows],
            batch=self.batch.select(index, longest_completion),
            live_B=self.live_B[index],
            proximal_state_BTD=None if state_BTD is None else state_BTD[index, :longest_completion],
        )

    def with_batch(self, batch: Batch) -> Self:
        """Return a copy of the rows with another `batch` for the objective."""
        return replace(self, batch=batch)


def on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return the array as a tensor on a device.

    On a GPU, the array is copied from pinned memory without blocking the host.
    """
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def collate(
    groups: Sequence[RolloutGroup],
    *,
    trains: Sequence[bool],
    pad_token_id: int,
    seed: int,
    device: str,
    weight_version: int | None = None,
) -> RolloutRows:
    """Return the rows of all completions of the groups.

    Parameters
    ----------
    groups
        Graded rollout groups; at least one, each with at least one completion.
    trains
        For each group, whether its rows are trained on; other rows only count in denominators.
    pad_token_id
        Token that fills rows up to the length of the longest one.
    seed
        Random seed of the batch's `sample_key_B`, from which an objective derives its random choices.
    weight_version
        Version of the policy's current weights, or None if these weights sampled all rows except those read
        from disk.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    indices = [index for index, group in enumerate(groups) for _ in group.rollouts]
    completions = [rollout.completion for rollout in rollouts]
    prompts = [groups[index].prompt_token_ids for index in indices]
    token_ids = [np.append(prompt, one.token_ids) for prompt, one in zip(prompts, completions, strict=True)]
    behaviors = [one.behavior_logprobs for one in rollouts if one.behavior_logprobs is not None]
    key_B = [
        derive_seed(seed, "row", groups[index].problem.problem_id, rollout.sample_index)
        for index, rollout in zip(indices, rollouts, strict=True)
    ]

    def padded(rows: Sequence[NDArray[Any]], dtype: torch.dtype, value: int = 0) -> Tensor:
        tensors = [torch.tensor(row, dtype=dtype) for row in rows]
        return pad_sequence(tensors, batch_first=True, padding_value=value).to(device)

    batch = Batch(
        mask_BT=padded([_is_own(one) for one in completions], torch.bool),
        **_rewards(rollouts, device),
        group_B=torch.tensor(indices, dtype=torch.int64, device=device),
        sample_key_B=torch.tensor(key_B, dtype=torch.int64, device=device),
        rollout_logprob_BT=padded([one.logprobs for one in completions], torch.float32),
        is_trained_B=torch.tensor([trains[index] for index in indices], dtype=torch.bool, device=device),
        behavior_logprob_BT=padded(behaviors, torch.float32) if len(behaviors) == len(rollouts) else None,
    )
    return RolloutRows(
        token_BL=padded(token_ids, torch.int64, pad_token_id),
        num_prompt_tokens_B=np.array([len(prompt) for prompt in prompts], dtype=np.int64),
        num_tokens_B=np.array([len(ids) for ids in token_ids], dtype=np.int64),
        prompt_index_B=np.array(indices, dtype=np.int64),
        batch=batch,
        live_B=torch.tensor([_is_live(one, weight_version) for one in completions], device=device),
    )


def _is_own(completion: Completion) -> NDArray[np.bool_]:
    """Return a mask [T] that is True at tokens that the policy sampled, and False at those of a tool."""
    return np.ones(len(completion.token_ids), np.bool_) if completion.own is None else completion.own


def _is_live(completion: Completion, weight_version: int | None) -> bool:
    return not completion.is_stored and weight_version in (None, completion.weight_version)


def _rewards(rollouts: Sequence[Rollout], device: str) -> dict[str, Tensor]:
    """Return the reward tensors of a `Batch`, by field name.

    `reward_B` is the reward. If the reward is a weighted sum, `reward_BK` contains its parts with nonzero
    weight, and `weight_BK` their weights. A part that abstained is NaN.
    """

    def tensor(values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    found = {"reward_B": tensor([rollout.reward for rollout in rollouts])}
    names = sorted(name for name, (_, weight) in rollouts[0].parts.items() if weight)
    if names:
        rows = [[rollout.parts[name] for name in names] for rollout in rollouts]
        found["reward_BK"] = tensor([[math.nan if one is None else one for one, _ in row] for row in rows])
        found["weight_BK"] = tensor([[weight for _, weight in row] for row in rows])
    return found


def with_behavior(groups: Sequence[RolloutGroup], logprob_BT: Tensor) -> tuple[RolloutGroup, ...]:
    """Return the groups with `logprob_BT` as their behavior log-probabilities.

    Rows of `logprob_BT` are in the order of the rows that `collate` returns for these groups.
    """
    rows = iter(logprob_BT.float().cpu().numpy())
    return tuple(
        replace(
            group,
            rollouts=tuple(
                replace(rollout, behavior_logprobs=row[: len(rollout.completion.token_ids)])
                for rollout, row in zip(group.rollouts, rows, strict=False)
            ),
        )
        for group in groups
    )

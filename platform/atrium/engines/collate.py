"""Conversion of rollout groups to the tensors that the model and the objective read.

Rows keep the order of the groups. Axes: B rows (completions), T completion tokens.
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

from atrium.base.records import Completion, Rollout, RolloutGroup
from atrium.base.seeding import derive_seed
from atrium.method.batch import Batch


@dataclass(frozen=True, kw_only=True)
class RolloutRows:
    """A rollout batch: tokens for the model, and their data for the objective.

    Attributes
    ----------
    token_BL
        Int64 prompt and completion tokens of each row, from column 0 on; then `pad_token_id`.
    num_prompt_tokens_B, num_tokens_B
        Int64 arrays on the host: length of the prompt, and of prompt and completion together. The mask of
        `batch` says which completion tokens are trained on.
    prompt_index_B
        Int64 on the host; rows with equal values have equal prompts.
    batch
        The same rows for the objective.
    live_B
        Bool; False for completions sampled by other weights: read from disk, or from before an update.
    proximal_state_BTD
        The policy's last hidden states at the start of the step, at the completion tokens, if a state
        divergence needs them.

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
        """The lengths of prompts and rows, and the prompt indices: the input for counting computed tokens."""
        return self.num_prompt_tokens_B, self.num_tokens_B, self.prompt_index_B

    @property
    def num_completion_tokens_B(self) -> NDArray[np.int64]:
        """The length of each row's completion."""
        return self.num_tokens_B - self.num_prompt_tokens_B

    def trained_rows(self) -> NDArray[np.int64]:
        """Return the indices of rows that are computed."""
        return np.flatnonzero(self.batch.is_trained_B.cpu().numpy())

    def select(self, rows: NDArray[np.int64]) -> Self:
        """Return the given rows, in the given order, trimmed to the longest of them."""
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
        """Return the same tokens with another batch for the objective."""
        return replace(self, batch=batch)


def on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return the array as a tensor on a device; a GPU copies from pinned memory without blocking the host."""
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
        For each group, whether it is computed or only counted in denominators.
    seed
        Random seed for an objective's choices on these rows.
    weight_version
        Version of the policy's weights; None if they sampled all rows that were not read from disk.
    """
    rollouts = [(index, rollout) for index, group in enumerate(groups) for rollout in group.rollouts]
    completion_ids = [rollout.completion.token_ids for _, rollout in rollouts]
    prompt_ids = [groups[index].prompt_token_ids for index, _ in rollouts]
    num_prompt_tokens_B = np.array([len(ids) for ids in prompt_ids], dtype=np.int64)
    num_completion_tokens_B = np.array([len(ids) for ids in completion_ids], dtype=np.int64)
    num_tokens_B = num_prompt_tokens_B + num_completion_tokens_B

    token_BL = np.full((len(rollouts), num_tokens_B.max()), pad_token_id, dtype=np.int64)
    logprob_BT = np.zeros((len(rollouts), num_completion_tokens_B.max()), dtype=np.float32)
    mask_BT = np.arange(logprob_BT.shape[1]) < num_completion_tokens_B[:, None]
    for row, (_, rollout) in enumerate(rollouts):
        token_BL[row, : num_prompt_tokens_B[row]] = prompt_ids[row]
        token_BL[row, num_prompt_tokens_B[row] : num_tokens_B[row]] = completion_ids[row]
        logprob_BT[row, : num_completion_tokens_B[row]] = rollout.completion.logprobs
        if rollout.completion.own is not None:
            mask_BT[row, : num_completion_tokens_B[row]] = rollout.completion.own
    key_B = [derive_seed(seed, "row", groups[i].problem.problem_id, r.sample_index) for i, r in rollouts]
    batch = Batch(
        mask_BT=torch.from_numpy(mask_BT).to(device),
        **_rewards([rollout for _, rollout in rollouts], device),
        group_B=torch.tensor([index for index, _ in rollouts], dtype=torch.int64, device=device),
        sample_key_B=torch.tensor(key_B, dtype=torch.int64, device=device),
        rollout_logprob_BT=torch.from_numpy(logprob_BT).to(device),
        is_trained_B=torch.tensor([trains[index] for index, _ in rollouts], dtype=torch.bool, device=device),
        behavior_logprob_BT=_behavior([rollout for _, rollout in rollouts], mask_BT.shape, device),
    )
    return RolloutRows(
        token_BL=torch.from_numpy(token_BL).to(device),
        num_prompt_tokens_B=num_prompt_tokens_B,
        num_tokens_B=num_tokens_B,
        prompt_index_B=np.array([index for index, _ in rollouts], dtype=np.int64),
        batch=batch,
        live_B=torch.tensor([_is_live(r.completion, weight_version) for _, r in rollouts], device=device),
    )


def _is_live(completion: Completion, weight_version: int | None) -> bool:
    return not completion.is_stored and weight_version in (None, completion.weight_version)


def _rewards(rollouts: Sequence[Rollout], device: str) -> dict[str, Tensor]:
    """Return the rewards [B]; of several, also the values and weights [B, K] of those with nonzero weight."""

    def tensor(values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    found = {"reward_B": tensor([rollout.reward for rollout in rollouts])}
    names = sorted(name for name, (_, weight) in rollouts[0].parts.items() if weight)
    if names:
        rows = [[rollout.parts[name] for name in names] for rollout in rollouts]
        found["reward_BK"] = tensor([[math.nan if one is None else one for one, _ in row] for row in rows])
        found["weight_BK"] = tensor([[weight for _, weight in row] for row in rows])
    return found


def _behavior(rollouts: Sequence[Rollout], shape: tuple[int, ...], device: str) -> Tensor | None:
    """Return the behavior log-probabilities [B, T] recorded in the rollouts; None if there are none."""
    logprob_BT = np.zeros(shape, dtype=np.float32)
    for row, rollout in enumerate(rollouts):
        if rollout.behavior_logprobs is None:
            return None
        logprob_BT[row, : len(rollout.behavior_logprobs)] = rollout.behavior_logprobs
    return torch.from_numpy(logprob_BT).to(device)


def with_behavior(groups: Sequence[RolloutGroup], logprob_BT: Tensor) -> tuple[RolloutGroup, ...]:
    """Return the groups with the behavior log-probabilities [B, T] of the rows made by `collate`."""
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

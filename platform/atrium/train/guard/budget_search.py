"""Search for the largest micro-batch that fits into memory, by trial forward and backward passes.

Rows of maximum length represent the worst micro-batch. Nothing is timed, and no weight changes. Other memory
that an update needs is reserved during the trials: the gradient of earlier micro-batches, and tensors
allocated later, such as an optimizer's state.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from atrium.engines.collate import RolloutRows
from atrium.method.batch import Batch
from atrium.train.guard.out_of_memory import is_out_of_memory, release_memory
from atrium.train.update.forward import PolicyForward

_MARGIN = 0.9
"""Share of the fitting size that is used, except for a single row, since allocations vary slightly."""

_NUM_PROMPT_TOKENS = 2
_FIRST_TOKEN = 1


def largest_budget(fits: Callable[[int], bool], *, longest: int, largest: int) -> int | None:
    """Return a number of tokens that fits into memory, or None if a single row of `longest` does not fit.

    `fits` tests a number of tokens. The result is at least `longest`, and at most `largest` unless `largest`
    is smaller than `longest`. To leave a margin, a result above `longest` is 90 % of a number that fits. The
    search first tests whether `largest` fits with this margin, which is often the case. Otherwise, it bisects
    the range until its size is at most an eighth of its lower end.
    """
    if largest <= longest:
        return longest if fits(longest) else None
    high = math.ceil(largest / _MARGIN)
    if fits(high):
        return largest
    if not fits(longest):
        return None
    low = longest
    while high - low > max(1, low // 8):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return max(longest, int(_MARGIN * low))


def update_fits(forward: PolicyForward, num_tokens: int, *, longest: int, reserved_bytes: int) -> bool:
    """Return whether passes over `num_tokens` fit into memory while `reserved_bytes` are in use.

    Tests one forward and one backward pass over rows of `longest` tokens, with gradients of earlier
    micro-batches in memory. Afterwards, the model has no gradients.
    """
    device = next(forward.model.parameters()).device
    try:
        reserved = torch.empty(reserved_bytes, dtype=torch.uint8, device=device)
        _make_gradients(forward.model)
        _pass(forward, worst_rows(num_tokens, longest=longest, device=device))
        del reserved
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        fitted = False
    else:
        fitted = True
    # Only here, after the handler, are the tensors of a failed pass free.
    forward.model.zero_grad()
    release_memory()
    return fitted


def worst_rows(num_tokens: int, *, longest: int, device: torch.device) -> RolloutRows:
    """Return rows with `num_tokens` tokens in all, or at most two more. No rows share a prompt.

    Each row has `longest` tokens, except that the last row may have fewer, but at least three.
    """
    num_rows = max(1, -(-num_tokens // longest))
    num_tokens_B = np.full(num_rows, longest)
    num_tokens_B[-1] = max(_NUM_PROMPT_TOKENS + 1, num_tokens - (num_rows - 1) * longest)
    number_B = np.arange(num_rows)
    num_completion_B = torch.from_numpy(num_tokens_B - _NUM_PROMPT_TOKENS)
    mask_BT = (torch.arange(int(num_completion_B.max())) < num_completion_B[:, None]).to(device)
    batch = Batch(
        mask_BT=mask_BT,
        reward_B=torch.zeros(num_rows, dtype=torch.float64, device=device),
        group_B=torch.from_numpy(number_B).to(device),
        sample_key_B=torch.from_numpy(number_B).to(device),
        rollout_logprob_BT=torch.zeros(mask_BT.shape, device=device),
        is_trained_B=torch.ones(num_rows, dtype=torch.bool, device=device),
    )
    return RolloutRows(
        token_BL=torch.full((num_rows, int(num_tokens_B.max())), _FIRST_TOKEN, device=device),
        num_prompt_tokens_B=np.full(num_rows, _NUM_PROMPT_TOKENS),
        num_tokens_B=num_tokens_B,
        prompt_index_B=number_B,
        batch=batch,
        live_B=torch.ones(num_rows, dtype=torch.bool, device=device),
    )


def _pass(forward: PolicyForward, rows: RolloutRows) -> None:
    policy = forward(rows, entropy="value")
    (policy.logprob_BT * rows.batch.mask_BT).sum().backward()


def _make_gradients(model: nn.Module) -> None:
    """Create zero gradients, so that a pass adds to them like every micro-batch after the first."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)

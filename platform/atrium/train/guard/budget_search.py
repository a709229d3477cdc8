"""Finding how many tokens a micro-batch may have: forward and backward passes that are tried for memory.

Rows of the greatest length stand for the worst micro-batch. Nothing is timed, and no weight changes. What an
update needs besides is held while passes are tried: the gradient that earlier micro-batches left, and what is
made later, such as an optimiser's state.
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
"""The share of what fits that is taken, one row excepted: allocations are never twice the same."""

_NUM_PROMPT_TOKENS = 2
_FIRST_TOKEN = 1


def largest_budget(fits: Callable[[int], bool], *, longest: int, largest: int) -> int | None:
    """Tokens that fit, with a margin, at most `largest`; None where not even one row of `longest` does.

    Tried are `largest` with its margin first, which often fits, then halves of what is left, to an eighth.
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
    """Whether a forward and a backward pass over so many tokens find memory, with `reserved_bytes` taken."""
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
    # Only here, behind the handler, are the tensors of a failed pass free.
    forward.model.zero_grad()
    release_memory()
    return fitted


def worst_rows(num_tokens: int, *, longest: int, device: torch.device) -> RolloutRows:
    """Rows of `longest` tokens, the last one shorter, without shared prompts: `num_tokens` in all."""
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
    """Make the gradients that are there from the second micro-batch on, to which a pass adds its own."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)

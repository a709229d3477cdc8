"""Division of rows into micro-batches, and into parts of similar length if they have to be padded.

The division changes no gradient (the objective's loss is additive), only its cost.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LAUNCH_COST_TOKENS = 512
"""Fixed cost of one more forward and backward pass, in tokens. It is not measured, so that a run's arithmetic
does not depend on timing."""


def split_by_tokens(num_tokens_B: NDArray[np.int64], *, max_tokens: int) -> list[NDArray[np.int64]]:
    """Divide rows, in order, into a small number of parts with about equal numbers of tokens.

    A part has at most `max_tokens` tokens, unless it is a single longer row. There may be more parts than
    necessary, since a part ends where its number of tokens is near the average. Returns index arrays into the
    rows.
    """
    parts: list[NDArray[np.int64]] = []
    remaining, start = int(num_tokens_B.sum()), 0
    while start < len(num_tokens_B):
        num_parts = -(-remaining // max_tokens)
        ends = np.cumsum(num_tokens_B[start:])
        nearest = int(np.searchsorted(ends, remaining / num_parts)) + 1
        fitting = int(np.searchsorted(ends, max_tokens, side="right"))
        end = start + max(1, min(nearest, fitting))
        remaining -= int(ends[end - start - 1])
        parts.append(np.arange(start, end))
        start = end
    return parts


def deal_by_tokens(
    num_prompt_tokens_B: NDArray[np.int64],
    num_tokens_B: NDArray[np.int64],
    prompt_index_B: NDArray[np.int64],
    *,
    num_shares: int,
) -> list[NDArray[np.int64]]:
    """Divide rows, in order, into shares with about equal numbers of computed tokens; a prompt counts once.

    Adjacent rows often have the same prompt, so each share is a block of adjacent rows. The number of tokens
    in a share differs from the average by less than the longest row. Shares may be empty, but the first one
    is empty only if there are no rows. Returns index arrays.
    """
    num_rows = len(num_tokens_B)
    cost_B = num_tokens_B - num_prompt_tokens_B
    _, first = np.unique(prompt_index_B, return_index=True)
    cost_B[first] += num_prompt_tokens_B[first]
    middle_B = np.cumsum(cost_B) - cost_B / 2
    targets = cost_B.sum() * np.arange(1, num_shares) / num_shares
    cuts = np.maximum(np.searchsorted(middle_B, targets), min(1, num_rows))
    return np.split(np.arange(num_rows), cuts)


def split_by_length(
    length_B: NDArray[np.int64], *, max_tokens: int, cost_per_part: int = LAUNCH_COST_TOKENS
) -> list[NDArray[np.int64]]:
    """Divide rows, sorted by length, into parts of minimum cost: padded tokens plus a cost per part.

    The minimum ignores `max_tokens`. Afterwards, a part with more than `max_tokens` padded tokens is divided
    into parts with about equal numbers of rows, each of which has at most `max_tokens` padded tokens or is a
    single longer row. Returns index arrays into the rows; rows of equal length keep their order.
    """
    if len(length_B) == 0:
        return []
    order = np.argsort(length_B, kind="stable")
    lengths, counts = np.unique(length_B, return_counts=True)
    ends = np.cumsum(counts)
    cuts = _cheapest_cuts(lengths, counts, cost_per_part)
    parts = []
    for first, last in zip([0, *cuts[:-1]], cuts, strict=True):
        rows = order[(ends[first - 1] if first else 0) : ends[last - 1]]
        rows_per_part = max(1, max_tokens // int(lengths[last - 1]))
        num_parts = -(-len(rows) // rows_per_part)
        parts.extend(np.array_split(rows, num_parts))
    return parts


def _cheapest_cuts(lengths: NDArray[np.int64], counts: NDArray[np.int64], cost_per_part: int) -> list[int]:
    """Return the ends of the segments with minimum total cost, as exclusive indices into `lengths`.

    `lengths` contains the distinct lengths in ascending order, and `counts` the number of rows of each.
    """
    total_rows = np.concatenate([[0], np.cumsum(counts)])
    cost = np.zeros(len(lengths) + 1)
    start = np.zeros(len(lengths) + 1, dtype=np.int64)
    for end in range(1, len(lengths) + 1):
        rows = total_rows[end] - total_rows[:end]
        candidate = cost[:end] + rows * lengths[end - 1] + cost_per_part
        start[end] = int(np.argmin(candidate))
        cost[end] = candidate[start[end]]
    cuts = [len(lengths)]
    while start[cuts[-1]] > 0:
        cuts.append(int(start[cuts[-1]]))
    return cuts[::-1]

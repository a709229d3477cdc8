"""Cutting rows into micro-batches of similar length, so that little padding is computed.

Which rows share a micro-batch changes no gradient (the objective's loss is additive), only its cost.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LAUNCH_COST_TOKENS = 512
"""What one more forward and backward costs beyond its tokens, in tokens; a rule, not a measurement, so
that a run's arithmetic does not depend on timing."""


def split_by_length(length_B: NDArray[np.int64], *, max_tokens: int) -> list[NDArray[np.int64]]:
    """Rows in ascending length, cut where that costs least: padded tokens plus a cost per micro-batch.

    Each part holds at most `max_tokens` padded tokens, or a single row that is longer than that.
    Returns index arrays into the rows; ties keep their order.
    """
    if len(length_B) == 0:
        return []
    order = np.argsort(length_B, kind="stable")
    lengths, counts = np.unique(length_B, return_counts=True)
    ends = np.cumsum(counts)
    cuts = _cheapest_cuts(lengths, counts)
    parts = []
    for first, last in zip([0, *cuts[:-1]], cuts, strict=True):
        rows = order[(ends[first - 1] if first else 0) : ends[last - 1]]
        rows_per_part = max(1, max_tokens // int(lengths[last - 1]))
        num_parts = -(-len(rows) // rows_per_part)
        parts.extend(np.array_split(rows, num_parts))
    return parts


def _cheapest_cuts(lengths: NDArray[np.int64], counts: NDArray[np.int64]) -> list[int]:
    """The ends (exclusive, into the distinct lengths) of the segments of least total cost."""
    total_rows = np.concatenate([[0], np.cumsum(counts)])
    cost = np.zeros(len(lengths) + 1)
    start = np.zeros(len(lengths) + 1, dtype=np.int64)
    for end in range(1, len(lengths) + 1):
        rows = total_rows[end] - total_rows[:end]
        candidate = cost[:end] + rows * lengths[end - 1] + LAUNCH_COST_TOKENS
        start[end] = int(np.argmin(candidate))
        cost[end] = candidate[start[end]]
    cuts = [len(lengths)]
    while start[cuts[-1]] > 0:
        cuts.append(int(start[cuts[-1]]))
    return cuts[::-1]

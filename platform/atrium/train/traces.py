"""What the objective saw and did at every token of a step, for the record of rollouts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from atrium.objective.batch import Batch, PolicyTokens
from atrium.objective.objective import LossOutput


@dataclass(frozen=True, kw_only=True)
class RowTraces:
    """Per row of a rollout batch, what the objective saw and did at its last update; [B, T] arrays."""

    advantage_BT: NDArray[np.float32]
    ratio_BT: NDArray[np.float32]
    entropy_BT: NDArray[np.float32]
    clipped_BT: NDArray[np.int8]


def empty_traces(batch: Batch) -> RowTraces:
    """Traces of scored rows that no update has used."""
    shape = tuple(batch.mask_BT.shape)
    assert batch.advantage_BT is not None, "rows are scored before they are traced"
    return RowTraces(
        advantage_BT=batch.advantage_BT.float().cpu().numpy(),
        ratio_BT=np.ones(shape, dtype=np.float32),
        entropy_BT=np.full(shape, np.nan, dtype=np.float32),
        clipped_BT=np.zeros(shape, dtype=np.int8),
    )


def write_traces(
    traces: RowTraces, rows: NDArray[np.int64], policy: PolicyTokens, output: LossOutput
) -> None:
    """Overwrite the traces of some rows by what a micro-batch of them saw."""
    details, num_tokens = output.details, policy.logprob_BT.shape[1]
    side_BT = torch.where(details.gate_BT > 1.0, 1, -1) * details.dropped_BT
    traces.ratio_BT[rows, :num_tokens] = details.gate_BT.float().cpu().numpy()
    traces.clipped_BT[rows, :num_tokens] = side_BT.to(torch.int8).cpu().numpy()
    if policy.entropy_BT is not None:
        traces.entropy_BT[rows, :num_tokens] = policy.entropy_BT.detach().float().cpu().numpy()

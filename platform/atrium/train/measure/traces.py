"""The objective's inputs and effects at every token of a step, for the record of rollouts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load, save

from atrium.base.records import TokenTrace
from atrium.engines.collate import RolloutRows
from atrium.method.batch import Batch, PolicyTokens
from atrium.method.objective import LossOutput
from atrium.train.ranks.ranks import Ranks


@dataclass(frozen=True, kw_only=True)
class RowTraces:
    """Advantages, ratios, entropies and clipped tokens at each row's last update.

    Entropies that were not computed are NaN. `clipped_BT` is 1 for tokens clipped at a ratio above 1, -1 for
    other clipped tokens, and 0 for the rest.
    """

    advantage_BT: NDArray[np.float32]
    ratio_BT: NDArray[np.float32]
    entropy_BT: NDArray[np.float32]
    clipped_BT: NDArray[np.int8]
    update_B: NDArray[np.int64]
    """Last update that used the row, counted from 1, or 0 if none; until `exchange_traces`, on this rank."""


def empty_traces(batch: Batch) -> RowTraces:
    """Return a batch's initial traces: its advantages, ratios of 1, entropies of NaN, no clipped tokens."""
    shape = tuple(batch.mask_BT.shape)
    assert batch.advantage_BT is not None, "rows must be scored before they are traced"
    return RowTraces(
        advantage_BT=batch.advantage_BT.float().cpu().numpy(),
        ratio_BT=np.ones(shape, dtype=np.float32),
        entropy_BT=np.full(shape, np.nan, dtype=np.float32),
        clipped_BT=np.zeros(shape, dtype=np.int8),
        update_B=np.zeros(shape[0], dtype=np.int64),
    )


def write_traces(
    traces: RowTraces, rows: NDArray[np.int64], policy: PolicyTokens, output: LossOutput, *, update: int
) -> None:
    """Overwrite the traces of `rows` with a micro-batch's values; `update` is the number of the update."""
    traces.update_B[rows] = update
    details, num_tokens = output.details, policy.logprob_BT.shape[1]
    side_BT = torch.where(details.gate_BT > 1.0, 1, -1) * details.dropped_BT
    traces.ratio_BT[rows, :num_tokens] = details.gate_BT.float().cpu().numpy()
    traces.clipped_BT[rows, :num_tokens] = side_BT.to(torch.int8).cpu().numpy()
    if policy.entropy_BT is not None:
        traces.entropy_BT[rows, :num_tokens] = policy.entropy_BT.detach().float().cpu().numpy()


def exchange_traces(traces: RowTraces, ranks: Ranks) -> None:
    """Overwrite the traces of rows whose last update was on another rank with that rank's values."""
    if ranks.is_alone:
        return
    names = ("ratio_BT", "entropy_BT", "clipped_BT")
    used = np.flatnonzero(traces.update_B)
    own = {name: np.ascontiguousarray(getattr(traces, name)[used]) for name in names}
    content = save({"row": used, "update": traces.update_B[used], **own})
    for found in map(load, ranks.gather_bytes(content)):
        newer = found["update"] > traces.update_B[found["row"]]
        rows = found["row"][newer]
        traces.update_B[rows] = found["update"][newer]
        for name in names:
            getattr(traces, name)[rows] = found[name][newer]


def token_traces(rows: RolloutRows, traces: RowTraces) -> list[TokenTrace]:
    """Return the trace of each row, with one value per completion token."""
    lengths, mask_BT = rows.num_completion_tokens_B, rows.batch.mask_BT.cpu().numpy()
    advantage_BT, ratio_BT, entropy_BT = (
        np.where(mask_BT, value_BT, np.float32(np.nan))
        for value_BT in (traces.advantage_BT, traces.ratio_BT, traces.entropy_BT)
    )
    return [
        TokenTrace(
            advantage=tuple(advantage_BT[row, : lengths[row]].tolist()),
            ratio=tuple(ratio_BT[row, : lengths[row]].tolist()),
            entropy=tuple(entropy_BT[row, : lengths[row]].tolist()),
            clipped=tuple(traces.clipped_BT[row, : lengths[row]].tolist()),
        )
        for row in range(len(lengths))
    ]

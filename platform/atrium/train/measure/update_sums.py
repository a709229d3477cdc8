"""What an update's micro-batches measure: sums over tokens, losses, and the engine's mismatch."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from atrium import metrics
from atrium.objective.batch import PolicyTokens
from atrium.objective.diagnostics import Sums
from atrium.objective.objective import LossOutput
from atrium.rollout.collate import RolloutRows
from atrium.train.measure.mismatch import mismatch_sums


@dataclass(frozen=True, kw_only=True)
class UpdateSums:
    """What the micro-batches of one update measured; counted once the update is made.

    Each entry of `sums` is a micro-batch of this rank; `num_positions` are those of all ranks.
    """

    sums: list[tuple[Sums, Tensor]] = field(default_factory=list)
    num_positions: int = 0


def micro_batch_sums(
    rows: RolloutRows,
    policy: PolicyTokens,
    output: LossOutput,
    *,
    starts_update: bool,
    with_mismatch: bool,
) -> Sums:
    """A micro-batch's sums. The losses of an update's micro-batches add up and count once."""
    sums = dict(output.sums)
    for quantity in (metrics.LOSS, metrics.REGULARIZER):
        total, count = sums[quantity]
        sums[quantity] = (total, torch.full_like(count, starts_update))
    if with_mismatch:
        # Before the first update of a step the trainer's weights are those that sampled, stored rows aside.
        mask_BT = rows.batch.mask_BT & rows.live_B[:, None]
        sums |= mismatch_sums(policy.logprob_BT.detach(), rows.batch.rollout_logprob_BT, mask_BT)
    return sums

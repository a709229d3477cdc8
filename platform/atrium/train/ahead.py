"""A batch that is sampled before the update that precedes its own (`rollout.lag=1`), and its record.

The batch is off-policy by one step's updates, so it is part of the run's state: a checkpoint holds it, and
a resumed run trains on the very completions that an undisturbed one trains on. The engine's and the trainer's
log-probabilities are compared when the batch is sampled, since only then are the weights of both equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from atrium import metrics
from atrium.errors import EngineError
from atrium.objective.batch import neutral
from atrium.records import RolloutGroup
from atrium.rollout.collate import RolloutRows
from atrium.train.collect import Collected
from atrium.train.group_records import groups_of_record, record_of_groups
from atrium.train.logprobs import PolicyForward
from atrium.train.measurements import Measurements

_RECORD, _ARRAYS = "ahead.json", "ahead.safetensors"


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """The next step's groups, and what was measured while they were sampled."""

    collected: Collected
    measurements: Measurements


def measure_mismatch(
    forward: PolicyForward, rows: RolloutRows, micro_batch_tokens: int, measurements: Measurements
) -> None:
    """Compare the sampled log-probabilities with the trainer's, on one micro-batch of the rows."""
    part = forward.split(rows, np.arange(len(rows.num_tokens_B)), micro_batch_tokens)[0]
    some = rows.select(part)
    with torch.no_grad():
        logprob_BT = forward(some, entropy="none").logprob_BT
    mask_BT = some.batch.mask_BT
    gap_BT = neutral(logprob_BT - some.batch.rollout_logprob_BT, mask_BT).double()
    count = mask_BT.sum()
    measurements.add_sums(
        {
            metrics.MISMATCH_MEAN: (gap_BT.abs().sum(), count),
            metrics.MISMATCH_MAX: (gap_BT.abs().max(), count),
            metrics.MISMATCH_KL: ((torch.expm1(gap_BT) - gap_BT).sum(), count),
        }
    )


def check_mismatch(measured: Mapping[str, float], bound: float | None, step: int) -> None:
    """Raise `EngineError` where engine and trainer differ by more than `bound` nats on average."""
    mean = measured.get(metrics.MISMATCH_MEAN.name)
    if bound is None or mean is None or mean <= bound:
        return
    raise EngineError(
        f"step {step}: on the engine's own samples its log-probabilities differ from the trainer's by "
        f"{mean:.3g} nats on average (at most {measured[metrics.MISMATCH_MAX.name]:.3g}), more than "
        f"rollout.max_mismatch={bound:g}: it samples from other weights or in another precision than is "
        "trained; compare compute.dtype and rollout.kv_cache_dtype, or raise the bound; the last checkpoint "
        "is intact"
    )


def staleness(groups: Sequence[RolloutGroup], weight_version: int) -> tuple[float, int]:
    """Updates between sampling and now, summed over the run's own completions, and their number."""
    completions = [rollout.completion for group in groups for rollout in group.rollouts]
    ages = [weight_version - one.weight_version for one in completions if not one.is_stored]
    return sum(ages), len(ages)


def write_ahead(ahead: Ahead, folder: Path) -> None:
    """Write the batch into an existing folder, as JSON and safetensors."""
    collected = ahead.collected
    groups, arrays = record_of_groups(collected.groups)
    record = {
        "cursor": collected.cursor,
        "trains": collected.trains,
        "groups": groups,
        "measurements": ahead.measurements.as_record(),
    }
    (folder / _RECORD).write_text(json.dumps(record), encoding="utf-8")
    save_file(arrays, folder / _ARRAYS)


def read_ahead(folder: Path) -> Ahead | None:
    """The batch that a folder holds, or None where it holds none."""
    if not (folder / _RECORD).exists():
        return None
    record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
    groups = groups_of_record(record["groups"], load_file(folder / _ARRAYS))
    collected = Collected(groups=groups, trains=tuple(record["trains"]), cursor=int(record["cursor"]))
    return Ahead(collected=collected, measurements=Measurements.from_record(record["measurements"]))

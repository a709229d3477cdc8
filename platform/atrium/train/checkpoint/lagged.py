"""Lagged batches (`rollout.lag=k`): each is sampled k steps early, and stored in checkpoints.

The batch of step t is sampled by the weights after step t - 1 - k, or by the initial weights if there is no
such step. It is part of the run's state: a checkpoint contains the batches of the next k steps, and a resumed
run trains on the same completions as an uninterrupted one. Before a batch is stored, the engine's and the
trainer's log-probabilities are compared under the weights that sampled it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from safetensors.numpy import load_file, save_file

from atrium.base.plain_files import read_plain
from atrium.train.checkpoint.group_records import groups_of_record, record_of_groups
from atrium.train.collect import Collected
from atrium.train.measure.measurements import Measurements


def write_lagged(batches: Sequence[Collected], folder: Path) -> None:
    """Write the batches of the next steps into an existing folder, as JSON and safetensors."""
    for number, batch in enumerate(batches, 1):
        groups, arrays = record_of_groups(batch.groups)
        record = {
            "cursor": batch.cursor,
            "trains": batch.trains,
            "groups": groups,
            "measurements": batch.measurements.as_record(),
        }
        (folder / f"lagged-{number}.json").write_text(json.dumps(record), encoding="utf-8")
        save_file(arrays, folder / f"lagged-{number}.safetensors")


def read_lagged(folder: Path) -> tuple[Collected, ...]:
    """Read the batches in a folder, in the order of their steps."""
    batches: list[Collected] = []
    while (batch := _read(folder, len(batches) + 1)) is not None:
        batches.append(batch)
    return tuple(batches)


def _read(folder: Path, number: int) -> Collected | None:
    path = folder / f"lagged-{number}.json"
    if not path.exists():
        return None
    record = json.loads(read_plain(path))
    groups = groups_of_record(record["groups"], load_file(path.with_suffix(".safetensors")))
    return Collected(
        groups=groups,
        trains=tuple(record["trains"]),
        cursor=int(record["cursor"]),
        measurements=Measurements.from_record(record["measurements"]),
    )

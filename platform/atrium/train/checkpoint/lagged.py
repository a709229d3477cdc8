"""A batch that is sampled before the update that precedes its own (`rollout.lag=1`), and its record.

The batch is off-policy by one step's updates, so it is part of the run's state: a checkpoint holds it, and
a resumed run trains on the very completions that an undisturbed one trains on. The engine's and the trainer's
log-probabilities are compared when the batch is sampled, since only then are the weights of both equal.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from safetensors.numpy import load_file, save_file

from atrium.train.checkpoint.group_records import groups_of_record, record_of_groups
from atrium.train.collect import Collected
from atrium.train.measure.measurements import Measurements

_RECORD, _ARRAYS = "ahead.json", "ahead.safetensors"


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """The next step's groups, and what was measured while they were sampled."""

    collected: Collected
    measurements: Measurements


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

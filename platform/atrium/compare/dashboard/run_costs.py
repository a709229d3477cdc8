"""What training had cost at each evaluation, as a small file that stands for a run's metrics in comparisons.

A comparison needs the tokens and the seconds spent at a run's evaluated steps, not its other 10,000 lines.
They are taken from the index of curves and kept in `runs/.cache/`, in the form of `metrics.jsonl`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from atrium.compare.dashboard.curves import Axis, at_steps
from atrium.compare.dashboard.runs_scan import RunEntry
from atrium.compare.dashboard.watcher import Watcher
from atrium.metrics import NUM_TOKENS, STEP_S
from atrium.tracking.atomic import write_text
from atrium.tracking.json_lines import Record, encode_line
from atrium.tracking.run_folder import RunFolder

_AXES = {Axis.TOKENS: NUM_TOKENS.name, Axis.WALL_CLOCK: STEP_S.name}


class EvaluatedRunFolder(RunFolder):
    """A run folder whose metrics are its costs at evaluated steps; all else is the run's own."""

    __slots__ = ()

    @property
    def metrics_file(self) -> Path:
        """The costs, in `runs/.cache/`."""
        return self.cache_dir / "dashboard" / "costs" / f"{self.name}.jsonl"


def with_costs(watcher: Watcher, entry: RunEntry) -> RunFolder:
    """The run for a comparison; its own folder while its curves wait to be indexed.

    Raises `OSError` where the cache cannot be written.
    """
    table = watcher.index.read(entry.folder)
    if table is None:
        return entry.folder
    evaluations = watcher.scan.evaluations(entry)
    steps = sorted({point.step for points in evaluations.values() for point in points if point.step > 0})
    spent = {
        name: np.diff(total, prepend=0.0)
        for axis, name in _AXES.items()
        if (total := at_steps(np.array(steps, dtype=np.float64), table.columns, axis)) is not None
    }
    records: list[Record] = [
        {"step": step, **{name: float(cost[row]) for name, cost in spent.items()}}
        for row, step in enumerate(steps)
    ]
    folder = EvaluatedRunFolder(entry.folder.path)
    content = b"".join(encode_line(record) for record in records)
    if _content(folder.metrics_file) != content:
        folder.metrics_file.parent.mkdir(parents=True, exist_ok=True)
        write_text(folder.metrics_file, content.decode())
    return folder


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None

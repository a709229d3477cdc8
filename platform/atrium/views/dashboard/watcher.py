"""A background thread that scans `runs/` every second and updates the index of curves.

`Watcher.version` increases with each change. Pages compare it with their own version to fetch changed
data.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from atrium.base.errors import reason_of
from atrium.compare.curve_index import index_of
from atrium.views.dashboard.runs_scan import OUTSIDE, RunEntry, RunsScan

_REST_S = 5.0
_LONGEST_TURN_S = 0.5
"""The longest time of indexing, in seconds, before `runs/` is scanned again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of the curve index: `num_done` of `num_runs` runs are indexed."""

    num_done: int
    num_runs: int


class Watcher:
    """A background thread that watches one runs directory from `start` to `stop`."""

    def __init__(self, runs_dir: Path, *, interval_s: float = 1.0) -> None:
        self.scan = RunsScan(runs_dir)
        self.index = index_of(runs_dir / ".cache")
        self.version = int(1000 * time.time())  # larger than the versions of an earlier server
        self.changed_at: dict[str, int] = {}
        """The `version` at which each run, or its indexed curves, last changed."""
        self.progress = Progress(num_done=0, num_runs=0)
        self._interval_s = interval_s
        self._wanted: dict[str, None] = {}
        self._behind: set[str] = set()
        self._unindexed: dict[str, str] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="dashboard-watcher", daemon=True)

    def start(self) -> None:
        """Scan the runs once, then start the background thread."""
        self._look()
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for its end. The thread first finishes indexing its current run."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def want(self, names: Iterable[str]) -> None:
        """Index these runs before all others, because a page shows them."""
        self._wanted.update(dict.fromkeys(names))

    @property
    def problem(self) -> str | None:
        """The message of an unexpected error or about a run that cannot be indexed. None without errors.

        `scan.problem` says why the runs directory cannot be read.
        """
        return next(iter(dict(self._unindexed).values()), None)

    def indexed(self, entry: RunEntry) -> tuple[int, int] | None:
        """Return (number of bytes, checksum) of the run's indexed metrics, or None without an index."""
        table = self.index.read(entry.folder)
        return None if table is None else (table.offset, table.checksum)

    def is_pending(self, name: str) -> bool:
        """Return whether the run has metrics, but its curves are not indexed yet."""
        return name in self._behind and self.index.read(self.scan.entries[name].folder) is None

    def _watch(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._fill()
                took = time.monotonic() - began
                # Rest if the index is complete, else continue at once.
                if not self._behind:
                    self._stopping.wait(max(self._interval_s - took, 0.05))
                self._look()
                self._unindexed.pop("", None)
            except Exception as error:  # the page shows the error instead of freezing
                self._unindexed[""] = f"cannot watch {self.scan.runs_dir}: {error!r}"
                self.version += 1
                self._stopping.wait(_REST_S)

    def _look(self) -> None:
        changed = self.scan.scan()
        entries = self.scan.entries
        self._behind = {name for name in self._behind if name in entries}
        for name in self._unindexed.keys() - entries.keys() - {""}:
            del self._unindexed[name]
        for name in changed & entries.keys():
            entry = entries[name]
            if OUTSIDE not in entry.problems and self.index.num_bytes_behind(entry.folder) > 0:
                self._behind.add(name)
        self._report(changed)

    def _fill(self) -> None:
        """Index pending runs for at most about half a second.

        Runs that a page shows come first, then the latest runs.
        """
        deadline = time.monotonic() + _LONGEST_TURN_S
        for entry in self._in_turn():
            if self._stopping.is_set() or time.monotonic() > deadline:
                return
            try:
                grew = {entry.name} if self.index.refresh(entry.folder) else set()
                self._unindexed.pop(entry.name, None)
            except OSError as error:
                self._unindexed[entry.name] = f"cannot index the curves of {entry.name}: {reason_of(error)}"
                grew = {entry.name}
            self._behind.discard(entry.name)
            self._wanted.pop(entry.name, None)
            self._report(grew)

    def _in_turn(self) -> list[RunEntry]:
        entries = self.scan.entries
        latest_first = sorted(self._behind, key=lambda name: -entries[name].started)
        order = dict.fromkeys([name for name in list(self._wanted) if name in self._behind] + latest_first)
        return [entries[name] for name in order]

    def _report(self, changed: set[str]) -> None:
        num_runs = len(self.scan.entries)
        self.progress = Progress(num_done=num_runs - len(self._behind), num_runs=num_runs)
        if changed:
            self.changed_at |= dict.fromkeys(changed, self.version + 1)
            self.version += 1

"""A thread that writes a worker's heartbeat and the sweep's snapshot.

A training step may take longer than the heartbeat timeout of other workers, so a thread sends heartbeats
while the main thread trains. If the thread detects an error (the storage is unavailable, or the parent
process has exited), it keeps the error for the main thread to raise.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from atrium.base.errors import AtriumError, Interrupted, SweepError
from atrium.sweep.claims import Claims
from atrium.sweep.snapshot import snapshot, sweep_folder, write_state
from atrium.sweep.study import SweepStudies

INTERVAL_S = 5.0


@dataclass(slots=True, eq=False)
class Heartbeat:
    """The heartbeat of one worker.

    If `parent` is given, it is a process id, and the worker stops once that process has exited. `created` is
    the sweep's creation time in Unix seconds, and `step` is the worker's current training step.
    """

    studies: SweepStudies
    claims: Claims
    _: KW_ONLY
    created: float
    parent: int | None = None
    interval_s: float = INTERVAL_S
    step: int = 0
    _problem: AtriumError | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Send heartbeats while the block runs; then mark the worker as ended."""
        stopped = threading.Event()
        thread = threading.Thread(target=self._beat_until, args=(stopped,), daemon=True)
        self.beat()
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
            with suppress(Exception):  # the storage may have failed; others notice the exited process
                self.claims.end()
                self.write_state()

    def beat(self, **changes: Any) -> None:  # noqa: ANN401 - fields of WorkerState
        """Send a heartbeat. `changes` replace fields of the worker's state."""
        with self._lock:
            self.claims.beat(**changes)

    def write_state(self) -> None:
        """Replace the sweep's snapshot, `state.json`, with its current state."""
        with self._lock:
            state = snapshot(self.studies, self.claims, self.created)
        definition = self.studies.definition
        write_state(sweep_folder(definition.runs_dir, definition.name), state)

    def raise_problem(self) -> None:
        """Raise the error that the thread detected, if any."""
        if self._problem is not None:
            raise self._problem

    def _beat_until(self, stopped: threading.Event) -> None:
        storage = self.studies.storage
        while not stopped.wait(self.interval_s):
            try:
                with storage.explained():
                    storage.check()
                    self.beat(step=self.step)
                    self.write_state()
                if self.parent is not None and os.getppid() != self.parent:
                    self._problem = Interrupted("the sweep's command has exited; run it again to resume")
            except AtriumError as error:
                self._problem = error
            except Exception as error:  # a bug in the thread must reach the worker
                self._problem = SweepError(f"the worker's heartbeat failed: {error!r}")

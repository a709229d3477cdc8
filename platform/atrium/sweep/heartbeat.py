"""A worker's heartbeat and the sweep's snapshot, from a thread of its own.

A training step may last longer than other workers wait, so the thread beats on while the main thread
trains. What it finds wrong (a storage that is gone, a command that is gone) it keeps for the main
thread to raise.
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
    """Beats for one worker. `parent` is the process whose end also ends the worker, if any."""

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
        """Beat inside the block, and say at its end that the worker is gone."""
        stopped = threading.Event()
        thread = threading.Thread(target=self._beat_until, args=(stopped,), daemon=True)
        self.beat()
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
            with suppress(Exception):  # the storage may be what failed; others see the process gone
                self.claims.end()
                self.write_state()

    def beat(self, **changes: Any) -> None:  # noqa: ANN401 - fields of WorkerState
        """Say that the worker lives, and what it does now."""
        with self._lock:
            self.claims.beat(**changes)

    def write_state(self) -> None:
        """Replace the sweep's snapshot."""
        with self._lock:
            state = snapshot(self.studies, self.claims, self.created)
        definition = self.studies.definition
        write_state(sweep_folder(definition.runs_dir, definition.name), state)

    def raise_problem(self) -> None:
        """Raise what the thread found wrong, if anything."""
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
                    self._problem = Interrupted("the sweep's command is gone; give it again to resume")
            except AtriumError as error:
                self._problem = error
            except Exception as error:  # a defect in a thread must reach the worker
                self._problem = SweepError(f"the heartbeat of a worker failed: {error!r}")

"""Bounded waits for what cannot be interrupted: a kernel or a compilation that hangs inside a library.

A thread watches the deadline of the one wait that is going on. Nothing in Python can end a call that never
returns from C, so a wait that has passed its deadline ends the process, after one line that says what was
waited for. Processes that a run starts end with it, and its last checkpoint stays as it is.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_LOOK_EVERY_S = 0.5


class Watchdog:
    """Watches one wait at a time; the thread starts with the first one and ends with `close`."""

    def __init__(self) -> None:
        self._wait: tuple[str, float, float] | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def bounded(self, what: str, timeout_s: float) -> Iterator[None]:
        """Let the body take at most `timeout_s`; `what` names it in the message."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="engine-watchdog", daemon=True)
            self._thread.start()
        self._wait = (what, timeout_s, time.monotonic() + timeout_s)
        try:
            yield
        finally:
            self._wait = None

    def close(self) -> None:
        """End the thread. Harmless when called twice."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(_LOOK_EVERY_S):
            wait = self._wait
            if wait is not None and time.monotonic() > wait[2]:
                what, timeout_s, _ = wait
                sys.stderr.write(
                    f"\nerror: gave up waiting for {what} after {timeout_s:g} s; the last checkpoint is "
                    "intact, go on from it with --resume\n"
                )
                sys.stderr.flush()
                os._exit(1)

"""Timeouts for waits that cannot be interrupted, such as a kernel or compilation that hangs in a library.

A thread watches the deadline of the current wait. Python cannot end a call that never returns from C, so an
expired deadline ends the process. Before that, one line that names the wait goes to the terminal and to every
handler (`on_hang`), such as the run's record. Child processes of the run end with it, and its last checkpoint
is unchanged.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_LOOK_EVERY_S = 0.5
# Time limit for handlers, which may hang for the same reason as the process.
_HANDLERS_S = 10.0
# For the process as a whole, since the whole process ends.
_handlers: list[Callable[[str], None]] = []


@contextmanager
def on_hang(handle: Callable[[str], None]) -> Iterator[None]:
    """Call `handle` with one line before an expired wait in the body ends the process."""
    _handlers.append(handle)
    try:
        yield
    finally:
        _handlers.remove(handle)


class Watchdog:
    """A watchdog for one wait at a time; its thread starts with the first wait and ends with `close`."""

    def __init__(self) -> None:
        self._wait: tuple[str, float, float] | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def bounded(self, what: str, timeout_s: float) -> Iterator[None]:
        """Allow the body at most `timeout_s` seconds; `what` names it in the message."""
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
                _end(
                    f"gave up waiting for {wait[0]} after {wait[1]:g} s; the last checkpoint is intact, "
                    "resume from it with --resume"
                )


def _end(message: str) -> None:
    """End the process with the message."""
    sys.stderr.write(f"\nerror: {message}\n")
    sys.stderr.flush()
    threads = [threading.Thread(target=_call, args=(handle, message), daemon=True) for handle in _handlers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_HANDLERS_S)
    os._exit(1)


def _call(handle: Callable[[str], None], message: str) -> None:
    with suppress(Exception):  # the process ends in any case; the reason has been reported
        handle(message)

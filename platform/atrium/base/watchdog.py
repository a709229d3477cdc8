"""Timeouts for waits that cannot be interrupted, such as the wait for a kernel or compilation that hangs.

A thread monitors the deadline of the current wait. Python cannot interrupt a call that hangs in C, so the
process exits when the deadline expires. Before the exit, a line that names the wait is printed and passed to
every handler (`on_hang`), such as the one that records the run's status. Child processes of the run exit too,
and the last checkpoint is unchanged.
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
# Global, because an expired deadline ends the whole process.
_handlers: list[Callable[[str], None]] = []


@contextmanager
def on_hang(handle: Callable[[str], None]) -> Iterator[None]:
    """Call `handle` with a one-line message if a wait in the body times out, before the process exits."""
    _handlers.append(handle)
    try:
        yield
    finally:
        _handlers.remove(handle)


class Watchdog:
    """A watchdog that ends the process if a wait takes too long.

    It watches one wait at a time. Its thread starts with the first wait and ends after `close`.
    """

    def __init__(self) -> None:
        self._wait: tuple[str, float, float] | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def bounded(self, what: str, timeout_s: float) -> Iterator[None]:
        """End the process if the body takes more than `timeout_s` seconds; `what` names the wait."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="engine-watchdog", daemon=True)
            self._thread.start()
        self._wait = (what, timeout_s, time.monotonic() + timeout_s)
        try:
            yield
        finally:
            self._wait = None

    def close(self) -> None:
        """End the watchdog's thread. A second call has no effect."""
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
    """Print the message, call all handlers with it, and exit with code 1."""
    sys.stderr.write(f"\nerror: {message}\n")
    sys.stderr.flush()
    threads = [threading.Thread(target=_call, args=(handle, message), daemon=True) for handle in _handlers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_HANDLERS_S)
    os._exit(1)


def _call(handle: Callable[[str], None], message: str) -> None:
    with suppress(Exception):  # the process exits anyway, and the message has been printed
        handle(message)

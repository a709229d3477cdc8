"""Ctrl-C and SIGTERM as requests to stop after the step at hand."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from atrium.tracking.terminal import ProgressDisplay


@contextmanager
def stop_requests(display: ProgressDisplay) -> Iterator[Callable[[], bool]]:
    """Ask the loop to stop after its step on Ctrl-C or SIGTERM; a second Ctrl-C stops at once."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)
        display.message("stopping after this step; Ctrl-C again stops at once")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

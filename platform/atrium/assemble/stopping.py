"""Ctrl-C, SIGTERM and the signals of a cluster as requests to stop after the step at hand."""

from __future__ import annotations

import signal

from atrium.errors import Interrupted
from atrium.tracking.terminal import ProgressDisplay


class StopRequests:
    """Whether someone asked to stop. Until steps begin, nothing is lost by stopping at once."""

    def __init__(self, display: ProgressDisplay) -> None:
        self._display = display
        self._is_asked, self._has_steps = False, False

    def __call__(self) -> bool:
        """Whether the run is to stop after the step at hand."""
        return self._is_asked

    def begin_steps(self) -> None:
        """From here on a signal is answered after the step at hand."""
        self._has_steps = True

    def ask(self, number: int) -> None:
        """Take a signal; raises `Interrupted` before the steps, `KeyboardInterrupt` on a second Ctrl-C."""
        if not self._has_steps:
            raise Interrupted("stopped before the first step of this session")
        if self._is_asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._is_asked = True
        self._display.message("stopping after this step; Ctrl-C again stops at once")

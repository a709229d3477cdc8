"""What a person sees while a run goes on: a live view in a terminal, plain lines anywhere else.

The loop, the warm-up and the evaluator call the methods of `ProgressDisplay`; none of them may fail or
slow training. What is said at the end is in `end_summary`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Protocol

from atrium.errors import ConfigError
from atrium.tracking.plain_view import PlainDisplay, StandardOutput

MODES = ("auto", "on", "plain", "off")


class ProgressDisplay(Protocol):
    """Shows how far a run is. Every call returns quickly and none raises."""

    def begin(self, title: str, *, step: int, num_steps: int) -> None:
        """Training starts after `step`; phases before it were set-up."""
        ...

    def phase(self, name: str, total: int | None = None) -> None:
        """What happens now, such as `warm-up` or `sampling`, and how many units it has, if known."""
        ...

    def advance(self, num: int = 1, detail: str = "") -> None:
        """`num` more units of the phase are done; `detail` is shown beside them."""
        ...

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A training step is done."""
        ...

    def evaluation(self, *, step: int, benchmark: str, results: Mapping[str, object]) -> None:
        """An evaluation is done."""
        ...

    def message(self, text: str) -> None:
        """Something that a person should read, and that stays on the screen."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was found. Harmless when called twice."""
        ...


def progress_display(mode: str, log: Callable[[str], None] | None = None) -> ProgressDisplay:
    """The display for a mode: `on` is the live view, `plain` lines, `off` nothing on the screen.

    `auto` is `on` where stdout is a terminal and `plain` elsewhere. `log` receives the plain lines in
    every mode, as `RunFolder.append_log` does. Raises `ConfigError` for an unknown mode.
    """
    if mode not in MODES:
        raise ConfigError(f"tracking.progress is {mode!r}; it is one of {', '.join(MODES)}")
    if mode == "on" or (mode == "auto" and sys.stdout.isatty()):
        from atrium.tracking.live_view import LiveDisplay

        return LiveDisplay(PlainDisplay(log or _discard))
    printed = _discard if mode == "off" else StandardOutput()
    return PlainDisplay(lambda line: (printed(line), log(line) if log else None))


def _discard(line: str) -> None:
    del line

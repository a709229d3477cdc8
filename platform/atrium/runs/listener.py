"""The interface of listeners to a run's events.

Listeners write the run directory, show progress, send data to trackers, and prune sweep runs. A run sends
each event to all of its listeners, in order. The writer of the run directory comes first, so everything that
is shown or delivered has been recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partialmethod
from typing import ClassVar

from atrium.base.errors import reason_of
from atrium.base.records import BenchmarkResult, RatioHistogram, RolloutGroup, TokenTrace
from atrium.runs.status import RunState

_SLOW_S = 10.0
"""Seconds after which a slow call is reported, once for each listener."""


class Listener:
    """A receiver of a run's events. Every method does nothing; subclasses override the methods they need.

    The training thread calls the methods and waits for them, so each must return quickly.
    """

    name: ClassVar[str] = "a listener"
    may_stop: ClassVar[bool] = False
    """Whether an error of the listener ends the run; if not, the listener is ignored after an error."""

    def begin(self, *, step: int, num_steps: int, title: str = "") -> None:
        """Handle the start of training after `step` (0 for a new run); `title` names the trained model."""

    def progress(self, *, step: int, num_steps: int) -> None:
        """Handle progress in a run without training steps: `step` of `num_steps` problems are evaluated."""

    def phase(self, name: str, total: int | None = None) -> None:
        """Handle the start of a phase such as `warm-up` or `sampling`, with `total` units (None: unknown)."""

    def advance(self, num: int = 1, detail: str = "") -> None:
        """Handle the completion of `num` more units of the phase; `detail` may be shown with them."""

    def message(self, text: str) -> None:
        """Show a message to the user."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Handle a completed training step, once per step; `metrics` maps metric names to values.

        The names are defined in `atrium.base.metrics`.
        """

    def ratios(self, step: int, histogram: RatioHistogram) -> None:
        """Handle the histogram of a step's importance ratios."""

    def wants_rollouts(self, step: int) -> bool:
        """Return whether the listener needs this step's rollouts and their per-token traces."""
        return False

    def rollouts(self, step: int, groups: Sequence[RolloutGroup], traces: Sequence[TokenTrace]) -> None:
        """Handle a step's rollouts; `traces` contains one trace per rollout, in the order of the groups."""

    def evaluation(self, result: BenchmarkResult) -> None:
        """Handle the samples and scores of an evaluated benchmark."""

    def sync(self) -> None:
        """Flush records to disk; a checkpoint waits for this."""

    def end(self, state: RunState, error: str | None = None, cause: str | None = None) -> None:
        """Handle the end of the run; for a failure, `error` is the message and `cause` a one-word reason."""


class Listeners(Listener):
    """A listener that forwards each event to several listeners in order.

    An error of a listener is raised if the listener's `may_stop` is True. Otherwise, the other listeners
    receive one message about the error, and the failed listener receives no more events except `end`. If a
    listener takes more than 10 seconds for an event, all listeners receive one message. `clock` returns the
    time in seconds.
    """

    def __init__(self, listeners: Sequence[Listener], clock: Callable[[], float] = time.perf_counter) -> None:
        self._listeners = tuple(listeners)
        self._clock = clock
        self._failed: set[int] = set()
        self._slow: set[int] = set()

    def wants_rollouts(self, step: int) -> bool:
        """Return whether any listener needs this step's rollouts and their per-token traces."""
        wanting: list[Listener] = []
        self._tell(lambda one: wanting.append(one) if one.wants_rollouts(step) else None)
        return bool(wanting)

    def end(self, state: RunState, error: str | None = None, cause: str | None = None) -> None:
        """Call `end` of each listener, including failed listeners, even if others raise errors."""
        with ExitStack() as stack:
            for listener in reversed(self._listeners):
                stack.callback(self._call, listener, lambda one: one.end(state, error, cause))

    def _tell_each(self, method: str, *arguments: object, **named: object) -> None:
        self._tell(lambda one: getattr(one, method)(*arguments, **named))

    def _tell(self, call: Callable[[Listener], None]) -> None:
        for listener in self._listeners:
            if id(listener) not in self._failed:
                self._call(listener, call)

    def _call(self, listener: Listener, call: Callable[[Listener], None]) -> None:
        started = self._clock()
        try:
            call(listener)
        except Exception as error:
            if listener.may_stop:
                raise
            self._say_once(self._failed, listener, f"failed and is ignored from now on: {reason_of(error)}")
        spent_s = self._clock() - started
        if spent_s > _SLOW_S:
            self._say_once(self._slow, listener, f"delayed the run by {spent_s:.0f} s")

    def _say_once(self, said: set[int], listener: Listener, what: str) -> None:
        if id(listener) not in said:
            said.add(id(listener))
            self.message(f"{listener.name} {what}")


# Every other method of `Listener`, such as `step`, is called on each listener, in order.
for _method in vars(Listener).keys() - vars(Listeners).keys():
    if not _method.startswith("_") and callable(getattr(Listener, _method)):
        setattr(Listeners, _method, partialmethod(Listeners._tell_each, _method))

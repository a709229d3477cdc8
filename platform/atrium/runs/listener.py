"""Listeners of a run's events: the run folder, its log, the terminal, mirrors, and a watching sweep.

A run has a tuple of `Listener`s and sends each event to all of them, in order. The run folder comes first, so
everything that is shown or delivered has been recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partialmethod
from typing import ClassVar

from atrium.base.records import BenchmarkResult, RatioHistogram, RolloutGroup, TokenTrace
from atrium.runs.status import RunState

_SLOW_S = 10.0
"""Seconds after which a slow call is reported, once for each listener."""


class Listener:
    """Receives a run's events. Every method does nothing; a listener overrides those that it needs.

    Calls come from the training thread, which waits for them, so each must return quickly.
    """

    name: ClassVar[str] = "a listener"
    may_stop: ClassVar[bool] = False
    """Whether its errors end the run. Any other listener that fails is reported once and then ignored."""

    def begin(self, *, step: int, num_steps: int, title: str = "") -> None:
        """Training starts after `step` (0 at the start); `title` names what is trained."""

    def progress(self, *, step: int, num_steps: int) -> None:
        """`step` of `num_steps` units are done, in a run without steps: an evaluation's problems."""

    def phase(self, name: str, total: int | None = None) -> None:
        """A phase begins, such as `warm-up` or `sampling`; `total` is its number of units, if known."""

    def advance(self, num: int = 1, detail: str = "") -> None:
        """`num` more units of the phase are done; `detail` may be shown with them."""

    def message(self, text: str) -> None:
        """Show a message to the user."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A training step is done; `metrics` by name (`atrium.base.metrics`). Called once for each step."""

    def ratios(self, step: int, histogram: RatioHistogram) -> None:
        """The distribution of one step's ratios."""

    def wants_rollouts(self, step: int) -> bool:
        """Return whether it uses this step's rollouts, so that traces are needed."""
        del step
        return False

    def rollouts(
        self,
        step: int,
        groups: Sequence[RolloutGroup],
        traces: Mapping[tuple[str, int], TokenTrace],
    ) -> None:
        """A step's rollouts; traces are keyed by (problem_id, sample_index)."""

    def evaluation(self, result: BenchmarkResult) -> None:
        """A benchmark was evaluated."""

    def sync(self) -> None:
        """Flush records to disk; a checkpoint waits for this."""

    def end(self, state: RunState, error: str | None = None, cause: str | None = None) -> None:
        """The run is over, in this state; `error` is the message and `cause` one word for a failure."""


class Listeners(Listener):
    """Forwards events to several listeners in order; `clock` gives seconds.

    If a listener fails that may not stop the run, the others get one message, and it gets no more calls
    except the last. If one takes long, all get one message.
    """

    def __init__(self, listeners: Sequence[Listener], clock: Callable[[], float] = time.perf_counter) -> None:
        self._listeners = tuple(listeners)
        self._clock = clock
        self._failed: set[int] = set()
        self._slow: set[int] = set()

    def wants_rollouts(self, step: int) -> bool:
        """Return whether any of them uses this step's rollouts."""
        wanting: list[Listener] = []
        self._tell(lambda one: wanting.append(one) if one.wants_rollouts(step) else None)
        return bool(wanting)

    def end(self, state: RunState, error: str | None = None, cause: str | None = None) -> None:
        """Notify each listener, including failed ones, whatever another raises."""
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
            problem = " ".join(str(error).split()) or type(error).__name__
            self._say_once(self._failed, listener, f"failed and is ignored from now on: {problem}")
        spent_s = self._clock() - started
        if spent_s > _SLOW_S:
            self._say_once(self._slow, listener, f"delayed the run by {spent_s:.0f} s")

    def _say_once(self, said: set[int], listener: Listener, what: str) -> None:
        if id(listener) not in said:
            said.add(id(listener))
            self.message(f"{listener.name} {what}")


# Every other method of `Listener`, such as `step`: tells each listener, in order.
for _method in vars(Listener).keys() - vars(Listeners).keys():
    if not _method.startswith("_") and callable(getattr(Listener, _method)):
        setattr(Listeners, _method, partialmethod(Listeners._tell_each, _method))

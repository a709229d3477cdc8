"""Who hears what a run does: the run folder, its log, the terminal, mirrors, and a sweep that watches.

A run has a tuple of `Listener`s and tells each of them everything, in that order. The run folder comes first,
so nothing is shown or delivered that is not recorded.
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
"""A call that takes longer than this is worth a line, once for each listener."""


class Listener:
    """Hears what a run does. Every method does nothing; a listener has those that it needs.

    Calls come from the thread that trains and are waited for, so each has to return quickly.
    """

    name: ClassVar[str] = "a listener"
    may_stop: ClassVar[bool] = False
    """Whether its errors end the run. Any other listener that fails is said once and left alone."""

    def begin(self, *, step: int, num_steps: int, title: str = "") -> None:
        """Training goes on after `step` (0 at the start); `title` says what is trained."""

    def progress(self, *, step: int, num_steps: int) -> None:
        """`step` of `num_steps` units are done, in a run that takes no steps: an evaluation's problems."""

    def phase(self, name: str, total: int | None = None) -> None:
        """A phase begins, such as `warm-up` or `sampling`; `total` is its number of units, if known."""

    def advance(self, num: int = 1, detail: str = "") -> None:
        """`num` more units of the phase are done; `detail` may be shown beside them."""

    def message(self, text: str) -> None:
        """Something that a person should read."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A training step is done; `metrics` by name (`atrium.base.metrics`). Called once for each step."""

    def ratios(self, step: int, histogram: RatioHistogram) -> None:
        """How the ratios of one step are distributed."""

    def wants_rollouts(self, step: int) -> bool:
        """Whether it takes this step's rollouts, so that traces are worth making."""
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
        """Bring to the disk what was recorded; a checkpoint waits for this."""

    def end(self, state: RunState, error: str | None = None, cause: str | None = None) -> None:
        """The run is over, in this state; `error` says why, `cause` in one word where it failed."""


class Listeners(Listener):
    """Tells each of several listeners in their order; `clock` gives seconds.

    Where a listener fails that may not stop the run, the others get one message, and it gets no more calls
    but the last. Where one takes long, all get one message.
    """

    def __init__(self, listeners: Sequence[Listener], clock: Callable[[], float] = time.perf_counter) -> None:
        self._listeners = tuple(listeners)
        self._clock = clock
        self._failed: set[int] = set()
        self._slow: set[int] = set()

    def wants_rollouts(self, step: int) -> bool:
        """Whether any of them takes this step's rollouts."""
        wanting: list[Listener] = []
        self._tell(lambda one: wanting.append(one) if one.wants_rollouts(step) else None)
        return bool(wanting)

    def end(self, state: RunState, error: str | None = None, cause: str | None = None) -> None:
        """Tell each, those that failed too, whatever another raises."""
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
            self._say_once(self._failed, listener, f"failed and is left alone: {problem}")
        spent_s = self._clock() - started
        if spent_s > _SLOW_S:
            self._say_once(self._slow, listener, f"kept the run waiting for {spent_s:.0f} s")

    def _say_once(self, said: set[int], listener: Listener, what: str) -> None:
        if id(listener) not in said:
            said.add(id(listener))
            self.message(f"{listener.name} {what}")


# Every other method of `Listener`, such as `step`: tells each listener, in order.
for _method in vars(Listener).keys() - vars(Listeners).keys():
    if not _method.startswith("_") and callable(getattr(Listener, _method)):
        setattr(Listeners, _method, partialmethod(Listeners._tell_each, _method))

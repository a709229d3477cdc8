"""An engine that does not run in the trainer's process, as the trainer sees it, and where such engines live.

`DealtEngine` deals work to engines of any place. One is asked one thing at a time and says one thing after
the other, the last of which is `Done` or `Failed` (see `engine_worker`). It may be several processes, which
are asked the same, are lost together, and have done what they were asked when each of them has.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from atrium.rollout.engine import EngineFacts
from atrium.rollout.engine_worker import AskEach, Done, Failed, Question, Reply, Unit

# In which the death of a process is seen here, after another of its engine has said that it misses it.
_DEATH_S = 2.0
# A request is answered when the last of its completions ends, and 32,768 tokens take most of an hour at 10 a
# second.
_PART_TOKENS = 8192


class PlacedEngine(ABC):
    """One engine; `question` is what it works on, at first its start, and None while it is idle.

    `facts` are those that it told last, and `pids` the ids of its `num_processes` processes there, once they
    are known. For `patience_s` it may work without a word before it is taken for hanging.
    """

    def __init__(self, number: int, *, num_processes: int, timeout_s: float) -> None:
        self.number = number
        self.num_processes = num_processes
        self.pids: set[int] = set()
        self.question: Question | None = None
        self.facts = EngineFacts()
        self.timeout_s = timeout_s
        self._num_working = 0
        self._asked = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether it has not answered yet what it is asked."""
        return self.question is not None

    @property
    def patience_s(self) -> float:
        """How long it may say nothing: `timeout_s`, and for long answers so much for each part of them."""
        num_tokens = self.question.sampling.max_new_tokens if isinstance(self.question, Unit) else 1
        return self.timeout_s * -(-num_tokens // _PART_TOKENS)

    @property
    def is_late(self) -> bool:
        """Whether it has said nothing for too long, although it is asked something."""
        return self.is_busy and time.monotonic() - self._asked > self.patience_s

    @property
    @abstractmethod
    def printed(self) -> str:
        """Where people find what it prints."""

    def ask(self, question: Question) -> None:
        """Ask an idle engine; raises `OSError` where it is gone."""
        self.question, self._asked = question, time.monotonic()
        self._num_working = self.num_processes
        self._send(question)

    def receive(self) -> Reply:
        """The next that one of its processes says, which is there or on its way.

        `EOFError` or `OSError` where one is gone, be it that another misses it.
        """
        reply = self._next()
        self._asked = time.monotonic()
        if isinstance(reply, Failed) and self.num_processes > 1 and self._has_lost_one(_DEATH_S):
            raise EOFError(str(reply.error))
        if isinstance(reply, Done):
            self.facts = reply.facts
            self.pids.add(reply.pid)
            self._num_working -= 1
            if self._num_working == 0:
                self.question = None
        return reply

    @abstractmethod
    def end(self) -> None:
        """Kill it; it has nothing to lose. Harmless when called twice."""

    @abstractmethod
    def _send(self, question: Question) -> None: ...

    @abstractmethod
    def _next(self) -> Reply: ...

    @abstractmethod
    def _has_lost_one(self, timeout_s: float) -> bool:
        """Whether one of its processes is gone, or goes in so many seconds."""


PlacedT = TypeVar("PlacedT", bound=PlacedEngine)


class WeightSender(Protocol):
    """Sends weights to engines that form a group with it, all at once; one that is lost is lost for all."""

    def connect(self, ask: AskEach) -> None:
        """Form a group with the engines of now, in place of an earlier one."""
        ...

    def send(self, weights: Mapping[str, Tensor], version: int, ask: AskEach) -> None:
        """Let all engines of the group take a full `state_dict` as `version`."""
        ...

    def close(self) -> None:
        """Leave the group. Harmless when called twice."""
        ...


class EnginePlace(Protocol, Generic[PlacedT]):
    """Where engines live: starts them, gives them weights, and listens to all of them at once."""

    @property
    def num_engines(self) -> int:
        """How many there are at a time, numbered from 0."""
        ...

    def start(self, number: int) -> PlacedT:
        """A new engine of this number, which is asked its start already."""
        ...

    def write(self, weights: Mapping[str, Tensor]) -> None:
        """Have the weights (a full `state_dict`) ready for whoever is asked to take them, while all are idle.

        Raises `EngineError`, with nothing changed, unless names and shapes are exactly the model's.
        """
        ...

    def wait(self, engines: Sequence[PlacedT], timeout_s: float) -> Collection[PlacedT]:
        """Those that say something, or are gone, as soon as there is one; none after `timeout_s` seconds."""
        ...

    def close(self) -> None:
        """Leave the place, when its engines have ended."""
        ...

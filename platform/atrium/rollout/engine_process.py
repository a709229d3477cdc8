"""The trainer's end of an engine that runs in a process of its own (see `engine_worker`)."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from atrium.rollout.engine import EngineFacts
from atrium.rollout.engine_worker import EngineStart, Question, Reply, serve
from atrium.rollout.shared_weights import Descriptor

_END_TIMEOUT_S = 5.0
# Processes are forked from one that has loaded the libraries and nothing of the trainer's.
_CONTEXT = multiprocessing.get_context("forkserver")
_LIBRARIES = ("torch", "transformers", "atrium.rollout.transformers_engine")


def preload(*modules: str) -> None:
    """Let the process that engines are forked from load what engines need, and these modules.

    The first engine starts it; later calls change nothing.
    """
    _CONTEXT.set_forkserver_preload([*_LIBRARIES, *modules])


class EngineProcess:
    """One engine process; `question` is what it works on, at first its start, and None while it is idle.

    `facts` are those that it told last.

    A process that does not take a message, or not all of its own, within `timeout_s` is killed; whoever waits
    for it then gets the `EOFError` or `OSError` of a process that died.
    """

    def __init__(self, number: int, start: EngineStart, memory: Descriptor, *, timeout_s: float) -> None:
        self.number = number
        self.question: Question | None = None
        self.facts = EngineFacts()
        self._timeout_s = timeout_s
        self.connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(
            target=serve, args=(theirs, memory), name=f"atrium-engine-{number}", daemon=True
        )
        with theirs:
            self._process.start()
        with suppress(OSError):  # it died already, which whoever waits for it is told
            self.ask(start)

    @property
    def pid(self) -> int | None:
        """The process's id."""
        return self._process.pid

    @property
    def is_busy(self) -> bool:
        """Whether it has not answered yet what it is asked."""
        return self.question is not None

    @property
    def is_late(self) -> bool:
        """Whether it has said nothing for too long, although it is asked something."""
        return self.is_busy and time.monotonic() - self._asked > self._timeout_s

    def ask(self, question: Question) -> None:
        """Ask an idle process."""
        self.question, self._asked = question, time.monotonic()
        with self._bounded():
            self.connection.send(question)

    def receive(self) -> Reply:
        """The next message, which is there or on its way."""
        with self._bounded():
            reply: Reply = self.connection.recv()
        self._asked = time.monotonic()
        return reply

    def end(self) -> None:
        """Kill the process, which has nothing to lose. Harmless when called twice."""
        with suppress(ValueError):  # it is closed
            self._process.kill()
            self._process.join(_END_TIMEOUT_S)
            self._process.close()
        self.connection.close()

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        timer = threading.Timer(self._timeout_s, self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

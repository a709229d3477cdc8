"""Engines in processes beside the trainer, on its machine.

Such a process answers over an inherited socket and listens to nothing else. When that socket closes, because
the trainer closed the engine or died in whatever way, the process ends at once, in the middle of sampling
too.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from torch import Tensor

from atrium.rollout.engine_worker import EngineStart, EngineWorker, Question, Reply
from atrium.rollout.placed_engine import PlacedEngine
from atrium.rollout.shared_weights import Descriptor, SharedWeights

_END_TIMEOUT_S, _RETRY_S = 5.0, 0.05
# Processes are forked from one that has loaded the libraries and nothing of the trainer's.
_CONTEXT = multiprocessing.get_context("forkserver")
_LIBRARIES = ("torch", "transformers", "atrium.rollout.transformers_engine")


def preload(*modules: str) -> None:
    """Let the process that engines are forked from load what engines need, and these modules.

    The first engine starts it; later calls change nothing.
    """
    _CONTEXT.set_forkserver_preload([*_LIBRARIES, *modules])


class EngineProcesses:
    """Starts engines in processes of this machine, which read weights from memory that they inherit.

    Parameters
    ----------
    start
        What each begins with.
    weights
        What they sample with.
    devices
        The one GPU that each sees, as CUDA_VISIBLE_DEVICES names it; None for what the trainer sees.
    logs
        The folder of the files that take what they print.
    timeout_s
        How long one that is asked something may say nothing, before it is taken for hanging.
    """

    def __init__(
        self,
        start: EngineStart,
        weights: SharedWeights,
        *,
        devices: Sequence[str | None],
        logs: Path,
        timeout_s: float,
    ) -> None:
        self._start = start
        self._weights = weights
        self._devices = devices
        self._logs = logs
        self._timeout_s = timeout_s

    @property
    def num_engines(self) -> int:
        """How many there are at a time."""
        return len(self._devices)

    def start(self, number: int) -> EngineProcess:
        """A new engine of this number, which is asked its start already."""
        engine = EngineProcess(
            number,
            self._weights.descriptor,
            device=self._devices[number],
            log=self._logs / f"engine-{number}.log",
            timeout_s=self._timeout_s,
        )
        with suppress(OSError):  # it died already, which whoever waits for it is told
            engine.ask(self._start)
        return engine

    def write(self, weights: Mapping[str, Tensor]) -> None:
        """Write where all of them read."""
        self._weights.write(weights)

    def wait(self, engines: Sequence[EngineProcess], timeout_s: float) -> list[EngineProcess]:
        """Those that say something, or are gone, as soon as there is one; none after `timeout_s` seconds."""
        ready = wait([engine.connection for engine in engines], timeout_s)
        return [engine for engine in engines if engine.connection in ready]

    def close(self) -> None:
        """Let the memory go."""
        self._weights.close()


class EngineProcess(PlacedEngine):
    """One engine process.

    One that does not take a message, or not all of its own, within `timeout_s` is killed; whoever waits for
    it then gets the `EOFError` or `OSError` of a process that died.
    """

    def __init__(
        self, number: int, memory: Descriptor, *, device: str | None, log: Path, timeout_s: float
    ) -> None:
        super().__init__(number, timeout_s=timeout_s)
        self._log = log
        self.connection, theirs = _CONTEXT.Pipe()
        serves = (theirs, memory, device, log)
        with theirs:
            self._process = _forked(number, serves)
        self.pid = self._process.pid

    @property
    def printed(self) -> str:
        """The file that takes what it prints."""
        return str(self._log)

    def end(self) -> None:
        """Kill the process, which has nothing to lose. Harmless when called twice."""
        with suppress(ValueError):  # it is closed
            self._process.kill()
            self._process.join(_END_TIMEOUT_S)
            self._process.close()
        self.connection.close()

    def _send(self, question: Question) -> None:
        with self._bounded():
            self.connection.send(question)

    def _next(self) -> Reply:
        with self._bounded():
            reply: Reply = self.connection.recv()
        return reply

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        timer = threading.Timer(self.timeout_s, self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _forked(number: int, serves: tuple[Connection, Descriptor, str | None, Path]) -> BaseProcess:
    """A process that serves. What it is forked from may have been killed: it starts anew once it is gone."""
    give_up = time.monotonic() + _END_TIMEOUT_S
    while True:
        process = _CONTEXT.Process(target=_serve, args=serves, name=f"atrium-engine-{number}", daemon=True)
        try:
            process.start()
        except (EOFError, OSError):
            if time.monotonic() > give_up:
                raise
            time.sleep(_RETRY_S)
        else:
            return process


def _serve(connection: Connection, memory: Descriptor, device: str | None, log: Path) -> None:
    """The life of the process."""
    os.setsid()  # out of the terminal's reach: Ctrl-C is for the trainer, which then closes us
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_trainer, args=(connection,), daemon=True).start()
    _print_into(log)
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    weights = mmap.mmap(memory.number, 0)
    worker = EngineWorker()
    while True:
        for reply in worker.replies(connection.recv(), weights):
            connection.send(reply)


def _end_with_trainer(connection: Connection) -> None:
    """End this process when the other end of the socket is closed, whatever the main thread does."""
    hung_up = select.poll()
    hung_up.register(connection, 0)  # POLLHUP is always told
    hung_up.poll()
    os._exit(0)


def _print_into(log: Path) -> None:
    with log.open("ab") as file:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)

"""Engines in processes beside the trainer, on its machine: one or several for each.

Such a process answers over an inherited socket and listens to nothing else, but for the others of its engine.
When that socket closes, because the trainer closed the engine or died in whatever way, the process ends at
once, in the middle of sampling too.
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
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from torch import Tensor

from atrium.plain_files import append_plain
from atrium.rollout.engine_member import Member, meeting_memory
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
        For each engine the one GPU of each of its processes, as CUDA_VISIBLE_DEVICES names it; None for what
        the trainer sees.
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
        devices: Sequence[Sequence[str | None]],
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
            devices=self._devices[number],
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
        ready = set(wait([one for engine in engines for one in engine.connections], timeout_s))
        return [engine for engine in engines if not ready.isdisjoint(engine.connections)]

    def close(self) -> None:
        """Let the memory go."""
        self._weights.close()


class EngineProcess(PlacedEngine):
    """One engine, of a process for each of `devices`; `connections` lead to them.

    One that does not take a message, or not all of its own, within `timeout_s` is killed; whoever waits for
    it then gets the `EOFError` or `OSError` of a process that died.
    """

    def __init__(
        self,
        number: int,
        memory: Descriptor,
        *,
        devices: Sequence[str | None],
        log: Path,
        timeout_s: float,
    ) -> None:
        super().__init__(number, num_processes=len(devices), timeout_s=timeout_s)
        self._log = log
        self._processes: list[_Forked] = []
        meeting = Descriptor(meeting_memory())
        try:
            for rank, device in enumerate(devices):
                # The trainer, which waits half as long, ends them all when one is missing.
                part = _Part(rank, len(devices), meeting, 2 * timeout_s, memory, device, log)
                self._processes.append(_fork(f"atrium-engine-{number}-{rank}", part))
        except BaseException:
            self.end()
            raise
        finally:
            os.close(meeting.number)

        self.connections = [process.connection for process in self._processes]

    @property
    def printed(self) -> str:
        """The file that takes what it prints."""
        return str(self._log)

    def end(self) -> None:
        """Kill the processes, which have nothing to lose. Harmless when called twice."""
        self._kill()
        for process in self._processes:
            process.close()
        self._processes = []

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()

    def _send(self, question: Question) -> None:
        with self._bounded():
            for connection in self.connections:
                connection.send(question)

    def _next(self) -> Reply:
        with self._bounded():
            ready = wait(self.connections)
            # The first may only say that it misses another, of which this is the end.
            reply: Reply = next(one for one in reversed(self.connections) if one in ready).recv()
        return reply

    def _has_lost_one(self, timeout_s: float) -> bool:
        return bool(wait([process.descriptor for process in self._processes], timeout_s))

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        timer = threading.Timer(self.timeout_s, self._kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


@dataclass(frozen=True, slots=True)
class _Part:
    """What a process of an engine begins with."""

    rank: int
    size: int
    meeting: Descriptor
    timeout_s: float
    memory: Descriptor
    device: str | None
    log: Path


@dataclass(frozen=True, slots=True)
class _Forked:
    """A process of an engine.

    `connection` leads to it, and `descriptor` is one of the process itself (a pidfd), readable once it has
    ended: what multiprocessing knows of a process is lost with the one that it is forked from.
    """

    process: BaseProcess
    connection: Connection
    descriptor: int

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)

    def close(self) -> None:
        """Wait until it has ended after `kill`, and forget it."""
        wait([self.descriptor], _END_TIMEOUT_S)
        self.process.join(_END_TIMEOUT_S)
        with suppress(ValueError):  # it still runs
            self.process.close()
        self.connection.close()
        os.close(self.descriptor)


def _fork(name: str, part: _Part) -> _Forked:
    """A process that serves. What it is forked from may have been killed: it starts anew once it is gone."""
    give_up = time.monotonic() + _END_TIMEOUT_S
    while True:
        # A process can live although its start failed. Having a socket of its own, it ends when that is
        # closed, and never reads what another is asked.
        ours, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=_serve, args=(theirs, part), name=name, daemon=True)
        try:
            with theirs:
                process.start()
            assert process.pid is not None
            return _Forked(process, ours, os.pidfd_open(process.pid))
        except (EOFError, OSError):
            ours.close()
            if time.monotonic() > give_up:
                raise
            time.sleep(_RETRY_S)
        except BaseException:
            ours.close()
            raise


def _serve(connection: Connection, part: _Part) -> None:
    """The life of a process."""
    os.setsid()  # out of the terminal's reach: Ctrl-C is for the trainer, which then closes us
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_trainer, args=(connection,), daemon=True).start()
    _print_into(part.log)
    if part.device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = part.device
    weights = mmap.mmap(part.memory.number, 0)
    meeting = f"/proc/self/fd/{part.meeting.number}"
    member = Member(rank=part.rank, size=part.size, meeting=meeting, timeout_s=part.timeout_s)
    worker = EngineWorker(member)
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
    with append_plain(log) as file:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)

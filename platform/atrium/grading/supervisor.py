"""Runs grading jobs in worker processes that may be killed, and always comes back with an outcome.

One thread owns every process and socket: it hands each worker one job at a time, kills it at the deadline,
replaces what died, and calls back with the outcome. Processes are started with the first job, and no
more than are needed. It knows nothing of answers and verdicts; a job is a line of bytes.

The deadline of a job counts from the moment it is sent to a worker that is ready. A job whose worker died is
handed out once more, since it may have been killed from outside; one that a second worker dies of fails.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from atrium.grading.template import Template

MAX_PENDING = 10_000
"""Jobs that may wait before `submit` makes its caller wait for room."""

_START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a worker sent back for a job."""

    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no reply: the deadline passed, or the worker could not do it."""

    is_timeout: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Defect:
    """Why no job is done any more, whatever it asks."""

    reason: str


Outcome = Reply | Failure | Defect


# One may be killed from outside, by a machine that is short of memory.
_MAX_FAILED_STARTS, _MAX_DIED = 3, 2


class _NoProcessesError(Exception):
    """No worker could be started, several times in a row."""


@dataclass(slots=True)
class _Job:
    """`num_died` counts the workers that had begun it and died."""

    line: bytes
    on_done: Callable[[Outcome], None]
    num_died: int = 0


@dataclass(slots=True, eq=False)
class _Worker:
    """The caller's end of one worker; `pid` is None until it says hello."""

    connection: socket.socket
    deadline: float
    pid: int | None = None
    job: _Job | None = None
    has_begun: bool = False
    received: bytearray = field(default_factory=bytearray)

    @property
    def is_idle(self) -> bool:
        return self.pid is not None and self.job is None


class Supervisor:
    """Hands jobs to at most `num_workers` processes and calls back with their outcomes."""

    def __init__(
        self, *, num_workers: int, timeout_s: float, memory_limit_mb: int, modules: Sequence[str] = ()
    ) -> None:
        """Create it; `modules` are imported before the first worker, so that no job waits for them."""
        self._modules = modules
        self._num_workers = num_workers
        self._timeout_s = timeout_s
        self._memory_limit_mb = memory_limit_mb
        self._changed = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._wake_sender, self._wake_receiver = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._template: Template | None = None
        self._workers: list[_Worker] = []
        self._was_ready = False
        self._num_failed_starts = 0
        self._defect: Defect | None = None

    def prepare(self) -> None:
        """Start a worker that no job needs yet. Returns at once; does nothing where jobs came before."""
        with self._changed:
            if self._thread is None and not self._is_closed:
                self._start_thread(with_worker=True)

    def submit(self, line: bytes, on_done: Callable[[Outcome], None]) -> None:
        """Queue a job; `on_done` is called once, from the supervising thread.

        Waits while `MAX_PENDING` jobs are queued, except in a callback, which must never wait. After
        `close` the outcome is a failure at once, and a defect where the supervisor had ended by itself.
        """
        with self._changed:
            while len(self._queue) >= MAX_PENDING and not self._is_closed:
                if threading.current_thread() is self._thread:
                    break
                self._changed.wait()
            is_closed = self._is_closed
            if not is_closed:
                self._queue.append(_Job(line, on_done))
                if self._thread is None:
                    self._start_thread(with_worker=False)
        if is_closed:
            on_done(self._failure("the grader was closed"))
        else:
            self._wake()

    def close(self) -> None:
        """End all processes; jobs that are not done fail. Harmless when called twice."""
        with self._changed:
            is_first, self._is_closed = not self._is_closed, True
            self._changed.notify_all()
        self._wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        elif is_first and self._thread is None:
            self._release()

    def process_ids(self) -> list[int]:
        """The process ids of the workers that are ready, for tests and diagnostics."""
        return [worker.pid for worker in list(self._workers) if worker.pid is not None]

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake already; closed: nobody to wake
            self._wake_sender.send(b"w")

    def _start_thread(self, *, with_worker: bool) -> None:
        self._thread = threading.Thread(target=self._run, args=(with_worker,), name="grader", daemon=True)
        self._thread.start()

    def _run(self, with_worker: bool) -> None:
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        try:
            if with_worker:
                self._start_worker()
            while not self._is_closed:
                self._hand_out()
                for key, _ in self._selector.select(self._seconds_to_deadline()):
                    if key.fileobj is self._wake_receiver:
                        self._wake_receiver.recv(4096)
                    elif self._template is not None and key.fileobj is self._template.control:
                        self._lose_template("the grader's processes could not start or were killed")
                    elif key.data in self._workers:
                        self._receive(key.data)
                self._expire()
        except _NoProcessesError as error:
            self._defect = Defect(str(error))
        except Exception as error:  # every answer that waits ends with the cause, and none waits for ever
            self._defect = Defect(f"{type(error).__name__}: {error}")
        finally:
            self._end_all()

    def _failure(self, reason: str) -> Failure | Defect:
        return self._defect or Failure(False, reason)

    def _hand_out(self) -> None:
        idle = [worker for worker in self._workers if worker.is_idle]
        while True:
            with self._changed:
                if not self._queue:
                    return
                if not idle:
                    break
                job = self._queue.popleft()
                self._changed.notify()
            worker = idle.pop()
            worker.job, worker.has_begun = job, False
            worker.deadline = time.monotonic() + self._timeout_s
            try:
                worker.connection.sendall(job.line)
            except OSError:
                self._fail(worker, "it died while it was idle")
        num_starting = sum(worker.pid is None for worker in self._workers)
        num_wanted = min(self._num_workers - len(self._workers), len(self._queue) - num_starting)
        for _ in range(num_wanted):
            self._start_worker()

    def _start_worker(self) -> None:
        if self._template is None:
            self._template = Template(
                memory_limit_mb=self._memory_limit_mb, timeout_s=self._timeout_s, modules=self._modules
            )
            self._selector.register(self._template.control, selectors.EVENT_READ, None)
        try:
            connection = self._template.fork()
        except OSError:
            return  # the template died; its socket says so in the next round
        worker = _Worker(connection, time.monotonic() + _START_TIMEOUT_S)
        self._workers.append(worker)
        self._selector.register(connection, selectors.EVENT_READ, worker)

    def _receive(self, worker: _Worker) -> None:
        try:
            data = worker.connection.recv(65_536)
        except OSError:
            data = b""
        if not data and worker.pid is None and not self._was_ready:
            self._lose_template("a worker process died before it was ready")
            return
        if not data:
            self._fail(
                worker,
                "two worker processes died: out of memory, or killed from outside",
            )
            return
        worker.received += data
        *lines, rest = worker.received.split(b"\n")
        worker.received = rest
        for line in lines:
            self._take_message(worker, json.loads(line))

    def _take_message(self, worker: _Worker, message: dict[str, Any]) -> None:
        if worker.pid is None:
            worker.pid = message["pid"]
            self._was_ready, self._num_failed_starts = True, 0
            return
        if "begun" in message:
            worker.has_begun = True
            return
        job, worker.job = worker.job, None
        if "failure" in message:
            self._drop(worker)
        if job is not None:
            job.on_done(Reply(message))

    def _seconds_to_deadline(self) -> float | None:
        deadlines = [worker.deadline for worker in self._workers if not worker.is_idle]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _expire(self) -> None:
        now = time.monotonic()
        for worker in [w for w in self._workers if not w.is_idle and w.deadline <= now]:
            if worker.pid is None:
                self._lose_template(f"no grader process was ready within {_START_TIMEOUT_S:g} s")
                return
            self._fail(worker, f"no decision within {self._timeout_s:g} s", is_timeout=True)

    def _fail(self, worker: _Worker, reason: str, *, is_timeout: bool = False) -> None:
        """Give up a worker; its job goes to another, unless it took too long or others died of it, too."""
        job = worker.job
        self._drop(worker)
        if job is None:
            return
        job.num_died += worker.has_begun
        if is_timeout:
            job.on_done(Failure(True, reason))
        elif job.num_died >= _MAX_DIED:
            job.on_done(self._failure(reason))
        else:
            with self._changed:
                self._queue.appendleft(job)

    def _drop(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._selector.unregister(worker.connection)
        worker.connection.close()
        if worker.pid is not None and self._template is not None:
            self._template.kill(worker.pid)

    def _lose_template(self, reason: str) -> None:
        """Give up all processes; new ones start for the jobs in the queue, unless none ever can."""
        self._num_failed_starts += not self._was_ready
        if self._num_failed_starts >= _MAX_FAILED_STARTS:
            raise _NoProcessesError(reason)
        self._end_processes(reason)

    def _end_processes(self, reason: str) -> None:
        # A template that never had a worker may be loading still, and would not notice that it is to end.
        is_ready = any(worker.pid is not None for worker in self._workers)
        for worker in list(self._workers):
            self._fail(worker, reason)
        if self._template is not None:
            self._selector.unregister(self._template.control)
            self._template.end(at_once=not is_ready)
            self._template = None
        self._was_ready = False

    def _fail_queue(self, reason: str) -> None:
        with self._changed:
            jobs = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        for job in jobs:
            job.on_done(self._failure(reason))

    def _end_all(self) -> None:
        with self._changed:
            self._is_closed = True
        try:
            self._end_processes("the grader was closed")
        finally:
            self._fail_queue("the grader was closed")
            self._release()

    def _release(self) -> None:
        self._selector.close()
        self._wake_sender.close()
        self._wake_receiver.close()

"""Execution of grading jobs in worker processes that may be killed. Every job gets an outcome.

Each worker process has a thread in the caller. The thread sends one job at a time to the worker, kills the
worker at the deadline, replaces a dead worker, and calls back with the outcome. Processes start with the
first job, and no more start than are needed. A job is a line of bytes, which this module does not interpret.

The deadline of a job is measured from the moment when the job is sent to a ready worker. If the worker dies,
the job is sent to another worker, since the first one may have been killed from outside. A job fails if two
workers have died after they began it.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from atrium.grading.template import Template

MAX_PENDING = 10_000
"""Maximum number of queued jobs, beyond which `submit` blocks."""

_START_TIMEOUT_S = 120.0
_NOT_STARTED = "the grader's processes could not start or were killed"
# A process may be killed from outside, for example when the machine is out of memory.
_MAX_FAILED_STARTS, _MAX_DIED = 3, 2


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a worker to a job."""

    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason for a missing reply: the deadline passed, the worker failed, or `close` was called."""

    is_timeout: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Defect:
    """The reason why the supervisor can run no more jobs."""

    reason: str


Outcome = Reply | Failure | Defect


class _NoProcessesError(Exception):
    """Raised if several attempts in a row to start a worker have failed."""


class _Worker:
    """The caller's connection to one worker. `pid` is None until the worker's first message."""

    def __init__(self, template: Template) -> None:
        self.template = template
        self.connection = template.fork()
        self.pid: int | None = None
        self._lines = self.connection.makefile("rb")

    def receive(self, deadline: float) -> dict[str, Any]:
        """Return the worker's next message.

        Raises `TimeoutError` at `deadline`, a time of `time.monotonic`, and another `OSError` if the worker
        has died.
        """
        self.connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        line = self._lines.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Close the connection and kill the process."""
        self._lines.close()
        self.connection.close()
        if self.pid is not None:
            self.template.kill(self.pid)


class _Own(threading.local):
    """The data of one thread: its worker, and whether the supervisor runs jobs in this thread."""

    worker: _Worker | None = None
    runs_jobs = False


class Supervisor:
    """A supervisor that runs jobs in at most `num_workers` processes and calls back with their outcomes."""

    def __init__(
        self, *, num_workers: int, timeout_s: float, memory_limit_mb: int, modules: Sequence[str] = ()
    ) -> None:
        """Initialize without starting processes.

        The template process imports `modules` before it forks workers, so that no deadline includes the
        imports.
        """
        self._new_template = partial(
            Template, memory_limit_mb=memory_limit_mb, timeout_s=timeout_s, modules=modules
        )
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="grader")
        self._room = threading.Semaphore(MAX_PENDING)
        self._own = _Own()
        self._is_closed = False
        self._defect: Defect | None = None
        self._starting = threading.Lock()
        self._template: Template | None = None
        self._workers: list[_Worker] = []
        self._was_ready = False
        self._num_failed_starts = 0

    def prepare(self) -> None:
        """Start a worker in the background before any job needs it."""
        if not self._is_closed:
            self._threads.submit(self._own_worker)

    def submit(self, line: bytes, on_done: Callable[[Outcome], None]) -> None:
        """Queue a job.

        `on_done` is called once, from a thread of the supervisor or, after `close`, from the calling thread.

        Blocks while `MAX_PENDING` jobs are queued, except in a callback, which must never block. After
        `close`, `on_done` is called immediately with a `Failure`, or with the `Defect` that ended the
        supervisor.
        """
        has_room = self._room.acquire(blocking=not self._own.runs_jobs)
        try:
            self._threads.submit(self._run, line, on_done, has_room)
        except RuntimeError:  # `close` has ended the threads
            if has_room:
                self._room.release()
            on_done(self._closed())

    def close(self) -> None:
        """Stop all processes. Unfinished jobs fail. A second call has no effect."""
        self._is_closed = True
        with self._starting:
            for worker in self._workers.copy():
                with contextlib.suppress(OSError):  # it is already closed
                    worker.connection.shutdown(socket.SHUT_RDWR)
        self._threads.shutdown(wait=not self._own.runs_jobs)
        with self._starting:
            for worker in self._workers.copy():
                self._drop(worker)
            self._end_template()

    def process_ids(self) -> list[int]:
        """Return the process ids of the workers that are ready, for tests and diagnostics."""
        return [worker.pid for worker in self._workers.copy() if worker.pid is not None]

    def _closed(self) -> Failure | Defect:
        return self._defect or Failure(False, "the grader was closed")

    def _run(self, line: bytes, on_done: Callable[[Outcome], None], has_room: bool) -> None:
        """Run a job and call back with its outcome. After an unexpected error, no further job runs.

        `has_room` tells whether the job takes up one of the `MAX_PENDING` places in the queue.
        """
        self._own.runs_jobs = True
        if has_room:
            self._room.release()
        try:
            outcome = self._outcome(line)
        except Exception as error:
            is_known = isinstance(error, _NoProcessesError)
            outcome = self._defect = Defect(str(error) if is_known else f"{type(error).__name__}: {error}")
        on_done(outcome)

    def _outcome(self, line: bytes) -> Outcome:
        """Run a job in this thread's worker, which is replaced after a failure or timeout."""
        num_died = 0
        while not (self._is_closed or self._defect):
            worker = self._own_worker()
            if worker is None:
                continue
            has_begun, deadline = False, time.monotonic() + self._timeout_s
            try:
                worker.connection.sendall(line)
                has_begun = "begun" in worker.receive(deadline)
                message = worker.receive(deadline)
            except TimeoutError:
                self._drop(worker)
                return Failure(True, f"no decision within {self._timeout_s:g} s")
            except OSError:
                self._drop(worker)
                num_died += has_begun
                if num_died >= _MAX_DIED:
                    return Failure(False, "two worker processes died: out of memory, or killed from outside")
                continue
            if "failure" in message:
                self._drop(worker)
                return Failure(False, f"the comparison failed: {message['failure']}")
            return Reply(message)
        return self._closed()

    def _own_worker(self) -> _Worker | None:
        """Return this thread's worker, started if necessary, or None if it could not be started."""
        self._own.worker = self._own.worker or self._start_worker()
        return self._own.worker

    def _start_worker(self) -> _Worker | None:
        """Start a worker and wait until it is ready.

        Returns None if the start failed and the caller should try again, or if the supervisor is closed.
        Raises `_NoProcessesError` after too many failed starts.
        """
        with self._starting:
            if self._is_closed:
                return None
            template = self._template = self._template or self._new_template()
            try:
                worker = _Worker(template)
            except OSError:
                self._lose_template(_NOT_STARTED)
                return None
            self._workers.append(worker)
        try:
            pid = worker.receive(time.monotonic() + _START_TIMEOUT_S)["pid"]
        except OSError as error:
            self._drop(worker)
            is_late = isinstance(error, TimeoutError)
            reason = f"no grader process was ready within {_START_TIMEOUT_S:g} s" if is_late else _NOT_STARTED
            with self._starting:
                is_lost = not self._was_ready or template.process.poll() is not None
                if template is self._template and is_lost:
                    self._lose_template(reason)
            return None
        with self._starting:
            worker.pid = pid
            self._was_ready = self._was_ready or template is self._template
            self._num_failed_starts = 0
        return worker

    def _lose_template(self, reason: str) -> None:
        """Stop the template process; the next start of a worker begins with a new one.

        Raises `_NoProcessesError` with the message `reason` if `_MAX_FAILED_STARTS` template processes in a
        row have been lost before any of their workers was ready.
        """
        self._num_failed_starts += not self._was_ready
        self._end_template()
        if self._num_failed_starts >= _MAX_FAILED_STARTS:
            raise _NoProcessesError(reason)

    def _end_template(self) -> None:
        # A template that was never ready may still be loading, and would not notice the closed socket.
        if self._template is not None:
            self._template.end(at_once=not self._was_ready)
        self._template, self._was_ready = None, False

    def _drop(self, worker: _Worker) -> None:
        self._own.worker = None
        with contextlib.suppress(ValueError):  # `close` has dropped it
            self._workers.remove(worker)
            worker.close()

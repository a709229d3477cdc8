"""Runs grading jobs in worker processes that may be killed, and always returns an outcome.

A thread for each worker process sends it one job at a time, kills it at the deadline, replaces it if it died,
and calls back with the outcome. Processes are started with the first job, and no more than are needed. The
module knows nothing about answers and verdicts; a job is a line of bytes.

The deadline of a job is measured from the moment it is sent to a ready worker. A job whose worker died is
sent to another one, since the worker may have been killed from outside; if a second worker dies, the job
fails.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from atrium.grading.template import Template

MAX_PENDING = 10_000
"""Maximum number of queued jobs, beyond which `submit` blocks."""

_START_TIMEOUT_S = 120.0
_NOT_STARTED = "the grader's processes could not start or were killed"
# One may be killed from outside, by a machine that is out of memory.
_MAX_FAILED_STARTS, _MAX_DIED = 3, 2


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a worker to a job."""

    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason for a missing reply: the deadline passed, or the worker failed."""

    is_timeout: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Defect:
    """The reason why no further job can be done."""

    reason: str


Outcome = Reply | Failure | Defect


class _NoProcessesError(Exception):
    """No worker could be started, several times in a row."""


@dataclass(frozen=True, slots=True)
class _Job:
    line: bytes
    on_done: Callable[[Outcome], None]


class _Worker:
    """The caller's end of one worker; `pid` is None until its first message."""

    def __init__(self, template: Template) -> None:
        self.template = template
        self.connection = template.fork()
        self.pid: int | None = None
        self._lines = self.connection.makefile("rb")

    def receive(self, deadline: float) -> dict[str, Any]:
        """Return the next message; `TimeoutError` at the deadline, another `OSError` if the worker died."""
        self.connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        line = self._lines.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Close the connection, and end the process."""
        self._lines.close()
        self.connection.close()
        if self.pid is not None:
            self.template.kill(self.pid)


class Supervisor:
    """Distributes jobs to at most `num_workers` processes and calls back with their outcomes."""

    def __init__(
        self, *, num_workers: int, timeout_s: float, memory_limit_mb: int, modules: Sequence[str] = ()
    ) -> None:
        """Create it; `modules` are imported before the first worker, so that no job waits for them."""
        self._new_template = partial(
            Template, memory_limit_mb=memory_limit_mb, timeout_s=timeout_s, modules=modules
        )
        self._num_workers = num_workers
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._threads: list[threading.Thread] = []
        self._num_free = 0
        self._is_closed = False
        self._defect: Defect | None = None
        self._starting = threading.Lock()
        self._template: Template | None = None
        self._workers: list[_Worker] = []
        self._was_ready = False
        self._num_failed_starts = 0

    def prepare(self) -> None:
        """Start a worker before any job needs it. Returns at once; no effect if there were jobs already."""
        with self._changed:
            if not self._threads and not self._is_closed:
                self._start_thread(with_worker=True)

    def submit(self, line: bytes, on_done: Callable[[Outcome], None]) -> None:
        """Queue a job; `on_done` is called once, from a thread of the supervisor.

        Blocks while `MAX_PENDING` jobs are queued, except in a callback, which must never block. After
        `close` the outcome is a failure at once, and a defect if the supervisor had ended by itself.
        """
        with self._changed:
            while len(self._queue) >= MAX_PENDING and not self._is_closed:
                if threading.current_thread() in self._threads:
                    break
                self._changed.wait()
            is_closed = self._is_closed
            if not is_closed:
                self._queue.append(_Job(line, on_done))
                if len(self._queue) > self._num_free and len(self._threads) < self._num_workers:
                    self._start_thread(with_worker=False)
                self._changed.notify_all()
        if is_closed:
            on_done(self._closed())

    def close(self) -> None:
        """End all processes; unfinished jobs fail. Harmless when called twice."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        with self._starting:
            for worker in list(self._workers):
                with contextlib.suppress(OSError):  # it is already closed
                    worker.connection.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() not in self._threads:  # several threads may get here
            for thread in self._threads:
                thread.join()
        with self._starting:
            self._end_template()
        with self._changed:
            jobs = list(self._queue)
            self._queue.clear()
        for job in jobs:
            job.on_done(self._closed())

    def process_ids(self) -> list[int]:
        """Return the process ids of the workers that are ready, for tests and diagnostics."""
        return [worker.pid for worker in list(self._workers) if worker.pid is not None]

    def _closed(self) -> Failure | Defect:
        return self._defect or Failure(False, "the grader was closed")

    def _start_thread(self, *, with_worker: bool) -> None:
        thread = threading.Thread(target=self._run, args=(with_worker,), name="grader", daemon=True)
        self._threads.append(thread)
        self._num_free += 1
        thread.start()

    def _run(self, with_worker: bool) -> None:
        """Do one job after the other, in one worker as long as it lives."""
        worker: _Worker | None = None
        job: _Job | None = None
        try:
            if with_worker:
                worker = self._start_worker()
            while (job := self._next_job()) is not None:
                outcome, worker = self._outcome(job.line, worker)
                done, job = job, None
                done.on_done(outcome)
                with self._changed:
                    self._num_free += 1
        except Exception as error:  # every waiting answer ends with the cause, and none waits forever
            is_known = isinstance(error, _NoProcessesError)
            self._defect = Defect(str(error) if is_known else f"{type(error).__name__}: {error}")
        finally:
            if worker is not None and worker in self._workers:
                self._drop(worker)
            if job is not None:
                job.on_done(self._closed())
            if self._defect is not None:
                self.close()

    def _next_job(self) -> _Job | None:
        """Wait for and return the next job; None after `close`."""
        with self._changed:
            while not self._queue and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                return None
            self._num_free -= 1
            self._changed.notify_all()
            return self._queue.popleft()

    def _outcome(self, line: bytes, worker: _Worker | None) -> tuple[Outcome, _Worker | None]:
        """Return the outcome of a job, and the worker for the next one, if it is alive."""
        num_died = 0
        while not self._is_closed:
            worker = worker or self._start_worker()
            if worker is None:
                continue
            has_begun, deadline = False, time.monotonic() + self._timeout_s
            try:
                worker.connection.sendall(line)
                has_begun = "begun" in worker.receive(deadline)
                message = worker.receive(deadline)
            except TimeoutError:
                self._drop(worker)
                return Failure(True, f"no decision within {self._timeout_s:g} s"), None
            except OSError:
                self._drop(worker)
                worker, num_died = None, num_died + has_begun
                if num_died >= _MAX_DIED:
                    reason = "two worker processes died: out of memory, or killed from outside"
                    return Failure(False, reason), None
                continue
            if "failure" in message:
                self._drop(worker)
                worker = None
            return Reply(message), worker
        return self._closed(), worker

    def _start_worker(self) -> _Worker | None:
        """Start a worker and wait until it is ready; None if it failed, so that the caller tries again."""
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
        """Give up the template; another starts for the next worker, unless none ever can."""
        self._num_failed_starts += not self._was_ready
        self._end_template()
        if self._num_failed_starts >= _MAX_FAILED_STARTS:
            raise _NoProcessesError(reason)

    def _end_template(self) -> None:
        # A template without workers may still be loading, and would not notice that it should end.
        if self._template is not None:
            self._template.end(at_once=not self._was_ready)
        self._template, self._was_ready = None, False

    def _drop(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.close()

"""The state of a run: `status.json`, and a check that the process that wrote it is still running.

A run is `starting` until its first step or evaluation. If it fails before that, it becomes a `failed_start`,
which does not count as a run of its method. Readers infer the states `killed` and `lost`, which are never
written, from a status `running`. The state is `killed` if the process no longer exists on this host, and
`lost` if a process on another host has not updated the status for minutes. A run whose process disappears
while the run is `starting` is a failed start too.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil

from atrium.base.atomic import write_json
from atrium.base.errors import AtriumError, Interrupted, MemoryExhaustedError, Pruned
from atrium.base.plain_files import cached_while_unchanged
from atrium.base.processes import is_alive
from atrium.base.recorded import read_object

FORMAT_VERSION = 2
"""Format of run directories that this version writes, and the newest that it can read completely.

Version 2 records the `cause` of a failure and the state `starting`.
"""

DIVERGED = "diverged"
"""Value of `RunStatus.cause` for a run whose training diverged."""

BEAT_S = 15.0
"""Seconds between two writes of an unchanged status."""

LOST_AFTER_S = 180.0
"""Seconds by which the status of a run on another host may be overdue before the run counts as lost.

The clocks of hosts must differ by less.
"""

_MAX_S = 1e11
"""Times of at least this many seconds (in the year 5138) are invalid; `time.localtime` may fail for them."""


class RunState(StrEnum):
    """The state of a run.

    `killed`, `lost` and `unknown` are never recorded in `status.json`; readers infer them. A run is `unknown`
    if its status cannot be read or contains a state that is not in this enumeration.
    """

    STARTING = "starting"
    FAILED_START = "failed_start"
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    PRUNED = "pruned"
    FAILED = "failed"
    KILLED = "killed"
    LOST = "lost"
    UNKNOWN = "unknown"

    @property
    def is_live(self) -> bool:
        """Whether a process is working on the run: the state is `starting` or `running`."""
        return self in (RunState.STARTING, RunState.RUNNING)


def end_by(failure: BaseException) -> tuple[RunState, str, str | None]:
    """Return the final state, message and cause of a run that ends with an exception.

    The cause is None unless the state is `failed`.
    """
    match failure:
        case Interrupted() | KeyboardInterrupt():
            return RunState.INTERRUPTED, str(failure) or "stopped at once", None
        case Pruned():
            return RunState.PRUNED, str(failure), None
    return RunState.FAILED, str(failure) or type(failure).__name__, _cause(failure)


def _cause(failure: BaseException) -> str:
    """Return the cause of a failure in one word: `out_of_memory`, the error's own `cause`, or `error`."""
    if isinstance(failure, MemoryError) or type(failure).__name__ == "OutOfMemoryError":
        return MemoryExhaustedError.cause
    return failure.cause if isinstance(failure, AtriumError) else AtriumError.cause


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The content of `status.json`.

    `started`, `updated` and `pid_started` are times in seconds since 1970; `wall_s` is the total duration of
    all sessions in seconds. `num_steps` is 0 until training is set up. `pid_started` is the start time of
    process `pid`, which distinguishes it from a later process with the same number. `beat_s` is the interval
    at which the running process rewrites the status, or 0 if it does not. `cause` is one word for why a run
    failed, such as `diverged` or `out_of_memory` (see `atrium.base.errors`). It is None for a run that did
    not fail, and in folders of format 1.
    """

    format_version: int = FORMAT_VERSION
    state: str = RunState.RUNNING
    step: int = 0
    num_steps: int = 0
    pid: int = 0
    pid_started: float = 0.0
    host: str = ""
    started: float = 0.0
    updated: float = 0.0
    wall_s: float = 0.0
    error: str | None = None
    cause: str | None = None
    beat_s: float = 0.0


class StatusUnreadableError(Exception):
    """Error raised if `status.json` is missing or damaged. The message says which."""


@cached_while_unchanged(4096)
def read_status(path: Path) -> RunStatus:
    """Read the status file; unknown fields are ignored, and missing or invalid fields get their defaults.

    An unchanged file is read only once. Raises `StatusUnreadableError` if the file is missing or unreadable,
    or is not a JSON object.
    """
    content, problem = read_object(path)
    if problem is not None:
        raise StatusUnreadableError(problem)
    known: dict[str, Any] = {
        field.name: content[field.name]
        for field in fields(RunStatus)
        if field.name in content and _has_type(content[field.name], str(field.type))
    }
    return RunStatus(**known)


def known_status(path: Path) -> RunStatus:
    """Read the status file; return an empty status with the state `unknown` if it cannot be read."""
    try:
        return read_status(path)
    except StatusUnreadableError:
        return RunStatus(state=RunState.UNKNOWN)


def _has_type(value: object, annotation: str) -> bool:
    match annotation:
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float":
            return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_S
        case "str":
            return isinstance(value, str)
        case _:
            return value is None or isinstance(value, str)


def concluded_state(status: RunStatus, *, clock: Callable[[], float] = time.time) -> RunState:
    """Return the recorded state, or `killed`, `lost` or `failed_start` if the run's process has disappeared.

    A process on another host counts as disappeared if its updates of the status are minutes overdue. A
    recorded state that this version does not know becomes `unknown`. Format 1 recorded a failed start as a
    failure with `num_steps=0`; it becomes `failed_start`.
    """
    try:
        state = RunState(status.state)
    except ValueError:
        return RunState.UNKNOWN
    if state is RunState.FAILED and status.format_version < FORMAT_VERSION and status.num_steps == 0:
        return RunState.FAILED_START
    if not state.is_live:
        return state
    if status.host != socket.gethostname():
        is_silent = status.beat_s > 0.0 and clock() - status.updated > LOST_AFTER_S + status.beat_s
        gone = RunState.LOST if is_silent else None
    else:
        gone = None if is_alive(status.pid, status.pid_started) else RunState.KILLED
    if gone is None:
        return state
    return RunState.FAILED_START if state is RunState.STARTING else gone


class StatusWriter:
    """A writer of `status.json` for this process; the constructor reads the file but writes nothing.

    `interval_s` is the minimum number of seconds between two writes by `advance`.
    """

    def __init__(
        self, path: Path, *, interval_s: float = 1.0, clock: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._ended = threading.Event()
        now = clock()
        pid, pid_started = os.getpid(), float(psutil.Process().create_time())
        try:
            before = read_status(path)
        except StatusUnreadableError:
            before = RunStatus(state=RunState.STARTING, started=now)
        self._finished = before if before.state == RunState.FINISHED else None
        has_started = before.state not in (RunState.STARTING, RunState.FAILED_START)
        is_live = before.state in (RunState.STARTING, RunState.RUNNING)
        same_session = is_live and (before.pid, before.pid_started) == (
            pid,
            pid_started,
        )
        self._counted_until = before.updated if same_session else now
        self._status = replace(
            before,
            format_version=FORMAT_VERSION,
            state=RunState.RUNNING if has_started else RunState.STARTING,
            pid=pid,
            pid_started=pid_started,
            host=socket.gethostname(),
            error=None,
            cause=None,
            beat_s=0.0,
        )

    @property
    def status(self) -> RunStatus:
        """The latest status, which may not have been written yet."""
        return self._status

    def keep_beating(self, interval_s: float = BEAT_S) -> None:
        """Start a thread that writes the status every `interval_s` seconds, until `end` or `stop_beating`.

        The thread also exits when this object is garbage-collected.
        """
        self._change(beat_s=interval_s)
        threading.Thread(target=_beat, args=(weakref.ref(self), self._ended, interval_s), daemon=True).start()

    def beat(self) -> None:
        """Record that this process is still running. Ignore write errors, since other writes report them."""
        with contextlib.suppress(OSError):
            self._write(is_beat=True)

    def begin(self, *, step: int, num_steps: int) -> None:
        """Record that this process continues the run after `step`; the state is `running` if `step` > 0."""
        self._finished = None
        self._change(step=step, num_steps=num_steps, **({"state": RunState.RUNNING} if step else {}))
        self._write()

    def record_start(self) -> None:
        """Record that the run has finished a first step or evaluation."""
        if self._status.state == RunState.STARTING:
            self._change(state=RunState.RUNNING)
            self._write()

    def advance(self, step: int) -> None:
        """Record that `step` is finished; after the first step, writes at most once per `interval_s`."""
        is_first = self._status.state == RunState.STARTING
        self._change(step=step, state=RunState.RUNNING)
        if is_first or not 0.0 <= self._clock() - self._status.updated < self._interval_s:
            self._write()

    def end(self, state: RunState, error: str | None = None, cause: str | None = None) -> None:
        """Record the run's final state, with the error's first line.

        A failure before the first step or evaluation is a failed start. If resuming a finished run fails
        before `begin`, the run stays finished.
        """
        line = error.strip().split("\n")[0] if error and error.strip() else None
        self.stop_beating()
        if state is RunState.FAILED:
            cause = cause or AtriumError.cause
            if self._status.state == RunState.STARTING:
                state = RunState.FAILED_START
            elif self._finished is not None:
                state, line, cause = RunState.FINISHED, self._finished.error, self._finished.cause
        self._change(state=state, error=line, cause=cause)
        self._write()

    def stop_beating(self) -> None:
        """Stop the thread of `keep_beating`."""
        self._ended.set()

    def _change(self, **changes: Any) -> None:  # noqa: ANN401 - fields of RunStatus
        with self._lock:
            self._status = replace(self._status, **changes)

    def _write(self, *, is_beat: bool = False) -> None:
        with self._lock:
            if is_beat and self._ended.is_set():
                return
            now = self._clock()
            wall_s = round(self._status.wall_s + max(now - self._counted_until, 0.0), 3)
            self._counted_until = now
            self._status = replace(self._status, updated=now, wall_s=wall_s)
            write_json(self._path, asdict(self._status))


def _beat(holder: weakref.ref[StatusWriter], ended: threading.Event, interval_s: float) -> None:
    while not ended.wait(interval_s) and (writer := holder()) is not None:
        writer.beat()
        del writer

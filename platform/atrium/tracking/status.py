"""What a run is doing: `status.json`, and whether the process that wrote it still lives.

The states `killed` and `lost` are never written. They are what a reader concludes where the status says
`running`, and the process is gone from this host, or has written nothing from another host for minutes
although it promised to.
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

from atrium.errors import Interrupted, Pruned
from atrium.processes import is_alive
from atrium.tracking.atomic import write_json
from atrium.tracking.recorded import read_object

FORMAT_VERSION = 1
"""The format of run folders that this version writes, and the newest that it reads in full."""

BEAT_S = 15.0
"""Seconds between two writes of a status that is kept up to date while nothing happens."""

LOST_AFTER_S = 180.0
"""Silence after which a process on another host is taken for lost; clocks may differ by less than that."""


class RunState(StrEnum):
    """The state of a run, as shown; `killed`, `lost` and `unknown` are concluded by readers."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    PRUNED = "pruned"
    FAILED = "failed"
    KILLED = "killed"
    LOST = "lost"
    UNKNOWN = "unknown"


def end_by(failure: BaseException) -> tuple[RunState, str]:
    """How a run ended that raised this, and the line that says why."""
    match failure:
        case Interrupted() | KeyboardInterrupt():
            return RunState.INTERRUPTED, str(failure) or "stopped at once"
        case Pruned():
            return RunState.PRUNED, str(failure)
    return RunState.FAILED, str(failure) or type(failure).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The content of `status.json`. Times are in seconds since 1970; `wall_s` adds up all sessions.

    `num_steps` is 0 until training is set up. `pid_started` is when the process `pid` began: a later
    process with the same number has another. `beat_s` is how often the status is written while the process
    lives, 0 where that is not promised.
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
    beat_s: float = 0.0


class StatusUnreadableError(Exception):
    """Raised for a missing or damaged `status.json`; readers report it and go on."""


def read_status(path: Path) -> RunStatus:
    """The status in the file; fields of a newer format are ignored, those that are missing are empty.

    Raises `StatusUnreadableError` where the file is missing, unreadable, or holds another type.
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


def _has_type(value: object, annotation: str) -> bool:
    match annotation:
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "str":
            return isinstance(value, str)
        case _:
            return value is None or isinstance(value, str)


def concluded_state(status: RunStatus, *, clock: Callable[[], float] = time.time) -> RunState:
    """The state to show: what the status says, or `killed` or `lost` where it cannot be true any more."""
    try:
        state = RunState(status.state)
    except ValueError:
        return RunState.UNKNOWN
    if state is not RunState.RUNNING:
        return state
    if status.host != socket.gethostname():
        is_silent = status.beat_s > 0.0 and clock() - status.updated > LOST_AFTER_S + status.beat_s
        return RunState.LOST if is_silent else state
    return state if is_alive(status.pid, status.pid_started) else RunState.KILLED


class StatusWriter:
    """Keeps `status.json` up to date for this process, at most once per `interval_s` while steps pass."""

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
            before = RunStatus(started=now)
        same_session = before.state == RunState.RUNNING and (before.pid, before.pid_started) == (
            pid,
            pid_started,
        )
        self._counted_until = before.updated if same_session else now
        self._status = replace(
            before,
            format_version=FORMAT_VERSION,
            state=RunState.RUNNING,
            pid=pid,
            pid_started=pid_started,
            host=socket.gethostname(),
            error=None,
            beat_s=0.0,
        )

    @property
    def status(self) -> RunStatus:
        """The status as last set, written yet or not."""
        return self._status

    def keep_beating(self, interval_s: float = BEAT_S) -> None:
        """Write the status every so often from a thread, until it ends or nobody holds this object."""
        self._change(beat_s=interval_s)
        threading.Thread(target=_beat, args=(weakref.ref(self), self._ended, interval_s), daemon=True).start()

    def beat(self) -> None:
        """Say that this process lives. A folder that cannot be written is left to others to report."""
        with contextlib.suppress(OSError):
            self._write(is_beat=True)

    def begin(self, *, step: int, num_steps: int) -> None:
        """Say that this process trains from `step` on."""
        self._change(step=step, num_steps=num_steps)
        self._write()

    def advance(self, step: int) -> None:
        """Say that `step` is done; written now and then only."""
        self._change(step=step)
        if not 0.0 <= self._clock() - self._status.updated < self._interval_s:
            self._write()

    def end(self, state: RunState, error: str | None = None) -> None:
        """Say how the run ended, with the error's first line where it failed."""
        line = error.strip().split("\n")[0] if error and error.strip() else None
        self.stop_beating()
        self._change(state=state, error=line)
        self._write()

    def stop_beating(self) -> None:
        """Write no more by itself; the thread ends."""
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

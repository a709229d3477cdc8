"""Delivering a run folder to one tracker: once, or for as long as the run goes on.

What was delivered is kept in `<run>/.mirrors/<tracker>.json`, saved after each delivery. A process that is
killed between the two delivers the same rows again, which the destinations take as what they are. Nothing
here touches training: whatever a tracker does, the loop retries, says so once, and gives up at the end.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

import psutil

from atrium.base.atomic import write_json
from atrium.base.errors import AtriumError
from atrium.base.recorded import read_object
from atrium.document.formatting import shortened
from atrium.runs.mirrors.rows import Row, RowReader
from atrium.runs.reader import read_findings
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, RunStatus, StatusUnreadableError, concluded_state, read_status

POLL_S = 2.0
LINGER_S = 120.0
"""How long after the end of a run its mirror goes on trying."""
SETTLE_S = 20.0
"""How long it waits at most for the files that training writes after its last step."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 5.0, 60.0


class MirrorError(AtriumError):
    """A tracker could not be reached or refused what it was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """The part of a run that a tracker has. `problem` is what went wrong last, None while all is well.

    `remote` is the tracker's own name for the run, and `where` tells people how to look at it. `final_state`
    is the state that the tracker was told the run ended in, None while it has not been.
    """

    target: str = ""
    step: int = -1
    evaluations: tuple[str, ...] = ()
    remote: str = ""
    where: str = ""
    final_state: str | None = None
    problem: str | None = None


class Destination(Protocol):
    """A tracker, for one run. Every method may raise; what is sent twice must count once."""

    @property
    def target(self) -> str:
        """The tracker's address, such as its URI, without secrets; another target starts from nothing."""
        ...

    def open(self, delivered: Delivered) -> Delivered:
        """Connect and find or make the run; what the tracker turns out to have, `remote`, and `where`."""
        ...

    def send(self, rows: Sequence[Row]) -> None:
        """Deliver rows, in the order of steps."""
        ...

    def finish(self, state: RunState, ended: float, findings: str) -> None:
        """Say how the run ended and what went wrong, a line each; hand over or link its files."""
        ...

    def close(self) -> None:
        """Let go of the tracker. Harmless when called twice, or before `open`."""
        ...


@dataclass(slots=True)
class Delivery:
    """One run to one tracker. `deliver` does what can be done now; `follow` goes on until the run is over."""

    folder: RunFolder
    kind: str
    destination: Destination
    delivered: Delivered = field(init=False)
    _reader: RowReader = field(init=False)
    _is_open: bool = False

    def __post_init__(self) -> None:
        known = read_delivered(self.folder, self.kind)
        if known.target != self.destination.target:
            known = Delivered(target=self.destination.target)
        self._begin(known)

    def deliver(self, *, may_finish: bool = True) -> bool:
        """Deliver what there is; whether the run is over and the tracker has all of it.

        With `may_finish` False the tracker is not told yet that the run is over. Raises whatever the
        destination raises; what was delivered until then is remembered.
        """
        status, state = _state(self.folder)
        is_over = not state.is_live
        rows = self._reader.read(is_over=is_over)
        is_final = self.delivered.final_state == state.value
        if is_over and is_final and not rows:
            return True
        if not self._is_open:
            self._reader.put_back(rows)
            self._open()
            rows = self._reader.read(is_over=is_over)
        undelivered = list(rows)
        try:
            while undelivered:
                batch = undelivered[:_ROWS_AT_ONCE]
                self.destination.send(batch)
                del undelivered[:_ROWS_AT_ONCE]
                self._remember(batch)
            if is_over and may_finish:
                findings = "\n".join(finding.text for finding in read_findings(self.folder))
                self.destination.finish(state, status.updated or time.time(), findings)
                self._save(replace(self.delivered, final_state=state.value, problem=None))
            elif self.delivered.problem is not None or self.delivered.final_state is not None:
                self._save(replace(self.delivered, final_state=None, problem=None))
        finally:
            self._reader.put_back(undelivered)
        return is_over and may_finish

    def follow(
        self,
        *,
        sleep: Callable[[float], None] = time.sleep,
        linger_s: float = LINGER_S,
        settle_s: float = SETTLE_S,
    ) -> bool:
        """Deliver until the run is over, for `linger_s` after its end at most; whether all arrived.

        The tracker is told of the end when the training process has gone, which still draws figures after
        it, or after `settle_s`.
        """
        wait_s, over_since = _FIRST_WAIT_S, None
        while True:
            status, _ = _state(self.folder)
            is_settled = over_since is not None and (
                time.monotonic() - over_since >= settle_s or not psutil.pid_exists(status.pid)
            )
            try:
                if self.deliver(may_finish=is_settled):
                    return True
                wait_s, pause_s = _FIRST_WAIT_S, POLL_S
            except Exception as error:  # trackers raise anything; it is told once, and tried again
                self.report(error)
                self.close()
                pause_s, wait_s = wait_s, min(2.0 * wait_s, _LONGEST_WAIT_S)
            if _state(self.folder)[1].is_live:
                over_since = None
            else:
                over_since = over_since or time.monotonic()
                left_s = linger_s - (time.monotonic() - over_since)
                if left_s <= 0.0:
                    return False
                pause_s = min(pause_s, left_s)
            sleep(pause_s)

    def report(self, error: Exception) -> None:
        """Remember what went wrong, for people to read; it is written once until a delivery succeeds."""
        text = " ".join(f"{self.kind}: {describe(error)}".split())
        if text == self.delivered.problem:
            return
        if self.delivered.problem is None:
            self.folder.append_log(f"mirror to {text}")
        with suppress(OSError):  # a full disk keeps the mirror from being heard, and from nothing else
            self._save(replace(self.delivered, problem=text))

    def close(self) -> None:
        """Let go of the tracker; the next delivery connects anew."""
        self._is_open = False
        self.destination.close()

    def _open(self) -> None:
        """Connect; where the tracker has less or more than was remembered, what it has counts."""
        opened = self.destination.open(self.delivered)
        if (opened.step, opened.evaluations) != (self.delivered.step, self.delivered.evaluations):
            self._begin(opened)
        self._is_open = True
        self._save(opened)

    def _begin(self, delivered: Delivered) -> None:
        self.delivered = delivered
        self._reader = RowReader(
            self.folder, delivered_step=delivered.step, delivered_evaluations=set(delivered.evaluations)
        )

    def _remember(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._reader.was_delivered(row)
        self._save(
            replace(
                self.delivered,
                step=self._reader.delivered_step,
                evaluations=tuple(sorted(self._reader.delivered_evaluations)),
                problem=None,
            )
        )

    def _save(self, delivered: Delivered) -> None:
        self.delivered = delivered
        path = delivered_file(self.folder, self.kind)
        path.parent.mkdir(exist_ok=True)
        write_json(path, asdict(delivered))


_ROWS_AT_ONCE = 100
_LONGEST_PROBLEM = 300
# How requests says that a server was not reached, in the middle of a long line.
_SERVER = re.compile(r"host='([^']*)', port=(\d+)\)")
_REASON = re.compile(r"((?:\[Errno -?\d+\] )?[A-Z][a-z]+ [a-z ]+[a-z])[)\"']*$")


def mirrors_dir(folder: RunFolder) -> Path:
    """The folder in which the mirrors of a run keep their records."""
    return folder.path / ".mirrors"


def delivered_file(folder: RunFolder, kind: str) -> Path:
    """The record of what one kind of tracker has of a run."""
    return mirrors_dir(folder) / f"{kind}.json"


def read_delivered(folder: RunFolder, kind: str) -> Delivered:
    """The record of what one kind of tracker has of a run; an empty one where it is missing or damaged."""
    content, _ = read_object(delivered_file(folder, kind))
    try:
        known = Delivered(**{**content, "evaluations": tuple(content.get("evaluations", ()))})  # type: ignore[arg-type]
    except TypeError:
        return Delivered()
    return known if isinstance(known.step, int) else Delivered()


def describe(error: Exception) -> str:
    """An error of a tracker in a few words: who does not answer and why, else its first line."""
    text = str(error)
    if server := _SERVER.search(text):
        reason = _REASON.search(text)
        why = "timed out" if "timed out" in text else reason[1] if reason else "no connection"
        return f"{server[1]}:{server[2]} does not answer ({why})"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return shortened(lines[0], _LONGEST_PROBLEM) if lines else type(error).__name__


def _state(folder: RunFolder) -> tuple[RunStatus, RunState]:
    try:
        status = read_status(folder.status_file)
    except StatusUnreadableError:
        return RunStatus(), RunState.UNKNOWN
    return status, concluded_state(status)

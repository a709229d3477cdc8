"""Delivery of a run to trackers: once by `atrium sync`, or in threads during the run.

Rows are read from the run directory, not passed by training, so nothing is lost and memory is bounded. After
each delivery, `<run>/.mirrors/<tracker>.json` records what was delivered. If the process is killed after a
tracker's acknowledgment but before this record is written, the same rows are delivered again. Trackers count
them only once.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

from atrium.base.atomic import write_json
from atrium.base.errors import AtriumError
from atrium.base.recorded import read_object
from atrium.document.formatting import shortened
from atrium.runs.listener import Listener
from atrium.runs.lock import RunLock
from atrium.runs.mirrors.rows import Row, RowReader
from atrium.runs.reader import read_findings
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, concluded_state, known_status

SWITCH = "ATRIUM_MIRRORS"
"""Environment variable: `off` disables all mirrors of running runs, but not `atrium sync`."""
PATIENCE_S = 2.0
"""Seconds that a run waits at its end for its trackers."""
LINGER_S = 120.0
"""Seconds of delivery attempts after a run has ended, if its process continues, as in a sweep's worker."""
POLL_S = 5.0
"""Seconds between deliveries: a few large deliveries delay training less than many small ones."""
_FIRST_RETRY_S, _LONGEST_RETRY_S = 5.0, 60.0


class MirrorError(AtriumError):
    """Error raised if a tracker cannot be reached or refuses the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """The record of what a tracker has received: the steps up to `step`, and `evaluations`.

    `target` is the tracker's address, `remote` the tracker's own name for the run, and `where` an address or
    command to view the run. `final_state` is the final state reported to the tracker, or None. `problem` is
    the error of the latest delivery, or None if that delivery succeeded.
    """

    target: str = ""
    step: int = -1
    evaluations: tuple[str, ...] = ()
    remote: str = ""
    where: str = ""
    final_state: str | None = None
    problem: str | None = None


class Destination(Protocol):
    """The connection of one run to a tracker.

    Any method may raise an error. Data that is sent twice must count only once.
    """

    target: str
    """The tracker's address, such as its URI, without secrets; a new address receives the whole run."""

    def open(self, delivered: Delivered) -> Delivered:
        """Connect, and find or create the run; return the updated record of what the tracker has."""

    def send(self, rows: Sequence[Row]) -> None:
        """Deliver rows: in the order of steps, with late rows at the end."""

    def finish(self, state: RunState, ended: float, findings: str) -> None:
        """Report the final state and the problems found; send or link the run's files.

        `ended` is the end of the run in seconds since 1970. `findings` has one problem per line.
        """

    def close(self) -> None:
        """Disconnect from the tracker. Harmless when called twice, or before `open`."""


@dataclass(slots=True)
class Delivery:
    """The delivery of one run to one tracker.

    `kind` names the tracker, such as `wandb`; `names` selects the naming scheme of metrics.
    """

    folder: RunFolder
    kind: str
    destination: Destination
    names: str = "atrium"
    delivered: Delivered = field(init=False)
    _reader: RowReader = field(init=False)
    _lock: RunLock | None = None
    _is_open: bool = False

    def __post_init__(self) -> None:
        self._begin(self._remembered())

    def deliver(self, *, may_finish: bool = True) -> bool:
        """Deliver all available rows; return whether the run is over and completely delivered.

        If `may_finish` is not set, the end of the run is not reported yet. Errors of the destination are
        raised; rows delivered before the error are recorded as delivered.
        """
        try:
            return self._deliver(may_finish)
        except Exception:
            self._begin(self.delivered)  # rows that were read but not sent are read again
            raise

    def _deliver(self, may_finish: bool) -> bool:
        status = known_status(self.folder.status_file)
        state = concluded_state(status)
        is_over = not state.is_live
        rows = self._reader.read(is_over=is_over)
        if is_over and self.delivered.final_state == state.value and not rows:
            return True
        if not self._is_open:
            self._open()
            rows = self._reader.read(is_over=is_over)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            batch = rows[start : start + _ROWS_AT_ONCE]
            self.destination.send(batch)
            self._remember(batch)
        if is_over and may_finish:
            findings = "\n".join(finding.text for finding in read_findings(self.folder))
            self.destination.finish(state, status.updated or time.time(), findings)
            self._save(replace(self.delivered, final_state=state.value, problem=None))
        elif self.delivered.problem is not None or self.delivered.final_state is not None:
            self._save(replace(self.delivered, final_state=None, problem=None))
        return is_over and may_finish

    def report(self, error: Exception) -> None:
        """Record an error as `delivered.problem`, and log the first error since the last successful delivery.

        If this object does not hold the lock of the delivery, for example because another process does, the
        error is only kept in memory.
        """
        text = " ".join(f"{self.kind}: {describe(error)}".split())
        if self._lock is None or text == self.delivered.problem:
            self.delivered = replace(self.delivered, problem=text)
            return
        if self.delivered.problem is None:
            self.folder.append_log(f"mirror to {text}")
        with suppress(OSError):  # a full disk only prevents the report
            self._save(replace(self.delivered, problem=text))

    def close(self) -> None:
        """Disconnect from the tracker; the next delivery connects again."""
        self._is_open = False
        with suppress(Exception):  # trackers may raise anything, here too
            self.destination.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _open(self) -> None:
        """Lock the delivery and connect. Delivery continues after the rows that the tracker already has.

        Raises `RunFolderError` while another process delivers the run to the tracker.
        """
        if self._lock is None:
            mirrors_dir(self.folder).mkdir(exist_ok=True)
            path = mirrors_dir(self.folder) / f"{self.kind}.lock"
            self._lock = RunLock(path, f"the process that mirrors it to {self.kind}")
        opened = self.destination.open(self._remembered())
        self._begin(opened)
        self._is_open = True
        self._save(opened)

    def _remembered(self) -> Delivered:
        known = read_delivered(self.folder, self.kind)
        return known if known.target == self.destination.target else Delivered(target=self.destination.target)

    def _begin(self, delivered: Delivered) -> None:
        self.delivered = delivered
        self._reader = RowReader(
            self.folder,
            delivered_step=delivered.step,
            delivered_evaluations=set(delivered.evaluations),
            names=self.names,
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


class Mirrors(Listener):
    """A listener that delivers one run to several trackers, each in its own daemon thread.

    Only `close` waits for the threads. `deliveries` maps each kind of tracker to a function that creates the
    delivery. This function is called in the tracker's thread. `log` receives one message each time that
    deliveries to a tracker begin to fail, and one at the end for each tracker that lacks data.
    """

    name = "delivery to trackers"

    def __init__(
        self, folder: RunFolder, deliveries: Mapping[str, Callable[[], Delivery]], log: Callable[[str], None]
    ) -> None:
        self._folder, self._log = folder, log
        is_off = os.environ.get(SWITCH) == "off"
        self._threads = () if is_off else tuple(MirrorThread(*one) for one in deliveries.items())
        self._troubled: set[str] = set()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Start the threads at the first step; log their new errors at later steps. Takes microseconds."""
        for thread in self._threads:
            problem = thread.problem
            if thread.ident is None:
                thread.start()
            elif problem is None:
                self._troubled.discard(thread.kind)
            elif thread.kind not in self._troubled:
                self._troubled.add(thread.kind)
                self._log(f"{problem}; training continues, and missing data is delivered later")

    def end(self, state: RunState, error: str | None = None, cause: str | None = None) -> None:
        """Let the threads deliver the last rows, without waiting for them."""
        for thread in self._threads:
            thread.wake.set()

    def close(self) -> None:
        """Wait at most two seconds for the delivery to end; log each tracker that still lacks data."""
        started = [thread for thread in self._threads if thread.ident is not None]
        for thread in started:
            thread.is_closing.set()
            thread.wake.set()
        deadline = time.monotonic() + PATIENCE_S
        for thread in started:
            thread.join(max(0.0, deadline - time.monotonic()))
            if not thread.is_delivered:
                what = "is not delivered yet" if thread.problem is None else "could not be delivered"
                command = f"atrium sync {self._folder.path} --to {thread.kind}"
                self._log(f"{thread.kind}: the end of the run {what}; `{command}` delivers it")


class MirrorThread(threading.Thread):
    """A thread that delivers one run to one tracker. It gives up `LINGER_S` seconds after the end of the run.

    `make` creates the delivery. `problem` is the error of the latest attempt, or None if it succeeded.
    Setting the event `wake` ends a pause early. Setting the event `is_closing` tells the thread that the run
    directory is complete.
    """

    def __init__(self, kind: str, make: Callable[[], Delivery]) -> None:
        super().__init__(name=f"mirror in {kind}", daemon=True)
        self.kind, self.is_delivered = kind, False
        self.problem: str | None = None
        self.wake, self.is_closing = threading.Event(), threading.Event()
        self._make = make

    def run(self) -> None:
        """Deliver rows until all are delivered or the thread gives up; store errors in `problem`."""
        try:
            self._follow(self._make())
        except Exception as error:
            self.problem = f"{self.kind}: {describe(error)}"

    def _follow(self, delivery: Delivery) -> None:
        """Deliver repeatedly, with pauses that grow while the tracker fails."""
        retry_s, gives_up = _FIRST_RETRY_S, math.inf
        while not self.is_delivered and time.monotonic() < gives_up:
            is_closing = self.is_closing.is_set()
            if is_closing:
                gives_up = min(gives_up, time.monotonic() + LINGER_S)
            try:
                self.is_delivered = delivery.deliver(may_finish=is_closing)
                self.problem, pause_s, retry_s = None, POLL_S, _FIRST_RETRY_S
            except Exception as error:  # trackers may raise anything
                delivery.report(error)
                delivery.close()
                self.problem = delivery.delivered.problem
                pause_s, retry_s = retry_s, min(2.0 * retry_s, _LONGEST_RETRY_S)
            if not self.is_delivered:
                self.wake.wait(pause_s)
                self.wake.clear()
        delivery.close()


_ROWS_AT_ONCE = 100
_LONGEST_PROBLEM = 300
# How the library requests names an unreachable server, in the middle of a long line.
_SERVER = re.compile(r"host='([^']*)', port=(\d+)\)")
_REASON = re.compile(r"((?:\[Errno -?\d+\] )?[A-Z][a-z]+ [a-z ]+[a-z])[)\"']*$")


def mirrors_dir(folder: RunFolder) -> Path:
    """Return the folder `.mirrors/` of a run, which contains the records of its deliveries."""
    return folder.path / ".mirrors"


def delivered_file(folder: RunFolder, kind: str) -> Path:
    """Return the path of the file that records what the tracker `kind` has received of a run."""
    return mirrors_dir(folder) / f"{kind}.json"


def read_delivered(folder: RunFolder, kind: str) -> Delivered:
    """Read the record of what a tracker has received. A missing or damaged record counts as empty."""
    content, _ = read_object(delivered_file(folder, kind))
    try:
        known = Delivered(**{**content, "evaluations": tuple(content.get("evaluations", ()))})  # type: ignore[arg-type]
    except TypeError:
        return Delivered()
    return known if isinstance(known.step, int) else Delivered()


def describe(error: Exception) -> str:
    """Return a short description of a tracker's error: the unreachable server, or the error's first line."""
    text = str(error)
    if server := _SERVER.search(text):
        reason = _REASON.search(text)
        why = "timed out" if "timed out" in text else reason[1] if reason else "no connection"
        return f"{server[1]}:{server[2]} does not respond ({why})"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return shortened(lines[0], _LONGEST_PROBLEM) if lines else type(error).__name__

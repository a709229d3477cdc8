"""Supervision of a run's ranks on one node: stop signals, hangs, restarts, and the run's final status.

torchrun's agent runs in a thread, so that the main thread can react to signals and detect hangs. When all
ranks have exited after a failure, the main thread records the cause in the run's status.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.rendezvous import RendezvousTimeoutError

from atrium.base.errors import AtriumError, ConfigError, Interrupted, MemoryExhaustedError, RankError
from atrium.base.processes import stop_requests
from atrium.launch.agent import Meeting, NodeAgent, RankFailure, signal_name
from atrium.launch.rank_logs import ranks_dir
from atrium.launch.settings import NodeSettings
from atrium.runs.find import is_failed_start
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import (
    DIVERGED,
    RunState,
    StatusWriter,
    end_by,
    known_status,
)

_USER_MISTAKE, _INTERRUPTED = 2, 130
_POLL_S = 0.2
_LOOK_S = 5.0
_PREPARATION_TIMEOUTS, _LEAST_TIMEOUT_S = 6, 60.0
"""The preparation of ranks (downloads, warm-up) may take `_PREPARATION_TIMEOUTS` times the timeout, which
counts as at least `_LEAST_TIMEOUT_S` seconds here."""


@dataclass(slots=True, eq=False)
class NodeRun:
    """The ranks of a run on this node.

    `meeting` is the rendezvous with the other nodes, and `log` prints a line for the user.
    """

    folder: RunFolder
    settings: NodeSettings
    meeting: Meeting
    log: Callable[[str], None]
    _cause: AtriumError | None = None
    _hung: str | None = None
    _asked: list[int] = field(default_factory=list)

    def run(self, command: Sequence[str]) -> None:
        """Start every rank with `command`, and wait until the run has ended.

        Raises `ConfigError` if a setting is wrong or a node does not connect, `Interrupted` after a stop
        signal, and `RankError` for any other failure.
        """
        for name in ("torch.distributed.elastic", "torch.distributed.run"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # suppresses torchrun's error tables
        agent = NodeAgent(self.meeting.spec(list(command)), self.folder.path, self._on_failure)
        results: list[RunResult | Exception] = []
        thread = threading.Thread(target=_run_agent, args=(agent, results), daemon=True)
        with stop_requests(self._asked.append):
            thread.start()
            self._watch(agent, thread)
        result = results[0] if results else Interrupted("stopped before any rank was started")
        if isinstance(result, RunResult) and result.state is WorkerState.SUCCEEDED:
            return
        agent.send(signal.SIGKILL, to_group=True)  # processes started by dead ranks may still be running
        raise self._concluded(result)

    def _watch(self, agent: NodeAgent, thread: threading.Thread) -> None:
        sent, looked = 0, time.monotonic()
        clock = HangClock(self.settings.timeout_s)
        while thread.is_alive():
            thread.join(_POLL_S)
            if self._asked and not agent.pids:
                return  # the agent is still waiting for other nodes
            if len(self._asked) > sent:
                at_once = sent > 0 and self._asked[-1] == signal.SIGINT
                agent.send(signal.SIGKILL if at_once else signal.SIGTERM, to_group=at_once)
                sent = len(self._asked)
            if time.monotonic() - looked > min(_LOOK_S, self.settings.timeout_s / 2):
                looked = time.monotonic()
                self._hung = self._hung or clock.look(agent.phases(), looked)
                if self._hung is not None:
                    agent.send(signal.SIGKILL, to_group=True)

    def _on_failure(self, failures: list[RankFailure], num_restarts_left: int) -> bool:
        """Record why ranks have failed, and return whether to restart all ranks."""
        if self._asked and any(failure.is_kill for failure in failures):
            self._cause = Interrupted("stopped at once")
            return False
        cause = cause_of(failures)
        if self._hung is not None:
            cause = RankError(self._hung)
        self._cause = cause
        if isinstance(cause, ConfigError | Interrupted) or self._asked or num_restarts_left == 0:
            return False
        number = self.settings.max_restarts - num_restarts_left + 1
        text = (
            f"{cause}; all ranks start again from the last checkpoint "
            f"({number} of {self.settings.max_restarts} times)"
        )
        self.log(text)
        self.folder.append_log(text)
        self._hung = None
        return True

    def _concluded(self, result: RunResult | Exception) -> AtriumError:
        """Return the error that ended the run, and record it in the run's status if necessary."""
        cause = self._cause
        if isinstance(result, RendezvousTimeoutError):
            cause = ConfigError(
                f"compute.num_nodes={self.settings.num_nodes}: not all nodes connected to "
                f"compute.rendezvous={self.settings.rendezvous} within "
                f"compute.timeout_s={self.settings.timeout_s:g}; give the same command on each node"
            )
        elif isinstance(result, Interrupted):
            cause = result
        elif cause is None and isinstance(result, Exception):
            cause = RankError(f"torchrun's agent failed: {' '.join(str(result).split()) or repr(result)}")
        cause = cause or RankError("the ranks ended without an error message")
        mend_status(self.folder, cause)
        if type(cause) is RankError:
            text = f"{cause}; the logs of all ranks are in {ranks_dir(self.folder.path)}"
            if not is_failed_start(self.folder):
                text += f", and `atrium train --resume {self.folder.path.name}` resumes the run"
            cause = RankError(text)
        return cause


class HangClock:
    """A detector of hung runs, in which no rank has entered a new phase for longer than the limit.

    The limit is six times `timeout_s`, but at least 360 seconds.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._last: dict[int, str] = {}
        self._since: float | None = None

    def look(self, phases: Mapping[int, str], now: float) -> str | None:
        """Return a message that names the hung ranks, or None if the run has not hung.

        `phases` is the current result of `NodeAgent.phases`, and `now` is the current time in seconds.
        """
        if self._since is None or phases != self._last:
            self._last, self._since = dict(phases), now
            return None
        # If one rank hangs, the other ranks exit within the timeout. This check detects that all ranks hang;
        # its limit is the time for which ranks wait for rank 0's preparation.
        limit_s = _PREPARATION_TIMEOUTS * max(self._timeout_s, _LEAST_TIMEOUT_S)
        if now - self._since <= limit_s:
            return None
        number = {rank: int(phase.partition(" ")[0] or 0) for rank, phase in phases.items()}
        late = [rank for rank in number if number[rank] == min(number.values())]
        phase = phases[late[0]].partition(" ")[2] if late else ""
        names = ", ".join(str(rank) for rank in late) or "0"
        return (
            f"rank {names} made no progress for {now - self._since:.0f} s in {phase or 'starting'}, more "
            f"than the limit of {limit_s:g} s from compute.timeout_s={self._timeout_s:g}"
        )


def cause_of(failures: Sequence[RankFailure]) -> AtriumError:
    """Return the error that ended a run, given the failures of its ranks.

    A rank that exited with code 2 (a mistake of the user) takes precedence and gives a `ConfigError`. Next
    come an interruption and then a rank that was killed by a signal. Otherwise, the error is the first
    failure that was not a consequence of another rank's failure, or the first failure if all were
    consequences.
    """
    for failure in failures:
        if failure.exit_code == _USER_MISTAKE:
            return ConfigError(failure.message or f"rank {failure.rank} was started with a wrong setting")
    if any(failure.exit_code == _INTERRUPTED for failure in failures):
        said = [failure.message for failure in failures if failure.exit_code == _INTERRUPTED]
        return Interrupted(next((text for text in said if text), "stopped"))
    own = [failure for failure in failures if failure.is_kill] or [
        failure for failure in failures if not _is_of_others(failure)
    ]
    first = (own or list(failures))[0]
    where = f" in {first.phase}" if first.phase else ""
    if first.is_kill:
        name = signal_name(first.exit_code)
        hint = " (from outside, or out of memory)" if name == "SIGKILL" else ""
        return RankError(f"rank {first.rank} was killed by {name}{where}{hint}")
    if _is_of_others(first):
        return RankError(first.message)  # the message names this rank, the missing rank, and the phase
    return RankError(f"rank {first.rank} failed{where}: {first.message or 'it printed nothing'}")


def mend_status(folder: RunFolder, cause: AtriumError) -> None:
    """Record the cause of a failure in the run's status.

    Rank 0 may have recorded nothing, or only a consequence of another rank's failure. The recorded cause is
    kept if rank 0 recorded the same error, or if it recorded that the run diverged or ran out of memory. Any
    other recorded cause is replaced. The status of a finished, pruned or interrupted run is not changed.
    """
    recorded = known_status(folder.status_file)
    if recorded.state in (RunState.FINISHED, RunState.PRUNED, RunState.INTERRUPTED):
        return
    state, error, word = end_by(cause)
    # Rank 0 knows whether the run diverged or ran out of memory; other ranks report only consequences.
    # The same error, read from a rank's log, does not tell its cause.
    is_same = recorded.error is not None and error.endswith(recorded.error)
    is_known = is_same or recorded.cause in (DIVERGED, MemoryExhaustedError.cause)
    StatusWriter(folder.status_file).end(state, error, (recorded.cause if is_known else None) or word)


def _is_of_others(failure: RankFailure) -> bool:
    return " lost the others " in failure.message or " lost torchrun's store " in failure.message


def _run_agent(agent: NodeAgent, results: list[RunResult | Exception]) -> None:
    try:
        results.append(agent.run())
    except Exception as error:  # handled in the main thread, which waits for this one
        results.append(error)


def agreed_folder(meeting: Meeting, make: Callable[[], Path], fingerprint: str) -> Path:
    """Return the run directory, which all nodes share and the first node creates with `make`.

    `fingerprint` identifies a node's settings and GPUs. Raises `ConfigError` if it differs between nodes,
    if the first node fails, or if the directory is not on a shared file system.
    """
    store = meeting.store
    if meeting.is_first():
        try:
            path = make()
        except BaseException:
            store.set("atrium/run", "")
            raise
        store.set("atrium/fingerprint", fingerprint)
        store.set("atrium/run", str(path.absolute()))
        return path
    try:
        found = store.get("atrium/run").decode()
    except RuntimeError as error:
        raise ConfigError("the first node did not respond; check its output") from error
    if not found:
        raise ConfigError("the first node could not start the run; check its output")
    if store.get("atrium/fingerprint").decode() != fingerprint:
        raise ConfigError(
            "the settings or GPUs of this node differ from those of the first node; run the same command "
            "on nodes of the same kind"
        )
    if not Path(found).is_dir():
        raise ConfigError(
            f"{found} does not exist on this node; choose a runs_dir on a file system that all nodes share"
        )
    return Path(found)

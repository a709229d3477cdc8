"""An extension of torchrun's agent, which runs the ranks of one node.

The agent starts one process per rank, connects to the agents of other nodes, and restarts all ranks when
one has failed, up to a maximum number of restarts. `NodeAgent` also determines which rank failed first
and in which phase, and lets the caller decide whether to restart. Ranks record their phases in torchrun's
store (see `train.ranks.connected_ranks`).
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # documented there
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend, create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

from atrium.base.errors import ConfigError, RankError
from atrium.launch.addresses import LOOPBACK
from atrium.launch.rank_logs import last_words, rank_log, size_of
from atrium.launch.settings import NodeSettings
from atrium.launch.single_node import SingleNode, store_at

ATTEMPT_VARIABLE = "ATRIUM_ATTEMPT"
"""Environment variable with a random id of the current start of the ranks, equal on all nodes. The id
separates entries in the store from those of earlier starts."""

NOTES = "atrium/notes"
"""Prefix of keys in the store: `atrium/notes/ATTEMPT/phase/N` is the last phase of rank N, as `<number>
<phase>`."""

_STORE_TIMEOUT = timedelta(seconds=60)
_NOTES_TIMEOUT = timedelta(seconds=10)
_OTHERS_SPEAK_S = 4.0
_MONITOR_INTERVAL_S = 0.2
_LAST_CALL_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """A rank that failed before the agent ended the remaining ranks.

    `exit_code` is negative if a signal ended the rank. `phase` is the rank's last phase and `message` the
    last message in its log; both may be empty.
    """

    rank: int
    exit_code: int
    phase: str
    message: str

    @property
    def is_kill(self) -> bool:
        """Whether a signal ended the rank."""
        return self.exit_code < 0


class Meeting:
    """The rendezvous of a run's nodes.

    The constructor raises `ConfigError` if the rendezvous address cannot be reached within a minute, and
    `RankError` if a run on a single node finds no free port.
    """

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self.store, self._handler = _alone() if settings.rendezvous is None else _met(settings)
        self.store.set_timeout(timedelta(seconds=settings.timeout_s))

    def is_first(self) -> bool:
        """Return whether this node is the first one to call this method.

        The first node creates the run directory.
        """
        return bool(self.store.add("atrium/num_nodes", 1) == 1)

    def spec(self, command: list[str]) -> WorkerSpec:
        """Return torchrun's specification of this node's workers, each of which runs `command`."""
        return WorkerSpec(
            role="atrium",
            local_world_size=self._settings.num_processes,
            rdzv_handler=self._handler,
            entrypoint=command[0],
            args=tuple(command[1:]),
            max_restarts=self._settings.max_restarts,
            monitor_interval=_MONITOR_INTERVAL_S,
        )


def _alone() -> tuple[Store, RendezvousHandler]:
    """Return the store and the rendezvous handler for a single node.

    Raises `RankError` if no port is free.
    """
    store = store_at(LOOPBACK, 0, _STORE_TIMEOUT)
    if store is None:
        raise RankError(
            f"no port on {LOOPBACK} is free for the rendezvous of the ranks; stop other programs that "
            "listen on it"
        )
    return store, SingleNode(store)


def _met(settings: NodeSettings) -> tuple[Store, RendezvousHandler]:
    """Return the store and the rendezvous handler for several nodes.

    The node with the rendezvous address serves the store. Raises `ConfigError` if the address cannot be
    reached.
    """
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=str(settings.rendezvous),
        run_id="atrium",
        min_nodes=settings.num_nodes,
        max_nodes=settings.num_nodes,
        join_timeout=int(settings.timeout_s) + 1,
        last_call_timeout=_LAST_CALL_S,
        read_timeout=int(_STORE_TIMEOUT.total_seconds()),
    )
    host, _, port = parameters.endpoint.rpartition(":")
    try:
        store: Store | None = store_at(host, int(port), _STORE_TIMEOUT)
        if store is not None:
            backend = C10dRendezvousBackend(store, parameters.run_id)
        else:
            backend, store = create_backend(parameters)
    except (RuntimeError, ValueError, OSError, RendezvousError) as error:
        raise ConfigError(
            f"compute.rendezvous={settings.rendezvous} cannot be reached within "
            f"{_STORE_TIMEOUT.total_seconds():g} s; check that the host is one of the nodes, that the "
            "command also runs there, and that the port is open between the nodes"
        ) from error
    return store, create_handler(store, backend, parameters)


class RanksGivenUpError(Exception):
    """Raised if ranks have failed and must not be restarted."""


class NodeAgent(LocalElasticAgent):
    """An agent of torchrun that runs the ranks of this node.

    `on_failure` receives the failures and the number of restarts left, and returns whether to restart all
    ranks. `pids` are the process ids of this node's ranks, including dead ranks.
    """

    def __init__(
        self, spec: WorkerSpec, run: Path, on_failure: Callable[[list[RankFailure], int], bool]
    ) -> None:
        super().__init__(spec, logs_specs=_OwnLogs(), exit_barrier_timeout=60)
        self._run = run
        self._on_failure = on_failure
        self._num_restarts_left = spec.max_restarts
        self._log_sizes: dict[int, int] = {}
        self.pids: list[int] = []

    def send(self, number: int, *, to_group: bool = False) -> None:
        """Send signal `number` to this node's ranks, and with `to_group` also to processes they started."""
        for pid in self.pids:
            with suppress(ProcessLookupError, PermissionError):
                (os.killpg if to_group else os.kill)(pid, number)

    def phases(self) -> Mapping[int, str]:
        """Return each rank's last phase as `<number> <phase>`, or an empty string if it is unknown.

        The number counts the phases that the rank has entered. The mapping is empty before the nodes are
        connected, and after the node that serves the store has exited.
        """
        group = self.get_worker_group()
        if ATTEMPT_VARIABLE not in os.environ:
            return {}  # the nodes are not connected yet
        size = group.spec.local_world_size * (group.group_world_size or 1)
        try:
            notes = self._notes()
            return {
                rank: notes.get(key).decode() if notes.check([key := f"phase/{rank}"]) else ""
                for rank in range(size)
            }
        except (RuntimeError, ValueError):
            return {}  # the node that serves the store has exited

    def _notes(self) -> Store:
        group = self.get_worker_group()
        host, port = str(group.master_addr), int(group.master_port or 0)
        store = TCPStore(host, port, is_master=False, timeout=_NOTES_TIMEOUT)
        return PrefixStore(f"{NOTES}/{os.environ[ATTEMPT_VARIABLE]}", store)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, int]:
        ranks = [worker.global_rank for worker in worker_group.workers]
        self._log_sizes = {rank: size_of(rank_log(self._run, rank)) for rank in ranks}
        # All nodes share the store of this round, even if only some of them count the round as a restart.
        store: Any = worker_group.store
        node: Any = worker_group.group_rank
        if node == 0:
            store.set(ATTEMPT_VARIABLE, secrets.token_hex(4))
        os.environ[ATTEMPT_VARIABLE] = store.get(ATTEMPT_VARIABLE).decode()
        started: dict[int, int] = super()._start_workers(worker_group)
        self.pids = [started[worker.local_rank] for worker in worker_group.workers]
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        failed = self._failed()
        if failed:
            # `super` ends the other ranks. Before that, they have a few seconds to report their own errors.
            deadline = time.monotonic() + _OTHERS_SPEAK_S
            while time.monotonic() < deadline and len(self._ended()) < len(self.pids):
                time.sleep(_MONITOR_INTERVAL_S)
            failed |= {rank: code for rank, code in self._failed().items() if rank not in failed}
        result: RunResult = super()._monitor_workers(worker_group)
        if result.is_failed():
            failed = failed or {rank: failure.exitcode for rank, failure in result.failures.items()}
            if not self._on_failure(self._failures(failed), self._num_restarts_left):
                raise RanksGivenUpError
            self._num_restarts_left -= 1
        return result

    def _ended(self) -> dict[int, int]:
        workers = self.get_worker_group().workers
        codes = {worker.global_rank: _exit_code(pid) for worker, pid in zip(workers, self.pids, strict=True)}
        return {rank: code for rank, code in codes.items() if code is not None}

    def _failed(self) -> dict[int, int]:
        return {rank: code for rank, code in self._ended().items() if code != 0}

    def _failures(self, codes: Mapping[int, int]) -> list[RankFailure]:
        phases = self.phases()
        return [
            RankFailure(
                rank=rank,
                exit_code=code,
                phase=phases.get(rank, "").partition(" ")[2],
                message=last_words(rank_log(self._run, rank), self._log_sizes.get(rank, 0)),
            )
            for rank, code in codes.items()
        ]


def _exit_code(pid: int) -> int | None:
    """Return the exit code of a child process, or None while the process runs.

    The exit code is negative if a signal ended the process. The child is not reaped, since the agent does
    this. For a child that the agent has already reaped, the result is 0, because the agent itself reports any
    failure. Without `os.waitid` (macOS before Python 3.13), the result is always None.
    """
    if not hasattr(os, "waitid"):
        return None  # macOS before Python 3.13: only the agent reports failures
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


class _OwnLogs(LogsSpecs):
    """Log settings under which ranks inherit this process's output, until they open their own logs."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return empty paths for all log files, so that torchrun redirects nothing."""
        nowhere = dict.fromkeys(envs, "")
        for environment in envs.values():
            environment["TORCHELASTIC_ERROR_FILE"] = ""
        return LogsDest(stdouts=dict(nowhere), stderrs=dict(nowhere), error_files=dict(nowhere))

    @property
    def root_log_dir(self) -> str:
        """A placeholder for the log folder, which is not used."""
        return os.devnull


def signal_name(exit_code: int) -> str:
    """Return the name of the signal, such as `SIGKILL`, for a process's negative exit code."""
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"

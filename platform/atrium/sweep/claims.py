"""Distribution of work among the workers of a sweep: heartbeats, and claims that only one worker can win.

Workers communicate through the storage only, so workers on different machines need to share nothing else. A
worker claims a resource, such as a trial, before it works on it. Each claim is stored as a trial in a
separate Optuna study, so the storage numbers claims atomically. A claim names the resource and a generation.
If several workers claim the same generation of a resource, the claim with the lowest number wins. A worker
claims the next generation only if the holder of the resource is dead or has ended.

Clocks of different machines are never compared. A worker on this host counts as dead once its process has
exited. A worker on another host counts as dead if its heartbeat does not change within a timeout that is
measured on this host.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import optuna
import psutil
from optuna.trial import TrialState

from atrium.base.processes import is_alive
from atrium.sweep.storage import SweepStorage

DEAD_AFTER_S = 60.0
_WORKER = "worker:"


@dataclass(frozen=True, kw_only=True)
class WorkerState:
    """The state that a worker last reported about itself.

    `beat` counts its heartbeats. `pid_started` (the start of its process) and `seen` (the latest heartbeat)
    are in Unix seconds. `stage`, `trial` and `seed` identify its current run; between trials, they are None.
    """

    worker: str
    host: str
    pid: int
    pid_started: float
    beat: int = 0
    seen: float = 0.0
    has_ended: bool = False
    stage: str | None = None
    trial: int | None = None
    seed: int | None = None
    step: int = 0
    num_steps: int = 0


def this_worker() -> WorkerState:
    """Return the initial state of a new worker in this process."""
    return WorkerState(
        worker=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}",
        host=socket.gethostname(),
        pid=os.getpid(),
        pid_started=float(psutil.Process().create_time()),
    )


class Claims:
    """The claims and workers of one sweep, as seen by the worker `me`.

    `clock` must be monotonic. A worker on another host counts as dead after `dead_after_s` seconds without
    a new heartbeat.
    """

    def __init__(
        self,
        storage: SweepStorage,
        name: str,
        me: WorkerState,
        *,
        dead_after_s: float = DEAD_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage = storage
        self._study = optuna.create_study(
            storage=storage.optuna, study_name=f"{name}/claims", load_if_exists=True
        )
        self._me = me
        self._dead_after_s = dead_after_s
        self._clock = clock
        self._last_seen: dict[str, tuple[int, float]] = {}

    def beat(self, **changes: Any) -> None:  # noqa: ANN401 - fields of WorkerState
        """Record a heartbeat of this worker. `changes` replace fields of its `WorkerState`."""
        self._me = replace(self._me, beat=self._me.beat + 1, seen=time.time(), **changes)
        self._study.set_user_attr(f"{_WORKER}{self._me.worker}", asdict(self._me))

    def end(self) -> None:
        """Mark this worker as ended, which releases all of its claims."""
        self.beat(has_ended=True, stage=None, trial=None, seed=None)

    def workers(self) -> list[WorkerState]:
        """Return all workers that have ever joined."""
        attributes = self._study.user_attrs
        return [WorkerState(**value) for key, value in attributes.items() if key.startswith(_WORKER)]

    def is_alive(self, worker: WorkerState) -> bool:
        """Return whether a worker still works on the sweep.

        A worker on this host is judged by its process, and a worker on another host by its heartbeats.
        """
        if worker.worker == self._me.worker:
            return True
        if worker.has_ended:
            return False
        if worker.host == self._me.host:
            return is_alive(worker.pid, worker.pid_started)
        beat, since = self._last_seen.setdefault(worker.worker, (worker.beat, self._clock()))
        if beat != worker.beat:
            self._last_seen[worker.worker] = (worker.beat, self._clock())
            return True
        return self._clock() - since < self._dead_after_s

    def holder(self, resource: str) -> tuple[int, str] | None:
        """Return a resource's latest generation, counted from 0, and the name of the worker that holds it.

        Returns None if the resource has never been claimed.
        """
        won = self._winners(resource)
        return (max(won), won[max(won)]["worker"]) if won else None

    def is_mine(self, resource: str) -> bool:
        """Return whether this worker holds the resource."""
        held = self.holder(resource)
        return held is not None and held[1] == self._me.worker

    def acquire(self, resource: str, *, progress: int = 0) -> bool:
        """Claim a resource, unless another live worker holds it.

        Returns whether this worker now holds the resource. `progress` is recorded with the claim (see
        `num_attempts_without_progress`).
        """
        held = self.holder(resource)
        generation = 0
        if held is not None:
            generation, owner = held
            if owner == self._me.worker:
                return True
            if any(w.worker == owner and self.is_alive(w) for w in self.workers()):
                return False
            generation += 1
        self._study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.COMPLETE,
                value=0.0,
                user_attrs={
                    "resource": resource,
                    "generation": generation,
                    "worker": self._me.worker,
                    "progress": progress,
                },
            )
        )
        return self.holder(resource) == (generation, self._me.worker)

    def num_takeovers(self, resource: str) -> int:
        """Return how many times a worker has taken over the resource from another worker."""
        held = self.holder(resource)
        return held[0] if held is not None else 0

    def num_attempts_without_progress(self, resource: str, progress: int) -> int:
        """Return how many consecutive claims, counted back from the latest, recorded this `progress`.

        Only winning claims of the resource count.
        """
        claims = [ticket["progress"] for _, ticket in sorted(self._winners(resource).items(), reverse=True)]
        return next((num for num, one in enumerate(claims) if one != progress), len(claims))

    def _winners(self, resource: str) -> dict[int, Mapping[str, Any]]:
        """Return the attributes of a resource's winning claims, by generation."""
        won: dict[int, Mapping[str, Any]] = {}
        for trial in sorted(self._study.get_trials(deepcopy=False), key=lambda trial: trial.number):
            if trial.user_attrs.get("resource") == resource:
                won.setdefault(trial.user_attrs["generation"], trial.user_attrs)
        return won

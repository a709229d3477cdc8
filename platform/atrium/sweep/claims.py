"""Distribution of work among sweep workers: heartbeats, and claims that only one worker can win.

Everything goes through the storage, so workers on different machines need to share nothing else. A claim is
a trial in a separate Optuna study, numbered atomically by the storage. The lowest number of a generation of a
resource wins; a worker requests a new generation only after the holder of the previous one has died. Clocks
are never compared: a worker on another host counts as dead if its heartbeat does not change within a timeout
measured on this host, and a worker on this host if its process has exited.
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
    """A worker's state, as it reports it. `beat` counts heartbeats; `has_ended` is set on the way out."""

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
    """The state of a worker that begins in this process."""
    return WorkerState(
        worker=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}",
        host=socket.gethostname(),
        pid=os.getpid(),
        pid_started=float(psutil.Process().create_time()),
    )


class Claims:
    """The tickets and workers of one sweep, as one worker sees them.

    `clock` is monotonic; `dead_after_s` is how long a heartbeat from elsewhere may stand still.
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
        """Say that this worker lives, and what it is doing."""
        self._me = replace(self._me, beat=self._me.beat + 1, seen=time.time(), **changes)
        self._study.set_user_attr(f"{_WORKER}{self._me.worker}", asdict(self._me))

    def end(self) -> None:
        """Give up everything that this worker holds."""
        self.beat(has_ended=True, stage=None, trial=None, seed=None)

    def workers(self) -> list[WorkerState]:
        """All workers that ever joined."""
        attributes = self._study.user_attrs
        return [WorkerState(**value) for key, value in attributes.items() if key.startswith(_WORKER)]

    def is_alive(self, worker: WorkerState) -> bool:
        """Whether a worker still works, as far as can be seen from here."""
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
        """The newest generation of a resource and the worker that won it, or None where nobody has."""
        won = self._winners(resource)
        return (max(won), won[max(won)]["worker"]) if won else None

    def is_mine(self, resource: str) -> bool:
        """Whether this worker holds the resource."""
        held = self.holder(resource)
        return held is not None and held[1] == self._me.worker

    def acquire(self, resource: str, *, progress: int = 0) -> bool:
        """Claim a resource that nobody alive holds; whether this worker now holds it.

        `progress` is recorded with the claim (see `num_attempts_without_progress`).
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
        """How often a resource passed to another worker."""
        held = self.holder(resource)
        return held[0] if held is not None else 0

    def num_attempts_without_progress(self, resource: str, progress: int) -> int:
        """How many claims of the resource in a row, the newest last, stood at this progress."""
        claims = [ticket["progress"] for _, ticket in sorted(self._winners(resource).items(), reverse=True)]
        return next((num for num, one in enumerate(claims) if one != progress), len(claims))

    def _winners(self, resource: str) -> dict[int, Mapping[str, Any]]:
        """The ticket with the lowest number of every generation of a resource."""
        won: dict[int, Mapping[str, Any]] = {}
        for trial in sorted(self._study.get_trials(deepcopy=False), key=lambda trial: trial.number):
            if trial.user_attrs.get("resource") == resource:
                won.setdefault(trial.user_attrs["generation"], trial.user_attrs)
        return won

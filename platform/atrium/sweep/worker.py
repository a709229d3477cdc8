"""A worker: plans what is not planned, takes trials over from the dead, begins new ones, until all ended.

Any number of workers share a storage; `claims` decides which of them runs what.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from optuna.trial import TrialState

from atrium.base.errors import Interrupted
from atrium.sweep.claims import DEAD_AFTER_S, Claims, this_worker
from atrium.sweep.definition import SweepDefinition
from atrium.sweep.final import plan_final
from atrium.sweep.heartbeat import INTERVAL_S, Heartbeat
from atrium.sweep.plan import PlannedTrial, Stage, plan_stage
from atrium.sweep.runner import Execute, TrialRunner
from atrium.sweep.setup import open_studies
from atrium.sweep.storage import SweepStorage
from atrium.sweep.study import Trial

POLL_S = 1.0


class SweepWorker:
    """Works on a sweep until nothing is left. `log` is told what happens, one line at a time."""

    def __init__(
        self,
        storage: SweepStorage,
        definition: SweepDefinition,
        execute: Execute,
        *,
        should_stop: Callable[[], bool],
        log: Callable[[str], None],
        created: float | None = None,
        dead_after_s: float = DEAD_AFTER_S,
        interval_s: float = INTERVAL_S,
        parent: int | None = None,
    ) -> None:
        self._storage = storage
        self._definition = definition
        self._should_stop = should_stop
        with storage.explained():
            self._studies = open_studies(storage, definition)
            self._claims = Claims(storage, definition.name, this_worker(), dead_after_s=dead_after_s)
        self._heartbeat = Heartbeat(
            self._studies,
            self._claims,
            created=time.time() if created is None else created,
            parent=parent,
            interval_s=interval_s,
        )
        self._runner = TrialRunner(
            studies=self._studies,
            claims=self._claims,
            heartbeat=self._heartbeat,
            execute=execute,
            should_stop=should_stop,
            log=log,
        )

    def work(self) -> None:
        """Run trials until all have ended; raises `Interrupted` when asked to stop before."""
        with self._storage.explained(), self._heartbeat.beating():
            while not self._studies.has_ended():
                if not self._work_on_something():
                    self._pause()

    def _work_on_something(self) -> bool:
        """Plan, take over or begin one thing; whether there was any."""
        self._check_stop()
        if any(self._plan(stage) for stage in self._studies.stages):
            return True
        trials = [trial for stage in self._studies.stages for trial in self._studies.trials(stage)]
        running = [trial for trial in trials if trial.state is TrialState.RUNNING]
        waiting = [trial for trial in trials if trial.state is TrialState.WAITING]
        return any(self._take(trial) for trial in (*running, *waiting))

    def _plan(self, stage: Stage) -> bool:
        """Plan a stage whose turn has come; whether this worker did."""
        if self._studies.num_planned(stage) is not None:
            return False
        if stage is not Stage.FINAL:
            if not self._claims.acquire(f"plan:{stage}"):
                return False
            trials = plan_stage(self._definition, stage)
            self._studies.add(stage, [(trial, self._definition.seeds) for trial in trials])
            return True
        earlier = (Stage.SEARCH, Stage.BASELINE)
        if not self._studies.has_ended(*earlier) or not self._claims.acquire(f"plan:{stage}"):
            return False
        search, baseline = (self._studies.trials(one) for one in earlier)
        self._studies.add(stage, plan_final(self._definition, search, baseline))
        return True

    def _take(self, trial: Trial) -> bool:
        """Claim a trial and run it; whether this worker did."""
        progress = self._runner.progress(trial)
        if not self._claims.acquire(trial.resource, progress=progress):
            return False
        trial = self._studies.trial(trial.stage, trial.number)
        if trial.has_ended:
            return False
        num_deaths = self._claims.num_attempts_without_progress(trial.resource, progress) - 1
        if num_deaths >= self._definition.max_attempts:
            self._runner.give_up(trial, f"{num_deaths} workers died on it without any progress")
        else:
            self._runner.run(trial, self._twin)
        return True

    def _twin(self, trial: Trial, planned: PlannedTrial) -> Trial | None:
        """An ended trial of the same method; one that runs now and came first is waited for."""
        while True:
            twins = [
                other
                for other in self._studies.trials(trial.stage)
                if other.planned.key == planned.key and other.number != trial.number
            ]
            ended = [one for one in twins if one.state in (TrialState.COMPLETE, TrialState.PRUNED)]
            if ended:
                return ended[0]
            running = [one for one in twins if one.state is TrialState.RUNNING and one.number < trial.number]
            if not running:
                return None
            if not any(self._take(other) for other in running):
                self._pause()

    def _pause(self) -> None:
        self._check_stop()
        time.sleep(POLL_S)

    def _check_stop(self) -> None:
        self._heartbeat.raise_problem()
        if self._should_stop():
            raise Interrupted(f"sweep {self._definition.name} stopped; the same command resumes it")

"""A sweep worker: plans stages and runs trials, including those of dead workers, until all have ended.

Any number of workers can share a storage. The module `claims` decides which worker runs which trial.
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
    """A worker that runs trials of a sweep until all have ended.

    `execute` trains one run, and `log` receives one line per event. `interval_s` is the interval of
    heartbeats, and `dead_after_s` the time without a heartbeat after which a worker counts as dead, both
    in seconds.
    """

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
        """Run trials until all have ended; raise `Interrupted` if the worker is stopped earlier."""
        with self._storage.explained(), self._heartbeat.beating():
            while not self._studies.has_ended():
                if not self._work_on_something():
                    self._pause()

    def _work_on_something(self) -> bool:
        """Plan one stage, or take over or start one trial; return whether there was anything to do."""
        self._check_stop()
        if any(self._plan(stage) for stage in self._studies.stages):
            return True
        trials = [trial for stage in self._studies.stages for trial in self._studies.trials(stage)]
        running = [trial for trial in trials if trial.state is TrialState.RUNNING]
        waiting = [trial for trial in trials if trial.state is TrialState.WAITING]
        return any(self._take(trial) for trial in (*running, *waiting))

    def _plan(self, stage: Stage) -> bool:
        """Plan a stage if the stages that it depends on have ended; return whether this worker planned it."""
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
        """Claim a trial and run it, or mark it as failed if too many workers have died while running it.

        Deaths count only since the trial's last progress. Returns False if another worker holds the trial or
        it has already ended, and True otherwise.
        """
        progress = self._runner.progress(trial)
        if not self._claims.acquire(trial.resource, progress=progress):
            return False
        trial = self._studies.trial(trial.stage, trial.number)
        if trial.has_ended:
            return False
        num_deaths = self._claims.num_attempts_without_progress(trial.resource, progress) - 1
        if num_deaths >= self._definition.max_attempts:
            self._runner.give_up(trial, f"{num_deaths} workers died on this trial without any progress")
        else:
            self._runner.run(trial, self._twin)
        return True

    def _twin(self, trial: Trial, planned: PlannedTrial) -> Trial | None:
        """Return a completed or pruned trial of the same stage whose method is that of `planned`, or None.

        If there is none yet, but trials of this method with a lower number are running, the worker waits for
        them to end. It takes over those whose worker has died.
        """
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
            raise Interrupted(f"sweep {self._definition.name} stopped; run the same command to resume it")

"""Execution of one claimed trial: its setting, its seeds, early stopping, and its end.

The progress of a trial is recorded in its run directories and in the storage. A worker that takes over the
trial of a dead worker therefore resumes from the last checkpoint. The function that executes a run is an
argument, so this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import optuna
from optuna.trial import TrialState

from atrium.base.errors import ConfigError, Interrupted
from atrium.config.dates import dated
from atrium.config.schema import MIN_PLANNED_SEEDS, RunConfig
from atrium.document.formatting import counted
from atrium.runs.run_folder import RunFolder
from atrium.sweep.claims import Claims
from atrium.sweep.definition import SweepDefinition
from atrium.sweep.final import best_trial
from atrium.sweep.heartbeat import Heartbeat
from atrium.sweep.plan import PlannedTrial, Stage, planned_trial, stage_space, trial_config
from atrium.sweep.pruning import RunWatch, is_worse, trial_report
from atrium.sweep.results import DIVERGED, FINISHED, PRUNED, SeedResult, objective_means
from atrium.sweep.study import SweepStudies, Trial

_SEED_PROGRESS = 10**9
"""The progress that a finished seed counts for, which exceeds the number of steps of any run."""


@dataclass(frozen=True, kw_only=True)
class TrialRun:
    """One run of a trial, to be started or resumed.

    `run` is the name of the run directory if the run was started before, and None otherwise. `on_begun` is
    called with the name of a new run directory before any computation. `label` is written into the
    directory.
    """

    config: RunConfig
    overrides: tuple[str, ...]
    label: Mapping[str, Any]
    run: str | None
    on_begun: Callable[[str], None]


class Execute(Protocol):
    """A function that trains one run until it ends or `watch` stops it.

    A `ConfigError` fails the trial, and any other exception stops the worker.
    """

    def __call__(self, run: TrialRun, watch: RunWatch) -> SeedResult:
        """Return the result of the run, which is finished, diverged, or pruned with a reason."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrialRunner:
    """A runner for the trials that a worker has claimed."""

    studies: SweepStudies
    claims: Claims
    heartbeat: Heartbeat
    execute: Execute
    should_stop: Callable[[], bool]
    log: Callable[[str], None]

    def run(self, trial: Trial, find_twin: Callable[[Trial, PlannedTrial], Trial | None]) -> None:
        """Run a claimed trial to its end. A `ConfigError` fails the trial.

        `find_twin` returns a completed or pruned trial of the same method, or None. It is called only if the
        trial has no setting yet, after the sampler has chosen one. If it returns a trial, the results of that
        trial are copied and no run is started.
        """
        handle = self.studies.begin(trial)
        try:
            planned = trial.planned
            if not planned.key:
                planned = self._chosen(handle, trial)
                if (twin := find_twin(trial, planned)) is not None:
                    self._copy(trial, twin)
                    return
            self.log(f"{trial.resource}: {', '.join(planned.labels)}")
            self._run_seeds(handle, trial, planned)
        except ConfigError as error:
            self.end(trial, TrialState.FAIL, reason=str(error))

    def give_up(self, trial: Trial, reason: str) -> None:
        """Mark a trial that cannot be run as failed, and record the reason."""
        self.studies.begin(trial)
        self.end(trial, TrialState.FAIL, reason=reason)

    def progress(self, trial: Trial) -> int:
        """Return a number that increases with the progress of a trial.

        It is the step of the last checkpoint of the current run, plus `_SEED_PROGRESS` for each finished
        seed.
        """
        done = sum(result.state == FINISHED for result in trial.results.values())
        step = 0
        for result in trial.results.values():
            if result.state != FINISHED and result.run is not None:
                steps = RunFolder(Path(self.studies.definition.runs_dir) / result.run).checkpoint_steps()
                step = steps[-1] if steps else 0
        return done * _SEED_PROGRESS + step

    def end(
        self,
        trial: Trial,
        state: TrialState,
        *,
        values: Sequence[float] | None = None,
        **attributes: Any,  # noqa: ANN401 - what is recorded with the end
    ) -> None:
        """End a trial, unless another worker has taken it over. `attributes` are recorded with it."""
        if not self.claims.is_mine(trial.resource):
            self.log(f"{trial.resource} was taken over by another worker")
            return
        if state is not TrialState.COMPLETE:
            self.log(f"{trial.resource} {state.name.lower()}: {attributes.get('reason')}")
        self.studies.end(trial, state, values=values, attributes=attributes)
        self.heartbeat.beat(stage=None, trial=None, seed=None)
        self.heartbeat.write_state()

    def _chosen(self, handle: optuna.trial.Trial, trial: Trial) -> PlannedTrial:
        space, base = stage_space(self.studies.definition, trial.stage)
        assignment = self.studies.suggest(handle, space)
        planned = planned_trial(self.studies.definition, space, base, assignment)
        self.studies.store_setting(handle, planned)
        return planned

    def _copy(self, trial: Trial, twin: Trial) -> None:
        """End a trial with the results of an ended trial of the same method."""
        self.log(f"{trial.resource} is the same method as {twin.resource} and is not run")
        errors = {} if twin.standard_errors is None else {"standard_errors": list(twin.standard_errors)}
        reason = twin.reason or f"the same method as trial {twin.number}"
        self.end(trial, twin.state, values=twin.values, coincides_with=twin.number, reason=reason, **errors)

    def _run_seeds(self, handle: optuna.trial.Trial, trial: Trial, planned: PlannedTrial) -> None:
        definition = self.studies.definition
        config = trial_config(definition, planned.overrides)
        config = dated(_with_plan(config, definition), self.heartbeat.created)
        results: list[SeedResult] = []
        for seed in trial.seeds:
            done = trial.results.get(seed)
            if done is None or done.state not in (FINISHED, DIVERGED):
                done = self._run_seed(handle, trial, planned, config.model_copy(update={"seed": seed}))
                self.studies.store_result(handle, done)
                self.heartbeat.write_state()
            results.append(done)
            # On fresh seeds, diverged runs count too; otherwise the verdict would have survivorship bias.
            stops = (PRUNED,) if trial.stage is Stage.FINAL else (PRUNED, DIVERGED)
            reason = done.reason if done.state in stops else self._worse_than_best(trial, results)
            if reason is not None:
                self.end(trial, TrialState.PRUNED, reason=reason)
                return
        self._complete(trial, results)

    def _run_seed(
        self, handle: optuna.trial.Trial, trial: Trial, planned: PlannedTrial, config: RunConfig
    ) -> SeedResult:
        seed = config.seed
        begun = trial.results.get(seed)
        self.heartbeat.step = 0
        self.heartbeat.beat(
            stage=trial.stage.value, trial=trial.number, seed=seed, step=0, num_steps=config.num_steps
        )

        def begin(name: str) -> None:
            with self.studies.storage.explained():
                self.studies.store_result(handle, SeedResult(seed=seed, run=name))

        run = TrialRun(
            config=config,
            overrides=(*planned.overrides, f"seed={seed}"),
            label={
                "sweep": self.studies.definition.name,
                "stage": trial.stage.value,
                "trial": trial.number,
                "seed": seed,
                "labels": list(planned.labels),
                "settings": dict(planned.settings),
            },
            run=begun.run if begun is not None else None,
            on_begun=begin,
        )
        try:
            return self.execute(run, self._watch(handle, trial, seed))
        except OSError as error:
            # `explained` would report an OSError as a failure of the storage.
            raise RuntimeError(f"the run of {trial.resource} with seed {seed} failed; see its log") from error

    def _watch(self, handle: optuna.trial.Trial, trial: Trial, seed: int) -> RunWatch:
        """Return the listener that may stop a run early.

        Curves are compared only for the first seed of a trial. Runs on fresh seeds are never pruned.
        """
        pruner = self.studies.definition.pruner
        if trial.stage is Stage.FINAL:
            return RunWatch(pruner.model_copy(update={"collapse_steps": None}), on_step=self._on_step)
        compared = seed == trial.seeds[0] and pruner.curve != "none"
        report = trial_report(handle, self.studies.definition.objectives[0].metric)

        def reported(step: int, results: Mapping[str, object]) -> bool:
            with self.studies.storage.explained():
                return report(step, results)

        return RunWatch(pruner, on_step=self._on_step, report=reported if compared else None)

    def _on_step(self, step: int) -> None:
        self.heartbeat.step = step
        self.heartbeat.raise_problem()
        if self.should_stop():
            name = self.studies.definition.name
            raise Interrupted(f"sweep {name} stopped at step {step}; run the same command to resume")

    def _worse_than_best(self, trial: Trial, results: Sequence[SeedResult]) -> str | None:
        """Return why the trial's remaining seeds are skipped, or None to run them.

        They are skipped if the trial is worse than the best trial.
        """
        pruner, objective = self.studies.definition.pruner, self.studies.definition.objectives[0]
        num_left = len(trial.seeds) - len(results)
        if pruner.between_seeds == "none" or trial.stage is Stage.FINAL or num_left == 0:
            return None
        known = [one for one in self.studies.trials(trial.stage) if one.results]
        if (best := best_trial(known, objective.direction)) is None:
            return None
        maximize = objective.direction == "maximize"
        common = [(one, best.results[one.seed]) for one in results if one.seed in best.results]
        mine, others = (_mean_of_rows([pair[side].problem_means for pair in common]) for side in (0, 1))
        if not is_worse(mine, others, p_value=pruner.p_value, maximize=maximize):
            return None
        left_out = f"{num_left} of {counted(len(trial.seeds), 'seed')} not run"
        return f"worse than trial {best.number} in a test over problems, {left_out}"

    def _complete(self, trial: Trial, results: Sequence[SeedResult]) -> None:
        final = trial.stage is Stage.FINAL
        metrics = ["mean_at_k"] if final else [one.metric for one in self.studies.definition.objectives]
        means = objective_means([_on_test(one) for one in results] if final else results, metrics)
        if means is None:
            reasons = [one.reason for one in results if one.reason]
            reason = reasons[0] if reasons else "its runs did not measure the objective"
            self.end(trial, TrialState.FAIL, reason=reason)
            return
        self.end(
            trial,
            TrialState.COMPLETE,
            values=[mean.value for mean in means],
            standard_errors=[mean.standard_error for mean in means],
        )


def _on_test(result: SeedResult) -> SeedResult:
    """Return a result whose score is the mean over test benchmarks instead of the validation score."""
    scores = [float(score["mean_at_k"]) for score in result.outcome.values()]
    mean = sum(scores) / len(scores) if scores else None
    return SeedResult(seed=result.seed, state=result.state, mean_at_k=mean)


def _mean_of_rows(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) / len(column) for column in zip(*rows, strict=False)]


def _with_plan(config: RunConfig, definition: SweepDefinition) -> RunConfig:
    """Return the configuration with the sweep's number of seeds as its planned seeds.

    The configuration is unchanged if it already has planned seeds, or if the sweep has fewer than
    `MIN_PLANNED_SEEDS` seeds. It is also unchanged if the sweep has fresh seeds: the verdict then uses only
    the fresh seeds, and the other runs only select the winner.
    """
    num_seeds = len(definition.seeds)
    if config.planned_seeds is not None or definition.final is not None or num_seeds < MIN_PLANNED_SEEDS:
        return config
    return config.model_copy(update={"planned_seeds": num_seeds})

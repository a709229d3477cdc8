"""The Optuna studies of a sweep: one per stage, whose trials are planned before they run.

Trials are created in the state `waiting`. If the sampler does not use results, they are created with their
settings. Workers then claim them one by one. A sweep therefore has exactly the trials of its plan,
regardless of workers that join or die.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from atrium.base.seeding import derive_seed
from atrium.sweep import space as spaces
from atrium.sweep.definition import ParameterConfig, Scalar, SpaceConfig, SweepDefinition
from atrium.sweep.plan import PlannedTrial, Stage
from atrium.sweep.pruning import curve_pruner
from atrium.sweep.results import SeedResult, as_record, from_record
from atrium.sweep.storage import SweepStorage

DEFINITION = "definition"
_NUM_PLANNED = "num_planned"
_SEED = "seed:"
_STATES = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}
ENDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial of a stage, as read from the storage.

    `seeds` are the planned seeds, and `results` contains only the seeds that have started. `values` are the
    objectives; they are None unless the trial is complete. `reason` says why the trial was pruned or failed,
    or that its results were copied. If they were copied from another trial of the same method,
    `coincides_with` is the number of that trial.
    """

    stage: Stage
    number: int
    state: TrialState
    values: tuple[float, ...] | None
    planned: PlannedTrial
    seeds: tuple[int, ...]
    results: Mapping[int, SeedResult]
    reason: str | None
    standard_errors: tuple[float | None, ...] | None
    coincides_with: int | None
    frozen: FrozenTrial

    @property
    def is_complete(self) -> bool:
        """Whether the trial has ended with known objectives, measured on all of its seeds or copied."""
        return self.state is TrialState.COMPLETE

    @property
    def state_name(self) -> str:
        """The state as a word, such as `running`."""
        return _STATES[self.state]

    @property
    def has_ended(self) -> bool:
        """Whether the trial will not run again."""
        return self.state in ENDED

    @property
    def resource(self) -> str:
        """The name under which workers claim the trial, such as `search:3`."""
        return f"{self.stage}:{self.number}"


class SweepStudies:
    """The Optuna studies of all stages of a sweep, created or opened in its storage.

    `num_steps` is the number of training steps of a run, which some pruners need.
    """

    def __init__(self, storage: SweepStorage, definition: SweepDefinition, num_steps: int) -> None:
        self.storage = storage
        self.definition = definition
        self._studies: dict[Stage, optuna.Study] = {}
        directions = [objective.direction for objective in definition.objectives]
        for stage in stages_of(definition):
            final = stage is Stage.FINAL
            self._studies[stage] = optuna.create_study(
                storage=storage.optuna,
                study_name=definition.name if stage is Stage.SEARCH else f"{definition.name}/{stage}",
                directions=["maximize"] if final else directions,
                sampler=sampler_of(definition, stage, 0),
                pruner=curve_pruner(definition.pruner, num_steps),
                load_if_exists=True,
            )

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of this sweep."""
        return tuple(self._studies)

    def study(self, stage: Stage) -> optuna.Study:
        """Return a stage's Optuna study."""
        return self._studies[stage]

    def num_planned(self, stage: Stage) -> int | None:
        """Return the number of trials of a stage, or None if the stage is not planned yet."""
        number = self._studies[stage].user_attrs.get(_NUM_PLANNED)
        return number if isinstance(number, int) else None

    def has_ended(self, *stages: Stage) -> bool:
        """Return whether all trials of the stages (default: all stages) are planned and have ended."""
        return all(
            self.num_planned(stage) is not None and all(trial.has_ended for trial in self.trials(stage))
            for stage in stages or self.stages
        )

    def add(self, stage: Stage, planned: Sequence[tuple[PlannedTrial, Sequence[int]]]) -> None:
        """Add the missing trials of a plan, each with its seeds. The caller must have claimed the plan."""
        study = self._studies[stage]
        have = len(study.get_trials(deepcopy=False))
        for trial, seeds in planned[have:]:
            study.add_trial(_waiting(self.definition, stage, trial, seeds))
        study.set_user_attr(_NUM_PLANNED, len(planned))

    def trials(self, stage: Stage) -> list[Trial]:
        """Return all trials of a stage, by number."""
        frozen = sorted(self._studies[stage].get_trials(deepcopy=False), key=lambda trial: trial.number)
        return [as_trial(stage, trial) for trial in frozen]

    def trial(self, stage: Stage, number: int) -> Trial:
        """Return one trial of a stage."""
        return self.trials(stage)[number]

    def begin(self, trial: Trial) -> optuna.trial.Trial:
        """Mark a claimed trial as running, and return its Optuna trial.

        Each trial has its own sampler seed, because workers with the same seed would propose the same
        settings.
        """
        trial_id = trial.frozen._trial_id
        self._studies[trial.stage].sampler = sampler_of(self.definition, trial.stage, trial.number)
        if trial.state is TrialState.WAITING:
            self.storage.optuna.set_trial_state_values(trial_id, TrialState.RUNNING)
        return optuna.trial.Trial(self._studies[trial.stage], trial_id)

    def suggest(self, handle: optuna.trial.Trial, space: SpaceConfig) -> dict[str, Scalar]:
        """Return the values that the sampler chooses for a trial. A resumed trial keeps its values."""

        def choose(name: str, parameter: ParameterConfig) -> Scalar:
            distribution = distribution_of(parameter)
            if isinstance(distribution, CategoricalDistribution):
                return handle.suggest_categorical(name, distribution.choices)
            is_whole = isinstance(distribution, IntDistribution)
            suggest: Callable[..., float] = handle.suggest_int if is_whole else handle.suggest_float
            return suggest(
                name, distribution.low, distribution.high, step=distribution.step, log=distribution.log
            )

        return spaces.assign(space, choose)

    def store_setting(self, handle: optuna.trial.Trial, planned: PlannedTrial) -> None:
        """Record the setting that the sampler chose for a trial."""
        for name, value in asdict(planned).items():
            handle.set_user_attr(name, value)

    def store_result(self, handle: optuna.trial.Trial, result: SeedResult) -> None:
        """Record the state or result of one seed of a trial."""
        handle.set_user_attr(f"{_SEED}{result.seed}", as_record(result))

    def end(
        self,
        trial: Trial,
        state: TrialState,
        *,
        values: Sequence[float] | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """End a trial. A trial that has already ended stays unchanged."""
        study = self._studies[trial.stage]
        storage, trial_id = self.storage.optuna, trial.frozen._trial_id
        try:
            for name, value in (attributes or {}).items():
                storage.set_trial_user_attr(trial_id, name, value)
            study.tell(trial.number, values, state=state, skip_if_finished=True)
        except optuna.exceptions.UpdateFinishedTrialError:
            return  # a worker that was considered dead has ended it with the same results


def stages_of(definition: SweepDefinition) -> tuple[Stage, ...]:
    """Return the stages of a definition: the search, and the baseline and final stages if defined."""
    stages = [Stage.SEARCH]
    if definition.baseline is not None:
        stages.append(Stage.BASELINE)
        if definition.final is not None:
            stages.append(Stage.FINAL)
    return tuple(stages)


def sampler_of(definition: SweepDefinition, stage: Stage, number: int) -> BaseSampler:
    """Return Optuna's sampler for one trial of a stage. Trials with planned settings do not use it."""
    seed = derive_seed(definition.sampler.seed, "sampler", stage.value, number) % 2**32
    match definition.sampler.kind:
        case "tpe":
            return TPESampler(seed=seed, n_startup_trials=min(10, max(3, definition.trials // 3)))
        case "gp":
            return GPSampler(seed=seed)
        case "nsga2":
            return NSGAIISampler(seed=seed, population_size=min(20, max(4, definition.trials // 4)))
    return RandomSampler(seed=seed)


def distribution_of(
    parameter: ParameterConfig,
) -> CategoricalDistribution | IntDistribution | FloatDistribution:
    """Return the Optuna distribution over a parameter's choices or range."""
    if parameter.choices is not None:
        return CategoricalDistribution(parameter.choices)
    low, high = spaces.bounds(parameter)
    if parameter.is_integer:
        return IntDistribution(int(low), int(high), log=parameter.log, step=int(parameter.step or 1))
    return FloatDistribution(low, high, log=parameter.log, step=parameter.step)


def as_trial(stage: Stage, frozen: FrozenTrial) -> Trial:
    """Convert an Optuna trial to a `Trial`."""
    attributes = frozen.user_attrs
    results = {
        int(name.removeprefix(_SEED)): from_record(value)
        for name, value in attributes.items()
        if name.startswith(_SEED)
    }
    errors = attributes.get("standard_errors")
    return Trial(
        stage=stage,
        number=frozen.number,
        state=frozen.state,
        values=tuple(frozen.values) if frozen.state is TrialState.COMPLETE and frozen.values else None,
        planned=PlannedTrial(
            assignment=attributes.get("assignment", {}),
            settings=attributes.get("settings", {}),
            overrides=tuple(attributes.get("overrides", ())),
            labels=tuple(attributes.get("labels", ())),
            key=attributes.get("key", ""),
            window=attributes.get("window"),
        ),
        seeds=tuple(attributes.get("seeds", ())),
        results=dict(sorted(results.items())),
        reason=attributes.get("reason"),
        standard_errors=None if errors is None else tuple(errors),
        coincides_with=attributes.get("coincides_with"),
        frozen=frozen,
    )


def _waiting(
    definition: SweepDefinition, stage: Stage, planned: PlannedTrial, seeds: Sequence[int]
) -> FrozenTrial:
    attributes: dict[str, Any] = {"seeds": list(seeds)}
    params: dict[str, Any] = {}
    distributions: dict[str, BaseDistribution] = {}
    if planned.key:
        attributes |= asdict(planned)
        space = definition.baseline if stage is Stage.BASELINE and definition.baseline else definition
        known = spaces.parameters(space) if stage is not Stage.FINAL else {}
        params = {name: value for name, value in planned.assignment.items() if name in known}
        distributions = {name: _without_step(distribution_of(known[name])) for name, value in params.items()}
    return optuna.trial.create_trial(
        state=TrialState.WAITING, params=params, distributions=distributions, user_attrs=attributes
    )


def _without_step(distribution: BaseDistribution) -> BaseDistribution:
    """Return a float distribution without its step, and any other distribution unchanged.

    The step is removed because a planned value may lie between two steps.
    """
    if isinstance(distribution, FloatDistribution) and distribution.step is not None:
        return FloatDistribution(distribution.low, distribution.high)
    return distribution

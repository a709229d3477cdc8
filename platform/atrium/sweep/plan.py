"""From a definition to trials: every setting composed and checked before the first one runs.

A stage is one Optuna study. `search` tries the space, `baseline` tunes what the winner is judged
against with as many trials, `final` runs winner and baseline on fresh seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from atrium.base.errors import ConfigError
from atrium.config.compose import compose
from atrium.config.schema import RunConfig
from atrium.method.windows import Window
from atrium.runs.method_settings import method_key
from atrium.sweep import space as spaces
from atrium.sweep.definition import Scalar, SpaceConfig, SweepDefinition


class Stage(StrEnum):
    """The stages of a sweep, in their order."""

    SEARCH = "search"
    BASELINE = "baseline"
    FINAL = "final"


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """One setting of a sweep. `labels` names all arms with it; equal methods have equal `key`.

    All fields are empty if a sampler chooses the setting when the trial starts.
    """

    assignment: Mapping[str, Scalar]
    settings: Mapping[str, Scalar]
    overrides: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    key: str = ""
    window: list[float | None] | None = None

    @property
    def name(self) -> str:
        """All the names of the setting."""
        return " = ".join(self.labels)

    @property
    def bounds(self) -> Window | None:
        """The window of the setting; None without one."""
        if self.window is None:
            return None
        lower, upper = self.window
        return Window(lower or 0.0, math.inf if upper is None else upper)


OPEN = PlannedTrial(assignment={}, settings={})
"""A trial whose setting a sampler chooses when it begins."""


def stage_space(definition: SweepDefinition, stage: Stage) -> tuple[SpaceConfig, tuple[str, ...]]:
    """The space of a stage and the overrides that it starts from."""
    baseline = definition.baseline
    if stage is Stage.BASELINE and baseline is not None:
        return baseline, definition.base if baseline.base is None else baseline.base
    return definition, definition.base


def plan_stage(definition: SweepDefinition, stage: Stage) -> list[PlannedTrial]:
    """The trials of `search` or `baseline`; settings of equal methods are one trial with all their labels.

    Raises `ConfigError` for a setting that cannot be composed, and for a space in which all coincide.
    """
    space, base = stage_space(definition, stage)
    if stage is Stage.BASELINE and not space.varies:
        return [planned_trial(definition, space, base, {}, label="baseline")]
    sampler = definition.sampler
    if not sampler.is_planned:
        for name, assignment in spaces.corners(space):
            _checked(definition, space, base, assignment, name)
        return [OPEN] * definition.trials
    assignments = spaces.planned(space, kind=sampler.kind, num=definition.trials, seed=sampler.seed)
    trials = [planned_trial(definition, space, base, assignment) for assignment in assignments]
    unique = merged(trials)
    if len(unique) == 1 and len(trials) > 1:
        raise ConfigError(_all_coincide(definition, base, trials[0]))
    return unique


def count_runs(definition: SweepDefinition) -> dict[Stage, int]:
    """The runs of each stage, one per setting and seed, if none is pruned."""
    searched = len(plan_stage(definition, Stage.SEARCH))
    runs = {Stage.SEARCH: searched * len(definition.seeds)}
    if definition.baseline is not None:
        runs[Stage.BASELINE] = len(plan_stage(definition, Stage.BASELINE)) * len(definition.seeds)
    if definition.final is not None:
        compared = searched if definition.final.settings == "all" else 1
        runs[Stage.FINAL] = (compared + 1) * len(definition.final.seeds)
    return runs


def planned_trial(
    definition: SweepDefinition,
    space: SpaceConfig,
    base: Sequence[str],
    assignment: Mapping[str, Scalar],
    label: str | None = None,
) -> PlannedTrial:
    """An assignment with all that follows from it."""
    settings = spaces.settings_of(space, assignment)
    config = _checked(definition, space, base, assignment, ", ".join(settings) or "base")
    return PlannedTrial(
        assignment=dict(assignment),
        settings=settings,
        overrides=(*base, *spaces.overrides_of(settings)),
        labels=(label or label_of(assignment),),
        key=method_key(config.model_dump(mode="json"), at_last_step=True),
        window=_as_pair(config.divergence.fixed_window()),
    )


def trial_config(overrides: Sequence[str], *, name: str, runs_dir: str, seed: int) -> RunConfig:
    """The configuration of one run of a trial; what all runs of a setting share is composed once."""
    shared = _composed(tuple(overrides))
    return shared.model_copy(update={"experiment_name": name, "runs_dir": runs_dir, "seed": seed})


@lru_cache(maxsize=1024)
def _composed(overrides: tuple[str, ...]) -> RunConfig:
    return compose([*overrides, "tracking.progress=off"])


def label_of(assignment: Mapping[str, Scalar]) -> str:
    """An assignment in words: the arm, then `delta=0.02`, by the last part of each key."""
    parts = [] if spaces.ARM not in assignment else [str(assignment[spaces.ARM])]
    for name, value in assignment.items():
        if name != spaces.ARM:
            shown = f"{value:.4g}" if isinstance(value, float) else str(value)
            parts.append(f"{name.rpartition('.')[2]}={shown}")
    return ", ".join(parts)


def merged(trials: Sequence[PlannedTrial]) -> list[PlannedTrial]:
    """Trials of equal methods as one, in the order of the first of each, with the labels of all."""
    by_key: dict[str, PlannedTrial] = {}
    for trial in trials:
        first = by_key.get(trial.key)
        if first is None:
            by_key[trial.key] = trial
        else:
            labels = tuple(dict.fromkeys((*first.labels, *trial.labels)))
            by_key[trial.key] = replace(first, labels=labels)
    return list(by_key.values())


def _checked(
    definition: SweepDefinition,
    space: SpaceConfig,
    base: Sequence[str],
    assignment: Mapping[str, Scalar],
    what: str,
) -> RunConfig:
    """The configuration of an assignment; `ConfigError` says which part of the sweep does not fit."""
    try:
        settings = spaces.settings_of(space, assignment)
        overrides = (*base, *spaces.overrides_of(settings))
        return trial_config(
            overrides, name=definition.name, runs_dir=definition.runs_dir, seed=definition.seeds[0]
        )
    except ConfigError as error:
        raise ConfigError(f"sweep {definition.name}, {what}: {error}") from error


def _as_pair(window: Window | None) -> list[float | None] | None:
    """A window for JSON: [l, u], with null for an upper bound that never binds."""
    if window is None:
        return None
    return [window.lower, None if math.isinf(window.upper) else window.upper]


def _all_coincide(definition: SweepDefinition, base: Sequence[str], trial: PlannedTrial) -> str:
    config = _composed(trial.overrides)
    reason = (
        "one update per batch leaves every ratio at 1, so that no trust region clips anything; use "
        "a base with optimizer.num_minibatches or optimizer.num_epochs above 1"
        if config.method.is_idle(config.use)
        else "they have equal windows and are equal in the rest; vary something else"
    )
    return f"sweep {definition.name}: all settings of its space are the same method: {reason}"

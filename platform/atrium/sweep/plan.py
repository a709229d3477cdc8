"""The plan of a sweep's trials.

Before the first trial runs, every planned setting is composed and checked. If a sampler chooses settings
based on earlier results, only the ends of each range and the listed choices are checked.

A stage is one Optuna study. `search` tries the space, `baseline` tunes the baseline with at most as many
trials, and `final` runs the winner, or all complete settings of the search, and the baseline on fresh seeds.
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
    """The stages of a sweep, in the order of execution."""

    SEARCH = "search"
    BASELINE = "baseline"
    FINAL = "final"


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """One setting of a sweep, or a placeholder with empty fields until a sampler chooses the setting.

    `labels` names all arms with this setting. Equal methods have an equal `key`. `window` is [l, u], where
    u is None if it is infinite.
    """

    assignment: Mapping[str, Scalar]
    settings: Mapping[str, Scalar]
    overrides: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    key: str = ""
    window: list[float | None] | None = None

    @property
    def name(self) -> str:
        """All labels of the setting, joined by ` = `."""
        return " = ".join(self.labels)

    @property
    def bounds(self) -> Window | None:
        """The window of the setting, or None for a divergence without a constant window."""
        if self.window is None:
            return None
        lower, upper = self.window
        return Window(lower or 0.0, math.inf if upper is None else upper)


OPEN = PlannedTrial(assignment={}, settings={})
"""A trial whose setting the sampler chooses when the trial starts."""


def stage_space(definition: SweepDefinition, stage: Stage) -> tuple[SpaceConfig, tuple[str, ...]]:
    """Return the search space of a stage, and the overrides that all its trials share."""
    baseline = definition.baseline
    if stage is Stage.BASELINE and baseline is not None:
        return baseline, definition.base if baseline.base is None else baseline.base
    return definition, definition.base


def plan_stage(definition: SweepDefinition, stage: Stage) -> list[PlannedTrial]:
    """Return the trials of the stage `search` or `baseline`.

    Settings that are the same method form one trial with all their labels. For a sampler that uses results,
    the trials are placeholders (`OPEN`), and only the corners of the space are composed. Raises `ConfigError`
    if a setting cannot be composed, or if all planned settings of the space are the same method.
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
    """Return the largest possible number of runs in each stage: one for each setting and seed.

    Pruning reduces the number, and so do settings that turn out to be the same method.
    """
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
    """Return the trial of an assignment.

    `label` replaces the label that is derived from the assignment. Raises `ConfigError` if the
    configuration is invalid.
    """
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


def trial_config(definition: SweepDefinition, overrides: Sequence[str]) -> RunConfig:
    """Return the configuration of a trial's run with the sweep's first seed.

    Equal overrides are composed only once.
    """
    place = {"experiment_name": definition.name, "runs_dir": definition.runs_dir}
    return _composed(tuple(overrides)).model_copy(update={**place, "seed": definition.seeds[0]})


@lru_cache(maxsize=1024)
def _composed(overrides: tuple[str, ...]) -> RunConfig:
    return compose([*overrides, "tracking.progress=off"])


def label_of(assignment: Mapping[str, Scalar]) -> str:
    """Return the label of an assignment: the arm, and values with short keys, such as `delta=0.02`."""
    parts = [] if spaces.ARM not in assignment else [str(assignment[spaces.ARM])]
    for name, value in assignment.items():
        if name != spaces.ARM:
            shown = f"{value:.4g}" if isinstance(value, float) else str(value)
            parts.append(f"{name.rpartition('.')[2]}={shown}")
    return ", ".join(parts)


def merged(trials: Sequence[PlannedTrial]) -> list[PlannedTrial]:
    """Return one trial for each method, in the order in which the methods first occur in `trials`.

    Trials with the same method are merged into one with all their labels.
    """
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
    """Return the configuration of an assignment.

    Raises `ConfigError` if it cannot be composed. The message begins with the sweep's name and `what`, a
    description of the assignment.
    """
    try:
        settings = spaces.settings_of(space, assignment)
        overrides = (*base, *spaces.overrides_of(settings))
        return trial_config(definition, overrides)
    except ConfigError as error:
        raise ConfigError(f"sweep {definition.name}, {what}: {error}") from error


def _as_pair(window: Window | None) -> list[float | None] | None:
    """Return a window as JSON data: [l, u], with null for an infinite u."""
    if window is None:
        return None
    return [window.lower, None if math.isinf(window.upper) else window.upper]


def _all_coincide(definition: SweepDefinition, base: Sequence[str], trial: PlannedTrial) -> str:
    config = _composed(trial.overrides)
    reason = (
        "one update per batch leaves every ratio at 1, so no trust region clips anything; use "
        "a base with optimizer.num_minibatches or optimizer.num_epochs above 1"
        if config.method.is_idle(config.use)
        else "their windows and all other settings are equal; vary another setting"
    )
    return f"sweep {definition.name}: all settings of its space are the same method: {reason}"

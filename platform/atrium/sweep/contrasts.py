"""Planned contrasts of a sweep: observed differences between arms, compared with predictions.

Axes: S seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from atrium.compare.curve_contrasts import CurveContrast, curve_contrast, curve_value
from atrium.compare.curve_index import recorded_curves
from atrium.runs.curve_outcomes import CurveOutcome
from atrium.runs.run_folder import RunFolder
from atrium.stats.seeds import mean_over_seeds
from atrium.sweep.definition import ContrastConfig, PredictionConfig, SweepDefinition
from atrium.sweep.plan import PlannedTrial, Stage
from atrium.sweep.setup import PREDICTED_AT
from atrium.sweep.study import SweepStudies, Trial

Values = Mapping[str, Mapping[int, float | None]]
"""Outcomes by arm and seed, or None for a run without the outcome."""
ContrastKind = Literal["agrees", "contradicted", "unclear", "missing", "seen", "not_seen"]
_SIGNS = {"positive": 1, "negative": -1}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedContrast:
    """A contrast of two arms in one outcome: its prediction and the observed difference.

    `interval` is the 95 % interval of the difference, simultaneous over `num_together` contrasts. With a
    prediction, `kind` is `unclear` if the interval contains 0 or is None, and otherwise `agrees` or
    `contradicted`. Without a prediction, `kind` is `seen` if the interval excludes 0, and `not_seen`
    otherwise. If runs lack the outcome, `kind` is `missing`, and the field `missing` names these runs.
    """

    outcome: str
    name: str
    because: str
    is_null: bool
    predicted: PredictionConfig | None
    num_together: int
    difference: float | None
    difference_by_seed: tuple[float, ...] | None
    interval: tuple[float, float] | None
    kind: ContrastKind
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastedArm:
    """An arm, and the mean over its seeds of the sweep's first outcome.

    `value` is this mean. It is None if a run lacks the outcome.
    """

    planned: PlannedTrial
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCurve:
    """An arm's curves of one metric.

    `seeds` maps each seed to its points (step, value). `means` are the points (step, mean, low, high) of the
    mean over seeds, where low and high are the ends of its 95 % interval, or equal to the mean if there is no
    interval. They include only the steps that all seeds recorded.
    """

    planned: PlannedTrial
    seeds: Mapping[str, Sequence[tuple[int, float]]]
    means: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedContrasts:
    """All contrasts by outcome, the arms, and the curves of the outcomes' metrics.

    `predictions` is the name of the file with the predictions. `commit` is the commit that contained this
    file before the first run; it is None if the file was not committed by then.
    """

    predictions: str | None
    commit: str | None
    outcomes: Mapping[str, str]
    seeds: tuple[int, ...]
    rows: tuple[PlannedContrast, ...]
    arms: tuple[ContrastedArm, ...]
    curves: Mapping[str, tuple[ArmCurve, ...]]


def planned_contrasts(studies: SweepStudies) -> PlannedContrasts | None:
    """Return every planned contrast in every outcome, or None if no contrast is planned.

    For each outcome, the intervals of all contrasts except null contrasts are simultaneous. Each null
    contrast is judged separately.
    """
    definition = studies.definition
    if not definition.contrasts:
        return None
    values = {name: outcome_values(studies, outcome) for name, outcome in definition.outcomes.items()}
    primary = next(iter(values.values()))
    return PlannedContrasts(
        predictions=definition.predictions,
        commit=studies.study(Stage.SEARCH).user_attrs.get(PREDICTED_AT),
        outcomes={name: outcome.words for name, outcome in definition.outcomes.items()},
        seeds=tuple(definition.seeds),
        rows=tuple(
            _contrast(definition, contrast, name, found)
            for name, found in values.items()
            for contrast in definition.contrasts
        ),
        arms=tuple(_arm(trial, primary) for trial in studies.trials(Stage.SEARCH)),
        curves=_curves(studies),
    )


def outcome_values(studies: SweepStudies, outcome: CurveOutcome) -> Values:
    """Return the outcome of each run of the search, by arm and seed."""
    return {
        arm: {seed: curve_value(run, outcome) for seed, run in _runs(studies, trial).items()}
        for trial in studies.trials(Stage.SEARCH)
        for arm in trial.planned.labels
    }


def _runs(studies: SweepStudies, trial: Trial) -> dict[int, RunFolder]:
    """Return the runs of a trial that have started, by seed."""
    runs_dir = Path(studies.definition.runs_dir)
    return {
        seed: RunFolder(runs_dir / result.run)
        for seed, result in trial.results.items()
        if result.run is not None
    }


def _arm(trial: Trial, values: Values) -> ContrastedArm:
    by_seed = next((values[label] for label in trial.planned.labels), {})
    known = [value for value in by_seed.values() if value is not None]
    value = mean_over_seeds(known).value if known and len(known) == len(trial.seeds) else None
    return ContrastedArm(planned=trial.planned, value=value)


def _curves(studies: SweepStudies) -> dict[str, tuple[ArmCurve, ...]]:
    """Return the curves of all arms by metric, for each metric that an outcome uses.

    The curves of a metric end at the last step that an outcome of this metric uses.
    """
    untils: dict[str, int] = {}
    for outcome in studies.definition.outcomes.values():
        untils[outcome.metric] = max(outcome.until, untils.get(outcome.metric, 0))
    return {
        metric: tuple(_curve(studies, trial, metric, until) for trial in studies.trials(Stage.SEARCH))
        for metric, until in untils.items()
    }


def _curve(studies: SweepStudies, trial: Trial, metric: str, until: int) -> ArmCurve:
    by_seed = {
        str(seed): recorded_curves(run).points(metric, until) for seed, run in _runs(studies, trial).items()
    }
    return ArmCurve(planned=trial.planned, seeds=by_seed, means=tuple(_means(by_seed.values())))


def _means(curves: Iterable[Sequence[tuple[int, float]]]) -> list[tuple[float, ...]]:
    """Return (step, mean, low, high) for each step that all seeds recorded.

    The mean is over seeds. Low and high are the ends of its 95 % interval, or equal to the mean if there is
    no interval.
    """
    value_by_step = [dict(points) for points in curves]
    found: list[tuple[float, ...]] = []
    for step in sorted(set[int].intersection(*map(set, value_by_step))) if value_by_step else []:
        mean = mean_over_seeds([values[step] for values in value_by_step])
        found.append((step, mean.value, *(mean.interval() or (mean.value, mean.value))))
    return found


def _contrast(
    definition: SweepDefinition, contrast: ContrastConfig, outcome: str, values: Values
) -> PlannedContrast:
    prediction = contrast.predicted.get(outcome)
    num_together = 1 if contrast.is_null else sum(not one.is_null for one in definition.contrasts)
    arms = contrast.candidate, contrast.baseline
    value_by_arm = {arm: [values.get(arm, {}).get(seed) for seed in definition.seeds] for arm in arms}
    missing = [
        f"{arm}, seed {seed}"
        for arm in arms
        for seed, value in zip(definition.seeds, value_by_arm[arm], strict=True)
        if value is None
    ]
    seen = None
    if not missing:
        sides = [[value for value in value_by_arm[arm] if value is not None] for arm in arms]
        seen = curve_contrast(*sides, num_together=num_together)
    return PlannedContrast(
        outcome=outcome,
        name=contrast.name,
        because=contrast.because,
        is_null=contrast.is_null,
        predicted=prediction,
        num_together=num_together,
        difference=None if seen is None else seen.difference,
        difference_by_seed=None if seen is None else seen.difference_S,
        interval=None if seen is None else seen.interval,
        kind=_kind(None if prediction is None else _SIGNS[prediction.sign], seen),
        missing=tuple(missing),
    )


def _kind(predicted: int | None, seen: CurveContrast | None) -> ContrastKind:
    if seen is None:
        return "missing"
    if predicted is None:
        return "seen" if seen.sign else "not_seen"
    return "unclear" if not seen.sign else "agrees" if seen.sign == predicted else "contradicted"

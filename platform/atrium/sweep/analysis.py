"""The results of a sweep as records: ranking, importances, curves and Pareto front of its stages.

`sweep_report` and `importances` read the storage, and `sweep_report` also reads runs; all other functions are
pure. Intervals of single settings are over seeds. Scores are those on the validation problems that also
selected the best setting, so the best score is biased upward. Only the last stage, on fresh seeds and test
problems, supports a comparison (see `sweep.fresh_seeds`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import TrialState

from atrium.stats.seeds import Score, score_over_seeds
from atrium.sweep import space as spaces
from atrium.sweep.contrasts import PlannedContrasts, planned_contrasts
from atrium.sweep.definition import SweepDefinition
from atrium.sweep.families import ComparedFamilies, compared_families
from atrium.sweep.final import best_trial
from atrium.sweep.fresh_seeds import FreshVerdict, fresh_verdict
from atrium.sweep.plan import Stage, stage_space
from atrium.sweep.study import SweepStudies, Trial

_METRICS = (
    "objective/entropy",
    "objective/kl_k3",
    "objective/outside_low_frac",
    "objective/outside_high_frac",
    "objective/clip_low_frac",
    "objective/clip_high_frac",
    "rollout/completion_length",
)
_MIN_FOR_IMPORTANCE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A trial with its mean scores and metrics over the `num_seeds` seeds that have scores."""

    trial: Trial
    num_seeds: int
    k: int | None
    mean_at_k: Score
    pass_at_k: Score
    metrics: Mapping[str, float]

    @property
    def name(self) -> str:
        """All labels of the setting, joined by ` = `."""
        return self.trial.planned.name

    @property
    def totals(self) -> dict[str, float]:
        """The sums of `num_tokens` and `wall_s` over all runs of the setting."""
        results = self.trial.results.values()
        num_tokens, wall_s = sum(one.num_tokens for one in results), sum(one.wall_s for one in results)
        return {"num_tokens": num_tokens, "wall_s": wall_s}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingCurve:
    """The settings of a stage, ordered by its only parameter `key`, which has a range.

    `log` says whether the parameter has a logarithmic scale.
    """

    stage: str
    key: str
    log: bool
    points: tuple[Setting, ...]

    def x(self, point: Setting) -> float:
        """Return the value of the parameter in a setting."""
        return float(str(point.trial.planned.assignment[self.key]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The scores of the initial policy, from 0 to 1. All runs start from this policy."""

    mean_at_k: float
    pass_at_k: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """The state of a sweep, and the results of its stages.

    `state` is the content of `state.json`. `pareto` contains the numbers of the Pareto-optimal trials; it
    is None for a single objective. `no_verdict` is the reason why there is no `verdict`. `verdict` and
    `no_verdict` are both None if the definition has no comparison on fresh seeds.
    """

    definition: SweepDefinition
    state: Mapping[str, Any]
    best: Setting | None
    best_baseline: Setting | None
    ranking: tuple[Setting, ...]
    importances: Mapping[str, float] | None
    pareto: list[int] | None
    curves: tuple[SettingCurve, ...]
    start: Start | None
    verdict: FreshVerdict | None
    no_verdict: str | None
    contrasts: PlannedContrasts | None
    families: ComparedFamilies | None

    @property
    def baseline_is_tuned(self) -> bool:
        """Whether the baseline had its own search."""
        return self.definition.baseline is not None and self.definition.baseline.varies


def sweep_report(studies: SweepStudies, state: Mapping[str, Any]) -> SweepReport:
    """Return the results of a sweep. `state` is its current snapshot."""
    definition = studies.definition
    trials = {stage: studies.trials(stage) for stage in studies.stages if stage is not Stage.FINAL}
    direction = definition.objectives[0].direction
    single = len(definition.objectives) == 1
    best = {
        stage: setting_of(trial)
        for stage, found in trials.items()
        if single and (trial := best_trial(found, direction)) is not None
    }
    curves = [curve_of(definition, stage, found) for stage, found in trials.items()]
    fresh = fresh_verdict(studies)
    return SweepReport(
        definition=definition,
        state=state,
        best=best.get(Stage.SEARCH),
        best_baseline=best.get(Stage.BASELINE),
        ranking=tuple(setting_of(trial) for trial in ranked(trials[Stage.SEARCH], direction)),
        importances=importances(studies) if single else None,
        pareto=None if single else sorted(trial.number for trial in studies.study(Stage.SEARCH).best_trials),
        curves=tuple(curve for curve in curves if curve is not None),
        start=start_of(trials[Stage.SEARCH]),
        verdict=None if isinstance(fresh, str) else fresh,
        no_verdict=fresh if isinstance(fresh, str) else None,
        contrasts=planned_contrasts(studies),
        families=compared_families(studies),
    )


def ranked(trials: Sequence[Trial], direction: str) -> list[Trial]:
    """Return complete trials from best to worst, then all other trials by number."""
    sign = -1.0 if direction == "maximize" else 1.0
    return sorted(
        trials,
        key=lambda one: (one.values is None, sign * one.values[0] if one.values else 0.0, one.number),
    )


def setting_of(trial: Trial) -> Setting:
    """Return a trial with its mean scores and metrics over the seeds that have scores."""
    done = [result for result in trial.results.values() if result.mean_at_k is not None]
    return Setting(
        trial=trial,
        num_seeds=len(done),
        k=done[0].k if done else None,
        mean_at_k=score_over_seeds([result.mean_at_k for result in done]),
        pass_at_k=score_over_seeds([result.pass_at_k for result in done]),
        metrics={
            name: math.fsum(known) / len(known)
            for name in _METRICS
            if (known := [one.metrics[name] for one in done if name in one.metrics])
        },
    )


def start_of(trials: Sequence[Trial]) -> Start | None:
    """Return the scores before training, averaged over runs, or None if there are none."""
    firsts = [one.curve[0] for trial in trials for one in trial.results.values() if one.curve]
    at_zero = [point for point in firsts if point[0] == 0]
    if not at_zero:
        return None
    mean_at_k, pass_at_k = (math.fsum(point[place] for point in at_zero) / len(at_zero) for place in (1, 2))
    return Start(mean_at_k=mean_at_k, pass_at_k=pass_at_k)


def curve_of(definition: SweepDefinition, stage: Stage, trials: Sequence[Trial]) -> SettingCurve | None:
    """Return the settings of a stage, ordered by its only parameter.

    Only settings with a started run are included. Returns None unless the stage has exactly one parameter and
    this parameter has a range instead of choices.
    """
    names = spaces.parameters(stage_space(definition, stage)[0])
    if len(names) != 1:
        return None
    [(name, parameter)] = names.items()
    if parameter.choices is not None:
        return None
    known = [one for one in trials if name in one.planned.assignment and one.results]
    known.sort(key=lambda one: float(str(one.planned.assignment[name])))
    points = tuple(map(setting_of, known))
    return SettingCurve(stage=stage.value, key=name, log=parameter.log, points=points)


def importances(studies: SweepStudies) -> dict[str, float] | None:
    """Return the share of the objective's variance that each parameter explains, according to fANOVA.

    Returns None if there are fewer than five complete trials, if there is only one parameter, or if all
    trials have the same value of the objective.
    """
    study = studies.study(Stage.SEARCH)
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    names = {name for trial in complete for name in trial.params}
    values = {trial.value for trial in complete}
    if len(complete) < _MIN_FOR_IMPORTANCE or len(names) < 2 or len(values) < 2:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in found.items()}

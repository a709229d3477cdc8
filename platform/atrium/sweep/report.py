"""What a sweep says at its end, as plain data: ranking, importances, curves, front, and the winner's file.

Pure apart from Optuna's importances. Intervals of single settings are over seeds, on the validation
problems that also chose among them, and therefore flatter the best; only the last stage, on fresh seeds
and test problems, is a comparison. That one is made where this is called from, since it needs `compare`.
"""

from __future__ import annotations

import csv
import io
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
import yaml
from optuna.trial import TrialState

from atrium.base.nested import put
from atrium.sweep import space as spaces
from atrium.sweep.definition import SweepDefinition
from atrium.sweep.final import best_trial
from atrium.sweep.plan import Stage, stage_space
from atrium.sweep.results import Mean, mean_over_seeds
from atrium.sweep.snapshot import described
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


def analysis(studies: SweepStudies, state: Mapping[str, Any]) -> dict[str, Any]:
    """The report's content but for the verdict, its sentences and its figures."""
    definition = studies.definition
    trials = {stage: studies.trials(stage) for stage in studies.stages}
    direction = definition.objectives[0].direction
    single = len(definition.objectives) == 1
    best = {
        stage.value: entry(trial) if single and (trial := best_trial(trials[stage], direction)) else None
        for stage in (Stage.SEARCH, Stage.BASELINE)
        if stage in trials
    }
    return {
        "format_version": 1,
        "state": dict(state),
        "best": best[Stage.SEARCH.value],
        "best_baseline": best.get(Stage.BASELINE.value),
        "baseline_is_tuned": definition.baseline is not None and definition.baseline.varies,
        "ranking": [entry(trial) for trial in ranked(trials[Stage.SEARCH], direction)],
        "importances": importances(studies) if single else None,
        "pareto": None if single else pareto_numbers(studies.study(Stage.SEARCH)),
        "curves": [
            curve
            for stage in (Stage.SEARCH, Stage.BASELINE)
            if stage in trials and (curve := curve_of(definition, stage, trials[stage])) is not None
        ],
        "start": start_of(trials[Stage.SEARCH]),
    }


def ranked(trials: Sequence[Trial], direction: str) -> list[Trial]:
    """Complete trials from best to worst, then the others by number."""
    sign = -1.0 if direction == "maximize" else 1.0
    return sorted(
        trials,
        key=lambda one: (one.values is None, sign * one.values[0] if one.values else 0.0, one.number),
    )


def entry(trial: Trial) -> dict[str, Any]:
    """One trial with its means over seeds; intervals are t over seeds, at 95 %."""
    done = [result for result in trial.results.values() if result.mean_at_k is not None]
    means = mean_over_seeds([result.mean_at_k for result in done if result.mean_at_k is not None])
    passed = mean_over_seeds([result.pass_at_k for result in done if result.pass_at_k is not None])
    return {
        **described(trial),
        "num_seeds": len(done),
        "k": done[0].k if done else None,
        "mean_at_k": _score(means),
        "pass_at_k": _score(passed),
        "metrics": {
            name: math.fsum(known) / len(known)
            for name in _METRICS
            if (known := [one.metrics[name] for one in done if name in one.metrics])
        },
        "num_tokens": sum(one.num_tokens for one in trial.results.values()),
        "wall_s": sum(one.wall_s for one in trial.results.values()),
    }


def _score(mean: Mean | None) -> dict[str, Any]:
    """A mean of shares; its interval ends where shares end."""
    if mean is None:
        return {"value": None, "standard_error": None, "interval": None}
    interval = mean.interval()
    return {
        "value": mean.value,
        "standard_error": mean.standard_error,
        "interval": None if interval is None else [max(0.0, interval[0]), min(1.0, interval[1])],
    }


def start_of(trials: Sequence[Trial]) -> dict[str, float] | None:
    """Mean@K and Pass@K before training, where all runs began from one policy."""
    firsts = [one.curve[0] for trial in trials for one in trial.results.values() if one.curve]
    at_zero = [point for point in firsts if point[0] == 0]
    if not at_zero:
        return None
    return {
        "mean_at_k": math.fsum(point[1] for point in at_zero) / len(at_zero),
        "pass_at_k": math.fsum(point[2] for point in at_zero) / len(at_zero),
    }


def curve_of(definition: SweepDefinition, stage: Stage, trials: Sequence[Trial]) -> dict[str, Any] | None:
    """Scores against the one numeric setting of a stage; None where it has none or several."""
    space, _ = stage_space(definition, stage)
    names = spaces.parameters(space)
    if len(names) != 1:
        return None
    [(name, parameter)] = names.items()
    if parameter.choices is not None:
        return None
    points = [
        {"x": trial.planned.assignment[name], **entry(trial)}
        for trial in trials
        if name in trial.planned.assignment and trial.results
    ]
    points.sort(key=lambda point: float(point["x"]))
    return {"stage": stage.value, "key": name, "log": parameter.log, "points": points}


def importances(studies: SweepStudies) -> dict[str, float] | None:
    """How much of the variance each parameter explains (fANOVA), None with too few trials or parameters."""
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


def pareto_numbers(study: optuna.Study) -> list[int]:
    """The trials that no other beats in every objective."""
    return sorted(trial.number for trial in study.best_trials)


def winner_yaml(definition: SweepDefinition, trial: Trial) -> str:
    """The winner as an experiment file, which composes to the very configuration that was run."""
    groups: list[Any] = []
    settings: dict[str, Any] = {}
    for line in trial.planned.overrides:
        key, _, _ = line.partition("=")
        value = yaml.safe_load(line.partition("=")[2])
        if key == "experiment":
            groups.insert(0, value)
        elif "." not in key and isinstance(value, str) and key not in _TOP_LEVEL_TEXT:
            groups = [one for one in groups if not isinstance(one, dict) or f"override /{key}" not in one]
            groups.append({f"override /{key}": value})
        else:
            put(settings, key.lstrip("+"), value)
    settings["experiment_name"] = f"{definition.name}-winner"
    head = (
        "# @package _global_\n"
        f"# The best setting of the sweep {definition.name}, trial {trial.number}: {definition.question}\n"
        f"# Chosen on validation problems with {len(trial.results)} seeds; the report beside this file says\n"
        "# what may be concluded.\n"
    )
    body = yaml.safe_dump({"defaults": [*groups, "_self_"], **settings}, sort_keys=False)
    return head + body


_TOP_LEVEL_TEXT = ("experiment_name", "runs_dir")


def trials_csv(entries: Sequence[Mapping[str, Any]]) -> str:
    """A line per trial."""
    keys = list(dict.fromkeys(key for one in entries for key in one["settings"]))
    metrics = list(dict.fromkeys(name for one in entries for name in one["metrics"]))
    rows = []
    for one in entries:
        window = one["window"] or [None, None]
        rows.append(
            {
                "stage": one["stage"],
                "trial": one["number"],
                "state": one["state"],
                "labels": " = ".join(one["labels"]),
                "num_seeds": one["num_seeds"],
                **_score_columns(one),
                "lower": window[0],
                "upper": "inf" if one["window"] and window[1] is None else window[1],
                **{key: one["settings"].get(key) for key in keys},
                **{name: one["metrics"].get(name) for name in metrics},
                "num_tokens": one["num_tokens"],
                "wall_s": round(one["wall_s"], 1),
                "reason": one["reason"],
            }
        )
    return _csv(rows)


def curves_csv(curves: Sequence[Mapping[str, Any]]) -> str:
    """A line per point of each curve."""
    return _csv(
        [
            {
                "stage": curve["stage"],
                "key": curve["key"],
                "x": point["x"],
                "state": point["state"],
                "num_seeds": point["num_seeds"],
                **_score_columns(point),
            }
            for curve in curves
            for point in curve["points"]
        ]
    )


def _score_columns(one: Mapping[str, Any]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name in ("mean_at_k", "pass_at_k"):
        low, high = one[name]["interval"] or (None, None)
        columns |= {
            name: one[name]["value"],
            f"{name}_standard_error": one[name]["standard_error"],
            f"{name}_low": low,
            f"{name}_high": high,
        }
    return columns


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else ["stage"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()

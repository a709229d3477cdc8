"""The files of a sweep's report: `report.json`, figures, tables as CSV, and the winner as an experiment."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml

from atrium.base.atomic import write_json, write_text
from atrium.base.nested import put, setting
from atrium.compare.curve_contrasts import CurveContrast
from atrium.document.formatting import counted
from atrium.stats.arm_pairs import Pair
from atrium.stats.failures import FailureRate
from atrium.sweep.analysis import Setting, SettingCurve, SweepReport
from atrium.sweep.contrasts import ArmCurve, ContrastedArm, PlannedContrast, PlannedContrasts
from atrium.sweep.definition import SweepDefinition
from atrium.sweep.document import CONTRAST_COLUMNS, contrast_cells, sentences
from atrium.sweep.families import ComparedFamilies
from atrium.sweep.final import best_trial
from atrium.sweep.fresh_seeds import FreshVerdict
from atrium.sweep.plan import Stage, trial_config
from atrium.sweep.snapshot import described
from atrium.sweep.study import SweepStudies, Trial

_TOP_LEVEL_TEXT = ("experiment_name", "runs_dir")


def write_report(
    folder: Path, studies: SweepStudies, report: SweepReport, figures: Sequence[Path]
) -> list[Path]:
    """Write `report.json`, the CSV tables and, if there is a winner, `winner.yaml` to `folder`.

    A sweep with several objectives or planned contrasts has no winner.

    `figures` are the paths of figures that are already in `folder`. Returns the paths of figures, tables and
    winner, without `report.json`.
    """
    texts = {"trials.csv": trials_csv(report.ranking)}
    if report.curves:
        texts["curve.csv"] = curves_csv(report.curves)
    definition = studies.definition
    winner = best_trial(studies.trials(Stage.SEARCH), definition.objectives[0].direction)
    if winner is not None and len(definition.objectives) == 1 and not definition.contrasts:
        texts["winner.yaml"] = winner_yaml(definition, winner)
    for name, text in texts.items():
        write_text(folder / name, text)
    shown = [f"report/{path.name}" for path in figures]
    write_json(folder / "report.json", {**to_json(report), "figures": shown})
    return [*figures, *(folder / name for name in texts)]


def to_json(value: object) -> Any:  # noqa: ANN401 - any JSON data
    """Return a report, or a part of it, as JSON data for `report.json`. Dataclasses become dictionaries."""
    if isinstance(value, Mapping):
        return {key: to_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value]
    return _record(value) if is_dataclass(value) else value


def _record(value: object) -> dict[str, Any]:
    """Return a dataclass as a dictionary, with the additional keys that readers of `report.json` expect."""
    match value:
        case SweepReport():
            said = [one.text for one in sentences(value)]
            tuned = {"baseline_is_tuned": value.baseline_is_tuned}
            return {"format_version": 1, **_fields(value, "definition"), **tuned, "sentences": said}
        case Setting():
            return {**described(value.trial), **_fields(value, "trial"), **value.totals}
        case SettingCurve():
            x = [point.trial.planned.assignment[value.key] for point in value.points]
            points = [{"x": one, **to_json(point)} for one, point in zip(x, value.points, strict=True)]
            return {**_fields(value), "points": points}
        case FreshVerdict():
            return {**_fields(value, "pairs"), "contrasts": to_json(value.pairs)}
        case Pair():
            verdict = {"name": value.candidate, "kind": value.verdict.kind, "words": value.verdict.words}
            compared = {"comparison": value.comparison, "comparison_if_wrong": value.if_wrong}
            return {**verdict, **to_json(compared)}
        case FailureRate():
            share = len(value.seeds) / value.num_runs
            return {**_fields(value), "rate": share, "interval": value.interval, "words": value.words}
        case PlannedContrasts():
            return {**_fields(value), "columns": CONTRAST_COLUMNS}
        case PlannedContrast():
            predicted = value.predicted and value.predicted.model_dump()
            return {**_fields(value), "predicted": predicted, "cells": contrast_cells(value)}
        case ContrastedArm() | ArmCurve():
            arm = {"arm": value.planned.name, "window": value.planned.window}
            return {**arm, **_fields(value, "planned")}
        case ComparedFamilies():
            rows = [{"family": name, "differences": to_json(one)} for name, one in value.differences.items()]
            return {**_fields(value, "differences"), "rows": rows}
        case CurveContrast():
            return {"difference": value.difference, "interval": value.interval}
        case _:
            return _fields(value)


def _fields(value: Any, *without: str) -> dict[str, Any]:  # noqa: ANN401 - any record
    names = (field.name for field in fields(value) if field.name not in without)
    return {name: to_json(getattr(value, name)) for name in names}


def winner_yaml(definition: SweepDefinition, trial: Trial) -> str:
    """Return the winner as an experiment file, which composes to the configuration that was run.

    Only the experiment's name and the settings that the sweep determines, such as the seed, are different.
    """
    groups: list[Any] = []
    settings: dict[str, Any] = {}
    for line in trial.planned.overrides:
        key, _, text = line.partition("=")
        value = yaml.safe_load(text)
        if key.startswith("~"):  # a file cannot remove a setting, but it can state the value that results
            key = key[1:]
            config = trial_config(definition, trial.planned.overrides).model_dump(mode="json")
            put(settings, key, setting(config, key))
        elif key == "experiment":
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
        f"# Selected on validation problems with {counted(len(trial.results), 'seed')}; the report beside\n"
        "# this file contains the conclusions.\n"
    )
    body = yaml.safe_dump({"defaults": [*groups, "_self_"], **settings}, sort_keys=False)
    return head + body


def trials_csv(ranking: Sequence[Setting]) -> str:
    """Return a CSV table with one line per trial."""
    keys = dict.fromkeys(key for one in ranking for key in one.trial.planned.settings)
    metrics = dict.fromkeys(name for one in ranking for name in one.metrics)
    return _csv(
        [
            {
                "stage": one.trial.stage.value,
                "trial": one.trial.number,
                "state": one.trial.state_name,
                "labels": one.name,
                "num_seeds": one.num_seeds,
                **_score_columns(one),
                "lower": window and window.lower,
                "upper": window and window.upper,
                **keys,
                **one.trial.planned.settings,
                **metrics,
                **one.metrics,
                "num_tokens": one.totals["num_tokens"],
                "wall_s": round(one.totals["wall_s"], 1),
                "reason": one.trial.reason,
            }
            for one in ranking
            for window in [one.trial.planned.bounds]
        ]
    )


def curves_csv(curves: Sequence[SettingCurve]) -> str:
    """Return a CSV table with one line per point of each curve."""
    return _csv(
        [
            {
                "stage": curve.stage,
                "key": curve.key,
                "x": point.trial.planned.assignment[curve.key],
                "state": point.trial.state_name,
                "num_seeds": point.num_seeds,
                **_score_columns(point),
            }
            for curve in curves
            for point in curve.points
        ]
    )


def _score_columns(one: Setting) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, score in (("mean_at_k", one.mean_at_k), ("pass_at_k", one.pass_at_k)):
        low, high = score.interval or (None, None)
        columns |= {
            name: score.value,
            f"{name}_standard_error": score.standard_error,
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

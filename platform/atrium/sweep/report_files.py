"""The files of a sweep's report: `report.json`, figures, tables as CSV, and the winner as an experiment."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from atrium.base.atomic import write_json, write_text
from atrium.base.nested import put
from atrium.compare.arm_pairs import Pair
from atrium.stats.failures import FailureRate
from atrium.sweep.analysis import Setting, SettingCurve, SweepReport
from atrium.sweep.definition import SweepDefinition
from atrium.sweep.document import CONTRAST_COLUMNS, contrast_cells, sentences
from atrium.sweep.final import best_trial
from atrium.sweep.plan import Stage
from atrium.sweep.study import SweepStudies, Trial

_TOP_LEVEL_TEXT = ("experiment_name", "runs_dir")


def write_report(
    folder: Path, studies: SweepStudies, report: SweepReport, figures: Sequence[Path]
) -> list[Path]:
    """Write a report's files beside its figures; the paths of those that a person would open."""
    record = report_record(report)
    found = report.analysis
    texts = {"trials.csv": trials_csv(found.ranking)}
    if found.curves:
        texts["curve.csv"] = curves_csv(found.curves)
    definition = studies.definition
    winner = best_trial(studies.trials(Stage.SEARCH), definition.objectives[0].direction)
    if winner is not None and len(definition.objectives) == 1 and not definition.contrasts:
        texts["winner.yaml"] = winner_yaml(definition, winner)
    for name, text in texts.items():
        write_text(folder / name, text)
    shown = [f"report/{path.name}" for path in figures]
    write_json(folder / "report.json", {**record, "figures": shown})
    return [*figures, *(folder / name for name in texts)]


def report_record(report: SweepReport) -> dict[str, Any]:
    """The content of `report.json` but for the names of the figures."""
    record = asdict(report)
    found = record.pop("analysis")
    for curve in found["curves"]:
        curve["points"] = [{"x": one["assignment"][curve["key"]], **one} for one in curve["points"]]
    if report.verdict is not None:
        record["verdict"]["contrasts"] = [_pair_record(pair) for pair in report.verdict.pairs]
        del record["verdict"]["pairs"]
        for content, arm in zip(record["verdict"]["arms"], report.verdict.arms, strict=True):
            content["diverged"] = _rate_record(arm.diverged)
            content["collapsed"] = arm.collapsed and _rate_record(arm.collapsed)
    if report.contrasts is not None:
        contrasts = record["contrasts"]
        contrasts["columns"] = CONTRAST_COLUMNS
        for row, given in zip(contrasts["rows"], report.contrasts.rows, strict=True):
            row["predicted"] = given.predicted and given.predicted.model_dump()
            row["cells"] = contrast_cells(given)
    if report.families is not None:
        rows = record["families"].setdefault("rows", [])
        for family, contrasts in report.families.differences.items():
            differences = [{"difference": one.difference, "interval": one.interval} for one in contrasts]
            rows.append({"family": family, "differences": differences})
        del record["families"]["differences"]
    said = [one.text for one in sentences(report)]
    return {"format_version": 1, **found, **record, "sentences": said}


def _pair_record(pair: Pair) -> dict[str, Any]:
    return {
        "name": pair.candidate,
        "kind": pair.verdict.kind,
        "words": pair.verdict.words,
        "comparison": asdict(pair.comparison),
        "comparison_if_wrong": pair.if_wrong and asdict(pair.if_wrong),
    }


def _rate_record(rate: FailureRate) -> dict[str, Any]:
    share = len(rate.seeds) / rate.num_runs
    return {**asdict(rate), "rate": share, "interval": rate.interval, "words": rate.words}


def winner_yaml(definition: SweepDefinition, trial: Trial) -> str:
    """The winner as an experiment file, which composes to the very configuration that was run."""
    groups: list[Any] = []
    settings: dict[str, Any] = {}
    for line in trial.planned.overrides:
        key, _, text = line.partition("=")
        value = yaml.safe_load(text)
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


def trials_csv(ranking: Sequence[Setting]) -> str:
    """A line per trial."""
    keys = list(dict.fromkeys(key for one in ranking for key in one.settings))
    metrics = list(dict.fromkeys(name for one in ranking for name in one.metrics))
    rows = []
    for one in ranking:
        lower, upper = one.window or (None, None)
        rows.append(
            {
                "stage": one.stage,
                "trial": one.number,
                "state": one.state,
                "labels": one.name,
                "num_seeds": one.num_seeds,
                **_score_columns(one),
                "lower": lower,
                "upper": "inf" if one.window and upper is None else upper,
                **{key: one.settings.get(key) for key in keys},
                **{name: one.metrics.get(name) for name in metrics},
                "num_tokens": one.num_tokens,
                "wall_s": round(one.wall_s, 1),
                "reason": one.reason,
            }
        )
    return _csv(rows)


def curves_csv(curves: Sequence[SettingCurve]) -> str:
    """A line per point of each curve."""
    return _csv(
        [
            {
                "stage": curve.stage,
                "key": curve.key,
                "x": point.assignment[curve.key],
                "state": point.state,
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

"""Planned contrasts of a sweep: what was predicted of each, beside what came out.

Axes: S seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atrium.runs.curve_outcomes import CurveOutcome
from atrium.runs.run_folder import RunFolder
from atrium.sweep.definition import ContrastConfig, SweepDefinition
from atrium.sweep.plan import Stage
from atrium.sweep.results import mean_over_seeds
from atrium.sweep.setup import PREDICTED_AT
from atrium.sweep.study import SweepStudies

if TYPE_CHECKING:
    from rich.table import Table

    from atrium.compare.curve_contrasts import CurveContrast

Answer = dict[str, Any]
Values = Mapping[str, Mapping[int, float | None]]
"""Outcomes by arm and seed; None where a run has none."""
_FALSE_ALARMS = 0.05
_SIGNS = {"positive": 1, "negative": -1}
_SAID = {
    "agrees": "as predicted",
    "contradicted": "contradicted",
    "unclear": "not distinguishable from no difference",
    "missing": "without a result",
}
_NULL_SAID = {"seen": "a difference by chance", "not_seen": "none is seen"}


def planned_contrasts(studies: SweepStudies) -> Answer | None:
    """Every planned contrast by every outcome, and where its prediction stands; None where none is planned.

    Those predicted are judged together, those in which nothing differs each by itself.
    """
    definition = studies.definition
    if not definition.contrasts:
        return None
    rows = []
    for name, outcome in definition.outcomes.items():
        values = outcome_values(studies, outcome)
        for contrast in definition.contrasts:
            row = _row(definition, contrast, name, values)
            cells = [contrast.name, _predicted_text(row), contrast_text(row), _said_text(row)]
            rows.append({**row, "cells": cells})
    return {
        "predictions": definition.predictions,
        "commit": studies.study(Stage.SEARCH).user_attrs.get(PREDICTED_AT),
        "outcomes": {name: outcome.words for name, outcome in definition.outcomes.items()},
        "seeds": list(definition.seeds),
        "columns": ["contrast", "predicted", "seen, with its 95 % interval", "so the prediction is"],
        "rows": rows,
        "arms": _arms(studies),
        "curves": _curves(studies),
    }


def contrast_sentences(found: Mapping[str, Any]) -> list[str]:
    """Whether the predictions were there first, what became of them, and how often chance alone is seen."""
    commit, file = found["commit"], found["predictions"]
    said = [
        f"predictions: {file}, as committed in {commit[:12]} before the first run"
        if commit
        else f"the predictions in {file} were not committed before the first run, so they may have been "
        "written after it"
    ]
    for name in found["outcomes"]:
        rows = [row for row in found["rows"] if row["outcome"] == name and row["predicted"]]
        counts = {kind: [row["name"] for row in rows if row["kind"] == kind] for kind in _SAID}
        parts = [f"{len(names)} {_SAID[kind]}" for kind, names in counts.items() if names]
        failed = f" ({', '.join(counts['contradicted'])})" if counts["contradicted"] else ""
        said.append(f"{name}: of {len(rows)} predicted contrasts {', '.join(parts)}{failed}")
    nulls = [row for row in found["rows"] if row["is_null"] and row["interval"] is not None]
    if nulls:
        num_seen = sum(row["kind"] == "seen" for row in nulls)
        said.append(
            f"where nothing differs, {num_seen} of {len(nulls)} intervals leave out 0; expected are "
            f"{_FALSE_ALARMS * len(nulls):.1f}"
        )
    return said


def contrast_tables(found: Mapping[str, Any]) -> list[Table]:
    """A table per outcome: each contrast with what was predicted and what came out."""
    from rich import box
    from rich.table import Table

    tables = []
    num_together = max(row["num_together"] for row in found["rows"])
    for name, words in found["outcomes"].items():
        title = f"{name}: {words}; intervals hold together over {num_together} contrasts (Bonferroni)"
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
        for heading in found["columns"]:
            table.add_column(heading, overflow="fold")
        for row in found["rows"]:
            if row["outcome"] == name:
                table.add_row(*row["cells"])
        tables.append(table)
    return tables


def outcome_values(studies: SweepStudies, outcome: CurveOutcome) -> Values:
    """The outcome of every run of the search, by arm and seed."""
    from atrium.compare.curve_contrasts import curve_value

    runs_dir = Path(studies.definition.runs_dir)
    return {
        arm: {
            seed: curve_value(RunFolder(runs_dir / result.run), outcome)
            for seed, result in trial.results.items()
            if result.run is not None
        }
        for trial in studies.trials(Stage.SEARCH)
        for arm in trial.planned.labels
    }


def _arms(studies: SweepStudies) -> list[Answer]:
    """Each arm's window, and its mean of the primary outcome over seeds; None where a run has no outcome."""
    values = outcome_values(studies, next(iter(studies.definition.outcomes.values())))
    arms = []
    for trial in studies.trials(Stage.SEARCH):
        by_seed = next((values[label] for label in trial.planned.labels), {})
        known = [value for value in by_seed.values() if value is not None]
        mean = mean_over_seeds(known) if len(known) == len(trial.seeds) else None
        arm = {"arm": " = ".join(trial.planned.labels), "window": trial.planned.window}
        arms.append({**arm, "value": None if mean is None else mean.value})
    return arms


def _curves(studies: SweepStudies) -> dict[str, list[Answer]]:
    """The curves behind the outcomes, by metric: each arm's by seed, up to the last step that counts."""
    from atrium.compare.curve_index import recorded_curves

    definition = studies.definition
    untils: dict[str, int] = {}
    for outcome in definition.outcomes.values():
        untils[outcome.metric] = max(outcome.until, untils.get(outcome.metric, 0))
    runs_dir = Path(definition.runs_dir)
    curves: dict[str, list[Answer]] = {}
    for metric, until in untils.items():
        for trial in studies.trials(Stage.SEARCH):
            by_seed = {
                str(seed): recorded_curves(RunFolder(runs_dir / result.run)).points(metric, until)
                for seed, result in trial.results.items()
                if result.run is not None
            }
            arm = {"arm": " = ".join(trial.planned.labels), "window": trial.planned.window}
            curves.setdefault(metric, []).append({**arm, "seeds": by_seed, "means": _means(by_seed.values())})
    return curves


def _means(curves: Iterable[Sequence[tuple[int, float]]]) -> list[list[float]]:
    """Step, mean over seeds and its 95 % interval, at the steps that all seeds recorded."""
    value_by_step = [dict(points) for points in curves]
    found = []
    for step in sorted(set[int].intersection(*map(set, value_by_step))) if value_by_step else []:
        mean = mean_over_seeds([values[step] for values in value_by_step])
        if mean is not None:
            found.append([step, mean.value, *(mean.interval() or (mean.value, mean.value))])
    return found


def _row(definition: SweepDefinition, contrast: ContrastConfig, outcome: str, values: Values) -> Answer:
    prediction = contrast.predicted.get(outcome)
    num_together = 1 if contrast.is_null else sum(not one.is_null for one in definition.contrasts)
    missing = [
        f"{arm}, seed {seed}"
        for arm in (contrast.candidate, contrast.baseline)
        for seed in definition.seeds
        if values.get(arm, {}).get(seed) is None
    ]
    seen = None if missing else _seen(contrast, definition.seeds, values, num_together)
    return {
        "outcome": outcome,
        "name": contrast.name,
        "because": contrast.because,
        "is_null": contrast.is_null,
        "predicted": None if prediction is None else prediction.model_dump(),
        "num_together": num_together,
        "difference": None if seen is None else seen.difference,
        "difference_by_seed": None if seen is None else list(seen.difference_S),
        "interval": None if seen is None or seen.interval is None else list(seen.interval),
        "kind": _kind(None if prediction is None else _SIGNS[prediction.sign], seen),
        "missing": missing,
    }


def _seen(contrast: ContrastConfig, seeds: Sequence[int], values: Values, num_together: int) -> CurveContrast:
    from atrium.compare.curve_contrasts import curve_contrast

    candidate_S, baseline_S = (
        [value for seed in seeds if (value := values[arm][seed]) is not None]
        for arm in (contrast.candidate, contrast.baseline)
    )
    return curve_contrast(candidate_S, baseline_S, num_together=num_together)


def _kind(predicted: int | None, seen: CurveContrast | None) -> str:
    if seen is None:
        return "missing"
    if predicted is None:
        return "seen" if seen.sign else "not_seen"
    return "unclear" if not seen.sign else "agrees" if seen.sign == predicted else "contradicted"


def _predicted_text(row: Mapping[str, Any]) -> str:
    if row["predicted"] is None:
        return "no difference (by itself)" if row["is_null"] else "nothing"
    size = row["predicted"]["size"]
    return row["predicted"]["sign"] if size is None else f"{size:+.4g}"


def contrast_text(row: Mapping[str, Any]) -> str:
    """A difference with its interval; empty where there is none."""
    if row["difference"] is None:
        return ""
    interval = row["interval"]
    text = f"{row['difference']:+.4g}"
    return text if interval is None else f"{text} [{interval[0]:+.4g}, {interval[1]:+.4g}]"


def _said_text(row: Mapping[str, Any]) -> str:
    if row["kind"] == "missing":
        return f"without a result: no value of {', '.join(row['missing'])}"
    if row["predicted"] is None:
        return _NULL_SAID[row["kind"]] if row["is_null"] else ""
    said = _SAID[row["kind"]]
    size, interval = row["predicted"]["size"], row["interval"]
    if size is not None and interval is not None and not interval[0] <= size <= interval[1]:
        return f"{said}; its size lies outside"
    return said

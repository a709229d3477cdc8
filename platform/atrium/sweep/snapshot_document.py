"""The document of a running or finished sweep, from its snapshot and its latest report.

Reading these JSON files requires neither Optuna nor the storage. The conclusions are drawn by
`sweep.document` from the storage; this module only quotes the sentences and contrasts in the report.
Unreadable content, from damaged files or older versions, is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from atrium.base.nested import mapping_at, setting
from atrium.base.recorded import as_finite
from atrium.document.document import (
    Axis,
    Cell,
    Column,
    Document,
    Estimate,
    Figure,
    Lines,
    Row,
    Section,
    Sentence,
    Series,
    Table,
    Value,
    plain_table,
)
from atrium.stats.seeds import Score, score_over_seeds

SCORES = {"mean_at_k": "Mean@K", "pass_at_k": "Pass@K"}
_NUM_STRONG = 8
_THIRDS = ("highest third", "middle third", "lowest third")
_MIN_POINTS = 3
_WIDE = 8.0
"""The ratio of largest to smallest positive number above which an axis is logarithmic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTrial:
    """A trial as recorded in `state.json`.

    `value` is the first objective; it is None unless the trial is complete. `seeds` contains the records of
    the seeds that have started. `window` is (l, u); it is None for a method without a constant window.
    """

    name: str
    stage: str
    state: str
    reason: str
    settings: Mapping[str, Any]
    window: tuple[float, float] | None
    value: float | None
    seeds: tuple[Mapping[str, Any], ...]

    @property
    def is_complete(self) -> bool:
        """Whether the trial has ended with a known objective, measured on all of its seeds or copied."""
        return self.state == "complete" and self.value is not None

    @property
    def runs(self) -> list[str]:
        """The names of the trial's runs."""
        return [seed["run"] for seed in self.seeds if isinstance(seed.get("run"), str)]

    def score(self, name: str) -> Score:
        """Return the mean of a score in `SCORES`, with its interval, over the seeds that have this score."""
        return score_over_seeds([as_finite(seed.get(name)) for seed in self.seeds])

    def number(self, key: str) -> float | None:
        """Return the value of a setting as a number, or None if it is not a number."""
        value = self.settings.get(key)
        return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)


def snapshot_trials(state: Mapping[str, Any]) -> list[SnapshotTrial]:
    """Return the trials of a snapshot. Complete trials come first, from best to worst."""
    trials = [_trial(record) for record in _records(state.get("trials"))]
    minimized = [one.get("direction") == "minimize" for one in _records(state.get("objectives"))[:1]]
    sign = 1.0 if any(minimized) else -1.0
    return sorted(trials, key=lambda one: (not one.is_complete, sign * (one.value or 0.0) * one.is_complete))


def varied_settings(trials: Sequence[SnapshotTrial]) -> list[str]:
    """Return the names of the settings in which trials differ.

    A setting that only some trials have counts as different.
    """
    keys = dict.fromkeys(key for one in trials for key in one.settings)
    return [key for key in keys if len({repr(one.settings.get(key)) for one in trials}) > 1]


def snapshot_document(
    state: Mapping[str, Any],
    definition: Mapping[str, Any],
    report: Mapping[str, Any],
    trials: Sequence[SnapshotTrial],
    *,
    key: str,
    score: str,
    collapses: Mapping[str, Sequence[str]],
) -> Document:
    """Return the document of one stage's `trials`, with figures of `score` against the setting `key`.

    `state`, `definition` and `report` are the contents of `state.json`, `sweep.json` and `report.json`; they
    are empty if the file is missing. `collapses` maps run names to descriptions of what went wrong in these
    runs, such as a collapse.
    """
    objective = next(iter(_records(state.get("objectives"))), None)
    sampler = setting(definition, "definition.sampler.kind")
    stages = [
        f"{one.get('name')} {one.get('num_ended', 0)} of {one.get('num_trials') or '?'}"
        for one in _records(state.get("stages"))
    ]
    parts = [", ".join(stages)]
    if sampler:
        parts.insert(0, f"sampler {sampler}")
    if objective is not None:
        where = "on validation problems" if objective.get("metric") in SCORES else "during training"
        parts.insert(0, f"{objective.get('direction')} {objective.get('metric')} {where}")
    said = report.get("sentences")
    figures = (
        score_figure(trials, key, score),
        learning_figure(trials, score),
        pair_figure(trials, key, score),
    )
    return Document(
        key="sweep",
        title=str(state.get("question") or ""),
        subtitle="  ·  ".join(filter(None, parts)),
        alerts=tuple(_collapsed(trials, collapses)),
        answer=tuple(Sentence(str(text)) for text in (said if isinstance(said, list) else ())),
        sections=(
            Section(
                title="Results",
                figures=tuple(figure for figure in figures if figure is not None),
                tables=(*_contrast_tables(report.get("contrasts")), _trial_table(trials)),
            ),
        ),
    )


def score_figure(trials: Sequence[SnapshotTrial], key: str, score: str) -> Figure | None:
    """Return the figure of a score against the setting `key`, or None without data.

    Intervals are over seeds. The points of complete trials are joined by a line if this setting is numeric
    and no other setting varies.
    """
    found = [one for one in trials if key in one.settings and one.score(score).value is not None]
    if not found:
        return None
    numbers = [number for one in found if (number := one.number(key)) is not None]
    is_numeric = len(numbers) == len(found)
    labels = () if is_numeric else tuple(dict.fromkeys(str(one.settings[key]) for one in found))
    x_of = {
        id(one): one.settings[key] if is_numeric else labels.index(str(one.settings[key])) for one in found
    }
    found.sort(key=lambda one: x_of[id(one)])
    is_line = is_numeric and varied_settings(trials) == [key]
    series = []
    for name, wanted in (("complete", True), ("pruned, failed or running", False)):
        own = [one for one in found if one.is_complete is wanted]
        means = [one.score(score) for one in own]
        ends = [mean.interval or (mean.value, mean.value) for mean in means]
        series.append(
            Series(
                name=name,
                x=tuple(x_of[id(one)] for one in own),
                y=tuple(mean.value for mean in means),
                low=tuple(low for low, _ in ends),
                high=tuple(high for _, high in ends),
                is_line=wanted and is_line,
                is_faint=not wanted,
                has_points=True,
                has_whiskers=True,
            )
        )
    where = "fresh seeds" if trials[0].stage == "final" else "validation problems"
    return Lines(
        key="score",
        title=f"{SCORES[score]} against {key}",
        caption=f"Means over seeds with 95 % intervals, on {where}.",
        x=_axis(key, numbers) if is_numeric else Axis(title=key, labels=labels),
        y=_share_axis(score),
        series=tuple(one for one in series if one.x),
    )


def learning_figure(trials: Sequence[SnapshotTrial], score: str) -> Figure | None:
    """Return the figure of a score by step, or None if no curve has at least two points.

    Each trial has one curve, the mean over its seeds. A curve shows only the steps that the largest number of
    these seeds recorded, so all of its points are means over equally many seeds.
    """
    place_in_point = list(SCORES).index(score)
    series: list[Series] = []
    for one in trials:
        values_by_step: dict[float, list[float]] = {}
        for point in (point for seed in one.seeds for point in _listed(seed.get("curve"))):
            step, *values = map(as_finite, [*_listed(point), None, None, None])
            if step is not None and (value := values[place_in_point]) is not None:
                values_by_step.setdefault(step, []).append(value)
        most = max(map(len, values_by_step.values()), default=0)
        x = tuple(sorted(step for step, values in values_by_step.items() if len(values) == most))
        if len(x) > 1:
            series.append(
                Series(
                    name=one.name,
                    x=x,
                    y=tuple(math.fsum(values_by_step[step]) / most for step in x),
                    place=len(series) % _NUM_STRONG,
                    dash="solid" if one.is_complete else "dashed",
                    is_faint=len(series) >= _NUM_STRONG,
                    has_points=True,
                )
            )
    if not series:
        return None
    return Lines(
        key="learning",
        title="Learning curves of trials",
        caption=f"Means over seeds on validation problems. Strong: the best {_NUM_STRONG} trials. "
        "Dashed: pruned, failed or running.",
        x=Axis(title="training step", unit="count"),
        y=_share_axis(score),
        series=tuple(series),
    )


def pair_figure(trials: Sequence[SnapshotTrial], key: str, score: str) -> Figure | None:
    """Return the figure of complete trials by two numeric settings, colored by rank.

    The first setting is `key` if it is numeric and varies. The three colors show the highest, middle and
    lowest third of the trials by `score`. Returns None if fewer than two numeric settings vary, or if fewer
    than three complete trials have this score.
    """
    numeric = [
        name
        for name in varied_settings(trials)
        if all(one.number(name) is not None for one in trials if one.settings)
    ]
    shown = [one for one in trials if one.is_complete and one.score(score).value is not None]
    if len(numeric) < 2 or len(shown) < _MIN_POINTS:
        return None
    x = key if key in numeric else numeric[0]
    y = next(name for name in numeric if name != x)
    ranked = sorted(shown, key=lambda one: -(one.score(score).value or 0.0))
    ends = [round(len(ranked) * third / len(_THIRDS)) for third in range(len(_THIRDS) + 1)]
    thirds = [ranked[first:end] for first, end in pairwise(ends)]
    return Lines(
        key="pair",
        title="Complete trials by two settings",
        caption=f"Colors: thirds of the trials, ranked by {SCORES[score]}.",
        x=_axis(x, [one.settings[x] for one in shown]),
        y=_axis(y, [one.settings[y] for one in shown]),
        series=tuple(
            Series(
                name=name,
                x=tuple(one.settings[x] for one in own),
                y=tuple(one.settings[y] for one in own),
                place=place,
                is_line=False,
            )
            for place, (name, own) in enumerate(zip(_THIRDS, thirds, strict=True))
        ),
    )


def _axis(title: str, values: Sequence[float]) -> Axis:
    is_wide = min(values) > 0.0 and max(values) > _WIDE * min(values)
    return Axis(title=title, scale="log" if is_wide else "linear")


def _share_axis(score: str) -> Axis:
    return Axis(title=f"{SCORES[score]}, %", unit="share")


def _trial_table(trials: Sequence[SnapshotTrial]) -> Table:
    keys = varied_settings(trials)
    titles = ("Trial", "Rank", "State", *keys, "Window [l, u]", *(f"{name}, %" for name in SCORES.values()))
    columns = [Column(title, is_prose=title == "State") for title in (*titles, "Seeds")]
    rows = []
    for rank, one in enumerate(trials, 1):
        rows.append(
            Row(
                (
                    one.name,
                    rank if one.is_complete else None,
                    f"{one.state}: {one.reason}" if one.reason else one.state,
                    *(_setting_cell(one, key) for key in keys),
                    one.window and Estimate(None, one.window, "ratio"),
                    *(_score_cell(one.score(name)) for name in SCORES),
                    len(one.seeds),
                )
            )
        )
    return Table(key="trials", title="Trials", columns=tuple(columns), rows=tuple(rows))


def _score_cell(mean: Score) -> Cell:
    return None if mean.value is None else Estimate(mean.value, mean.interval, "share")


def _setting_cell(one: SnapshotTrial, key: str) -> Cell:
    number = one.number(key)
    value = one.settings.get(key)
    return Value(number) if number is not None else None if value is None else str(value)


def _contrast_tables(found: object) -> Iterator[Table]:
    """Yield a table for each outcome with the planned contrasts in the sweep's report."""
    if not isinstance(found, Mapping):
        return
    columns = _listed(found.get("columns"))
    for name, words in mapping_at(found, "outcomes").items():
        rows = [
            _listed(row.get("cells")) for row in _records(found.get("rows")) if row.get("outcome") == name
        ]
        rows = [cells for cells in rows if len(cells) == len(columns)]
        yield plain_table(f"{name}: {words}", columns, rows, key=f"contrasts-{name}")


def _collapsed(trials: Sequence[SnapshotTrial], collapses: Mapping[str, Sequence[str]]) -> Iterator[Sentence]:
    """Yield a warning for each kind of training problem found in runs, such as a collapse.

    The warning states the number of affected runs, and names their trials.
    """
    found = [(one.name, collapses.get(run, ())) for one in trials for run in one.runs]
    for rule in dict.fromkeys(rule for _, rules in found for rule in rules):
        names = [name for name, rules in found if rule in rules]
        text = f"{rule} in {len(names)} of {len(found)} runs: {', '.join(dict.fromkeys(names))}"
        yield Sentence(text, "warning", "collapse")


def _trial(record: Mapping[str, Any]) -> SnapshotTrial:
    labels, values = _listed(record.get("labels")), _listed(record.get("values"))
    return SnapshotTrial(
        name=" = ".join(map(str, labels)) if labels else f"trial {record.get('number')}",
        stage=str(record.get("stage")),
        state=str(record.get("state")),
        reason=str(record.get("reason") or ""),
        settings=mapping_at(record, "settings"),
        window=_window(record.get("window")),
        value=as_finite(values[0]) if values else None,
        seeds=tuple(_records(record.get("seeds"))),
    )


def _window(value: object) -> tuple[float, float] | None:
    match value:
        case [int() | float() as low, int() | float() | None as high]:
            return low, math.inf if high is None else high
    return None


def _listed(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _records(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []

"""Cached comparisons of runs, used by the comparison page, its figures and its report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from atrium.base.errors import ConfigError, RunFolderError
from atrium.compare.counted_runs import LeftOut
from atrium.compare.deciding_problems import deciding_answers, deciding_table
from atrium.compare.document import comparison_document
from atrium.compare.outcomes import At
from atrium.compare.run_comparison import MEASURES, RunsComparison, compare_runs
from atrium.compare.training_document import Training, read_training
from atrium.document.document import Document, Figure, table_document
from atrium.document.json import to_json
from atrium.stats.arm_pairs import MEAN
from atrium.views.dashboard.curve_queries import MOST_NAMED
from atrium.views.dashboard.watcher import Watcher

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRequest:
    """A request to compare runs.

    The runs are grouped by the settings in `by`, or by method if `by` is empty. `baseline` is the name of
    the baseline arm (None means the default arm). `at` is the value of an `At`, the point of training at
    which runs are compared. `effect` is the smallest difference of interest, as a share from 0 to 1.
    """

    runs: tuple[str, ...]
    by: tuple[str, ...] = ()
    baseline: str | None = None
    at: str = At.LAST
    benchmarks: tuple[str, ...] = ()
    effect: float = 0.02
    is_chosen: bool = False
    """Whether the user chose each run by name; single runs with deviating settings are then arms, too."""


def compare_answer(
    watcher: Watcher, request: ComparisonRequest, measure: str = MEAN, candidate: str | None = None
) -> Answer:
    """Return a comparison of runs as JSON data: the document, and the measures and arms to choose from.

    Verdicts are by `measure`. The answer also lists the problems on which `candidate` (default: the first
    candidate arm) differs most from the baseline. Raises `AtriumError` if the runs cannot be compared.
    """
    comparison = compared_runs(watcher, request)
    about = f"Verdicts are by {comparison.title(measure)} on {comparison.headline}."
    training = training_of(watcher, request)
    return {
        **to_json(comparison_document(comparison, training, made=about, measure=measure)),
        "problems": _problems(comparison, candidate),
        "measures": {one: comparison.title(one) for one in MEASURES},
        "arms": [
            {
                "name": one.arm.name,
                "place": comparison.places[one.arm.name],
                "num": len(one.arm.runs),
                "runs": [folder.name for folder in one.arm.runs.values()][:MOST_NAMED],
            }
            for one in comparison.arms
        ],
    }


def _problems(comparison: RunsComparison, candidate: str | None) -> list[Answer]:
    """Return, for each benchmark, the problems on which a candidate differs most from the baseline.

    Each problem comes with the two runs whose answers to it differ most. An unknown or missing `candidate`
    means the first candidate arm.
    """
    names = [one.arm.name for one in comparison.arms[1:]]
    name = candidate if candidate in names else names[0]
    return [
        {
            "candidate": name,
            "benchmark": benchmark,
            "answers": [asdict(one) for one in deciding_answers(comparison, name, benchmark)],
            **to_json(table_document("deciding", "", deciding_table(comparison, name, benchmark))),
        }
        for benchmark in comparison.benchmarks
    ]


def comparison_figure(watcher: Watcher, request: ComparisonRequest, key: str, measure: str) -> Figure:
    """Return the figure `key` from the document of a comparison; raise `ConfigError` for an unknown key."""
    training = training_of(watcher, request)
    return figure_of(comparison_document(compared_runs(watcher, request), training, measure=measure), key)


def figure_of(document: Document, key: str) -> Figure:
    """Return the figure `key` from a document; raise `ConfigError` for an unknown key."""
    figures = {figure.key: figure for section in document.sections for figure in section.figures}
    if key not in figures:
        raise ConfigError(f"unknown figure {key[:40]!r}; use one of {', '.join(figures)}")
    return figures[key]


def compared_runs(watcher: Watcher, request: ComparisonRequest) -> RunsComparison:
    """Return the comparison of the requested runs.

    Runs with unreadable settings are left out. The result is cached until one of the runs changes. Raises
    `AtriumError` if the runs cannot be compared.
    """
    return _compared(watcher, request, _state(watcher, request))


def training_of(watcher: Watcher, request: ComparisonRequest) -> Training:
    """Return the training curves and tables of the compared runs.

    The result is cached until one of the runs changes.
    """
    return _training(watcher, request, _state(watcher, request))


def _state(watcher: Watcher, request: ComparisonRequest) -> tuple[object, ...]:
    entries = [watcher.scan.entry(name) for name in dict.fromkeys(request.runs)]
    return tuple((entry.signature, entry.overview.state, watcher.indexed(entry)) for entry in entries)


@lru_cache(maxsize=64)
def _compared(watcher: Watcher, request: ComparisonRequest, _state: tuple[object, ...]) -> RunsComparison:
    entries = {name: watcher.scan.entry(name) for name in dict.fromkeys(request.runs)}
    unread = {name: "; ".join(entry.problems) for name, entry in entries.items() if not entry.settings}
    if len(unread) == len(entries):
        raise RunFolderError("the runs cannot be compared, since the settings of all runs are unreadable")
    compared = compare_runs(
        [entry.folder for name, entry in entries.items() if name not in unread],
        by=request.by,
        baseline=request.baseline,
        at=_point(request.at),
        benchmarks=request.benchmarks,
        effect=request.effect,
        chosen=request.runs if request.is_chosen else (),
    )
    left_out = (LeftOut(name=name, cause="unreadable", reason=reason) for name, reason in unread.items())
    return replace(compared, left_out=(*left_out, *compared.left_out))


@lru_cache(maxsize=64)
def _training(watcher: Watcher, request: ComparisonRequest, state: tuple[object, ...]) -> Training:
    comparison = _compared(watcher, request, state)
    return read_training([one.arm for one in comparison.arms], has_intervals=not comparison.planned.is_early)


def _point(name: str) -> At:
    try:
        return At(name)
    except ValueError:
        raise ConfigError(f"at must be one of {', '.join(At)}, got {name[:40]!r}") from None

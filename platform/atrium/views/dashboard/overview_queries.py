"""Queries for the overview page: an experiment's methods, their scores, and verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from atrium.base.errors import AtriumError
from atrium.compare.arm_names import NamedArm
from atrium.compare.counted_runs import VALIDATION
from atrium.compare.default_choice import num_methods
from atrium.compare.document import comparison_summary
from atrium.compare.document_alerts import collapse_alerts
from atrium.compare.document_figures import difference_figure
from atrium.compare.run_comparison import ArmScores, RunsComparison
from atrium.document.document import (
    Cell,
    Document,
    Estimate,
    Row,
    Section,
    plain_table,
)
from atrium.document.formatting import counted
from atrium.document.json import to_json
from atrium.runs.status import RunState
from atrium.stats.arm_pairs import MEAN, Pair
from atrium.stats.crossed import interval_of
from atrium.stats.seeds import score_over_seeds
from atrium.views.dashboard.compare_queries import ComparisonRequest, compared_runs
from atrium.views.dashboard.curve_queries import METHODS, groups_of, method_arms, places_of
from atrium.views.dashboard.run_queries import default_of, trainings_by_experiment
from atrium.views.dashboard.runs_scan import RunEntry
from atrium.views.dashboard.watcher import Watcher

Answer = dict[str, Any]


def overview_answer(
    watcher: Watcher, wanted: str | None, baseline: str | None, opened: Collection[str] = ()
) -> Answer:
    """Return all experiments, and the methods of one of them.

    The methods are those of the experiment `wanted`, or of the default experiment if `wanted` is unknown.
    `baseline` names the baseline arm or one of its runs. `opened` names the methods whose runs are listed.
    Runs of sweeps, evaluations, archived runs and failed starts are left out. If the methods cannot be
    compared, the field `reason` of the answer says why.
    """
    experiments = trainings_by_experiment(watcher)
    chosen = wanted if wanted in experiments else default_of(experiments)
    found = {} if chosen is None else _methods(watcher, experiments[chosen], baseline, opened)
    about = [{"name": name, **_about(entries)} for name, entries in experiments.items()]
    return {"experiments": about, "experiment": chosen, **found}


def _about(entries: Sequence[RunEntry]) -> Answer:
    return {
        "num_runs": len(entries),
        "num_running": sum(entry.overview.state.is_live for entry in entries),
        "num_methods": num_methods(method_arms(entries)),
        "started": max(entry.started for entry in entries),
    }


def _methods(
    watcher: Watcher, entries: Sequence[RunEntry], baseline: str | None, opened: Collection[str]
) -> Answer:
    """Return the comparison of an experiment's methods as a document with a row for each method.

    The rows of the methods in `opened` list their runs. If the methods cannot be compared, the field
    `reason` says why.
    """
    named = method_arms(entries)
    compared, reason = _compared(watcher, entries, named, baseline)
    benchmark = compared.headline if compared else _benchmark(entries)
    by_name = {entry.name: entry for entry in entries}
    arms = {one.arm.name: one for one in compared.arms} if compared else {}
    groups = _groups(entries, named, arms)
    others = {arm.name for arm in named if arm.is_other}
    place = places_of(entries, groups)
    pairs = {pair.candidate: pair for pair in compared.headline_pairs} if compared else {}
    leaders = compared.leaders[MEAN, compared.headline] if compared else ()
    rows = []
    for name, members in groups.items():
        counted = {run.name for run in arms[name].arm.runs.values()} if name in arms else set()
        runs = [_run(by_name[member], benchmark, is_counted=member in counted) for member in members]
        row = _row(name, runs, arms.get(name), pairs.get(name), benchmark)
        tone = pairs[name].verdict.tone if name in pairs else "plain"
        row = replace(row, place=place[name], is_strong=name in leaders, tone=tone)
        rows.append((row, runs, name in others))
    rows.sort(key=lambda one: (one[2], -(getattr(one[0].cells[2], "value", None) or -1.0)))
    document = _document(compared, benchmark, [row for row, *_ in rows])
    if compared is None:
        own = {str(r.cells[0]): {at: run["collapses"] for at, run in enumerate(runs)} for r, runs, _ in rows}
        document = replace(document, alerts=tuple(collapse_alerts(own)))
    shown = [run for _, runs, _ in rows for run in runs if run["is_counted"] or compared is None]
    return {
        **to_json(document),
        "rows": [
            {
                "name": row.cells[0],
                "is_other": is_other,
                "is_counted": any(run["is_counted"] for run in runs),
                "states": Counter(run["state"] for run in runs),
                "left_s": max((run["left_s"] or 0.0 for run in runs), default=0.0),
                "runs": runs if row.cells[0] in opened else [],
            }
            for row, runs, is_other in rows
        ],
        "began": _beginning(shown),
        "benchmark": benchmark,
        "baseline": compared and compared.arms[0].arm.name,
        "reason": reason,
    }


def _groups(
    entries: Sequence[RunEntry], named: Sequence[NamedArm], arms: Mapping[str, ArmScores]
) -> dict[str, list[str]]:
    """Return the names of the runs by method.

    The comparison may leave out some runs of an arm and therefore give the arm another name. In this case,
    the name from the comparison is used.
    """
    name_of = {run.name: name for name, one in arms.items() for run in one.arm.runs.values()}
    return {
        next((name_of[run] for run in runs if run in name_of), name): runs
        for name, runs in groups_of(entries, METHODS, named).items()
    }


def _document(compared: RunsComparison | None, benchmark: str | None, rows: Sequence[Row]) -> Document:
    """Return the overview document: answer, warnings, a figure of differences, and the table of methods.

    Without a comparison, the document has only the table.
    """
    score = compared.title(MEAN) if compared else "Mean@k"
    against = f"Difference to {compared.arms[0].arm.name}" if compared else "Difference"
    titles = ("Method", "Seeds", f"{score}, %", f"{against}, points", "Verdict")
    note = "★ may be the best: not shown to be worse than the top" if any(r.is_strong for r in rows) else ""
    table = plain_table("Methods", titles, rows, note, key="methods")
    if compared is None:
        return Document(key="overview", title="", sections=(Section(title="Methods", tables=(table,)),))
    num = sum(compared.num_problems.values())
    intervals = " with 95 % intervals for new seeds and new problems" if compared.has_intervals else ""
    designs = " or ".join(dict.fromkeys(pair.design for pair in compared.headline_pairs))
    summary = comparison_summary(compared)
    return replace(
        summary,
        key="overview",
        subtitle=f"{score} on {benchmark}, {counted(num, 'problem')}, {designs}; points{intervals}",
        answer=tuple(one for one in summary.answer if not one.key.startswith("verdict/")),
        sections=(Section(title="Methods", figures=(difference_figure(compared),), tables=(table,)),),
    )


def _compared(
    watcher: Watcher, entries: Sequence[RunEntry], named: Sequence[NamedArm], baseline: str | None
) -> tuple[RunsComparison | None, str | None]:
    """Return (comparison, None), or (None, reason) if the methods cannot be compared.

    If no comparison with `baseline` is possible, the default baseline is used.
    """
    if num_methods(named) < 2:
        return None, "A comparison needs a second method, run with the same seeds."
    names = tuple(entry.name for entry in entries)
    for wanted in dict.fromkeys((baseline, None)):
        try:
            return compared_runs(watcher, ComparisonRequest(runs=names, baseline=wanted)), None
        except AtriumError as error:
            reason = " ".join(str(error).split())
    training = sum(entry.overview.state.is_live for entry in entries)
    if training:
        reason = f"No verdict yet: {training} of {len(entries)} runs are still training."
    return None, reason


def _benchmark(entries: Sequence[RunEntry]) -> str | None:
    """Return the benchmark for which the largest number of runs have scores, or None without scores.

    Validation problems are chosen only if no run has scores on a benchmark with test problems.
    """
    scored = [name for entry in entries for name in entry.overview.scores]
    return max(scored, key=lambda name: (VALIDATION not in name, scored.count(name)), default=None)


def _row(
    name: str, runs: Sequence[Answer], arm: ArmScores | None, pair: Pair | None, benchmark: str | None
) -> Row:
    """Return the row of a method in the table of methods.

    If the method was not compared, its score is the mean over its finished runs.
    """
    if arm is None or benchmark is None:
        scores = [run["score"] for run in runs if run["state"] == RunState.FINISHED]
        found = score_over_seeds(scores)
        outcome = None if found.value is None else Estimate(found.value, found.interval, "share")
        return Row((name, len({run["seed"] for run in runs}), outcome, None, None))
    score = arm.scores[MEAN][benchmark]
    outcome = Estimate(score.value, interval_of(score.new_seeds_and_problems), "share")
    compared: tuple[Cell, Cell] = (None, "baseline")
    if pair is not None:
        difference = pair.comparison.difference.value
        label = f"{pair.verdict.sign} {pair.verdict.label}"
        compared = (Estimate(difference, pair.new_seeds_and_problems, "points", is_signed=True), label)
    return Row((name, len(arm.arm.seeds), outcome, *compared))


def _beginning(runs: Sequence[Answer]) -> Answer | None:
    """Return the run and step of the earliest collapse, or None if no collapse has a known step."""
    steps = [(step, run["name"]) for run in runs for step in run["collapses"].values() if step]
    if not steps:
        return None
    step, name = min(steps)
    return {"run": name, "step": step}


def _run(entry: RunEntry, benchmark: str | None, *, is_counted: bool) -> Answer:
    status = entry.overview.status
    scores = entry.overview.scores.get(benchmark or "")
    return {
        "name": entry.name,
        "seed": entry.settings.get("seed"),
        "state": str(entry.overview.state),
        "step": status.step,
        "num_steps": status.num_steps,
        "left_s": entry.left_s,
        "score": scores.last.mean_at_k if scores and scores.last.step else None,
        "collapses": entry.collapses,
        "error": status.error or "; ".join(entry.problems) or None,
        "is_counted": is_counted,
    }

"""The first page: an experiment's methods, what each reached, and which differences are real."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from atrium.base.errors import AtriumError
from atrium.compare.arm_names import NamedArm
from atrium.compare.counted_runs import VALIDATION
from atrium.compare.default_choice import num_methods
from atrium.compare.document import comparison_summary
from atrium.compare.document_figures import difference_figure
from atrium.compare.document_sentences import headline_sentences
from atrium.compare.run_comparison import ArmScores, RunsComparison
from atrium.document.document import Cell, Column, Document, Estimate, Row, Section, Sentence, Table
from atrium.document.formatting import counted
from atrium.document.json import to_json
from atrium.runs.status import RunState
from atrium.stats.arm_pairs import MEAN, Pair
from atrium.stats.crossed import interval_of
from atrium.stats.seeds import score_over_seeds
from atrium.stats.wording import same_method_words
from atrium.views.dashboard.compare_queries import ComparisonRequest, compared_runs
from atrium.views.dashboard.curve_queries import METHODS, groups_of, method_arms, places_of
from atrium.views.dashboard.run_queries import default_of, trainings_by_experiment
from atrium.views.dashboard.runs_scan import RunEntry
from atrium.views.dashboard.watcher import Watcher

Answer = dict[str, Any]


def overview_answer(
    watcher: Watcher, wanted: str | None, baseline: str | None, opened: Collection[str] = ()
) -> Answer:
    """An experiment's methods; without a name, those of the default experiment.

    `baseline` names the arm, or a run of it, that the others are compared with; `opened` are the methods
    whose runs are listed. Runs of sweeps and
    evaluations are not here, and no run is an error: what cannot be compared is shown with the reason.
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
    """The methods as a table, the answer of their comparison or why there is none, and each method's runs."""
    named = method_arms(entries)
    compared, reason = _compared(watcher, entries, named, baseline)
    benchmark = compared.headline if compared else _benchmark(entries)
    groups = groups_of(entries, METHODS, named)
    others = {arm.name for arm in named if arm.is_other}
    place = places_of(entries, groups)
    by_name = {entry.name: entry for entry in entries}
    arms = {one.arm.name: one for one in compared.arms} if compared else {}
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
    collapses = [
        Sentence(line, "warning", "collapse") for row, runs, *_ in rows for line in _collapses(row, runs)
    ]
    return {
        **to_json(replace(document, alerts=(*document.alerts, *collapses))),
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
        "benchmark": benchmark,
        "baseline": compared and compared.arms[0].arm.name,
        "reason": reason,
    }


def _document(compared: RunsComparison | None, benchmark: str | None, rows: Sequence[Row]) -> Document:
    """What the page says of the methods: the comparison's answer, what endangers it, and the table."""
    score = compared.title(MEAN) if compared else "Mean@k"
    against = f"Difference to {compared.arms[0].arm.name}" if compared else "Difference"
    titles = ("Method", "Seeds", f"{score}, %", f"{against}, points", "Verdict")
    note = (
        "★ may be the best: not shown to be worse than the highest" if any(r.is_strong for r in rows) else ""
    )
    columns = tuple(map(Column, titles))
    table = Table(key="methods", title="Methods", columns=columns, rows=tuple(rows), note=note)
    if compared is None:
        return Document(key="overview", title="", sections=(Section(title="Methods", tables=(table,)),))
    num = sum(compared.num_problems.values())
    intervals = " with 95 % intervals for new seeds and new problems" if compared.has_intervals else ""
    designs = " or ".join(dict.fromkeys(pair.design for pair in compared.headline_pairs))
    summary = comparison_summary(compared)
    plan = [replace(one, tone="warning") for one in summary.answer if one.key == "plan"]
    base = compared.arms[0].arm.name
    is_said = len(compared.arms) <= 3  # by a sentence of each pair
    groups = [names for names in compared.same_methods if not (is_said and base in names)]
    same = [Sentence(same_method_words(names), "warning", "same_method") for names in groups]
    told = [one for one in summary.notes if one.tone == "warning"]
    return replace(
        summary,
        key="overview",
        subtitle=f"{score} on {benchmark}, {counted(num, 'problem')}, {designs}; points{intervals}",
        answer=tuple(headline_sentences(compared)),
        alerts=(*summary.alerts, *same, *plan, *told, *_failures(compared)),
        notes=tuple(one for one in summary.notes if one.tone == "muted"),
        sections=(Section(title="Methods", figures=(difference_figure(compared),), tables=(table,)),),
    )


def _failures(compared: RunsComparison) -> list[Sentence]:
    """The arms some of whose runs diverged or collapsed, with exact intervals of the rates."""
    return [
        Sentence(f"{one.arm.name}: {what} in {rate.words}", "warning")
        for one in compared.arms
        for what, rate in (("diverged", one.diverged), ("collapsed", one.collapsed))
        if rate is not None and rate.seeds
    ]


def _compared(
    watcher: Watcher, entries: Sequence[RunEntry], named: Sequence[NamedArm], baseline: str | None
) -> tuple[RunsComparison | None, str | None]:
    """The comparison, which runs that still train leave preliminary; or None and why there is none."""
    if num_methods(named) < 2:
        return None, "One method was run so far. A comparison begins with a second one, on the same seeds."
    names = tuple(entry.name for entry in entries)
    for wanted in dict.fromkeys((baseline, None)):
        try:
            return compared_runs(watcher, ComparisonRequest(runs=names, baseline=wanted)), None
        except AtriumError as error:
            reason = " ".join(str(error).split())
    training = sum(entry.overview.state.is_live for entry in entries)
    if training:
        reason = f"No verdict yet: {training} of {len(entries)} runs still train."
    return None, reason


def _benchmark(entries: Sequence[RunEntry]) -> str | None:
    """The test problems that most of the runs were scored on, else validation problems."""
    scored = [name for entry in entries for name in entry.overview.scores]
    return max(scored, key=lambda name: (VALIDATION not in name, scored.count(name)), default=None)


def _row(
    name: str, runs: Sequence[Answer], arm: ArmScores | None, pair: Pair | None, benchmark: str | None
) -> Row:
    """A method's score, over the runs that are compared or those that finished, and its difference."""
    if arm is None or benchmark is None:
        scores = [run["score"] for run in runs if run["state"] == RunState.FINISHED]
        found = score_over_seeds(scores)
        outcome = None if found.value is None else Estimate(found.value, found.interval, "share")
        return Row((name, len({run["seed"] for run in runs}), outcome, None, None))
    score = arm.scores[MEAN][benchmark]
    outcome = Estimate(score.value, interval_of(score.another_exam), "share")
    compared: tuple[Cell, Cell] = (None, "baseline")
    if pair is not None:
        difference = pair.comparison.difference.value
        label = f"{pair.verdict.sign} {pair.verdict.label}"
        compared = (Estimate(difference, pair.another_exam, "points", is_signed=True), label)
    return Row((name, len(arm.arm.seeds), outcome, *compared))


def _collapses(row: Row, runs: Sequence[Answer]) -> list[str]:
    """What went wrong by its name, such as `reinforce: ratios running away in 2 of 3 runs`."""
    rules = dict.fromkeys(rule for run in runs for rule in run["collapses"])
    num = {rule: sum(rule in run["collapses"] for run in runs) for rule in rules}
    return [f"{row.cells[0]}: {rule} in {num[rule]} of {counted(len(runs), 'run')}" for rule in rules]


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
        "collapses": list(entry.collapses),
        "error": status.error or "; ".join(entry.problems) or None,
        "is_counted": is_counted,
    }

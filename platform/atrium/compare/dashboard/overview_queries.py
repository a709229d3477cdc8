"""The first page: an experiment's methods, what each reached, and which differences are real."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atrium.base.errors import AtriumError
from atrium.compare.arm_names import NamedArm
from atrium.compare.arm_pairs import MEAN
from atrium.compare.counted_runs import VALIDATION
from atrium.compare.dashboard.compare_queries import ComparisonRequest, compare_answer
from atrium.compare.dashboard.curve_queries import METHODS, groups_of, method_arms, places_of
from atrium.compare.dashboard.run_queries import default_of, trainings_by_experiment
from atrium.compare.dashboard.runs_scan import RunEntry
from atrium.compare.dashboard.sweep_queries import over_seeds
from atrium.compare.dashboard.watcher import Watcher
from atrium.compare.default_choice import num_methods
from atrium.runs.status import RunState

Answer = dict[str, Any]


def overview_answer(watcher: Watcher, wanted: str | None, baseline: str | None) -> Answer:
    """An experiment's methods; without a name, those of the default experiment.

    `baseline` names the arm, or a run of it, that the others are compared with. Runs of sweeps and
    evaluations are not here, and no run is an error: what cannot be compared is shown with the reason.
    """
    experiments = trainings_by_experiment(watcher)
    chosen = wanted if wanted in experiments else default_of(experiments)
    found = {} if chosen is None else _methods(watcher, experiments[chosen], baseline)
    about = [{"name": name, **_about(entries)} for name, entries in experiments.items()]
    return {"experiments": about, "experiment": chosen, **found}


def _about(entries: Sequence[RunEntry]) -> Answer:
    return {
        "num_runs": len(entries),
        "num_running": sum(entry.overview.state.is_live for entry in entries),
        "num_methods": num_methods(method_arms(entries)),
        "started": max(entry.started for entry in entries),
    }


def _methods(watcher: Watcher, entries: Sequence[RunEntry], baseline: str | None) -> Answer:
    named = method_arms(entries)
    compared, reason = _compared(watcher, entries, named, baseline)
    arms = {arm["name"]: arm for arm in (compared or {}).get("arms", ())}
    pairs = {
        pair["candidate"]: pair
        for pair in (compared or {}).get("pairs", ())
        if compared and (pair["measure"], pair["benchmark"]) == (MEAN, compared["headline"])
    }
    benchmark = compared["headline"] if compared else _benchmark(entries)
    groups = groups_of(entries, METHODS, named)
    others = {arm.name for arm in named if arm.is_other}
    place = places_of(entries, groups)
    by_name = {entry.name: entry for entry in entries}
    rows = []
    for name, members in groups.items():
        rows.append(_row(name, [by_name[member] for member in members], arms.get(name), benchmark))
        rows[-1] |= {"place": place[name], "pair": pairs.get(name), "is_other": name in others}
    return {
        "rows": sorted(
            rows, key=lambda row: (row["is_other"], -((row["outcome"] or {}).get("value") or -1.0))
        ),
        "benchmark": benchmark,
        "title": compared["titles"][MEAN] if compared else "Mean@k",
        "baseline": compared["arms"][0]["name"] if compared else None,
        "num_problems": compared["num_problems"].get(benchmark) if compared else None,
        "confounds": compared["confounds"] if compared else [],
        "environment": compared["environment"] if compared else [],
        "best": compared["best"] if compared else "",
        "planned": compared["planned"] if compared else "",
        "notes": compared["notes"] if compared else [],
        "left_out": compared["left_out"] if compared else [],
        "reason": reason,
    }


def _compared(
    watcher: Watcher, entries: Sequence[RunEntry], named: Sequence[NamedArm], baseline: str | None
) -> tuple[Answer | None, str | None]:
    """The comparison, which runs that still train leave preliminary; or None and why there is none."""
    if num_methods(named) < 2:
        return None, "One method was run so far. A comparison begins with a second one, on the same seeds."
    names = tuple(entry.name for entry in entries)
    for wanted in dict.fromkeys((baseline, None)):
        try:
            return compare_answer(watcher, ComparisonRequest(runs=names, baseline=wanted)), None
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
    name: str,
    entries: Sequence[RunEntry],
    arm: Mapping[str, Any] | None,
    benchmark: str | None,
) -> Answer:
    runs = [_run(entry, benchmark) for entry in entries]
    counted = set(arm["runs"]) if arm else set()
    outcome: Answer | None
    if arm:
        mean = arm["scores"][MEAN][benchmark]
        low, high = mean["another"]["interval"] if mean["another"] else (None, None)
        outcome = {"value": mean["value"], "low": low, "high": high}
    else:
        known = [
            run["score"] for run in runs if run["score"] is not None and run["state"] == RunState.FINISHED
        ]
        found = over_seeds(known)
        outcome = found and {"value": found["mean"], "low": found["low"], "high": found["high"]}
    return {
        "name": name,
        "runs": [{**run, "is_counted": run["name"] in counted} for run in runs],
        "num_seeds": len(arm["seeds"]) if arm else len({run["seed"] for run in runs}),
        "outcome": outcome,
        "collapsed": arm["collapsed"] if arm else None,
        "rates": arm["rates"] if arm else None,
        "window": arm["window"] if arm else None,
    }


def _run(entry: RunEntry, benchmark: str | None) -> Answer:
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
    }

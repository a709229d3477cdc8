"""The first page: an experiment's methods, what each reached, and which differences are real."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atrium.compare.arm_pairs import MEAN
from atrium.compare.counted_runs import VALIDATION
from atrium.compare.dashboard.compare_queries import ComparisonRequest, compare_answer
from atrium.compare.dashboard.curve_queries import METHODS, WITHOUT_SETTINGS, groups_of, places_of
from atrium.compare.dashboard.runs_scan import RunEntry
from atrium.compare.dashboard.sweep_queries import over_seeds, sweeps_answer
from atrium.compare.dashboard.watcher import Watcher
from atrium.errors import AtriumError
from atrium.tracking.status import RunState

Answer = dict[str, Any]

_BASELINES = ("grpo", "reinforce")
"""The methods that others are usually held against; without them it is the first that was run."""


def overview_answer(watcher: Watcher, wanted: str | None, baseline: str | None) -> Answer:
    """An experiment's methods; without a name, those of the latest experiment that has two or more.

    `baseline` is the name of a run whose method the others are held against. Runs of sweeps and evaluations
    are not here, and no run is an error: what cannot be compared is shown with the reason.
    """
    experiments = _experiments(watcher)
    latest = sorted(experiments, key=lambda name: -max(entry.started for entry in experiments[name]))
    about = {name: _about(experiments[name]) for name in latest}
    several = [name for name in latest if about[name]["num_methods"] > 1]
    chosen = wanted if wanted in experiments else next(iter(several or latest), None)
    found = {} if chosen is None else _methods(watcher, experiments[chosen], baseline)
    return {"experiments": [{"name": name, **about[name]} for name in latest], "experiment": chosen, **found}


def _experiments(watcher: Watcher) -> dict[str, list[RunEntry]]:
    """Trainings by experiment, the oldest first, without those of sweeps, archived ones and failed starts."""
    sweeps = {sweep["name"] for sweep in sweeps_answer(watcher)["sweeps"]}
    found: dict[str, list[RunEntry]] = {}
    for entry in sorted(watcher.scan.entries.values(), key=lambda entry: (entry.started, entry.name)):
        experiment = entry.name.partition("/")[0]
        is_hidden = entry.annotations.is_archived or entry.overview.state is RunState.FAILED_START
        if not (entry.is_evaluation or is_hidden or experiment in sweeps):
            found.setdefault(experiment, []).append(entry)
    return found


def _about(entries: Sequence[RunEntry]) -> Answer:
    return {
        "num_runs": len(entries),
        "num_running": sum(entry.overview.state.is_live for entry in entries),
        "num_methods": _num_methods(entries),
        "started": max(entry.started for entry in entries),
    }


def _num_methods(entries: Sequence[RunEntry]) -> int:
    return len(groups_of(entries, METHODS).keys() - {WITHOUT_SETTINGS})


def _methods(watcher: Watcher, entries: Sequence[RunEntry], baseline: str | None) -> Answer:
    compared, reason = _compared(watcher, entries, baseline)
    arms = {name: arm for arm in (compared or {}).get("arms", ()) for name in arm["runs"]}
    pairs = {
        pair["candidate"]: pair
        for pair in (compared or {}).get("pairs", ())
        if compared and (pair["measure"], pair["benchmark"]) == (MEAN, compared["headline"])
    }
    benchmark = compared["headline"] if compared else _benchmark(entries)
    groups = groups_of(entries, METHODS)
    place = places_of(entries, groups)
    by_name = {entry.name: entry for entry in entries}
    rows = []
    for label, members in groups.items():
        names = list(dict.fromkeys(arms[name]["name"] for name in members if name in arms)) or [None]
        for name in names:
            # A group that the comparison splits has what it does not count in its first row.
            own = [m for m in members if (arms[m]["name"] == name if m in arms else name == names[0])]
            arm = next((arms[member] for member in own if member in arms), None)
            rows.append(_row(name or label, [by_name[m] for m in own], arm, benchmark))
            rows[-1] |= {"place": place[label], "pair": pairs.get(name), "group": label}
    return {
        "rows": sorted(rows, key=lambda row: -((row["outcome"] or {}).get("value") or -1.0)),
        "benchmark": benchmark,
        "title": compared["titles"][MEAN] if compared else "Mean@k",
        "baseline": compared["arms"][0]["name"] if compared else None,
        "num_problems": compared["num_problems"].get(benchmark) if compared else None,
        "notes": compared["notes"] if compared else [],
        "left_out": compared["left_out"] if compared else [],
        "reason": reason,
    }


def _compared(
    watcher: Watcher, entries: Sequence[RunEntry], baseline: str | None
) -> tuple[Answer | None, str | None]:
    """The comparison of the runs that do not train any more, or None and why there is none."""
    over = [entry for entry in entries if not entry.overview.state.is_live]
    if _num_methods(entries) < 2:
        return None, "One method was run so far. A comparison begins with a second one, on the same seeds."
    names = tuple(entry.name for entry in over)
    pinned = [baseline] if baseline in names else []
    for wanted in dict.fromkeys((*pinned, _baseline(over), None)):
        try:
            return compare_answer(watcher, ComparisonRequest(runs=names, baseline=wanted)), None
        except AtriumError as error:
            reason = " ".join(str(error).split())
    training = len(entries) - len(over)
    if training:
        reason = f"No verdict yet: {training} of {len(entries)} runs still train."
    return None, reason


def _baseline(entries: Sequence[RunEntry]) -> str | None:
    """A finished run of the method that others are usually held against."""
    finished = [entry for entry in entries if entry.overview.state is RunState.FINISHED]
    for wanted in _BASELINES:
        for entry in finished:
            if entry.settings.get("algorithm.name") == wanted:
                return entry.name
    return None


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

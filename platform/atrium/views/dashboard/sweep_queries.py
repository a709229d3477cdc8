"""Queries about sweeps: their snapshots and reports in `runs/sweeps/`, as they stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atrium.base.errors import RunFolderError
from atrium.base.nested import setting
from atrium.base.recorded import as_finite, read_object
from atrium.runs.layout import NAME_PATTERN
from atrium.stats.seeds import score_over_seeds
from atrium.views.dashboard.runs_scan import is_within
from atrium.views.dashboard.watcher import Watcher

Answer = dict[str, Any]

FORMAT_VERSION = 1
_SWEEPS = "sweeps"
_REPORTED = ("contrasts", "sentences")
_SCORES = ("mean_at_k", "pass_at_k")


def sweeps_answer(watcher: Watcher) -> Answer:
    """All sweeps, the latest first, each with what is wrong with it, if anything."""
    found = []
    for folder in _folders(watcher.scan.runs_dir):
        state, problem = read_object(folder / "state.json")
        found.append(
            {
                "name": folder.name,
                "question": state.get("question", ""),
                "state": state.get("state", "unknown"),
                "updated": as_finite(state.get("updated")),
                "stages": state.get("stages", []),
                "problem": problem,
            }
        )
    return {"sweeps": sorted(found, key=lambda sweep: (-(sweep["updated"] or 0.0), sweep["name"]))}


def sweep_answer(watcher: Watcher, name: str) -> Answer:
    """One sweep: its snapshot with intervals over seeds, its definition, and its report where it has one.

    Raises `RunFolderError` where there is none of that name.
    """
    folder = watcher.scan.runs_dir / _SWEEPS / name
    if not NAME_PATTERN.fullmatch(name) or folder not in _folders(watcher.scan.runs_dir):
        raise RunFolderError(f"there is no sweep {name[:80]!r} in {watcher.scan.runs_dir / _SWEEPS}")
    state, problem = read_object(folder / "state.json")
    definition, _ = read_object(folder / "sweep.json")
    report, _ = read_object(folder / "report" / "report.json")
    problems = [problem] if problem else []
    version = state.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        problems.append(f"it was written by a newer Atrium (format {version}), so some of it may be missing")
    trials = state.get("trials")
    return {
        "name": name,
        "question": state.get("question", ""),
        "state": state.get("state", "unknown"),
        "objectives": state.get("objectives", []),
        "stages": state.get("stages", []),
        "num_workers": len(_sequence(state.get("workers"))),
        "updated": as_finite(state.get("updated")),
        "sampler": setting(definition, "definition.sampler"),
        "pruner": setting(definition, "definition.pruner"),
        "trials": [_trial(trial) for trial in _sequence(trials) if isinstance(trial, Mapping)],
        "report": {key: report[key] for key in _REPORTED if key in report},
        "problems": problems,
    }


def _trial(trial: Mapping[str, object]) -> Answer:
    """A trial with the mean of each score over its seeds, and its 95 % interval where there are two."""
    seeds = [seed for seed in _sequence(trial.get("seeds")) if isinstance(seed, Mapping)]
    values = [as_finite(value) for value in _sequence(trial.get("values"))]
    return {
        **{
            key: trial.get(key)
            for key in ("stage", "number", "state", "labels", "settings", "window", "reason", "num_takeovers")
        },
        "values": values or None,
        "scores": {name: _scored([as_finite(seed.get(name)) for seed in seeds]) for name in _SCORES},
        "num_seeds": len(seeds),
        "runs": [seed.get("run") for seed in seeds if isinstance(seed.get("run"), str)],
        "curves": [seed.get("curve") for seed in seeds],
    }


def _scored(values: Sequence[float | None]) -> Answer | None:
    """The mean and its 95 % interval for new seeds; None where there is no value."""
    found = score_over_seeds(values)
    low, high = found.interval or (None, None)
    return None if found.value is None else {"mean": found.value, "low": low, "high": high}


def _folders(runs_dir: Path) -> list[Path]:
    try:
        found = [path for path in (runs_dir / _SWEEPS).iterdir() if path.name[0] != "." and path.is_dir()]
    except OSError:
        return []
    files = ("state.json", "sweep.json", "report", "report/report.json")
    return [path for path in found if all(is_within(path / file, runs_dir) for file in files)]


def _sequence(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()

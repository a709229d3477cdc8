"""Read-only queries about sweeps, from the snapshots and reports in `runs/sweeps/`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from atrium.base.errors import RunFolderError
from atrium.base.recorded import as_finite, read_object
from atrium.document.document import Document, Sentence
from atrium.document.json import to_json
from atrium.runs.layout import NAME_PATTERN
from atrium.sweep.snapshot import FORMAT_VERSION
from atrium.sweep.snapshot_document import snapshot_document, snapshot_trials, varied_settings
from atrium.views.dashboard.runs_scan import is_within
from atrium.views.dashboard.watcher import Watcher

Answer = dict[str, Any]

_SWEEPS = "sweeps"


def sweeps_answer(watcher: Watcher) -> Answer:
    """Return the name, state and stages of each sweep.

    The latest sweep comes first. The field `problem` says why a sweep is unreadable.
    """
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


def sweep_answer(
    watcher: Watcher, name: str, *, stage: str = "", key: str = "", score: str = "mean_at_k"
) -> Answer:
    """Return the document of a sweep and the data for the page's controls (see `sweep_of`) as JSON data."""
    document, controls = sweep_of(watcher, name, stage=stage, key=key, score=score)
    return {**to_json(document), **controls}


def sweep_of(
    watcher: Watcher, name: str, *, stage: str = "", key: str = "", score: str = "mean_at_k"
) -> tuple[Document, Answer]:
    """Return the document of a sweep's current state, and the data for the page's controls.

    `stage` is the stage whose trials are shown; if unknown, it is replaced by the first stage. `key` is the
    setting on the x-axis; if unknown, it is replaced by a setting whose name ends in `delta`, or else by the
    first setting that varies. `score` is the score in the figures, `mean_at_k` or `pass_at_k`. Raises
    `RunFolderError` for an unknown sweep.
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
        problems.append(f"format {version} is from a newer Atrium; some data may be missing")
    found = snapshot_trials(state)
    stages = list(dict.fromkeys(one.stage for one in found))
    stage = stage if stage in stages else next(iter(stages), "")
    trials = [one for one in found if one.stage == stage]
    keys = varied_settings(trials)
    usual = next((one for one in keys if one.endswith("delta")), next(iter(keys), ""))
    key = key if key in keys else usual
    entries = watcher.scan.entries.values()
    collapses = {entry.name: tuple({**entry.findings, **entry.collapses}) for entry in entries}
    document = snapshot_document(state, definition, report, trials, key=key, score=score, collapses=collapses)
    alerts = (*(Sentence(text, "warning") for text in problems), *document.alerts)
    workers = state.get("workers")
    return replace(document, alerts=alerts), {
        "name": name,
        "state": state.get("state", "unknown"),
        "num_workers": len(workers) if isinstance(workers, list) else 0,
        "updated": as_finite(state.get("updated")),
        "stages": stages,
        "stage": stage,
        "keys": keys,
        "key": key,
        "runs": [one.runs for one in trials],
    }


def _folders(runs_dir: Path) -> list[Path]:
    try:
        found = [path for path in (runs_dir / _SWEEPS).iterdir() if path.name[0] != "." and path.is_dir()]
    except OSError:
        return []
    files = ("state.json", "sweep.json", "report", "report/report.json")
    return [path for path in found if all(is_within(path / file, runs_dir) for file in files)]

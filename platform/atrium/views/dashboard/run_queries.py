"""Queries about runs: the table, one run in full, and small curves for the table."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atrium.base.nested import setting
from atrium.base.plain_files import open_plain
from atrium.base.recorded import read_object
from atrium.compare.arm_names import NamedArm
from atrium.compare.default_choice import default_experiment
from atrium.runs.reader import read_findings
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState
from atrium.views.dashboard.curve_queries import WITHOUT_SETTINGS, method_arms
from atrium.views.dashboard.runs_scan import RunEntry, Signature
from atrium.views.dashboard.sweep_queries import sweeps_answer
from atrium.views.dashboard.watcher import Watcher

Answer = dict[str, Any]

_LOG_BYTES = 20_000
_SPARK_POINTS = 40


def method_of(arm: NamedArm | None) -> Answer:
    """The name of a run's method, and whether the run is apart from those of that name."""
    return {"method": arm.name if arm else WITHOUT_SETTINGS, "is_other": arm is not None and arm.is_other}


def arms_by_experiment(entries: Iterable[RunEntry]) -> list[tuple[NamedArm, ...]]:
    """The arms of each experiment; evaluations and archived runs are apart from trainings."""
    found: dict[tuple[str, bool, bool], list[RunEntry]] = {}
    for entry in entries:
        key = (entry.experiment, entry.is_evaluation, entry.annotations.is_archived)
        found.setdefault(key, []).append(entry)
    return [method_arms(own) for own in found.values()]


def trainings_by_experiment(watcher: Watcher) -> dict[str, list[RunEntry]]:
    """Trainings, the oldest first, the latest experiment first.

    Runs of sweeps, archived runs and failed starts are left out.
    """
    sweeps = {sweep["name"] for sweep in sweeps_answer(watcher)["sweeps"]}
    found: dict[str, list[RunEntry]] = {}
    for entry in sorted(watcher.scan.entries.values(), key=lambda entry: (entry.started, entry.name)):
        is_hidden = entry.annotations.is_archived or entry.overview.state is RunState.FAILED_START
        if not (entry.is_evaluation or is_hidden or entry.experiment in sweeps):
            found.setdefault(entry.experiment, []).append(entry)
    return dict(sorted(found.items(), key=lambda one: (-one[1][-1].started, one[0])))


def default_of(experiments: Mapping[str, Sequence[RunEntry]]) -> str | None:
    """The experiment that views open with."""
    settings = {
        name: {entry.name: entry.settings for entry in own if entry.settings}
        for name, own in experiments.items()
    }
    return default_experiment(settings)


def state_answer(watcher: Watcher) -> Answer:
    """The counters by which a page knows whether to ask again."""
    progress = watcher.progress
    return {
        "version": watcher.version,
        "index": {"done": progress.num_done, "total": progress.num_runs, "problem": watcher.problem},
    }


def spark_of(values: NDArray[np.float64] | None) -> list[float | None]:
    """A curve in few points; empty where it has fewer than two."""
    if values is None or len(values) < 2:
        return []
    num = min(_SPARK_POINTS, len(values))
    starts = np.arange(num) * len(values) // num
    sizes = np.diff(starts, append=len(values))
    return [_rounded(mean) for mean in (np.add.reduceat(values, starts) / sizes).tolist()]


def lasts_answer(watcher: Watcher, metrics: Iterable[str], since: int = -1) -> Answer:
    """The last value that each run that changed after `since` recorded of each metric, by name."""
    found: dict[str, dict[str, float]] = {metric: {} for metric in metrics}
    for name, entry in watcher.scan.entries.items():
        if watcher.changed_at.get(name, since + 1) <= since:
            continue
        table = watcher.index.read(entry.folder)
        for metric, by_run in found.items():
            values = None if table is None else table.columns.get(metric)
            finite = None if values is None else values[np.isfinite(values)]
            if finite is not None and len(finite):
                by_run[name] = float(finite[-1])
    return {"lasts": found}


def run_answer(watcher: Watcher, name: str) -> Answer:
    """Everything small that a run's folder holds. Raises `RunFolderError` for an unknown name."""
    entry = watcher.scan.entry(name)
    provenance, _ = read_object(entry.folder.provenance_file)
    evaluations = watcher.scan.evaluations(entry)
    return {
        **row_of(entry, entry.settings),
        "settings": dict(entry.settings),
        "findings": [*_findings(entry.folder, entry.signature, entry.overview.state)],
        "overrides": _text_of(entry, "overrides.yaml").splitlines(),
        "log": _text_of(entry, "log.txt"),
        "commit": setting(provenance, "code.commit"),
        "is_dirty": setting(provenance, "code.is_dirty"),
        "command": provenance.get("command"),
        "python": provenance.get("python"),
        "platform": provenance.get("platform"),
        "folder": str(entry.folder.path.absolute()),
        "commands": _commands(entry),
        "evaluations": {
            benchmark: [point.as_record() for point in points] for benchmark, points in evaluations.items()
        },
    }


def _commands(entry: RunEntry) -> dict[str, str]:
    """Commands to copy, by what they do: the dashboard itself stops, resumes and deletes nothing."""
    folder, status = shlex.quote(str(entry.folder.path.absolute())), entry.overview.status
    if entry.overview.state.is_live:
        return {"stop": f"kill -INT {status.pid}"} if status.pid else {}
    found = {"delete": f"rm -r {folder}"}
    if not entry.is_evaluation:
        more = f" num_steps={2 * status.num_steps}" if entry.overview.state is RunState.FINISHED else ""
        found = {"resume": f"atrium train --resume {folder}{more}", **found}
    return found


def row_of(entry: RunEntry, keys: Iterable[str]) -> Answer:
    """A run's line of the table, with the settings of those keys."""
    status, annotations = entry.overview.status, entry.annotations
    return {
        "name": entry.name,
        "experiment": entry.experiment,
        "algorithm": entry.settings.get("algorithm.name"),
        "seed": entry.settings.get("seed"),
        "state": str(entry.overview.state),
        "step": status.step,
        "num_steps": status.num_steps,
        "started": entry.started,
        "updated": status.updated,
        "wall_s": status.wall_s,
        "left_s": entry.left_s,
        "num_tokens": entry.num_tokens,
        "evaluated": _evaluated(entry) if entry.is_evaluation else None,
        "host": status.host,
        "error": status.error,
        "problems": list(entry.problems),
        "collapses": list(entry.collapses),
        "note": annotations.note,
        "tags": list(annotations.tags),
        "is_archived": annotations.is_archived,
        "settings": {key: entry.settings[key] for key in keys if key in entry.settings},
        "scores": {name: scores.as_record() for name, scores in entry.overview.scores.items()},
    }


def _evaluated(entry: RunEntry) -> Answer:
    """What an evaluation evaluated: the checkpoint of a run, or a model."""
    checkpoint, model = (entry.overview.config.get(key) for key in ("checkpoint", "model"))
    if isinstance(checkpoint, dict) and checkpoint.get("run"):
        return {"run": str(checkpoint["run"]), "step": checkpoint.get("step")}
    named = setting({"model": model}, "model.source") or setting({"model": model}, "model.kind")
    return {"model": "unknown" if named is None else str(named)}


@lru_cache(maxsize=32)
def _findings(folder: RunFolder, _signature: Signature, state: RunState) -> tuple[str, ...]:
    """What went wrong in a run by the rules of `diagnosis`; nothing where its metrics cannot be read."""
    try:
        return tuple(found.text for found in read_findings(folder, is_over=not state.is_live))
    except OSError:
        return ()


def _text_of(entry: RunEntry, name: str) -> str:
    """The end of a text file in the run's folder, from a whole line on; empty where it cannot be read."""
    try:
        with open_plain(entry.folder.path / name) as file:
            size = file.seek(0, 2)
            file.seek(max(size - _LOG_BYTES, 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return text if size <= _LOG_BYTES else text.partition("\n")[2]


def _rounded(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None

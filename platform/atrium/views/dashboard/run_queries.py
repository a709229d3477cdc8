"""Read-only queries about runs: rows of the table of runs, sparklines, and details of one run."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from socket import gethostname
from typing import Any

import numpy as np

from atrium.base.nested import setting
from atrium.base.plain_files import open_plain
from atrium.base.recorded import read_object
from atrium.base.records import Floats
from atrium.compare.arm_names import NamedArm
from atrium.compare.curve_index import CurveTable
from atrium.compare.default_choice import default_experiment
from atrium.compare.run_differences import differences_document, run_differences
from atrium.document.document import Document, Section, Table
from atrium.document.json import to_json
from atrium.runs.diagnosis import Finding
from atrium.runs.evaluation_document import evaluation_tables
from atrium.runs.health import health_tables
from atrium.runs.layout import IMPORTED
from atrium.runs.reader import read_findings
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState
from atrium.views.dashboard.curve_queries import WITHOUT_SETTINGS, method_arms
from atrium.views.dashboard.runs_scan import RunEntry, Signature
from atrium.views.dashboard.sweep_queries import sweeps_answer
from atrium.views.dashboard.watcher import Watcher

Answer = dict[str, Any]

_LOG_BYTES = 20_000
_MOST_DIFF_LINES = 2000
_SPARK_POINTS = 40


def method_of(arm: NamedArm | None) -> Answer:
    """Return the name of a run's arm, and whether the arm is a single deviating run ("other run").

    `arm` is None for a run without readable settings.
    """
    return {"method": arm.name if arm else WITHOUT_SETTINGS, "is_other": arm is not None and arm.is_other}


def arms_by_experiment(entries: Iterable[RunEntry]) -> list[tuple[NamedArm, ...]]:
    """Return the arms of each experiment.

    Training runs, evaluations and archived runs form separate arms.
    """
    found: dict[tuple[str, bool, bool], list[RunEntry]] = {}
    for entry in entries:
        key = (entry.experiment, entry.is_evaluation, entry.annotations.is_archived)
        found.setdefault(key, []).append(entry)
    return [method_arms(own) for own in found.values()]


def trainings_by_experiment(watcher: Watcher) -> dict[str, list[RunEntry]]:
    """Return the training runs of each experiment.

    The latest experiment comes first. Within an experiment, the oldest run comes first. Runs of sweeps,
    archived runs, and runs that failed to start are left out.
    """
    sweeps = {sweep["name"] for sweep in sweeps_answer(watcher)["sweeps"]}
    found: dict[str, list[RunEntry]] = {}
    for entry in sorted(watcher.scan.entries.values(), key=lambda entry: (entry.started, entry.name)):
        is_hidden = entry.annotations.is_archived or entry.overview.state is RunState.FAILED_START
        if not (entry.is_evaluation or is_hidden or entry.experiment in sweeps):
            found.setdefault(entry.experiment, []).append(entry)
    return dict(sorted(found.items(), key=lambda one: (-one[1][-1].started, one[0])))


def default_of(experiments: Mapping[str, Sequence[RunEntry]]) -> str | None:
    """Return the name of the experiment that pages show by default, or None if there is no experiment."""
    settings = {
        name: {entry.name: entry.settings for entry in own if entry.settings}
        for name, own in experiments.items()
    }
    return default_experiment(settings)


def state_answer(watcher: Watcher) -> Answer:
    """Return the version of the data, by which pages detect changes, and the progress of the curve index."""
    progress = watcher.progress
    return {
        "version": watcher.version,
        "index": {"done": progress.num_done, "total": progress.num_runs, "problem": watcher.problem},
    }


def spark_of(values: Floats | None) -> list[float | None]:
    """Return the values of a sparkline: a curve's means over at most 40 equal parts.

    Returns an empty list for fewer than two values.
    """
    if values is None or len(values) < 2:
        return []
    num = min(_SPARK_POINTS, len(values))
    starts = np.arange(num) * len(values) // num
    sizes = np.diff(starts, append=len(values))
    return [_rounded(mean) for mean in (np.add.reduceat(values, starts) / sizes).tolist()]


def lasts_answer(watcher: Watcher, metrics: Iterable[str], since: int = -1) -> Answer:
    """Return, for each run that changed after version `since`, the last finite value of each metric."""
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
    """Return all details of a run as JSON data; raise `RunFolderError` for an unknown name."""
    entry = watcher.scan.entry(name)
    return {
        **row_of(entry, entry.settings),
        "settings": dict(entry.settings),
        "findings": [
            {"text": found.text, "step": found.first_step}
            for found in _findings(entry.folder, entry.signature, entry.overview.state)
        ],
        **to_json(_document(entry, watcher.index.read(entry.folder))),
        "overrides": _text_of(entry, "overrides.yaml").splitlines(),
        "log": _text_of(entry, "log.txt"),
        "provenance": _provenance(entry),
        "commands": _commands(entry),
    }


def differences_answer(watcher: Watcher, names: Sequence[str]) -> Answer:
    """Return the differences between runs as JSON data; raise `RunFolderError` for an unknown run."""
    found = run_differences(*(watcher.scan.entry(name).folder for name in names))
    return {**to_json(differences_document(found, names, num_lines=_MOST_DIFF_LINES))}


def _document(entry: RunEntry, table: CurveTable | None) -> Document:
    """Return a document with tables of a run's metrics, hardware usage, and evaluations."""
    health = health_tables(entry.folder, {} if table is None else table.columns)
    evaluations: list[Table] = []
    with suppress(OSError):  # an unreadable file must not hide the other tables
        evaluations = evaluation_tables(entry.folder)
    sections = (Section(title="", tables=health), Section(title="", tables=tuple(evaluations)))
    return Document(key="run", title=entry.name, sections=sections)


def _provenance(entry: RunEntry) -> dict[str, str]:
    """Return the known facts about the origin of a run, such as its command and commit, by name."""
    recorded, _ = read_object(entry.folder.provenance_file)
    commit, is_dirty = (setting(recorded, f"code.{key}") for key in ("commit", "is_dirty"))
    facts = {
        "command": recorded.get("command"),
        "commit": commit and f"{str(commit)[:12]}{' with changes' if is_dirty else ''}",
        "python": recorded.get("python"),
        "platform": recorded.get("platform"),
        "folder": entry.folder.path.absolute(),
    }
    return {name: str(fact) for name, fact in facts.items() if fact}


def _commands(entry: RunEntry) -> dict[str, str]:
    """Return shell commands for the user to copy, by action (stop, resume, delete).

    A live run on another host has no command, since its process ID is meaningless on the dashboard's host. An
    evaluation or imported run cannot be resumed. The dashboard itself executes none of the commands.
    """
    folder, status = shlex.quote(str(entry.folder.path.absolute())), entry.overview.status
    if entry.overview.state.is_live:
        return {"stop": f"kill -INT {status.pid}"} if status.pid and status.host == gethostname() else {}
    found = {"delete": f"rm -r {folder}"}
    if entry.overview.config.get("kind") not in ("evaluation", IMPORTED):
        more = f" num_steps={2 * status.num_steps}" if entry.overview.state is RunState.FINISHED else ""
        found = {"resume": f"atrium train --resume {folder}{more}", **found}
    return found


def row_of(entry: RunEntry, keys: Iterable[str]) -> Answer:
    """Return a run's row in the table of runs as JSON data, with the settings in `keys`."""
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
        "other_findings": [rule for rule in entry.findings if rule not in entry.collapses],
        "note": annotations.note,
        "tags": list(annotations.tags),
        "is_archived": annotations.is_archived,
        "settings": {key: entry.settings[key] for key in keys if key in entry.settings},
        "scores": {name: scores.as_record() for name, scores in entry.overview.scores.items()},
    }


def _evaluated(entry: RunEntry) -> Answer:
    """Return the policy that an evaluation evaluates: `run` and `step` of a checkpoint, or a `model`."""
    checkpoint, model = (entry.overview.config.get(key) for key in ("checkpoint", "model"))
    if isinstance(checkpoint, dict) and checkpoint.get("run"):
        return {"run": str(checkpoint["run"]), "step": checkpoint.get("step")}
    named = setting({"model": model}, "model.source") or setting({"model": model}, "model.kind")
    return {"model": "unknown" if named is None else str(named)}


@lru_cache(maxsize=32)
def _findings(folder: RunFolder, _signature: Signature, state: RunState) -> tuple[Finding, ...]:
    """Return the problems that `diagnosis` finds in a run.

    Returns an empty tuple if the run's metrics cannot be read.
    """
    try:
        return read_findings(folder, is_over=not state.is_live)
    except OSError:
        return ()


def _text_of(entry: RunEntry, name: str) -> str:
    """Return the last lines of a text file of the run, at most 20,000 bytes.

    Returns empty text if the file cannot be read.
    """
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

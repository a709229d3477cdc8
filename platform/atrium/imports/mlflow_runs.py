"""Readers of MLflow runs: the database `mlflow.db` and the directories `mlruns/<experiment>/<run>`.

The files are read directly, since MLflow's client creates a missing store and migrates an old one. Format:
MLflow 3.17 (`mlflow/store/tracking/dbmodels/models.py`, `file_store.py`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import yaml

from atrium.base.errors import DataError
from atrium.base.plain_files import open_plain, read_plain
from atrium.imports.answers import Source, Stated, real_number, whole_number
from atrium.imports.files import read_errors
from atrium.imports.trackers import TrackedRun, tracked_source

RUN_FILE = "meta.yaml"
_DATABASES = (".db", ".sqlite", ".sqlite3")
_TABLES = ("runs", "params", "metrics")
_RUNS = "SELECT run_uuid, name FROM runs WHERE lifecycle_stage = 'active' ORDER BY start_time, run_uuid"
_PARAMS = "SELECT key, value FROM params WHERE run_uuid = ?"
_METRICS = "SELECT step, key, value FROM metrics WHERE run_uuid = ? AND NOT is_nan ORDER BY timestamp"
_FINISHED = 3
_MAX_BYTES = 64 << 20


def is_mlflow_database(path: Path) -> bool:
    """Return whether a file has the suffix of an SQLite database, in which MLflow stores runs."""
    return path.suffix.lower() in _DATABASES


def read_mlflow_database(path: Path, stated: Stated) -> Source:
    """Read the curves and parameters of all runs in an MLflow database, except deleted runs."""
    with read_errors(path), open_plain(path):
        pass
    runs = []
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
            if not {*_TABLES} <= {name for (name,) in database.execute(tables)}:
                raise DataError(
                    f"{path} is not an MLflow database, which has the tables {', '.join(_TABLES)}; give "
                    "the database of an MLflow server (mlflow.db) or the directory mlruns"
                )
            for key, name in database.execute(_RUNS).fetchall():
                steps: dict[int, dict[str, object]] = {}
                for step, metric, value in database.execute(_METRICS, (key,)):
                    steps.setdefault(whole_number(step, "step", str(path)), {})[str(metric)] = value
                config = {str(one): value for one, value in database.execute(_PARAMS, (key,))}
                runs.append(TrackedRun(method=str(name or key), steps=steps, config=config, key=str(key)))
    except sqlite3.Error as error:
        raise DataError(
            f"{path} is damaged, in use, or of an unknown version of MLflow ({error}); stop the programs "
            "that write to it, or copy it again"
        ) from error
    return tracked_source(path, "MLflow database", runs, stated)


def is_mlflow_run(path: Path) -> bool:
    """Return whether a file is the `meta.yaml` of an MLflow run, next to a folder `metrics`."""
    return path.name == RUN_FILE and (path.parent / "metrics").is_dir()


def read_mlflow_run(path: Path, stated: Stated) -> Source:
    """Read the curves and parameters of the run in `mlruns` whose `meta.yaml` is at `path`.

    If the run was deleted, the result contains no curves.
    """
    folder = path.parent
    try:
        with read_errors(path):
            found = yaml.safe_load(read_plain(path))
    except yaml.YAMLError as error:
        raise DataError(f"{path} is not valid YAML; copy the directory {folder} again") from error
    about: Mapping[str, object] = found if isinstance(found, dict) else {}
    if about.get("lifecycle_stage") == "deleted":
        return Source(path=path, format="MLflow run", mapping=("the run was deleted, so it is left out",))
    steps: dict[int, dict[str, object]] = {}
    for name, text in _texts(folder / "metrics").items():
        for number, line in enumerate(text.splitlines(), start=1):
            place = f"{folder / 'metrics' / name}, line {number}"
            match line.split():
                case [_, value, step]:
                    steps.setdefault(whole_number(step, "step", place), {})[name] = real_number(value, place)
                case _:
                    raise DataError(
                        f"{place}: expected a time, a value and a step; copy the directory {folder} again"
                    )
    name = str(about.get("run_name") or about.get("run_id") or folder.name)
    run = TrackedRun(method=name, steps=steps, config=_texts(folder / "params"), key=folder.name)
    has_ended = about.get("status") == _FINISHED
    notes = () if has_ended else (f"{path}: the run failed, or was still running when the file was written",)
    return tracked_source(path, "MLflow run", [run], stated, notes)


def _texts(folder: Path) -> dict[str, str]:
    """Return the text of each file below a directory, keyed by relative path. Symbolic links are skipped."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    found = {}
    for path in files:
        with read_errors(path):
            found[path.relative_to(folder).as_posix()] = read_plain(path, _MAX_BYTES).decode()
    return found

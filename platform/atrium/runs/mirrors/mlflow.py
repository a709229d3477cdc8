"""A run in MLflow: by default in an SQLite file in the runs directory, or on a server with a given URI.

Values are sent with their recording times. MLflow's database uses a metric's name, step, time and value as
one key, so values sent twice count once, even if the first delivery was not recorded. A run's small files
become artifacts: hard links if MLflow keeps artifacts on this disk, else copies. With hard links, the samples
of evaluations become artifacts too. Runs of one sweep, or runs that differ only in their seeds, become
children of a parent run as soon as there are two of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from atrium.base.nested import flattened_text
from atrium.runs.mirrors.delivery import Delivered
from atrium.runs.mirrors.description import RunDescription, small_files
from atrium.runs.mirrors.names import mlflow_name
from atrium.runs.mirrors.rows import Row
from atrium.runs.redaction import redact
from atrium.runs.status import RunState

RUN_TAG, GROUP_TAG, ROLE_TAG = "atrium.run", "atrium.group", "atrium.role"
_PARENT = "parent"
_METRICS_PER_BATCH, _PARAMETERS_PER_BATCH = 1000, 100
_LONGEST_PARAMETER, _LONGEST_TAG = 6000, 5000
_STATUS = {RunState.FINISHED: "FINISHED", RunState.FAILED: "FAILED", RunState.FAILED_START: "FAILED"}
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    # A server that does not respond is tried again later by `MirrorThread`.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


def default_uri(runs_dir: Path) -> str:
    """Return MLFLOW_TRACKING_URI if it is set, else the URI of the database in the runs directory."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{runs_dir.absolute()}/mlflow.db"


class MLflowDestination:
    """One run in MLflow; implements `Destination`. `open` imports MLflow, which takes seconds."""

    def __init__(self, run: RunDescription, *, runs_dir: Path, uri: str) -> None:
        self._run, self._runs_dir, self._uri = run, runs_dir.absolute(), uri
        self.target = redact(uri, {})
        self._client: Any = None
        self._run_id = ""
        self._artifacts = ""

    def open(self, delivered: Delivered) -> Delivered:
        """Find or create the experiment and the run; return the updated record.

        The run is found by its tag, even if there is no record of an earlier delivery.
        """
        os.environ.update({name: os.environ.get(name, value) for name, value in _ENVIRONMENT.items()})
        with self._one_at_a_time() as lock:
            with self._new_database(lock):
                from mlflow.tracking import MlflowClient
            self._client = MlflowClient(tracking_uri=self._uri)
            experiment_id = self._experiment()
            found = self._find(experiment_id, RUN_TAG, self._run.tags["run"])
            if found is None:
                found = self._client.create_run(
                    experiment_id,
                    start_time=round(1000 * self._run.started) or None,
                    tags=self._tags(),
                    run_name=self._run.name,
                )
                delivered = Delivered(target=self.target)
            self._run_id, self._artifacts = found.info.run_id, found.info.artifact_uri
            if found.info.status != "RUNNING":
                self._client.update_run(self._run_id, status="RUNNING")
            self._send_parameters(found.data.params)
            self._join_group(experiment_id)
        self._hand_over_files()
        return replace(delivered, remote=self._run_id, where=self._where())

    def send(self, rows: Sequence[Row]) -> None:
        """Log the rows' metrics, at most 1,000 per request."""
        from mlflow.entities import Metric

        metrics = [
            Metric(mlflow_name(name), value, round(1000 * row.time), row.step)
            for row in rows
            for name, value in row.values.items()
        ]
        for start in range(0, len(metrics), _METRICS_PER_BATCH):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + _METRICS_PER_BATCH])

    def finish(self, state: RunState, ended: float, findings: str) -> None:
        """Hand over the files, record the state and the findings as tags, and end the run in MLflow.

        A finished run gets MLflow's status FINISHED, a failed run FAILED, and any other run KILLED.
        """
        self._hand_over_files()
        self._client.set_tag(self._run_id, "atrium.state", state.value)
        self._client.set_tag(self._run_id, "atrium.findings", findings[:_LONGEST_TAG])
        self._client.set_terminated(
            self._run_id, status=_STATUS.get(state, "KILLED"), end_time=round(1000 * ended)
        )

    def close(self) -> None:
        """Discard the MLflow client; `open` creates a new one."""
        self._client = None

    @contextmanager
    def _one_at_a_time(self) -> Iterator[int]:
        """Lock a file while tables, experiments and parent runs are created; yield the file's descriptor.

        Only one process on this machine can hold the lock; others wait for it.
        """
        import fcntl

        path = self._runs_dir / ".cache" / "mlflow.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file.fileno()

    @contextmanager
    def _new_database(self, lock: int) -> Iterator[None]:
        """Create a missing local database in a subprocess while the `with` block runs.

        The creation takes seconds. The subprocess inherits the file descriptor `lock`. If this process is
        killed, the lock therefore stays held until the database is complete.
        """
        if not self._is_local() or Path(self._uri.removeprefix("sqlite:///")).exists():
            yield
            return
        code = f"from mlflow.tracking import MlflowClient; MlflowClient({self._uri!r})"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[lock],
        )
        yield
        process.wait()

    def _experiment(self) -> str:
        name = self._run.experiment
        found = self._client.get_experiment_by_name(name)
        if found is None:
            # Without its own location, MLflow would put artifacts into the working directory.
            place = (self._runs_dir / ".mlflow" / name).as_uri() if self._is_local() else None
            # The kind determines which views MLflow shows for the experiment.
            kind = {"mlflow.experimentKind": "custom_model_development"}
            return str(self._client.create_experiment(name, artifact_location=place, tags=kind))
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _is_local(self) -> bool:
        return self._uri.startswith("sqlite:")

    def _find(self, experiment_id: str, tag: str, value: str) -> Any:  # noqa: ANN401 - MLflow's run
        found = self._client.search_runs([experiment_id], f"tags.`{tag}` = '{_quoted(value)}'", max_results=1)
        return found[0] if found else None

    def _tags(self) -> dict[str, str]:
        tags = {name: value[:_LONGEST_TAG] for name, value in self._run.tags.items()}
        known = {
            "mlflow.source.git.commit": tags.get("commit"),
            "mlflow.source.name": tags.get("command"),
            "mlflow.source.type": "LOCAL" if "command" in tags else None,
        }
        return {
            **{name: value for name, value in tags.items() if name != "run"},
            **{name: value for name, value in known.items() if value is not None},
            RUN_TAG: self._run.tags["run"],
            GROUP_TAG: self._run.group,
        }

    def _send_parameters(self, present: Mapping[str, str]) -> None:
        """Log new settings of the run as parameters, and changed settings as tags.

        `present` contains the parameters that the run already has in MLflow, which cannot be changed there.
        """
        from mlflow.entities import Param, RunTag

        missing, changed = [], []
        for key, value in flattened_text(self._run.config).items():
            name, text = mlflow_name(key), value[:_LONGEST_PARAMETER]
            if name not in present:
                missing.append(Param(name, text))
            elif present[name] != text:
                changed.append(RunTag(f"changed.{name}", text[:_LONGEST_TAG]))
        for start in range(0, len(missing), _PARAMETERS_PER_BATCH):
            self._client.log_batch(self._run_id, params=missing[start : start + _PARAMETERS_PER_BATCH])
        for start in range(0, len(changed), _PARAMETERS_PER_BATCH):
            self._client.log_batch(self._run_id, tags=changed[start : start + _PARAMETERS_PER_BATCH])

    def _join_group(self, experiment_id: str) -> None:
        """Make the group's runs children of a parent run, which is created once the group has two runs."""
        group = self._client.search_runs(
            [experiment_id], f"tags.`{GROUP_TAG}` = '{_quoted(self._run.group)}'", max_results=1000
        )
        parents = [run for run in group if run.data.tags.get(ROLE_TAG) == _PARENT]
        children = [run for run in group if run.data.tags.get(ROLE_TAG) != _PARENT]
        if not parents and len(children) < 2:
            return
        if parents:
            parent_id = parents[0].info.run_id
        else:
            tags = {GROUP_TAG: self._run.group, ROLE_TAG: _PARENT}
            parent = self._client.create_run(experiment_id, tags=tags, run_name=self._run.group_name)
            parent_id = parent.info.run_id
            self._client.set_terminated(parent_id)
        for child in children:
            if child.data.tags.get("mlflow.parentRunId") != parent_id:
                self._client.set_tag(child.info.run_id, "mlflow.parentRunId", parent_id)

    def _hand_over_files(self) -> None:
        """Hand over the run's files to MLflow as artifacts.

        If MLflow's artifacts are on this machine, the small files and the samples of evaluations are
        hard-linked. Otherwise, only the small files are sent.
        """
        files = small_files(self._run.folder)
        if not self._artifacts.startswith("file:"):
            for path, folder in files:
                self._client.log_artifact(self._run_id, str(path), folder or None)
            return
        place = Path(unquote(urlsplit(self._artifacts).path))
        samples = sorted((self._run.folder / "evaluations").glob("*/*.parquet"))
        files += [(path, f"evaluations/{path.parent.name}") for path in samples]
        for path, folder in files:
            _link(path, place / folder / path.name)

    def _where(self) -> str:
        if self._is_local():
            return f"mlflow ui --backend-store-uri {self._uri}"
        return self.target


def _link(source: Path, target: Path) -> None:
    """Make `target` a hard link to `source`, or a copy if a hard link is impossible, as between disks."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _quoted(value: str) -> str:
    """Return the text without quotes and backslashes, which MLflow's filter language cannot escape."""
    return value.replace("'", "").replace("\\", "")

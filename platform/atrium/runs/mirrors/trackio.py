"""A run in Trackio's local database: `trackio show --project atrium` shows it, `trackio sync` publishes it.

Rows are written directly to Trackio's storage, which raises errors and ignores rows with known ids.
`trackio.log` is not used: its thread reports no errors, prints to the terminal of the training run, and gives
every row a new id, so a repeated row would count twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from atrium.base.errors import install_command
from atrium.runs.mirrors.delivery import Delivered, MirrorError
from atrium.runs.mirrors.description import RunDescription
from atrium.runs.mirrors.rows import Row
from atrium.runs.status import RunState


class TrackioDestination:
    """One run in a project of Trackio; implements `Destination`.

    The database is in Trackio's own location: TRACKIO_DIR, by default in the Hugging Face cache.
    """

    def __init__(self, run: RunDescription, *, project: str) -> None:
        self._run, self.target = run, project
        self._storage: Any = None

    def open(self, delivered: Delivered) -> Delivered:
        """Open Trackio's storage; return the updated record.

        Raises `MirrorError` if Trackio is not installed or does not accept the project's name.
        """
        try:
            from trackio.sqlite_storage import SQLiteStorage
        except ImportError as error:
            raise MirrorError(
                f"Trackio is not installed; run {install_command('trackio')}, or `pip install trackio`"
            ) from error
        try:
            SQLiteStorage.validate_project_name(self.target)
        except ValueError as error:
            raise MirrorError(str(error)) from error
        self._storage = SQLiteStorage
        where = f"trackio show --project {self.target}"
        return replace(delivered, remote=self._run.tags["run"], where=where)

    def send(self, rows: Sequence[Row]) -> None:
        """Add each row under its step; the database ignores rows that it already has."""
        name = self._run.tags["run"]
        self._storage.bulk_log(
            project=self.target,
            run=self._run.name,
            run_id=name,
            metrics_list=[dict(row.values) for row in rows],
            steps=[row.step for row in rows],
            timestamps=[_iso(row.time) for row in rows],
            log_ids=["/".join((name, str(row.step), *row.evaluations * row.is_late)) for row in rows],
            config=self._config(),
        )

    def finish(self, state: RunState, ended: float, findings: str) -> None:
        """Do nothing: Trackio has no field for a run's final state."""

    def close(self) -> None:
        """Do nothing: every delivery opens and closes the database."""

    def _config(self) -> dict[str, object]:
        """Return the run's settings and tags, and the fields by which Trackio orders and groups runs."""
        return {
            **self._run.config,
            "atrium": dict(self._run.tags),
            "_Created": _iso(self._run.started),
            "_Group": self._run.group_name,
        }


def _iso(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat()

"""A run in W&B: online, or offline in the run directory for `wandb sync` later.

Every step is one row of W&B's history with the run's own step number. W&B accepts steps only in increasing
order, so rows that it already has are left out, and a repeated delivery adds nothing. A process cannot
continue the offline copy of another process. Each process therefore deletes all earlier offline copies of the
run and writes a new one from the first step. An evaluation added to an earlier step cannot be added to W&B's
history; it appears in the summary.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from atrium.runs.mirrors.delivery import Delivered, MirrorError, mirrors_dir
from atrium.runs.mirrors.description import RunDescription, small_files
from atrium.runs.mirrors.rows import Row
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState

Mode = Literal["online", "offline"]
_EXIT_CODE = {RunState.FINISHED: 0, RunState.INTERRUPTED: 130}
_CONNECT_TIMEOUT_S = 60.0
_STEP, _TOKENS = "step", "tokens"
"""Axes of charts: training steps (the default), and completion tokens sampled so far."""


class WandbDestination:
    """One run in W&B; implements `Destination`. API keys come from the environment or `wandb login` only."""

    def __init__(
        self, run: RunDescription, *, runs_dir: Path, project: str, entity: str | None, mode: Mode
    ) -> None:
        self._run, self._project, self._entity = run, project, entity
        # W&B's own variable takes precedence, as its users expect.
        self._mode: Mode = "offline" if os.environ.get("WANDB_MODE") == "offline" else mode
        self.target = f"{self._mode} {entity or ''}/{project}"
        self._cache = runs_dir.absolute() / ".cache" / "wandb"
        self._session: Any = None
        self._state = RunState.RUNNING

    @property
    def run_id(self) -> str:
        """The run's id in W&B, which is the same for every process that delivers the run."""
        return hashlib.sha256(self._run.tags["run"].encode()).hexdigest()[:12]

    def open(self, delivered: Delivered) -> Delivered:
        """Start or continue the run in W&B; return the updated record.

        Raises `MirrorError` in online mode without an API key.
        """
        place = mirrors_dir(RunFolder(self._run.folder))
        if self._mode == "offline":
            for copy in (place / "wandb").glob(f"offline-run-*-{self.run_id}"):
                shutil.rmtree(copy)
            delivered = Delivered(target=self.target)
        session = self._started(place)
        if session.resumed:
            delivered = replace(delivered, step=max(delivered.step, session.step - 1))
        for axis in (_STEP, _TOKENS):
            session.define_metric(axis)
        session.define_metric("*", step_metric=_STEP)
        self._session = session
        is_offline = self._mode == "offline"
        where = f"wandb sync {session.settings.sync_dir}" if is_offline else str(session.url)
        return replace(delivered, remote=self.run_id, where=where)

    def send(self, rows: Sequence[Row]) -> None:
        """Log the rows in the order of their steps; late rows go to the summary."""
        for row in rows:
            if row.is_late:
                self._session.summary.update(dict(row.values))
            else:
                axes = {_STEP: row.step, _TOKENS: row.num_tokens}
                self._session.log({**axes, **row.values}, step=row.step)

    def finish(self, state: RunState, ended: float, findings: str) -> None:
        """Send the small files, the state and the findings, and end the run in W&B.

        The exit code in W&B is 0 for a finished run, 130 for an interrupted run, and 1 for any other.
        """
        for path, _ in small_files(self._run.folder):
            self._session.save(str(path), base_path=str(self._run.folder), policy="now")
        self._session.summary.update({"atrium/state": state.value, "atrium/findings": findings})
        session, self._session = self._session, None
        session.finish(exit_code=_EXIT_CODE.get(state, 1))

    def close(self) -> None:
        """End the session if it is still open; the run can be continued."""
        session, self._session = self._session, None
        if session is not None:
            session.finish(exit_code=1)

    def _started(self, place: Path) -> Any:  # noqa: ANN401 - W&B's run
        for name in ("cache", "config", "data"):
            os.environ.setdefault(f"WANDB_{name.upper()}_DIR", str(self._cache / name))
        os.environ.update({"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"})
        import wandb

        if self._mode == "online" and not wandb.login(prompt=False):
            raise MirrorError(
                "the W&B API key is missing; set WANDB_API_KEY, run `wandb login`, or use "
                "tracking.wandb.mode=offline"
            )
        place.mkdir(exist_ok=True)
        settings = wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            init_timeout=_CONNECT_TIMEOUT_S,
            # `atrium sync` is another process, whose machine load and command line do not describe the run.
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
        )
        tags = [self._run.tags[name] for name in ("algorithm", "divergence") if name in self._run.tags]
        return wandb.init(
            project=self._project,
            entity=self._entity,
            id=self.run_id,
            name=self._run.name,
            group=self._run.group,
            job_type=self._run.experiment,
            tags=sorted(set(tags)),
            config={**self._run.config, "atrium": dict(self._run.tags)},
            mode=self._mode,
            dir=str(place),
            resume="allow" if self._mode == "online" else None,
            # By default W&B returns the unfinished session of an earlier run of this process.
            reinit="create_new",
            settings=settings,
        )

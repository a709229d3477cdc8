"""The run folder: `runs/<experiment>/<time>-<algorithm>-s<seed>-<4 hex>/`, the record of one run.

This module knows the locations, creates folders, locks them, and truncates them for a resume. Finding them is
in `find`, reading them in `reader`, writing training's observations in `run_folder_writer`. `checkpoints/`
belongs to training; here it is only named.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from atrium.base import plugins
from atrium.base.atomic import TEMPORARY_PREFIX, explained, write_json, write_text
from atrium.base.errors import ConfigError, RunFolderError
from atrium.base.json_lines import Record
from atrium.base.plain_files import append_plain
from atrium.runs.layout import RunLayout, check_experiment, check_name, steps_in
from atrium.runs.lock import RunLock
from atrium.runs.redaction import find_secret, redact
from atrium.runs.set_aside import SetAside
from atrium.runs.status import (
    FORMAT_VERSION,
    RunState,
    StatusUnreadableError,
    StatusWriter,
    known_status,
    read_status,
)


class RunFolder(RunLayout):
    """One run's folder on disk. The constructor touches nothing; `create` and `open` do."""

    __slots__ = ()

    @classmethod
    def create(cls, runs_dir: Path | str, experiment: str, algorithm: str, seed: int) -> RunFolder:
        """Create a new, empty run folder whose status says that this process runs it.

        Raises `ConfigError` for names that are not plain folder names or that are reserved, and
        `RunFolderError` if the folder cannot be created.
        """
        check_experiment(experiment)
        check_name(algorithm, "algorithm.name")
        parent = Path(runs_dir) / experiment
        start = time.strftime("%Y%m%d-%H%M%S")
        with explained("make a run folder in", parent):
            parent.mkdir(parents=True, exist_ok=True)
            while True:
                name = f"{start}-{algorithm}-s{seed}-{secrets.token_hex(2)}"
                try:
                    (parent / name).mkdir()
                    break
                except FileExistsError:
                    continue
            folder = cls(parent / name)
            StatusWriter(folder.status_file).begin(step=0, num_steps=0)
        return folder

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """Return the run folder at `path`; `RunFolderError` if there is none."""
        folder = cls(Path(path))
        if not folder.path.is_dir():
            raise RunFolderError(f"there is no run folder at {path}; `atrium runs` lists the runs")
        if not folder.looks_like_run():
            raise RunFolderError(
                f"{path} is not a run folder (it has neither status.json nor config.json); "
                "`atrium runs` lists the runs"
            )
        return folder

    def looks_like_run(self) -> bool:
        """Return whether the folder has the files of a run folder."""
        try:
            return self.status_file.is_file() or self.config_file.is_file()
        except OSError:
            return False  # a folder without access permission

    def write_config(self, config: Mapping[str, object]) -> None:
        """Record the resolved configuration.

        Raises `ConfigError` if a value contains a secret of the environment, which may not be written to a
        file.
        """
        if (found := find_secret(config, os.environ)) is not None:
            key, variable = found
            raise ConfigError(
                f"{key} contains the value of the environment variable {variable}, which would be written "
                f"to {self.config_file}; remove it, Atrium reads {variable} from the environment"
            )
        with explained("write", self.config_file):
            write_json(self.config_file, config)

    def write_method(self, record: Mapping[str, object]) -> None:
        """Record the run's method for readers without its plugin."""
        with explained("write", self.method_file):
            write_json(self.method_file, record)

    def write_overrides(self, overrides: Sequence[str]) -> None:
        """Record the command line's overrides, without secrets."""
        lines = [f"- {json.dumps(redact(override, os.environ))}\n" for override in overrides]
        with explained("write", self.overrides_file):
            write_text(self.overrides_file, "".join(lines) or "[]\n")

    def write_provenance(self, provenance: Mapping[str, object]) -> None:
        """Record the run's provenance."""
        with explained("write", self.provenance_file):
            write_json(self.provenance_file, provenance)

    def keep_plugins(self) -> None:
        """Copy the files of this process's plugins, without secrets; copies of other versions are kept."""
        for plugin in plugins.loaded():
            if plugin.path is not None:
                file = self.plugins_dir / f"{plugin.path.stem}-{plugin.sha256[:12]}.py"
                with explained("write", file):
                    file.parent.mkdir(exist_ok=True)
                    write_text(file, redact(plugin.source.decode("utf-8", "replace"), os.environ))

    def append_log(self, text: str) -> None:
        """Add lines to `log.txt`; see `log_into`."""
        log_into(self.log_file, text)

    def lock(self) -> RunLock:
        """Lock the folder for this process, until the lock is released or the process dies.

        Raises `RunFolderError` if another process holds it or a newer Atrium wrote the folder.
        """
        self.require_known_format()
        status = known_status(self.status_file)
        known = f"process {status.pid} on {status.host or 'an unknown host'}"
        owner = "another process" if status.state == RunState.UNKNOWN else known
        with explained("lock", self.path):
            return RunLock(self.path / ".lock", owner)

    def require_known_format(self) -> None:
        """Raise `RunFolderError` if the folder was written in a newer format than this version knows."""
        version = known_status(self.status_file).format_version
        if version > FORMAT_VERSION:
            raise RunFolderError(
                f"{self.path} was written by a newer Atrium (format {version}, this one knows "
                f"{FORMAT_VERSION}); update Atrium to continue or change it"
            )

    def truncate_after(self, step: int) -> Path | None:
        """Set aside all records of later steps, before training resumes; return their new folder.

        These are checkpoints, metrics, rollouts, evaluations and the summary. A step of -1 takes everything,
        including records from before training. Returns None if there was nothing to move. The remaining files
        are bitwise unchanged. Raises `RunFolderError` if the folder cannot be changed.
        """
        self.require_known_format()
        aside = SetAside(self, max(step, 0))

        def is_kept(record: Record) -> bool:
            recorded = record.get("step")
            return isinstance(recorded, int) and recorded <= step

        with explained("cut back", self.path):
            # The newest checkpoint first and lines after all checkpoints: if this process ends early, no
            # checkpoint is left whose steps are not recorded.
            self._set_steps_aside(aside, self.checkpoints_dir, step)
            if (best := self.best_checkpoint_step()) is not None and best > step:
                aside.move(self.best_file)
            for file in (self.metrics_file, self.ratios_file, self.evaluations_file):
                aside.cut_lines(file, is_kept)
            folders = [self.rollouts_dir]
            if self.evaluations_dir.is_dir():
                folders += [path for path in self.evaluations_dir.iterdir() if path.is_dir()]
            for folder in folders:
                self._set_steps_aside(aside, folder, step)
                _drop_temporary_files(folder)
            _drop_temporary_files(self.path)
            if self.summary_file.exists():
                aside.move(self.summary_file)
            self._rewind_status(step)
        return aside.folder

    @staticmethod
    def _set_steps_aside(aside: SetAside, folder: Path, step: int) -> None:
        for recorded, path in reversed(steps_in(folder)):
            if recorded > step:
                aside.move(path)

    def _rewind_status(self, step: int) -> None:
        try:
            status = read_status(self.status_file)
        except StatusUnreadableError:
            return
        if status.step > step:
            # The run is no longer finished; it may take a while until training resumes.
            state = RunState.INTERRUPTED if status.state == RunState.FINISHED else status.state
            write_json(self.status_file, asdict(replace(status, step=max(step, 0), state=state)))


def _drop_temporary_files(folder: Path) -> None:
    if folder.is_dir():
        for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
            path.unlink(missing_ok=True)


def log_into(log: Path, text: str) -> None:
    """Add lines to a log, each with its time. A full disk must not stop a run."""
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    lines = "".join(f"{now}  {line}\n" for line in text.splitlines() if line.strip())
    try:
        with append_plain(log) as file:
            file.write(lines.encode(errors="replace"))
    except OSError:
        pass  # logs are a convenience; metrics and checkpoints report a full disk

"""The run directory: `runs/<experiment>/<time>-<algorithm>-s<seed>-<4 hex>/`, the record of one run.

This module creates and locks run directories, and truncates them for a resume. Other modules define their
paths (`layout`), search for them (`find`), read them (`reader`) and record training in them
(`run_folder_writer`). `atrium.train` writes the checkpoints.
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
from atrium.base.plain_files import append_plain
from atrium.runs.layout import RunLayout, check_experiment, check_name, steps_in, until
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
    """A run directory. The constructor does not access the disk; `create` and `open` do."""

    __slots__ = ()

    @classmethod
    def create(cls, runs_dir: Path | str, experiment: str, algorithm: str, seed: int) -> RunFolder:
        """Create a run directory that contains only `status.json`, which names this process as the run's.

        Raises `ConfigError` if `experiment` or `algorithm` is not a plain folder name, or if `experiment` is
        reserved, and `RunFolderError` if the directory cannot be created.
        """
        check_experiment(experiment)
        check_name(algorithm, "algorithm.name")
        parent = Path(runs_dir) / experiment
        start = time.strftime("%Y%m%d-%H%M%S")
        with explained("make a run directory in", parent):
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
        """Return the run directory at `path`; raises `RunFolderError` if there is none."""
        folder = cls(Path(path))
        if not folder.path.is_dir():
            raise RunFolderError(f"there is no run directory at {path}; `atrium runs` lists the runs")
        if not folder.looks_like_run():
            raise RunFolderError(
                f"{path} is not a run directory, since it has neither status.json nor config.json; `atrium "
                "runs` lists the runs"
            )
        return folder

    def looks_like_run(self) -> bool:
        """Return whether the folder contains `status.json` or `config.json`; False if it is unreadable."""
        try:
            return self.status_file.is_file() or self.config_file.is_file()
        except OSError:
            return False  # a folder without access permission

    def write_config(self, config: Mapping[str, object]) -> None:
        """Write the resolved configuration to `config.json`.

        Raises `ConfigError` if a value contains a secret from an environment variable, and `RunFolderError`
        if the file cannot be written.
        """
        if (found := find_secret(config, os.environ)) is not None:
            key, variable = found
            raise ConfigError(
                f"{key} must not contain the value of the environment variable {variable}, since it "
                f"would be written to {self.config_file}; remove it from the setting, since Atrium reads "
                f"{variable} itself"
            )
        with explained("write", self.config_file):
            write_json(self.config_file, config)

    def write_method(self, record: Mapping[str, object]) -> None:
        """Write the run's method to `method.json`, for readers that have not loaded its plugins."""
        with explained("write", self.method_file):
            write_json(self.method_file, record)

    def write_overrides(self, overrides: Sequence[str]) -> None:
        """Write the overrides from the command line to `overrides.yaml`, with secrets redacted."""
        lines = [f"- {json.dumps(redact(override, os.environ))}\n" for override in overrides]
        with explained("write", self.overrides_file):
            write_text(self.overrides_file, "".join(lines) or "[]\n")

    def write_provenance(self, provenance: Mapping[str, object]) -> None:
        """Write the result of `collect_provenance` to `provenance.json`."""
        with explained("write", self.provenance_file):
            write_json(self.provenance_file, provenance)

    def keep_plugins(self) -> None:
        """Copy the files of all loaded plugins to `plugins/`, with secrets redacted; keep earlier copies."""
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
        """Lock the run directory for this process, until the lock is released or the process exits.

        Raises `RunFolderError` if the lock is already held, even by this process, if it cannot be created, or
        if the directory has a newer format.
        """
        self.require_known_format()
        status = known_status(self.status_file)
        known = f"process {status.pid} on {status.host or 'an unknown host'}"
        owner = "another process" if status.state == RunState.UNKNOWN else known
        with explained("lock", self.path):
            return RunLock(self.path / ".lock", owner)

    def require_known_format(self) -> None:
        """Raise `RunFolderError` if the run directory has a newer format than this version of Atrium."""
        version = known_status(self.status_file).format_version
        if version > FORMAT_VERSION:
            raise RunFolderError(
                f"{self.path} was written by a newer Atrium (format {version}, but this version reads at "
                f"most {FORMAT_VERSION}); update Atrium"
            )

    def truncate_after(self, step: int) -> Path | None:
        """Move all records after `step` to `set-aside/` before training resumes; return their new folder.

        The records are checkpoints, metrics, ratios, rollouts, evaluations and the summary; damaged lines are
        moved too. Step -1 moves all records, including those from before training. Returns None if there was
        nothing to move. The remaining records are bitwise unchanged, except `status.json`: a later step is
        set back to `step`, and a finished run is then marked as interrupted. Leftover temporary files are
        deleted. Raises `RunFolderError` if a file cannot be moved or written, or if the directory has a newer
        format.
        """
        self.require_known_format()
        aside = SetAside(self, max(step, 0))
        with explained("cut back", self.path):
            # Move the newest checkpoint first, and lines after all checkpoints: if this process ends early,
            # every remaining checkpoint still has the records of its steps.
            self._set_steps_aside(aside, self.checkpoints_dir, step)
            if (best := self.best_checkpoint_step()) is not None and best > step:
                aside.move(self.best_file)
            for file in self.line_files:
                aside.cut_lines(file, until(step))
            for folder in self.sample_folders():
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
    """Append each nonempty line of `text`, with the time, to a log file; ignore write errors."""
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    lines = "".join(f"{now}  {line}\n" for line in text.splitlines() if line.strip())
    try:
        with append_plain(log) as file:
            file.write(lines.encode(errors="replace"))
    except OSError:
        pass  # logs are a convenience; metrics and checkpoints report a full disk

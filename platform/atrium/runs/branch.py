"""Branches: run directories of new runs that start with another run's records up to a step."""

from __future__ import annotations

import shutil
from pathlib import Path

from atrium.base.atomic import explained
from atrium.base.json_lines import split_lines
from atrium.runs.layout import remove, steps_in, until
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, StatusWriter


def copy_until(parent: RunFolder, step: int, folder: RunFolder) -> None:
    """Copy the parent's records up to `step` into the new run directory `folder`.

    The records are metrics, ratios, rollouts, evaluations, the provenance, and the checkpoint of `step`. The
    best checkpoint is copied too if its step is at most `step`. The new run gets the state `interrupted` at
    `step`. Raises `RunFolderError` if a file cannot be copied or written. After any error, the new
    directory is deleted.
    """
    try:
        with explained("copy", parent.path):
            for file in parent.line_files:
                lines, _ = split_lines(file, until(step))
                (folder.path / file.name).write_bytes(lines)
            for recorded in parent.sample_folders():
                for path in [path for number, path in steps_in(recorded) if number <= step]:
                    _copy(path, folder.path / path.relative_to(parent.path))
            best = parent.best_checkpoint_step()
            shared = {step, *(one for one in parent.checkpoint_steps() if one == best and one <= step)}
            for number in shared:
                shutil.copytree(parent.checkpoint_path(number), folder.checkpoint_path(number))
            for file in (parent.provenance_file, *([parent.best_file] if best in shared else [])):
                _copy(file, folder.path / file.relative_to(parent.path))
            status = StatusWriter(folder.status_file)
            status.begin(step=step, num_steps=step)
            status.end(RunState.INTERRUPTED)
    except BaseException:
        remove(folder.path)
        raise


def _copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, to)

"""A new run folder with another run's records up to a step, and that step's checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

from atrium.base.atomic import explained
from atrium.base.json_lines import Record, split_lines
from atrium.runs.layout import remove, steps_in
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, StatusWriter


def copy_until(parent: RunFolder, step: int, folder: RunFolder) -> None:
    """Fill a new run's folder; the parent is unchanged.

    The records and rollouts of the steps up to this one are copied, with its checkpoint and the best one if
    that is no later. Raises `RunFolderError` if something cannot be read or written; the new folder is then
    removed.
    """

    def is_shared(record: Record) -> bool:
        recorded = record.get("step")
        return isinstance(recorded, int) and recorded <= step

    try:
        with explained("copy", parent.path):
            for file in (parent.metrics_file, parent.ratios_file, parent.evaluations_file):
                lines, _ = split_lines(file, is_shared)
                (folder.path / file.name).write_bytes(lines)
            for recorded in (parent.rollouts_dir, *_folders(parent.evaluations_dir)):
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


def _folders(path: Path) -> list[Path]:
    return [one for one in path.iterdir() if one.is_dir()] if path.is_dir() else []


def _copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, to)

"""Search and deletion of the files that `atrium clean` may delete from the runs directory.

Runs in progress, runs locked by another process, and files outside the runs directory are never deleted.
Links are removed, not followed. A killed run that can be resumed is kept unless killed runs are selected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from atrium.base.errors import RunFolderError, reason_of
from atrium.runs.find import list_runs
from atrium.runs.layout import folder_size, remove
from atrium.runs.reader import RunOverview, read_overview
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState

_CACHE = ".cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletable:
    """A file or folder that may be deleted.

    `what` describes it to the user. `run` is the run to lock during the deletion, or None for a cache.
    """

    path: Path
    what: str
    num_bytes: int
    run: RunFolder | None = None


def find_deletable(runs_dir: Path, chosen: set[str]) -> Iterator[Deletable]:
    """Yield deletable files and folders of the chosen kinds, or of all kinds if none is chosen.

    The kinds are `caches`, `checkpoints`, `failed-starts` and `killed`. Caches are yielded only while no run
    is in progress, and only if `runs_dir` is named `runs` or contains a run. Checkpoints are those of
    finished runs, except for the last and the best checkpoint of each run. Resumable killed runs are yielded
    only if `killed` is chosen.
    """
    runs = [read_overview(folder) for folder in list_runs(runs_dir)]
    is_idle = not any(run.state.is_live for run in runs)
    # Any folder can be named as --runs-dir, and a home folder has a .cache too.
    is_runs_dir = runs_dir.name == "runs" or any(run.folder.looks_like_run() for run in runs)
    # A run in progress may be about to read a cache.
    if is_runs_dir and is_idle and (not chosen or "caches" in chosen):
        yield from _caches(runs_dir / _CACHE)
    for run in runs:
        if run.state is RunState.FINISHED and (not chosen or "checkpoints" in chosen):
            yield from _old_checkpoints(run.folder)
        if run.state is RunState.FAILED_START and (not chosen or "failed-starts" in chosen):
            what = f"failed to start: {run.status.error or 'its process was killed'}"
            yield Deletable(path=run.folder.path, what=what, num_bytes=_size(run.folder.path), run=run.folder)
        if run.state is RunState.KILLED and (not chosen or "killed" in chosen):
            yield from _killed(run, with_resumable="killed" in chosen)


def _caches(folder: Path) -> Iterator[Deletable]:
    if folder.is_dir() and not folder.is_symlink():
        for path in sorted(folder.iterdir()):
            yield Deletable(path=path, what="cache, recreated when needed", num_bytes=_size(path))


def _old_checkpoints(folder: RunFolder) -> Iterator[Deletable]:
    steps = folder.checkpoint_steps()
    for step in steps[:-1]:
        if step != folder.best_checkpoint_step():
            path = folder.checkpoint_path(step)
            what = "checkpoint, neither the last nor the best"
            yield Deletable(path=path, what=what, num_bytes=_size(path), run=folder)


def _killed(run: RunOverview, *, with_resumable: bool) -> Iterator[Deletable]:
    steps = run.folder.checkpoint_steps()
    if steps and not with_resumable:
        return
    what = f"killed at step {run.status.step} of {run.status.num_steps}"
    what += f", can be resumed from step {steps[-1]}" if steps else ", has no checkpoint"
    path = run.folder.path
    yield Deletable(path=path, what=what, num_bytes=_size(path), run=run.folder)


def kept_because(item: Deletable, runs_dir: Path, *, delete: bool) -> str | None:
    """Return why an item is kept, or None if it can be deleted or, with `delete`, has been deleted.

    An item is kept if it is outside `runs_dir`, or if its deletion fails.
    """
    return _elsewhere(item.path, runs_dir) or (_delete(item) if delete else None)


def _elsewhere(path: Path, runs_dir: Path) -> str | None:
    """Return the reason to keep `path` if its resolved folder is outside `runs_dir`, else None."""
    folder = path.parent.resolve()
    if folder.is_relative_to(runs_dir.resolve()):
        return None
    return f"it is in {folder}, outside {runs_dir}"


def _delete(item: Deletable) -> str | None:
    """Delete the item while its run is locked; return the reason if the deletion failed, else None."""
    try:
        if item.run is None:
            remove(item.path)
        else:
            with item.run.lock():
                remove(item.path)
    except RunFolderError as error:
        return str(error)
    except OSError as error:
        return reason_of(error)
    return None


def _size(path: Path) -> int:
    return folder_size(path) if path.is_dir() and not path.is_symlink() else path.lstat().st_size

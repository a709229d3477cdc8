"""Finding run folders: all of them, or the one that a person means.

A name is only compared with the names of existing runs, so no name leads out of the runs folder; a path is
followed.
"""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from atrium.base.errors import RunFolderError
from atrium.base.recorded import read_object
from atrium.runs.layout import IMPORTED, SWEEPS_DIR, steps_in
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, concluded_state, known_status

_START = re.compile(r"(\d{8}-\d{6})-")
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class LatestQuery:
    """The runs that `last` can mean; `words` describe them in the message for an empty result."""

    is_meant: Callable[[RunFolder], bool]
    words: str
    when: Callable[[RunFolder], float] | None = None
    """Time by which the latest run is chosen; by default the run's start."""


def list_runs(runs_dir: Path | str) -> list[RunFolder]:
    """Return all runs below `runs_dir`, the oldest first, without hidden folders; none if it is missing.

    Raises `RunFolderError` if `runs_dir` cannot be read.
    """
    found: list[RunFolder] = []
    for path in _folders(Path(runs_dir)):
        if path.name == SWEEPS_DIR:
            continue
        folder = RunFolder(path)
        if folder.looks_like_run():
            found.append(folder)
            continue
        try:
            found += [RunFolder(run) for run in _folders(path)]
        except RunFolderError:
            continue  # an experiment that this user may not read has no runs for this user
    return sorted(found, key=lambda folder: (started(folder), folder.name))


def find_run(runs_dir: Path | str, wanted: str, *, last: LatestQuery | None = None) -> RunFolder:
    """Return the run that `wanted` means: `last`, a path, `<experiment>/<run>`, a run's name, or its end.

    `last` is the latest run of all, or of those that suit the caller; a run that failed to start is never
    meant.

    Raises `RunFolderError` if there is none, naming the nearest, or more than one.
    """
    if (path := _as_path(wanted)) is not None:
        return RunFolder.open(path)
    runs = list_runs(runs_dir)
    if not runs:
        raise RunFolderError(
            f"there are no runs in {Path(runs_dir).absolute()}; `atrium train` creates one, --runs-dir "
            "names another folder"
        )
    if wanted == "last":
        in_order = runs if last is None or last.when is None else sorted(runs, key=last.when)
        for run in reversed(in_order):
            if not is_failed_start(run) and (last is None or last.is_meant(run)):
                return run
        words = "{} contains no run that has started" if last is None else last.words
        raise RunFolderError(
            f"last: {words.format(Path(runs_dir).absolute())}; --runs-dir names another folder"
        )
    matches = _matching(runs, wanted)
    if len(matches) == 1:
        return matches[0]
    if matches:
        names = _listed([run.name for run in matches])
        raise RunFolderError(f"{wanted!r} matches {len(matches)} runs: {names}; give more of the name")
    raise RunFolderError(f"there is no run {_shortened(wanted)!r}; {_nearest(runs, wanted)}")


def find_runs(runs_dir: Path | str, wanted: Sequence[str]) -> list[RunFolder]:
    """Return the runs that names mean, each once; an experiment's name stands for all of its runs."""
    runs = list_runs(runs_dir)
    found: dict[Path, RunFolder] = {}
    for name in wanted:
        members = [run for run in runs if run.name.partition("/")[0] == name.rstrip("/")]
        found |= {run.path.resolve(): run for run in members or [find_run(runs_dir, name)]}
    return list(found.values())


def short_name(runs_dir: Path, folder: RunFolder) -> str:
    """Return the run's shortest unambiguous name: its four digits, or all of it."""
    name = folder.path.name
    digits = name.rpartition("-")[2]
    num_alike = sum(other.path.name.endswith(digits) for other in list_runs(runs_dir))
    return digits if num_alike == 1 and digits else folder.name


def name_to_type(folder: RunFolder) -> str:
    """Return the name that a person types for this run: a short one in `./runs`, else its path."""
    runs_dir = folder.path.parent.parent
    if runs_dir.resolve() == Path("runs").resolve():
        return short_name(runs_dir, folder)
    return str(folder.path)


def started(folder: RunFolder) -> float:
    """Return when the run began, in seconds since 1970: from its status, else its name, else 0."""
    if (recorded := known_status(folder.status_file).started) > 0.0:
        return recorded
    if match := _START.match(folder.path.name):
        try:
            return time.mktime(time.strptime(match[1], "%Y%m%d-%H%M%S"))
        except (ValueError, OverflowError):
            return 0.0
    return 0.0


def is_failed_start(folder: RunFolder) -> bool:
    """Return whether the run ended before its first step or evaluation; it does not count for its method."""
    return concluded_state(known_status(folder.status_file)) is RunState.FAILED_START


def _kind(folder: RunFolder) -> object:
    return read_object(folder.config_file)[0].get("kind")


TRAINED = LatestQuery(lambda run: _kind(run) not in ("evaluation", IMPORTED), "{} contains no training")


def _last_evaluated(folder: RunFolder) -> float:
    """Return when samples of an evaluation were last written, in seconds since 1970; 0 for none."""
    times = (path.stat().st_mtime for path in folder.evaluations_dir.glob("*/*.parquet"))
    return max(times, default=0.0)


EVALUATED = LatestQuery(lambda run: _kind(run) == "evaluation", "{} contains no evaluation")
WITH_CHECKPOINT = LatestQuery(lambda run: bool(run.checkpoint_steps()), "no run in {} has a checkpoint")
WITH_SAMPLES = LatestQuery(
    lambda run: _last_evaluated(run) > 0.0, "{} contains no samples of an evaluation", _last_evaluated
)
WITH_ROLLOUTS = LatestQuery(lambda run: bool(steps_in(run.rollouts_dir)), "no run in {} recorded rollouts")


def _folders(path: Path) -> list[Path]:
    try:
        return [entry for entry in path.iterdir() if entry.name[0] != "." and entry.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}") from error


def _as_path(wanted: str) -> Path | None:
    """Return the folder that `wanted` names as a path, if it is one."""
    try:
        path = Path(wanted)
        if len(path.parts) < 3 or ".." in path.parts:  # the runs' folder is two levels above a run
            path = Path(os.path.abspath(path))  # noqa: PTH100 - follows no link, as resolve() would
        return path if wanted and path.is_dir() and RunFolder(path).looks_like_run() else None
    except (OSError, ValueError):
        return None  # too long, or a zero byte: not a path


def _matching(runs: Sequence[RunFolder], wanted: str) -> list[RunFolder]:
    """Return the best matches: equal names first, then ends, then any part; none for an empty text."""
    wanted = wanted.strip().rstrip("/").lower()
    if not wanted:
        return []
    names = [(run, run.name.lower()) for run in runs]
    equal = [run for run, name in names if wanted in (name, name.rpartition("/")[2])]
    ends = [run for run, name in names if name.endswith(wanted)]
    return equal or ends or [run for run, name in names if wanted in name]


def _nearest(runs: Sequence[RunFolder], wanted: str) -> str:
    experiments = dict.fromkeys(run.name.partition("/")[0] for run in runs)
    names = ["last", *experiments, *(run.path.name for run in runs), *(run.name for run in runs)]
    if close := difflib.get_close_matches(wanted[:200], names, n=1, cutoff=0.5):
        return f"did you mean {close[0]}?"
    return f"the latest are {_listed([run.name for run in reversed(runs)])}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."

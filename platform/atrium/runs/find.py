"""Search for run directories: all runs, or the run with a given name or path.

Only a path can refer to a folder outside the runs directory, because a name is only compared with the names
of existing runs.
"""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from atrium.base.errors import RunFolderError, reason_of
from atrium.base.recorded import read_object
from atrium.runs.layout import IMPORTED, RESERVED, steps_in
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, concluded_state, known_status

_START = re.compile(r"(\d{8}-\d{6})-")
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class LatestQuery:
    """A filter for the runs to which the name `last` can refer.

    `is_meant` returns whether a run qualifies. `words` is the error message if none does, with `{}` for the
    path of the runs directory.
    """

    is_meant: Callable[[RunFolder], bool]
    words: str
    when: Callable[[RunFolder], float] | None = None
    """Returns the time by which the latest run is chosen; None means the run's start."""


def list_runs(runs_dir: Path | str) -> list[RunFolder]:
    """Return all runs below `runs_dir`, oldest first.

    Hidden folders and those in `RESERVED` are skipped. The list is empty if `runs_dir` does not exist. Raises
    `RunFolderError` if `runs_dir` cannot be read.
    """
    found: list[RunFolder] = []
    for path in _folders(Path(runs_dir)):
        if path.name in RESERVED:
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
    """Return the run named by `wanted`: `last`, a path, `<experiment>/<run>`, or part of a run's name.

    The name `last` stands for the latest run that the query `last` accepts. If `last` is None, every run
    qualifies. Failed starts never qualify.

    Raises `RunFolderError` if several runs match, or if none does. If none matches, the message suggests a
    similar name or lists the latest runs.
    """
    if (path := _as_path(wanted)) is not None:
        return RunFolder.open(path)
    runs = list_runs(runs_dir)
    if not runs:
        raise RunFolderError(
            f"there are no runs in {Path(runs_dir).absolute()}; create one with `atrium train`, or "
            "choose another folder with --runs-dir"
        )
    if wanted == "last":
        in_order = runs if last is None or last.when is None else sorted(runs, key=last.when)
        for run in reversed(in_order):
            if not is_failed_start(run) and (last is None or last.is_meant(run)):
                return run
        words = "{} contains no run that has started" if last is None else last.words
        raise RunFolderError(
            f"last: {words.format(Path(runs_dir).absolute())}; choose another folder with --runs-dir"
        )
    matches = _matching(runs, wanted)
    if len(matches) == 1:
        return matches[0]
    if matches:
        names = _listed([run.name for run in matches])
        raise RunFolderError(
            f"{wanted!r} matches {len(matches)} runs: {names}; give a longer part of the name"
        )
    raise RunFolderError(f"there is no run {_shortened(wanted)!r}; {_nearest(runs, wanted)}")


def find_runs(runs_dir: Path | str, wanted: Sequence[str]) -> list[RunFolder]:
    """Return the runs with the given names, each once; an experiment's name stands for all of its runs."""
    runs = list_runs(runs_dir)
    found: dict[Path, RunFolder] = {}
    for name in wanted:
        members = [run for run in runs if run.name.partition("/")[0] == name.rstrip("/")]
        found |= {run.path.resolve(): run for run in members or [find_run(runs_dir, name)]}
    return list(found.values())


def short_name(runs_dir: Path, folder: RunFolder) -> str:
    """Return the part of the run's name after the last hyphen if it is unique, else the full name."""
    name = folder.path.name
    digits = name.rpartition("-")[2]
    num_alike = sum(other.path.name.endswith(digits) for other in list_runs(runs_dir))
    return digits if num_alike == 1 and digits else folder.name


def name_to_type(folder: RunFolder) -> str:
    """Return the name to pass to commands for this run: a short name for runs in `./runs`, else the path."""
    runs_dir = folder.path.parent.parent
    if runs_dir.resolve() == Path("runs").resolve():
        return short_name(runs_dir, folder)
    return str(folder.path)


def started(folder: RunFolder) -> float:
    """Return the run's start time in seconds since 1970 from its status or name, or 0 if unknown."""
    if (recorded := known_status(folder.status_file).started) > 0.0:
        return recorded
    if match := _START.match(folder.path.name):
        try:
            return time.mktime(time.strptime(match[1], "%Y%m%d-%H%M%S"))
        except (ValueError, OverflowError):
            return 0.0
    return 0.0


def is_failed_start(folder: RunFolder) -> bool:
    """Return whether the run failed before its first step or evaluation, and so does not count as a run.

    An interrupted run is not a failed start.
    """
    return concluded_state(known_status(folder.status_file)) is RunState.FAILED_START


def _kind(folder: RunFolder) -> object:
    return read_object(folder.config_file)[0].get("kind")


TRAINED = LatestQuery(lambda run: _kind(run) not in ("evaluation", IMPORTED), "{} contains no training run")


def _last_evaluated(folder: RunFolder) -> float:
    """Return the time of the newest evaluation samples, in seconds since 1970, or 0 if there are none."""
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
        raise RunFolderError(f"{path} cannot be read: {reason_of(error)}; check its permissions") from error


def _as_path(wanted: str) -> Path | None:
    """Return `wanted` as a path if a run directory exists at this path, else None."""
    try:
        path = Path(wanted)
        if len(path.parts) < 3 or ".." in path.parts:  # the runs directory is two levels above a run
            path = Path(os.path.abspath(path))  # noqa: PTH100 - follows no link, as resolve() would
        return path if wanted and path.is_dir() and RunFolder(path).looks_like_run() else None
    except (OSError, ValueError):
        return None  # too long, or a zero byte: not a path


def _matching(runs: Sequence[RunFolder], wanted: str) -> list[RunFolder]:
    """Return the runs whose names match `wanted` best: equal to it, else ending with it, else containing it.

    `wanted` counts as equal to a run's name if it is the full name, the experiment or the part after the
    slash. The comparison ignores case. The list is empty if `wanted` is blank.
    """
    wanted = wanted.strip().rstrip("/").lower()
    if not wanted:
        return []
    names = [(run, run.name.lower()) for run in runs]
    equal = [run for run, name in names if wanted in (name, *name.split("/"))]
    ends = [run for run, name in names if name.endswith(wanted)]
    return equal or ends or [run for run, name in names if wanted in name]


def _nearest(runs: Sequence[RunFolder], wanted: str) -> str:
    experiments = dict.fromkeys(run.name.partition("/")[0] for run in runs)
    names = ["last", *experiments, *(run.path.name for run in runs), *(run.name for run in runs)]
    if close := difflib.get_close_matches(wanted[:200], names, n=1, cutoff=0.5):
        return f"did you mean {close[0]}?"
    latest = _listed([run.name for run in reversed(runs)])
    return f"the experiments are {_listed([*reversed(experiments)])}; the latest runs are {latest}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."

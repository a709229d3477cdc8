"""What lies in `runs/`, read from small files only, and read again only where a file has changed.

Whatever state a folder is in, it gets an entry that says what is known and what is wrong. Folders that lie
outside of `runs/`, by a link, are never read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from atrium.base.errors import RunFolderError
from atrium.base.nested import flattened_text
from atrium.base.recorded import read_object
from atrium.compare.arms import as_trained
from atrium.compare.run_settings import Settings
from atrium.runs.find import list_runs, started
from atrium.runs.reader import EvaluationPoint, RunOverview, read_evaluations, read_overview
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, RunStatus
from atrium.views.dashboard.annotations import FILE_NAME, Annotations, read_annotations

Signature = tuple[tuple[int, int] | None, ...]
OUTSIDE = "it is a link to a place outside of the runs folder, which is not read"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """One run as the dashboard knows it. `started` is in seconds since 1970, 0 where unknown.

    `collapses` are the names of what went wrong in it, as its summary has them.
    """

    overview: RunOverview
    settings: Settings
    annotations: Annotations
    started: float
    num_tokens: int | None
    collapses: tuple[str, ...]
    problems: tuple[str, ...]
    signature: Signature

    @property
    def name(self) -> str:
        """`<experiment>/<run>`."""
        return self.overview.folder.name

    @property
    def experiment(self) -> str:
        """The folder that the run is filed in."""
        return self.name.partition("/")[0]

    @property
    def is_evaluation(self) -> bool:
        """Whether a model was evaluated here, and none trained."""
        return self.overview.config.get("kind") == "evaluation"

    @property
    def trained_settings(self) -> Settings:
        """The settings of the run; of an evaluated checkpoint, those that it was trained with."""
        return flattened_text(as_trained(self.overview.config)) if self.is_evaluation else self.settings

    @property
    def left_s(self) -> float | None:
        """About how long a training still takes, from its steps so far; None where that is not known."""
        status = self.overview.status
        if not self.overview.state.is_live or not (status.step and status.num_steps):
            return None
        return status.wall_s / status.step * max(status.num_steps - status.step, 0) or None

    @property
    def folder(self) -> RunFolder:
        """The run's folder."""
        return self.overview.folder


class RunsScan:
    """All runs below one folder. `scan` is called by one thread; its results are frozen."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self.entries: Mapping[str, RunEntry] = {}
        self.problem: str | None = None
        self._evaluations: dict[str, tuple[Signature, Mapping[str, tuple[EvaluationPoint, ...]]]] = {}

    def scan(self) -> set[str]:
        """Bring the entries up to date; the names of runs that appeared, changed or went."""
        try:
            folders = list_runs(self.runs_dir)
            self.problem = None
        except RunFolderError as error:
            self.problem, folders = str(error), []
        before = self.entries
        found = {folder.name: self._entry(folder, before.get(folder.name)) for folder in folders}
        self.entries = found
        return {name for name, entry in found.items() if before.get(name) is not entry} | (
            before.keys() - found.keys()
        )

    def entry(self, name: str) -> RunEntry:
        """The run of that name. Raises `RunFolderError` where there is none, or it may not be read."""
        entry = self.entries.get(name)
        if entry is None:
            raise RunFolderError(f"there is no run {name[:120]!r} in {self.runs_dir}")
        if OUTSIDE in entry.problems:
            raise RunFolderError(f"{name}: {OUTSIDE}")
        return entry

    def evaluations(self, entry: RunEntry) -> Mapping[str, tuple[EvaluationPoint, ...]]:
        """The run's evaluations by benchmark; none where they cannot be read, which its problems say."""
        known = self._evaluations.get(entry.name)
        if known is None or known[0] != entry.signature:
            try:
                known = (entry.signature, read_evaluations(entry.folder))
            except OSError:
                known = (entry.signature, {})
            self._evaluations[entry.name] = known
        return known[1]

    def _entry(self, folder: RunFolder, before: RunEntry | None) -> RunEntry:
        signature = _signature(folder)
        if before is not None and before.signature == signature and not _may_die(before):
            return before
        if not is_within(folder.path, self.runs_dir) or _leads_outside(folder.path, self.runs_dir):
            return _unread(folder, signature, OUTSIDE)
        try:
            return self._read(folder, before, signature)
        except (RecursionError, ValueError, TypeError, OverflowError) as error:
            # Readers forgive what they foresaw; one strange folder must not hide the others.
            return _unread(folder, signature, f"it cannot be read: {type(error).__name__}")

    def _read(self, folder: RunFolder, before: RunEntry | None, signature: Signature) -> RunEntry:
        overview = read_overview(folder)
        if before is not None and before.signature == signature:
            same = overview.state == before.overview.state
            return before if same else replace(before, overview=overview)
        annotations, problem = read_annotations(folder.path)
        summary, _ = read_object(folder.summary_file)
        num_tokens = summary.get("num_tokens")
        return RunEntry(
            overview=overview,
            settings=flattened_text(overview.config),
            annotations=annotations,
            started=overview.status.started or started(folder),
            num_tokens=num_tokens if isinstance(num_tokens, int) else None,
            collapses=_collapses(summary.get("findings")),
            problems=(*overview.problems, *([problem] if problem else [])),
            signature=signature,
        )


def is_within(path: Path, folder: Path) -> bool:
    """Whether the path, links followed, lies in the folder."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return False


def _leads_outside(folder: Path, runs_dir: Path) -> bool:
    """Whether anything directly in the folder is a link that leads out of `runs_dir`."""
    try:
        with os.scandir(folder) as found:
            links = [Path(item.path) for item in found if item.is_symlink()]
    except OSError:
        return False
    return not all(is_within(link, runs_dir) for link in links)


def _collapses(findings: object) -> tuple[str, ...]:
    rules = (
        [one.get("rule") for one in findings if isinstance(one, Mapping)]
        if isinstance(findings, list)
        else []
    )
    return tuple(dict.fromkeys(rule for rule in rules if isinstance(rule, str)))


def _signature(folder: RunFolder) -> Signature:
    """A value that changes with any file of the run that the entry is read from, and with added metrics.

    The folder's own time is among them: a link that leads out may come after the entry was read.
    """
    files = (
        folder.path,
        folder.status_file,
        folder.config_file,
        folder.summary_file,
        folder.evaluations_file,
        folder.metrics_file,
        folder.path / FILE_NAME,
    )
    signature: list[tuple[int, int] | None] = []
    for file in files:
        try:
            stat = file.stat()
            signature.append((stat.st_mtime_ns, stat.st_size))
        except OSError:
            signature.append(None)
    return tuple(signature)


def _may_die(entry: RunEntry) -> bool:
    """Whether the run's state can change without any of its files: its process may be gone."""
    return entry.overview.state.is_live


def _unread(folder: RunFolder, signature: Signature, reason: str) -> RunEntry:
    overview = RunOverview(
        folder=folder,
        state=RunState.UNKNOWN,
        status=RunStatus(),
        config={},
        scores={},
        problems=(reason,),
    )
    return RunEntry(
        overview=overview,
        settings={},
        annotations=Annotations(),
        started=0.0,
        num_tokens=None,
        collapses=(),
        problems=(reason,),
        signature=signature,
    )

"""A scanner of the run directories in `runs/`.

It reads only small files, and only of runs that have changed or are in progress. A damaged run directory has
an entry, too, with its readable data and its problems. Links to folders outside of `runs/` are never
followed.
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
from atrium.compare.collapse import collapses_of, recorded_findings
from atrium.compare.run_settings import Settings
from atrium.runs.find import list_runs, started
from atrium.runs.reader import EvaluationPoint, RunOverview, read_evaluations, read_overview
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, RunStatus
from atrium.views.dashboard.annotations import FILE_NAME, Annotations, read_annotations

Signature = tuple[tuple[int, int] | None, ...]
OUTSIDE = "links to folders outside of the runs directory are not read"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """The dashboard's data on one run.

    `findings` maps all findings in the run's summary to the step at which each began (0 if unknown).
    `collapses` does the same for the findings that count as a collapse (see `compare.collapse`). `started` is
    in Unix seconds. `signature` changes whenever a file from which the entry was read changes.
    """

    overview: RunOverview
    settings: Settings
    annotations: Annotations
    started: float
    num_tokens: int | None
    collapses: Mapping[str, int]
    findings: Mapping[str, int]
    problems: tuple[str, ...]
    signature: Signature

    @property
    def name(self) -> str:
        """The run's name, `<experiment>/<run>`."""
        return self.overview.folder.name

    @property
    def experiment(self) -> str:
        """The name of the run's experiment."""
        return self.name.partition("/")[0]

    @property
    def is_evaluation(self) -> bool:
        """Whether the run is an evaluation rather than training."""
        return self.overview.config.get("kind") == "evaluation"

    @property
    def trained_settings(self) -> Settings:
        """The run's settings. For an evaluated checkpoint, these are the settings of its training."""
        return flattened_text(as_trained(self.overview.config)) if self.is_evaluation else self.settings

    @property
    def left_s(self) -> float | None:
        """Estimated remaining seconds of training, from the mean time per step. None if unknown or 0."""
        status = self.overview.status
        if not self.overview.state.is_live or not (status.step and status.num_steps):
            return None
        return status.wall_s / status.step * max(status.num_steps - status.step, 0) or None

    @property
    def folder(self) -> RunFolder:
        """The run directory."""
        return self.overview.folder


class RunsScan:
    """The entries of all runs in a runs directory. Entries are immutable. Only one thread may call `scan`."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self.entries: Mapping[str, RunEntry] = {}
        self.problem: str | None = None
        self._evaluations: dict[str, tuple[Signature, Mapping[str, tuple[EvaluationPoint, ...]]]] = {}

    def scan(self) -> set[str]:
        """Update `entries` and `problem`, and return the names of new, changed and removed runs."""
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
        """Return the run with this name; raise `RunFolderError` if it is unknown or outside `runs/`."""
        entry = self.entries.get(name)
        if entry is None:
            raise RunFolderError(f"there is no run {name[:120]!r} in {self.runs_dir}")
        if OUTSIDE in entry.problems:
            raise RunFolderError(f"{name}: {OUTSIDE}")
        return entry

    def evaluations(self, entry: RunEntry) -> Mapping[str, tuple[EvaluationPoint, ...]]:
        """Return the run's evaluations by benchmark.

        Returns an empty mapping if they cannot be read.
        """
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
        if before is not None and before.signature == signature and not before.overview.state.is_live:
            return before
        if not is_within(folder.path, self.runs_dir) or _leads_outside(folder.path, self.runs_dir):
            return _unread(folder, signature, OUTSIDE)
        try:
            return self._read(folder, before, signature)
        except (RecursionError, ValueError, TypeError, OverflowError) as error:
            # An unforeseen error in one folder must not hide the other runs.
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
            collapses={} if overview.state.is_live else collapses_of(overview) or {},
            findings=recorded_findings(folder),
            problems=(*overview.problems, *([problem] if problem else [])),
            signature=signature,
        )


def is_within(path: Path, folder: Path) -> bool:
    """Return whether the path is inside the folder, after links are resolved."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return False


def _leads_outside(folder: Path, runs_dir: Path) -> bool:
    """Return whether the folder contains, at its top level, a link to a target outside of `runs_dir`."""
    try:
        with os.scandir(folder) as found:
            links = [Path(item.path) for item in found if item.is_symlink()]
    except OSError:
        return False
    return not all(is_within(link, runs_dir) for link in links)


def _signature(folder: RunFolder) -> Signature:
    """Return (modification time, size) of each file that determines an entry, None for a missing file.

    The run directory itself is included, because a link to the outside may be added later.
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
        collapses={},
        findings={},
        problems=(reason,),
        signature=signature,
    )

"""The life of a run: its folder is created or resumed, locked, written, and records how the run ended.

Training, evaluations, the runs of a sweep and the ranks of a launch begin and end here.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from atrium.assemble.pictures import draw_run
from atrium.assemble.ranks import agreed_folder, explained_by, restore_and_truncate
from atrium.base import plugins
from atrium.base.recorded import read_object
from atrium.base.watchdog import on_hang
from atrium.config.schema import RunConfig
from atrium.engines.engine import EngineFacts
from atrium.launch.rank_logs import rank_log
from atrium.runs.diagnosis import Notes
from atrium.runs.document import summary_document
from atrium.runs.listener import Listener, Listeners
from atrium.runs.mirrors.targets import mirrored
from atrium.runs.provenance import DataProvenance, collect_provenance
from atrium.runs.reader import read_facts, read_overview, read_steps
from atrium.runs.run_folder import RunFolder, log_into
from atrium.runs.run_folder_writer import RunFolderWriter
from atrium.runs.status import RunState, RunStatus, StatusWriter, end_by
from atrium.train.checkpoint.checkpoint import Checkpoint
from atrium.train.ranks.ranks import SINGLE, Ranks
from atrium.views.live.log_display import LogDisplay
from atrium.views.live.terminal_display import displays
from atrium.views.terminal import print_document, standard_output


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A request to open a run.

    A new folder is named after `label` and `seed`; `resume` is the folder to continue instead. `record` is
    the content of its config.json. `draw` creates the figures of a finished run, `conclude` reports the
    results, however it ended.
    """

    config: RunConfig
    label: str
    seed: int
    record: Mapping[str, object]
    resume: Path | str | None
    mirrors: tuple[str, ...]
    draw: Callable[[RunFolder], object]
    conclude: Callable[[RunFolder], object]


@dataclass(frozen=True, kw_only=True)
class Run:
    """An open run.

    `checkpoint` is the one that a resumed run continues from. `closing` is closed last, after the end is
    recorded. Entries of `summary` are added to summary.json.
    """

    config: RunConfig
    folder: RunFolder
    ranks: Ranks
    listener: Listener
    closing: ExitStack
    checkpoint: Checkpoint | None
    summary: dict[str, object]

    @property
    def log(self) -> Callable[[str], None]:
        """Writes a line for the user."""
        return self.listener.message

    def record_provenance(self, data: DataProvenance, **more: object) -> None:
        """Write the run's provenance; a resumed run's record becomes that of its newest session."""
        if self.ranks.is_first:
            for plugin in plugins.loaded():
                self.log(f"plugin {plugin}")
            self.folder.keep_plugins()
            num_threads = self.config.compute.num_threads
            self.folder.write_provenance(collect_provenance(data, num_threads=num_threads, extra=more))

    def record_engine(self, facts: EngineFacts) -> None:
        """Report the started engine, and add it to the run's provenance."""
        if facts.described and self.ranks.is_first:
            self.log("engine: " + ", ".join(f"{name} {value}" for name, value in facts.described.items()))
            provenance, _ = read_object(self.folder.provenance_file)
            self.folder.write_provenance({**provenance, "engine": dict(facts.described)})


def start_of(resume: Path | str | None) -> float:
    """Return when a run began, in seconds since 1970: the resumed one, or now for a new one."""
    status = RunStatus() if resume is None else read_overview(RunFolder(Path(resume))).status
    return status.started or time.time()


def training_request(config: RunConfig) -> RunRequest:
    """Return the request for a training run."""
    return RunRequest(
        config=config,
        label=config.algorithm.name,
        seed=config.seed,
        record=config.as_record(),
        resume=config.resume,
        mirrors=config.tracking.mirrors,
        draw=draw_run,
        conclude=print_summary,
    )


def print_summary(folder: RunFolder) -> None:
    """Print the results of a run; nothing if its folder is missing.

    Raises `OSError` if a file of the folder exists and cannot be read.
    """
    if folder.path.is_dir():
        console = standard_output()
        console.print()
        print_document(console, summary_document(folder))


def begin_folder(request: RunRequest, overrides: Sequence[str]) -> RunFolder:
    """Return the folder of a new run, with the typed overrides, or that of the run to resume."""
    if request.resume is not None:
        return RunFolder.open(request.resume)
    config = request.config
    folder = RunFolder.create(config.runs_dir, config.experiment_name, request.label, request.seed)
    folder.write_overrides(overrides)
    return folder


@contextmanager
def opened(
    request: RunRequest,
    overrides: Sequence[str] = (),
    *,
    ranks: Ranks = SINGLE,
    watchers: Sequence[Listener] = (),
) -> Iterator[Run]:
    """Open a run, from its folder to its summary; the body builds its parts and runs them.

    The folder then says how it ended: `finished`; `interrupted` by `Interrupted` or Ctrl-C; `pruned` by
    `Pruned`; `failed` by any other error, or by a wait that ends the process. Only rank 0 writes the folder;
    other ranks have a log. `watchers` receive the run's events after all other listeners and may end it.
    """
    config = request.config
    folder = agreed_folder(begin_folder(request, overrides) if ranks.is_first else None, ranks)
    with ExitStack() as closing:
        if ranks.is_first:
            closing.enter_context(folder.lock())
        summary: dict[str, object] = {}
        with _end_recorded(folder if ranks.is_first and request.resume is None else None):
            shown = _displays(config, folder, ranks)
            checkpoint = restore_and_truncate(config, folder, ranks, Listeners(shown).message)
            if ranks.is_first:
                folder.write_config(request.record)
                folder.write_method(config.method.as_record(config.use))
                mirrors = closing.enter_context(mirrored(folder, request.mirrors, Listeners(shown).message))
                shown = _listeners(request, folder, shown, (mirrors, *watchers), summary)
        listeners = Listeners(shown)
        run = Run(
            config=config,
            folder=folder,
            ranks=ranks,
            listener=listeners,
            closing=closing,
            checkpoint=checkpoint,
            summary=summary,
        )
        try:
            with on_hang(partial(listeners.end, RunState.FAILED)), explained_by(ranks), plugins.explained():
                yield run
        except BaseException as failure:
            listeners.end(*end_by(failure))
            raise
        else:
            listeners.end(RunState.FINISHED)
            if ranks.is_first and config.tracking.figures:
                request.draw(folder)
        finally:
            if ranks.is_first:
                request.conclude(folder)


@contextmanager
def _end_recorded(folder: RunFolder | None) -> Iterator[None]:
    """Record in a new folder's status how the body failed: no listener is active yet."""
    try:
        yield
    except BaseException as failure:
        if folder is not None:
            StatusWriter(folder.status_file).end(*end_by(failure))
        raise


def _displays(config: RunConfig, folder: RunFolder, ranks: Ranks) -> tuple[Listener, ...]:
    if ranks.is_first:
        return displays(config.tracking.progress, folder.append_log)
    log = rank_log(folder.path, ranks.rank)
    log.parent.mkdir(exist_ok=True)
    return (LogDisplay(partial(log_into, log)),)


def _listeners(
    request: RunRequest,
    folder: RunFolder,
    shown: Sequence[Listener],
    watchers: Sequence[Listener],
    summary: Mapping[str, object],
) -> tuple[Listener, ...]:
    """Return the listeners in order: events are recorded before they are shown."""
    log, tracking = Listeners(shown).message, request.config.tracking
    return (
        RunFolderWriter(
            folder,
            log,
            rollouts_every_num_steps=tracking.rollouts_every_num_steps,
            rollouts_max_mb=tracking.rollouts_max_mb,
            summary=summary,
        ),
        *shown,
        Notes(log, read_steps(folder), read_facts(folder)),
        *watchers,
    )


class StopRequests:
    """Ctrl-C, SIGTERM and a cluster's signals as requests to stop after the current step."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._is_asked = False

    def __call__(self) -> bool:
        """Return whether the run should stop after the current step."""
        return self._is_asked

    def ask(self, number: int) -> None:
        """Handle a signal; raises `KeyboardInterrupt` on a second Ctrl-C."""
        if self._is_asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._is_asked = True
        self._log("stopping after this step; Ctrl-C again stops at once")

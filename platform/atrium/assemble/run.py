"""Functions that open and lock a run directory at the start of a run, and record the outcome at its end.

All runs use this module: training, evaluations, the runs of a sweep, and each rank of a launched run.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from atrium.assemble.fitting import changed
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
from atrium.runs.first_lines import FirstLines
from atrium.runs.listener import Listener, Listeners
from atrium.runs.mirrors.targets import mirrored
from atrium.runs.provenance import DataProvenance, collect_provenance
from atrium.runs.reader import read_facts, read_overview, read_steps
from atrium.runs.run_folder import RunFolder, log_into
from atrium.runs.run_folder_writer import RunFolderWriter
from atrium.runs.status import RunState, RunStatus, StatusWriter, end_by
from atrium.runs.system_metrics import SystemMetrics
from atrium.train.checkpoint.checkpoint import Checkpoint
from atrium.train.ranks.ranks import SINGLE, Ranks
from atrium.views.live.log_display import LogDisplay
from atrium.views.live.terminal_display import displays
from atrium.views.terminal import print_document, standard_output


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A request to open a run.

    A new run directory is named after `label` and `seed`. `resume` is the run to resume, or None for a new
    run. `record` is the content of config.json. `mirrors` are the names of mirrors, such as `mlflow`. `draw`
    creates the figures of a finished run, and `conclude` reports the results of a run, also after an error.
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

    `checkpoint` is the checkpoint to resume from, or None for a new run and for a resumed run without a
    checkpoint. Resources registered with `closing` are released last, after the outcome is recorded. Entries
    of `summary` are added to summary.json. `gauges` maps metric names to functions, whose values are recorded
    with the system metrics.
    """

    config: RunConfig
    folder: RunFolder
    ranks: Ranks
    listener: Listener
    closing: ExitStack
    checkpoint: Checkpoint | None
    summary: dict[str, object]
    gauges: dict[str, Callable[[], float]] = field(default_factory=dict)

    @property
    def log(self) -> Callable[[str], None]:
        """A function that writes a line to the display and the run's log."""
        return self.listener.message

    def with_compute(self, **values: object) -> Run:
        """Return the run with other values of `compute`, and record them in config.json."""
        config = changed(self.config, compute=values)
        if self.ranks.is_first:
            self.folder.write_config(config.as_record())
        return replace(self, config=config)

    def record_provenance(self, data: DataProvenance, **more: object) -> None:
        """Write the run's provenance, including the entries of `more`.

        In a resumed run, this replaces the provenance of the earlier session.
        """
        if self.ranks.is_first:
            for plugin in plugins.loaded():
                self.log(f"plugin {plugin}")
            self.folder.keep_plugins()
            num_threads = self.config.compute.num_threads
            self.folder.write_provenance(collect_provenance(data, num_threads=num_threads, extra=more))

    def record_engine(self, facts: EngineFacts) -> None:
        """Log the facts about the started engine, and add them to the run's provenance."""
        if facts.described and self.ranks.is_first:
            self.log("engine: " + ", ".join(f"{name} {value}" for name, value in facts.described.items()))
            provenance, _ = read_object(self.folder.provenance_file)
            self.folder.write_provenance({**provenance, "engine": dict(facts.described)})


def start_of(resume: Path | str | None) -> float:
    """Return the start time of the run to resume, in seconds since 1970.

    Returns the current time if `resume` is None or the start is not recorded.
    """
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
    """Print the results of a run; print nothing if its run directory is missing.

    Raises `OSError` if a file exists but cannot be read.
    """
    if folder.path.is_dir():
        console = standard_output()
        console.print()
        print_document(console, summary_document(folder))


def begin_folder(request: RunRequest, overrides: Sequence[str]) -> RunFolder:
    """Create a run directory with the typed overrides, or open the run directory of the resumed run."""
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
    """Open a run for the body of the `with` statement, and record the outcome and the summary at its end.

    The recorded outcome is `finished`; `interrupted` after `Interrupted` or Ctrl-C; `pruned` after `Pruned`;
    or `failed` after any other error or a timeout that ends the process. Rank 0 writes the run's records;
    each other rank writes a log of its own. `watchers` receive the events of rank 0 after all other
    listeners, and may end the run by raising an error.
    """
    config = request.config
    folder = agreed_folder(begin_folder(request, overrides) if ranks.is_first else None, ranks)
    with ExitStack() as closing:
        if ranks.is_first:
            closing.enter_context(folder.lock())
        summary, gauges = dict[str, object](), dict[str, Callable[[], float]]()
        with _end_recorded(folder if ranks.is_first and request.resume is None else None):
            shown = _displays(config, folder, ranks)
            checkpoint = restore_and_truncate(config, folder, ranks, Listeners(shown).message)
            if ranks.is_first:
                folder.write_config(request.record)
                folder.write_method(config.method.as_record(config.use))
                mirrors = closing.enter_context(mirrored(folder, request.mirrors, Listeners(shown).message))
                shown = _listeners(request, folder, shown, (mirrors, *watchers), summary, gauges)
        listeners = Listeners(shown)
        run = Run(
            config=config,
            folder=folder,
            ranks=ranks,
            listener=listeners,
            closing=closing,
            checkpoint=checkpoint,
            summary=summary,
            gauges=gauges,
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
    """Record an error of the `with` block in a new run's status, since the listeners start only later.

    `folder` is the run directory. It is None for a resumed run and on ranks other than 0, where nothing is
    recorded.
    """
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
    gauges: Mapping[str, Callable[[], float]],
) -> tuple[Listener, ...]:
    """Return rank 0's listeners in calling order; the first one records events before others show them."""
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
        FirstLines(
            log,
            answer_tokens=request.config.evaluation.max_new_tokens,
            rollout_tokens=request.config.rollout.max_new_tokens,
        ),
        Notes(log, read_steps(folder), read_facts(folder)),
        *((SystemMetrics(folder, gauges),) if tracking.system_metrics else ()),
        *watchers,
    )


class StopRequests:
    """A flag that ends a run after the current step. Signals such as Ctrl-C and SIGTERM set it."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._is_asked = False

    def __call__(self) -> bool:
        """Return whether the run should stop after the current step."""
        return self._is_asked

    def ask(self, number: int) -> None:
        """Set the flag; `number` is the signal's number.

        Raises `KeyboardInterrupt` on Ctrl-C if the flag is already set.
        """
        if self._is_asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._is_asked = True
        self._log("stopping after this step; Ctrl-C again stops at once")

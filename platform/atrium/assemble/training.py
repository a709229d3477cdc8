"""`run_training`: a whole run from its configuration to its summary, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from atrium.assemble.bank import collected_from_bank, read_bank
from atrium.assemble.first_evaluation import shared_first_evaluation
from atrium.assemble.graders import BenchmarkGraders
from atrium.assemble.loop_parts import collector, evaluation_plan, loop_settings
from atrium.assemble.mirroring import MirroredRun, configured_mirrors
from atrium.assemble.observing import ObservedRecorder, RunObserver
from atrium.assemble.policies import (
    build_policy,
    copy_out_of_mmap,
)
from atrium.assemble.ranks import (
    agreed_folder,
    checkpoint_store,
    explained_by,
    fixed_for_ranks,
    joined_ranks,
    rank_report,
    rewound,
    silent_recorder,
)
from atrium.assemble.recording import EvaluationPlan, Recorder
from atrium.assemble.stopping import StopRequests
from atrium.assemble.task import Task, build_task, data_provenance, require_same_data
from atrium.assemble.trained_models import build_fitting_updater, trained_models
from atrium.assemble.watching import step_profiler
from atrium.compare.figures.runs import draw_figures
from atrium.config.schema import RunConfig
from atrium.data.prompts import prompt_encoder
from atrium.errors import Interrupted, Pruned
from atrium.grading.grader import Grader
from atrium.models.policy import Policy
from atrium.processes import stop_requests
from atrium.rollout.stored_rollouts import StoredCompletion
from atrium.tracking.end_summary import print_summary
from atrium.tracking.mirrors.process import MirrorProcesses
from atrium.tracking.provenance import collect_provenance
from atrium.tracking.run_folder import RunFolder
from atrium.tracking.run_folder_tracker import RunFolderSettings, RunFolderTracker
from atrium.tracking.status import RunState
from atrium.tracking.terminal import progress_display
from atrium.train.checkpoint.checkpoint import Checkpoint, TrainingState
from atrium.train.guard.memory import keep_freed_memory
from atrium.train.loop import Training, train
from atrium.train.overlap import Overlap
from atrium.train.ranks.ranks import Ranks
from atrium.watchdog import on_hang


def run_training(
    config: RunConfig,
    grader: Grader,
    overrides: Sequence[str] = (),
    observer: RunObserver | None = None,
) -> Path:
    """Train as configured, or go on where the run in `config.resume` stands; the run's folder.

    The folder records how the run ended: at its last step, by `Interrupted` (Ctrl-C or SIGTERM, after a
    checkpoint), or by an error. `grader` is the run's own and stays open; `overrides` are recorded as what
    was typed; `observer` may watch and prune.
    """
    torch.set_num_threads(config.compute.num_threads)
    if config.compute.device == "cpu":
        keep_freed_memory()
    with ExitStack() as stack:
        ranks = stack.enter_context(joined_ranks(config))
        config = fixed_for_ranks(config, ranks)
        folder = agreed_folder(_open_folder(config, overrides) if ranks.is_first else None, ranks)
        if not ranks.is_first:
            silent = silent_recorder(folder, ranks)
            checkpoint = rewound(config, folder, ranks, silent.display.message)
            with explained_by(ranks):
                _train(config, folder, checkpoint, silent, grader, stack, ranks)
            return folder.path
        stack.enter_context(folder.lock())
        display = progress_display(config.tracking.progress, folder.append_log)
        stack.callback(display.close)
        checkpoint = rewound(config, folder, ranks, display.message)
        folder.write_config({**config.model_dump(mode="json"), "resume": None})
        tracker = RunFolderTracker(
            folder,
            RunFolderSettings(
                rollouts_every_num_steps=config.tracking.rollouts_every_num_steps,
                rollouts_max_mb=config.tracking.rollouts_max_mb,
            ),
            log=display.message,
        )
        mirrors = MirrorProcesses(folder, configured_mirrors(config.tracking), display.message)
        recorder = ObservedRecorder(tracker, display, MirroredRun(mirrors, observer))
        try:
            with _end_recorded(tracker), explained_by(ranks):
                _train(config, folder, checkpoint, recorder, grader, stack, ranks)
            if config.tracking.figures:
                draw_figures(folder)
        finally:
            mirrors.end()
            display.close()
            print_summary(folder)
    return folder.path


def _open_folder(config: RunConfig, overrides: Sequence[str]) -> RunFolder:
    """The folder of a new run, or that of the run to resume."""
    if config.resume is not None:
        folder = RunFolder.open(config.resume)
        folder.require_known_format()
    else:
        folder = RunFolder.create(config.runs_dir, config.experiment_name, config.algorithm.name, config.seed)
        folder.write_overrides(overrides)
    return folder


@contextmanager
def _end_recorded(tracker: RunFolderTracker) -> Iterator[None]:
    """Write into the folder how the run ended."""
    try:
        with on_hang(partial(tracker.end, RunState.FAILED)):
            yield
    except (Interrupted, KeyboardInterrupt) as stop:
        tracker.end(RunState.INTERRUPTED, str(stop) or "stopped at once")
        raise
    except Pruned as decision:
        tracker.end(RunState.PRUNED, str(decision))
        raise
    except BaseException as failure:
        tracker.end(RunState.FAILED, str(failure) or type(failure).__name__)
        raise
    tracker.end(RunState.FINISHED)


def _train(
    config: RunConfig,
    folder: RunFolder,
    checkpoint: Checkpoint | None,
    recorder: Recorder,
    grader: Grader,
    stack: ExitStack,
    ranks: Ranks,
) -> None:
    """Build the parts of the run and let the loop drive them."""
    display = recorder.display
    should_stop = StopRequests(display)
    stack.enter_context(stop_requests(should_stop.ask))
    with ranks.first_alone("loading the data"):
        task = build_task(config, folder.cache_dir, display.message)
    stored = read_bank(config, task.train.problems, display.message)
    with ranks.first_alone("loading the model"):
        # A policy that will be spread is spread from the host's memory.
        policy = build_policy(config, folder.cache_dir, display, device=None if ranks.is_alone else "cpu")
    copy_out_of_mmap(policy.model)
    if ranks.is_first:
        _record_provenance(config, folder, task)
    graders = BenchmarkGraders(config.grader, config.model, own=grader)
    stack.callback(graders.close)
    for note in config.method.notes(config.use):
        display.message(f"note: {note}")
    training = _assembled(
        config, folder, checkpoint, recorder, task, stored, policy, graders, should_stop, ranks
    )
    stack.callback(training.engine.close)
    if isinstance(training.evaluate, EvaluationPlan):
        first = shared_first_evaluation(training.evaluate, config, policy, folder.cache_dir)
        training = replace(training, evaluate=first)
    state = TrainingState(objective=training.updater.objective.initial_state())
    if checkpoint is not None:
        state = checkpoint.state
        display.message(f"resuming after step {state.step}")
    training.engine.update_weights(policy.weights(), state.weight_version)
    recorder.begin(_title(config, policy), step=state.step, num_steps=config.num_steps)
    should_stop.begin_steps()
    train(training, state)


def _assembled(
    config: RunConfig,
    folder: RunFolder,
    checkpoint: Checkpoint | None,
    recorder: Recorder,
    task: Task,
    stored: Sequence[StoredCompletion] | None,
    policy: Policy,
    graders: BenchmarkGraders,
    should_stop: Callable[[], bool],
    ranks: Ranks,
) -> Training:
    """The loop's parts."""
    models = trained_models(config, checkpoint, recorder, policy, ranks)
    engine, encode = models.engine, prompt_encoder(policy.tokenizer, task.template)
    problems = task.fitting_problems(encode, policy.context_length, recorder.display.message)
    collected = collector(
        config, task, problems, encode=encode, engine=engine, grader=graders.own, ranks=ranks
    )
    if stored is not None:
        collected = collected_from_bank(collected, stored, config, policy, problems)
    longest = len(encode(max(problems, key=lambda problem: len(problem.question))))
    return Training(
        settings=loop_settings(config, policy),
        collector=collected,
        updater=build_fitting_updater(config, folder, recorder, policy, models, longest, ranks),
        engine=engine,
        weights=policy.weights,
        reference=models.reference,
        tracker=recorder,
        evaluate=evaluation_plan(
            config, task, policy, graders, engine=engine, recorder=recorder, ranks=ranks
        ),
        checkpoints=checkpoint_store(config, folder, policy, ranks),
        should_stop=should_stop,
        on_phase=recorder.display.phase,
        lagged=checkpoint.lagged if checkpoint else (),
        overlap=Overlap(policy.model) if config.overlaps else None,
        profiler=step_profiler(config, folder, recorder.display.message) if ranks.is_first else None,
        rank_report=rank_report(folder, ranks, recorder),
    )


def _record_provenance(config: RunConfig, folder: RunFolder, task: Task) -> None:
    """Write where the run comes from; a resumed run's record becomes that of its newest session."""
    data = data_provenance(config, task)
    if config.resume is not None:
        require_same_data(folder.provenance_file, data)
    folder.write_provenance(
        collect_provenance(data, num_threads=config.compute.num_threads, extra={"origins": task.origins})
    )


def _title(config: RunConfig, policy: Policy) -> str:
    return (
        f"{config.algorithm.name} with divergence {config.divergence.kind}, seed {config.seed}, "
        f"{policy.size} on {config.compute.device}"
    )

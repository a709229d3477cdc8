"""`run_training`: a whole run from its configuration to its summary, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from atrium.assemble.bank import collected_from_bank, read_bank
from atrium.assemble.evaluated_policy import wave_size
from atrium.assemble.first_evaluation import shared_first_evaluation
from atrium.assemble.mirroring import MirroredRun, configured_mirrors
from atrium.assemble.observing import ObservedRecorder, RunObserver
from atrium.assemble.policies import (
    build_engine,
    build_policy,
    build_reference,
    build_updater,
    mismatch_bound,
    own_storage,
    restore_weights,
)
from atrium.assemble.recording import EvaluationPlan, JudgedBenchmark, Recorder
from atrium.assemble.stopping import stop_requests
from atrium.assemble.task import (
    BenchmarkGraders,
    Task,
    build_grader,
    build_task,
    data_provenance,
    evaluated_benchmark,
    require_same_data,
)
from atrium.assemble.watching import fault_handling, step_profiler
from atrium.compare.figures import draw_figures
from atrium.config.objective_checks import objective_notes
from atrium.config.schema import RunConfig
from atrium.data.problems import ProblemStream
from atrium.errors import Interrupted, Pruned
from atrium.grading.grader import Grader
from atrium.models.policy import Policy, write_policy
from atrium.objective.groups import GroupFilter
from atrium.records import Problem, TokenIds
from atrium.rollout.engine import Engine, SamplingParams
from atrium.rollout.stored_rollouts import StoredCompletion
from atrium.tracking.end_summary import print_summary
from atrium.tracking.mirrors.process import MirrorProcesses
from atrium.tracking.provenance import collect_provenance
from atrium.tracking.run_folder import RunFolder
from atrium.tracking.run_folder_tracker import RunFolderSettings, RunFolderTracker
from atrium.tracking.status import RunState
from atrium.tracking.terminal import progress_display
from atrium.train.checkpoint import Checkpoint, CheckpointStore, TrainingState, latest_checkpoint
from atrium.train.collect import RolloutCollector
from atrium.train.loop import LoopSettings, Training, train


def run_training(
    config: RunConfig, overrides: Sequence[str] = (), observer: RunObserver | None = None
) -> Path:
    """Train as configured, or go on where the run in `config.resume` stands; the run's folder.

    The folder records how the run ended: at its last step, by `Interrupted` (Ctrl-C or SIGTERM, after a
    checkpoint), or by an error. `overrides` are recorded as what was typed; `observer` may watch and prune.
    """
    torch.set_num_threads(config.compute.num_threads)
    folder = _open_folder(config, overrides)
    with ExitStack() as stack:
        stack.enter_context(folder.lock())
        folder.write_config({**config.model_dump(mode="json"), "resume": None})
        checkpoint = _rewound(config, folder)
        display = progress_display(config.tracking.progress, folder.append_log)
        stack.callback(display.close)
        tracker = RunFolderTracker(
            folder,
            RunFolderSettings(
                rollouts_every_num_steps=config.tracking.rollouts_every_num_steps,
                rollouts_max_mb=config.tracking.rollouts_max_mb,
            ),
            on_problem=display.message,
        )
        mirrors = MirrorProcesses(folder, configured_mirrors(config.tracking), display.message)
        recorder = ObservedRecorder(tracker, display, MirroredRun(mirrors, observer))
        try:
            with _end_recorded(tracker):
                _train(config, folder, checkpoint, recorder, stack)
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


def _rewound(config: RunConfig, folder: RunFolder) -> Checkpoint | None:
    """The checkpoint that a resumed run goes on from, with everything recorded after it dropped."""
    if config.resume is None:
        return None
    checkpoint = latest_checkpoint(folder.checkpoints_dir)
    folder.truncate_after(checkpoint.state.step if checkpoint else -1)
    return checkpoint


@contextmanager
def _end_recorded(tracker: RunFolderTracker) -> Iterator[None]:
    """Write into the folder how the run ended."""
    try:
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
    stack: ExitStack,
) -> None:
    """Build the parts of the run and let the loop drive them."""
    display = recorder.display
    task = build_task(config, folder.cache_dir, display.message)
    stored = read_bank(config, task.train.problems, display.message)
    policy = build_policy(config, folder.cache_dir, display)
    own_storage(policy.model)
    _record_provenance(config, folder, task)
    grader = build_grader(config.grader, config.model)
    stack.callback(grader.close)
    graders = BenchmarkGraders(config.grader, config.model, own=grader)
    stack.callback(graders.close)
    for note in objective_notes(
        config.algorithm,
        config.divergence,
        num_updates_per_batch=config.num_updates_per_batch,
        anchors_to_stored=config.anchors_to_stored,
    ):
        display.message(f"note: {note}")
    should_stop = stack.enter_context(stop_requests(display))
    training = _assembled(config, folder, checkpoint, recorder, task, stored, policy, graders, should_stop)
    stack.callback(training.engine.close)
    if isinstance(recorder, ObservedRecorder) and isinstance(training.evaluate, EvaluationPlan):
        first = shared_first_evaluation(training.evaluate, config, policy, folder.cache_dir)
        training = replace(training, evaluate=first)
    state = TrainingState(objective=training.updater.objective.initial_state())
    if checkpoint is not None:
        state = checkpoint.state
        display.message(f"resuming after step {state.step}")
    training.engine.update_weights(policy.model.state_dict(), state.weight_version)
    recorder.begin(_title(config, policy), step=state.step, num_steps=config.num_steps)
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
) -> Training:
    """The loop's parts. The reference is taken from the first policy, before a checkpoint's weights."""
    reference = build_reference(config, policy)
    if checkpoint is not None:
        restore_weights(policy, checkpoint.policy)
        if reference is not None and checkpoint.reference is not None:
            reference.load(checkpoint.reference)
    recorder.display.phase("starting the engine")
    engine = build_engine(config, policy)
    encode = task.encoder(policy.tokenizer)
    problems = task.fitting_problems(encode, policy.context_length, recorder.display.message)
    collector = _collector(config, task, problems, encode=encode, engine=engine, grader=graders.own)
    if stored is not None:
        collector = collected_from_bank(collector, stored, config, policy, problems)
    return Training(
        settings=_loop_settings(config, policy),
        collector=collector,
        updater=build_updater(
            config,
            policy,
            reference,
            checkpoint.optimizer if checkpoint else {},
            fault_handling(config, folder, recorder.display.message),
        ),
        engine=engine,
        weights=policy.model.state_dict,
        reference=reference,
        tracker=recorder,
        evaluate=_evaluation_plan(config, task, policy, graders, engine=engine, recorder=recorder),
        checkpoints=_checkpoint_store(config, folder, policy),
        should_stop=should_stop,
        on_phase=recorder.display.phase,
        ahead=checkpoint.ahead if checkpoint else None,
        profiler=step_profiler(config, folder, recorder.display.message),
    )


def _checkpoint_store(config: RunConfig, folder: RunFolder, policy: Policy) -> CheckpointStore:
    return CheckpointStore(
        folder=folder.checkpoints_dir,
        save_policy=partial(write_policy, policy),
        keep_last=config.checkpoint.keep_last,
        keep_best=config.checkpoint.keep_best,
    )


def _loop_settings(config: RunConfig, policy: Policy) -> LoopSettings:
    return LoopSettings(
        num_steps=config.num_steps,
        evaluate_every_num_steps=config.evaluation.every_num_steps,
        checkpoint_every_num_steps=config.checkpoint.every_num_steps,
        pad_token_id=policy.pad_token_id,
        device=config.compute.device,
        seed=config.seed,
        lag=config.rollout.lag,
        max_mismatch=mismatch_bound(config),
    )


def _evaluation_plan(
    config: RunConfig,
    task: Task,
    policy: Policy,
    graders: BenchmarkGraders,
    *,
    engine: Engine,
    recorder: Recorder,
) -> EvaluationPlan:
    """The validation problems and the benchmarks, each with what grades it."""
    validation, *tests = (
        JudgedBenchmark(evaluated_benchmark(loaded, config.evaluation), graders.of(loaded))
        for loaded in (task.validation, *task.benchmarks)
    )
    return EvaluationPlan(
        validation=validation,
        tests=tuple(tests),
        engine=engine,
        encode=task.encoder(policy.tokenizer),
        seed=config.evaluation.seed,
        wave_size=wave_size(config, policy),
        recorder=recorder,
    )


def _collector(
    config: RunConfig,
    task: Task,
    problems: Sequence[Problem],
    *,
    encode: Callable[[Problem], TokenIds],
    engine: Engine,
    grader: Grader,
) -> RolloutCollector:
    rollout = config.rollout
    return RolloutCollector(
        stream=ProblemStream(problems, config.seed),
        encode=encode,
        engine=engine,
        grader=grader,
        reward=task.reward,
        group_filter=GroupFilter(**config.algorithm.group_filter.model_dump()),
        sampling=SamplingParams(max_new_tokens=rollout.max_new_tokens, temperature=rollout.temperature),
        num_prompts=rollout.num_prompts,
        group_size=rollout.group_size,
        seed=config.seed,
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
        f"{policy.num_parameters:,} parameters on {config.compute.device}"
    )

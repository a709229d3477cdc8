"""`run_training`: from a configuration to the parts of a run, which the loop then drives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from atrium.assemble.bank import collected_from_bank
from atrium.assemble.budget import tune_micro_batches
from atrium.assemble.engines import mismatch_bound
from atrium.assemble.evaluation_plan import (
    EvaluationPlan,
    JudgedBenchmark,
    shared_first_evaluation,
)
from atrium.assemble.graders import BenchmarkGraders
from atrium.assemble.packing import Rows, settle_packing
from atrium.assemble.policies import (
    build_forward,
    build_policy,
    build_reference,
    build_updater,
    copy_out_of_mmap,
    restore_weights,
)
from atrium.assemble.prepared import Prepared, prepare
from atrium.assemble.prompts import checked_encoder
from atrium.assemble.ranks import (
    checkpoint_store,
    fixed_for_ranks,
    joined_ranks,
    rank_report,
    read_sharded,
    shard_models,
)
from atrium.assemble.run import Run, StopRequests, opened, start_of, training_request
from atrium.assemble.servers import build_placed_engine
from atrium.assemble.task import (
    Task,
    data_provenance,
    evaluated_benchmark,
    require_room,
    require_same_data,
)
from atrium.base.errors import Interrupted
from atrium.base.processes import stop_requests, stopped_at_once
from atrium.base.records import Problem, TokenIds
from atrium.config.dates import dated
from atrium.config.schema import RunConfig
from atrium.data.problems import ProblemStream
from atrium.engines.engine import Engine, SamplingParams
from atrium.engines.server.engine import ServerEngine
from atrium.engines.stored_rollouts import StoredCompletion
from atrium.grading.grader import Grader
from atrium.models.digests import source_digests, weights_digest
from atrium.models.policy import Policy, with_files_of
from atrium.models.settings import HubModelSettings
from atrium.runs.listener import Listener
from atrium.train.batches import Outside
from atrium.train.checkpoint.checkpoint import TrainingState
from atrium.train.collect import RolloutCollector
from atrium.train.continuous import Stream
from atrium.train.guard.faults import FaultHandling
from atrium.train.guard.memory import keep_freed_memory
from atrium.train.guard.memory_limit import MemoryLimit
from atrium.train.guard.profile import StepProfiler
from atrium.train.loop import LoopSettings, Training, train
from atrium.train.ranks.ranks import Ranks, Shards
from atrium.train.update.reference import MovingReference
from atrium.train.update.step import PolicyUpdater


def run_training(
    config: RunConfig,
    grader: Grader,
    overrides: Sequence[str] = (),
    watcher: Listener | None = None,
) -> Path:
    """Train as configured, or go on where the run in `config.resume` stands; the run's folder.

    The folder records how the run ended: at its last step, by `Interrupted` (Ctrl-C or SIGTERM, after a
    checkpoint), or by an error. `grader` is the run's own and stays open; `overrides` are recorded as what
    was typed; `watcher` hears the run after all others, and may end it by `Pruned` or `Interrupted`.
    """
    torch.set_num_threads(config.compute.num_threads)
    if config.compute.device == "cpu":
        keep_freed_memory()
    with joined_ranks(config) as ranks:
        fixed = fixed_for_ranks(config, ranks)
        request = training_request(dated(fixed, ranks.from_first(start_of(config.resume))))
        prepared = prepare(request.config, ranks)
        watchers = () if watcher is None else (watcher,)
        with opened(request, overrides, ranks=ranks, watchers=watchers) as run:
            _train(run, grader, prepared)
    return run.folder.path


def _train(run: Run, grader: Grader, prepared: Prepared) -> None:
    """Build the parts of the run and let the loop drive them."""
    should_stop = StopRequests(run.log)
    run.closing.enter_context(stop_requests(should_stop.ask))
    # Until steps begin, nothing is lost by stopping at once.
    early = Interrupted("stopped before the first step of this session")
    with stopped_at_once(lambda _: early) as stop_if_asked:
        training, state = _ready(run, grader, prepared, should_stop)
        stop_if_asked()
    train(training, state)


def _ready(
    run: Run, grader: Grader, prepared: Prepared, should_stop: Callable[[], bool]
) -> tuple[Training, TrainingState]:
    """The loop with its parts, and the state that it goes on from; the listeners have heard the beginning."""
    config, ranks, cache_dir = run.config, run.ranks, run.folder.cache_dir
    task = prepared.task
    for line in prepared.lines:
        run.log(line)
    with ranks.first_alone("loading the model"):
        # A policy that will be spread is spread from the host's memory.
        policy = build_policy(config, cache_dir, run.listener, device=None if ranks.is_alone else "cpu")
    copy_out_of_mmap(policy.model)
    policy, weights, encode = _identified(run, task, policy)
    graders = BenchmarkGraders(config.grader, config.model, own=grader)
    run.closing.callback(graders.close)
    for note in config.method.notes(config.use):
        run.log(f"note: {note}")
    if config.rollout.continuous:
        run.log("note: rollout.continuous=true is not repeatable: what is finished first depends on time")
    training = _assembled(run, task, prepared.stored, policy, graders, should_stop, encode, weights)
    run.record_engine(training.engine.facts)
    state = TrainingState(objective=training.updater.objective.initial_state())
    if run.checkpoint is not None:
        state = run.checkpoint.state
        run.log(f"resuming after step {state.step}")
    training.engine.update_weights(policy.weights(), state.weight_version)
    title = (
        f"{config.algorithm.name} with divergence {config.divergence.kind}, seed {config.seed}, "
        f"{policy.size} on {config.compute.device}"
    )
    run.listener.begin(step=state.step, num_steps=config.num_steps, title=title)
    return training, state


def _identified(run: Run, task: Task, policy: Policy) -> tuple[Policy, str, Callable[[Problem], TokenIds]]:
    """The policy, the digest of its first weights, and its prompts; recorded, and compared by a resumed run.

    The files beside a resumed policy's weights are those of its checkpoint.
    """
    config, first = run.config, run.ranks.is_first
    is_loaded = isinstance(config.model, HubModelSettings) and config.model.weights == "pretrained"
    weights, source = "", None
    if first and (is_loaded or run.checkpoint is None):
        weights = weights_digest(policy.weights())
        source = source_digests(policy, weights) if is_loaded else None
    if run.checkpoint is not None:
        policy = with_files_of(policy, run.checkpoint.policy)
    is_resumed = config.resume is not None
    log = run.log if first else lambda line: None
    encode = checked_encoder(config, policy, task.train.problems[0], log, is_resumed=is_resumed)
    if first:
        data = data_provenance(config, task, encode, source)
        for line in require_same_data(run.folder.provenance_file, data) if is_resumed else ():
            run.log(line)
        run.record_provenance(data, origins=task.origins)
    return policy, weights, encode


def _assembled(
    run: Run,
    task: Task,
    stored: Sequence[StoredCompletion] | None,
    policy: Policy,
    graders: BenchmarkGraders,
    should_stop: Callable[[], bool],
    encode: Callable[[Problem], TokenIds],
    weights: str,
) -> Training:
    """The loop's parts."""
    config, checkpoint = run.config, run.checkpoint
    models = _models(run, policy)
    problems = task.fitting_problems(encode, policy.context, run.log)
    outside = _outside(config, policy, models.engine)
    ranks = run.ranks if outside is None else run.ranks.on_own_connections()
    collector = _collector(run, task, problems, encode, models.engine, graders.own, ranks)
    if stored is not None:
        collector = collected_from_bank(collector, stored, config, policy, problems)
    longest = len(encode(max(problems, key=lambda problem: len(problem.asked))))
    plan = _evaluation_plan(run, task, policy, graders, models.engine, encode)
    return Training(
        settings=_loop_settings(config, policy),
        collector=collector,
        updater=_updater(run, policy, models, longest),
        engine=models.engine,
        weights=policy.weights,
        reference=models.reference,
        listener=run.listener,
        evaluate=shared_first_evaluation(plan, config, policy, run.folder.cache_dir, weights),
        checkpoints=checkpoint_store(config, run.folder, policy, run.ranks),
        should_stop=should_stop,
        lagged=checkpoint.lagged if checkpoint else (),
        outside=outside,
        stream=_stream(config, models.engine, collector.sampling),
        profiler=_profiler(run),
        rank_report=rank_report(run.folder, run.ranks, run.log),
    )


@dataclass(frozen=True, kw_only=True)
class _Models:
    """The engine and the models, with a checkpoint's weights where there is one."""

    engine: Engine
    reference: MovingReference | None
    shards: Shards
    optimizer_state: Mapping[str, Tensor]


def _models(run: Run, policy: Policy) -> _Models:
    """The reference is taken from the first policy, before a checkpoint's weights."""
    config, ranks, checkpoint = run.config, run.ranks, run.checkpoint
    reference = build_reference(config, policy)
    if checkpoint is not None and ranks.is_alone:
        restore_weights(policy, checkpoint.policy)
        if reference is not None and checkpoint.reference is not None:
            reference.load(checkpoint.reference)
    run.listener.phase("starting the engine")
    engine = build_placed_engine(config, policy, run.folder.engines_dir, run.log, ranks)
    run.closing.callback(engine.close)
    shards = shard_models(config, policy, reference, ranks)
    optimizer_state: Mapping[str, Tensor] = checkpoint.optimizer if checkpoint else {}
    if checkpoint is not None and not ranks.is_alone:
        optimizer_state = read_sharded(checkpoint, policy, reference, ranks)
    return _Models(engine=engine, reference=reference, shards=shards, optimizer_state=optimizer_state)


def _outside(config: RunConfig, policy: Policy, engine: Engine) -> Outside | None:
    """Sampling during updates, where servers are ahead of them."""
    if config.rollout.lag and isinstance(engine, ServerEngine) and not config.rollout.continuous:
        return Outside(
            model=policy.model,
            sampler=engine.at_this_version,
            interrupt=engine.interrupt,
            keeps_weights=not config.rollout.sends_weights,
        )
    return None


def _stream(config: RunConfig, engine: Engine, sampling: SamplingParams) -> Callable[[], Stream] | None:
    """What begins to sample without an end, where that is asked for."""
    if config.rollout.continuous and isinstance(engine, ServerEngine):
        return lambda: engine.stream(sampling)
    return None


def _updater(run: Run, policy: Policy, models: _Models, longest: int) -> PolicyUpdater:
    """The updater of the policy, with micro-batches that fit; `longest` is the longest prompt in tokens."""
    ranks, longest_row = run.ranks, min(policy.context_length, longest + run.config.rollout.max_new_tokens)
    config = settle_packing(
        run.config,
        build_forward(run.config, policy.model, sharded=models.shards.policy),
        Rows(longest_prompt=longest, longest=longest_row, group_size=run.config.rollout.group_size),
        run.folder,
        log=run.log,
        ranks=ranks,
    )
    faults = FaultHandling(
        max_skipped=config.optimizer.max_skipped_updates,
        folder=run.folder.faults_dir if ranks.is_first else None,
        log=run.log,
    )
    updater = build_updater(
        config, policy, models.reference, models.optimizer_state, faults, ranks, models.shards
    )
    models.engine.release_memory()  # as it is in updates
    if (limit_mb := config.compute.memory_limit_mb) is not None:
        updater = replace(updater, memory_limit=MemoryLimit(config.compute.device, limit_mb))
    return tune_micro_batches(config, updater, run.folder, longest=longest_row, log=run.log, ranks=ranks)


def _loop_settings(config: RunConfig, policy: Policy) -> LoopSettings:
    """When the loop does what."""
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
    run: Run,
    task: Task,
    policy: Policy,
    graders: BenchmarkGraders,
    engine: Engine,
    encode: Callable[[Problem], TokenIds],
) -> EvaluationPlan:
    """The validation problems and the benchmarks, each with what grades it."""
    config = run.config
    validation, *tests = (
        JudgedBenchmark(
            require_room(evaluated_benchmark(loaded, config), encode, policy.context),
            graders.of(loaded.verifier),
            loaded.verifier or config.grader,
        )
        for loaded in (task.validation, *task.benchmarks)
    )
    return EvaluationPlan(
        validation=validation,
        tests=tuple(tests),
        engine=engine,
        encode=encode,
        seed=config.evaluation.seed,
        run_seed=config.seed,
        wave_size=config.rollout.wave_size(policy.num_parameters),
        listener=run.listener,
        ranks=run.ranks,
    )


def _collector(
    run: Run,
    task: Task,
    problems: Sequence[Problem],
    encode: Callable[[Problem], TokenIds],
    engine: Engine,
    grader: Grader,
    ranks: Ranks,
) -> RolloutCollector:
    """The collector, which turns problems into graded groups."""
    config, rollout = run.config, run.config.rollout
    return RolloutCollector(
        stream=ProblemStream(problems, config.seed),
        encode=encode,
        engine=engine,
        grader=grader,
        reward=config.reward,
        group_filter=config.algorithm.group_filter,
        sampling=SamplingParams(
            max_new_tokens=rollout.max_new_tokens,
            temperature=rollout.temperature,
            stop=config.model.prompt.stop,
        ),
        num_prompts=rollout.num_prompts,
        group_size=rollout.group_size,
        seed=config.seed,
        sampling_stream=rollout.sampling_stream,
        ranks=ranks,
        require_stop=config.reward.counts_cut_off_as_wrong,
    )


def _profiler(run: Run) -> StepProfiler | None:
    """The profiler of the step that is asked for, or None."""
    step = run.config.compute.profile_step
    if step is None or not run.ranks.is_first:
        return None
    return StepProfiler(step=step, folder=run.folder.profile_dir, log=run.log)

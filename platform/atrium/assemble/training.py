"""Functions that build the parts of a training run from its configuration and start the training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from atrium.assemble.bank import collected_from_bank
from atrium.assemble.budget import tune_micro_batches
from atrium.assemble.compilation import settle_compilation
from atrium.assemble.engines import mismatch_bound
from atrium.assemble.evaluation_key import policy_key
from atrium.assemble.evaluation_plan import EvaluationPlan, JudgedBenchmark
from atrium.assemble.graders import BenchmarkGraders
from atrium.assemble.packing import settle_packing
from atrium.assemble.policies import (
    build_forward,
    build_policy,
    build_reference,
    build_updater,
    copy_out_of_mmap,
    restore_weights,
)
from atrium.assemble.prepared import RunData, prepare
from atrium.assemble.prompts import checked_encoder
from atrium.assemble.ranks import fixed_for_ranks, joined_ranks
from atrium.assemble.run import Run, StopRequests, opened, start_of, training_request
from atrium.assemble.servers import build_placed_engine
from atrium.assemble.spreading import (
    checkpoint_store,
    rank_report,
    read_sharded,
    shard_models,
    taken_weights,
)
from atrium.assemble.task import (
    Task,
    data_provenance,
    evaluated_benchmark,
    longest_prompt,
    require_room,
    require_same_data,
)
from atrium.base.errors import Interrupted
from atrium.base.metrics import ENGINE_QUEUE
from atrium.base.processes import stop_requests, stopped_at_once
from atrium.base.records import Problem
from atrium.config.dates import dated
from atrium.config.schema import RunConfig
from atrium.data.problems import ProblemStream
from atrium.data.prompts import PromptEncoder
from atrium.engines.engine import Engine, ReportsQueue, SamplingParams
from atrium.engines.server.engine import ServerEngine
from atrium.engines.stored_rollouts import StoredCompletion
from atrium.evaluation.evaluator import Draws
from atrium.grading.grader import Grader
from atrium.models.digests import source_digests, weights_digest
from atrium.models.policy import Policy, with_files_of
from atrium.models.settings import HubModelSettings
from atrium.runs.listener import Listener
from atrium.train.checkpoint.checkpoint import TrainingState
from atrium.train.collect import RolloutCollector
from atrium.train.guard.faults import FaultHandling
from atrium.train.guard.memory import keep_freed_memory
from atrium.train.guard.memory_limit import memory_limit
from atrium.train.guard.profile import StepProfiler
from atrium.train.loop import train
from atrium.train.ranks.ranks import Shards
from atrium.train.step import LoopSettings, Training
from atrium.train.update.reference import MovingReference
from atrium.train.update.updater import PolicyUpdater


def run_training(
    config: RunConfig,
    grader: Grader,
    overrides: Sequence[str] = (),
    watcher: Listener | None = None,
) -> Path:
    """Train as configured, or resume the run in `config.resume`; return the run directory.

    The status in the run directory records how the run ended. After Ctrl-C or another stop signal, the run
    finishes the current step, writes a checkpoint and raises `Interrupted`. Before the session's first step,
    it raises `Interrupted` at once. `grader` is the run's grader, which the caller closes. `overrides` are
    recorded as typed. `watcher` receives the run's events after all other listeners, and may end the run by
    raising `Pruned` or `Interrupted`.
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


def _train(run: Run, grader: Grader, prepared: RunData) -> None:
    """Build the parts of the run, then run the training loop."""
    should_stop = StopRequests(run.log)
    run.closing.enter_context(stop_requests(should_stop.ask))
    # Before the first step, a stop request ends the run at once, since no work is lost.
    early = Interrupted("stopped before the first step of this session")
    with stopped_at_once(lambda _: early) as stop_if_asked:
        training, state = _ready(run, grader, prepared, should_stop)
        stop_if_asked()
    train(training, state)


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """The objects from which the parts of a training run are built, after any checkpoint has been loaded.

    Attributes
    ----------
    run, task
        The open run, and the task with its problems.
    policy, encode
        The policy, and a function from a problem to the tokens of its prompt.
    digest
        The `weights_digest` of the policy's initial weights, or an empty string if it is not needed.
    graders
        The graders for training and for each benchmark.
    engine, reference
        The sampling engine, and the reference model (None if `build_reference` made no copy of the policy).
    shards, optimizer_state
        The sharding of the models over ranks, and the optimizer's state (empty for a new run).
    """

    run: Run
    task: Task
    policy: Policy
    encode: PromptEncoder
    digest: str
    graders: BenchmarkGraders
    engine: Engine
    reference: MovingReference | None
    shards: Shards
    optimizer_state: Mapping[str, Tensor]

    @property
    def config(self) -> RunConfig:
        """The configuration of the run."""
        return self.run.config

    @property
    def servers(self) -> ServerEngine | None:
        """The engine if its servers sample while the trainer updates the policy, otherwise None."""
        return self.engine if self.config.rollout.lag and isinstance(self.engine, ServerEngine) else None


def _ready(
    run: Run, grader: Grader, prepared: RunData, should_stop: Callable[[], bool]
) -> tuple[Training, TrainingState]:
    """Build the parts of the training loop; return them and the state in which training starts.

    Training starts from the checkpoint's state if there is a checkpoint, and otherwise from the initial
    state. The policy's weights are sent to the engine, and the listeners are notified of the start.
    """
    config = run.config
    for line in prepared.lines:
        run.log(line)
    context = _context(run, grader, prepared.task)
    training = _training(context, prepared.stored, should_stop)
    run.record_engine(context.engine.facts)
    state = TrainingState(objective=training.updater.objective.initial_state())
    if run.checkpoint is not None:
        state = run.checkpoint.state
        run.log(f"resuming after step {state.step}")
    context.engine.update_weights(context.policy.weights(), state.weight_version)
    title = (
        f"{config.algorithm.name} with divergence {config.divergence.kind}, seed {config.seed}, "
        f"{context.policy.size} on {config.compute.device}"
    )
    run.listener.begin(step=state.step, num_steps=config.num_steps, title=title)
    return training, state


def _context(run: Run, grader: Grader, task: Task) -> RunContext:
    """Build the policy, the engine and other objects that the run's parts share, and load the checkpoint.

    The reference is a copy of the initial policy, so it is made before a checkpoint's weights are loaded.
    """
    config, ranks, checkpoint = run.config, run.ranks, run.checkpoint
    policy, digest, encode = _identified(run, task, _first_policy(run))
    graders = BenchmarkGraders(config.grader, config.model, own=grader)
    run.closing.callback(graders.close)
    for note in config.method.notes(config.use):
        run.log(f"note: {note}")
    if config.rollout.continuous:
        run.log("note: rollout.continuous=true is not repeatable: the order of completions depends on timing")
    weights = taken_weights(policy, ranks)
    reference = build_reference(config, policy)
    if checkpoint is not None and ranks.is_alone:
        restore_weights(policy, checkpoint.policy)
        if reference is not None and checkpoint.reference is not None:
            reference.load(checkpoint.reference)
    # An engine in this process is built before the model is sharded; servers start after sharding.
    inside = None if config.rollout.placement == "server" else _started_engine(run, policy)
    shards = shard_models(run, policy, reference, weights)
    engine = inside or _started_engine(run, policy)
    optimizer_state: Mapping[str, Tensor] = checkpoint.optimizer if checkpoint else {}
    if checkpoint is not None and not ranks.is_alone:
        optimizer_state = read_sharded(checkpoint, policy, reference, ranks)
    return RunContext(
        run=run,
        task=task,
        policy=policy,
        encode=encode,
        digest=digest,
        graders=graders,
        engine=engine,
        reference=reference,
        shards=shards,
        optimizer_state=optimizer_state,
    )


def _started_engine(run: Run, policy: Policy) -> Engine:
    run.listener.phase("starting the engine")
    engine = build_placed_engine(run, policy)
    run.closing.callback(engine.close)
    if isinstance(engine, ReportsQueue):
        run.gauges[ENGINE_QUEUE.name] = lambda: engine.num_pending
    return engine


def _first_policy(run: Run) -> Policy:
    """Build the policy with the weights from before training, even if the run resumes from a checkpoint.

    With several ranks, only rank 0 loads the weights.
    """
    ranks = run.ranks
    with ranks.first_alone("loading the model"):
        device = None if ranks.is_alone else "cpu" if ranks.is_first else "meta"
        policy = build_policy(run.config, run.folder.cache_dir, run.listener, device=device)
    copy_out_of_mmap(policy.model)
    return policy


def _identified(run: Run, task: Task, policy: Policy) -> tuple[Policy, str, PromptEncoder]:
    """Record the run's provenance; return the policy, its initial weights' digest, and the prompt encoder.

    In a resumed run, the data and the model must match the record, and the policy uses the tokenizer and
    configuration files of the checkpoint. The digest is empty if it is not needed.
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


def _training(
    context: RunContext, stored: Sequence[StoredCompletion] | None, should_stop: Callable[[], bool]
) -> Training:
    """Build the parts of the training loop.

    `stored` are the stored completions to train on, or None if the run samples its completions.
    """
    run, config, policy = context.run, context.config, context.policy
    problems = context.task.fitting_problems(context.encode, policy.context, run.log)
    collector = _collector(context, problems)
    if stored is not None:
        collector = collected_from_bank(collector, stored, config, policy, problems)
    longest = longest_prompt(problems, context.encode)
    evaluate = _evaluation(context)
    return Training(
        settings=LoopSettings(
            num_steps=config.num_steps,
            evaluate_every_num_steps=config.evaluation.every_num_steps,
            checkpoint_every_num_steps=config.checkpoint.every_num_steps,
            pad_token_id=policy.pad_token_id,
            device=config.compute.device,
            seed=config.seed,
            lag=config.rollout.lag,
            continuous=config.rollout.continuous,
            max_mismatch=mismatch_bound(config),
        ),
        collector=collector,
        updater=_updater(context, longest),
        engine=context.engine,
        weights=policy.weights,
        reference=context.reference,
        listener=run.listener,
        evaluate=evaluate,
        checkpoints=checkpoint_store(run, policy),
        should_stop=should_stop,
        lagged=run.checkpoint.lagged if run.checkpoint else (),
        servers=context.servers,
        profiler=_profiler(run),
        rank_report=rank_report(run),
    )


def _updater(context: RunContext, longest: int) -> PolicyUpdater:
    """Build the policy's updater, with micro-batches that fit into memory.

    `longest` is the number of tokens of the longest prompt.
    """
    run, policy, shards = context.run, context.policy, context.shards
    longest_row = min(policy.context_length, longest + run.config.rollout.max_new_tokens)
    forward = build_forward(run.config, policy.model, sharded=shards.policy)
    run = settle_packing(run, forward, longest_prompt=longest, longest=longest_row)
    run = settle_compilation(run, policy.model)
    config = run.config
    faults = FaultHandling(
        max_skipped=config.optimizer.max_skipped_updates,
        folder=run.folder.faults_dir if run.ranks.is_first else None,
        log=run.log,
    )
    updater = build_updater(
        config, policy, context.reference, context.optimizer_state, faults, run.ranks, shards
    )
    context.engine.release_memory()  # trials need the same free memory as updates
    if (limit_mb := config.compute.memory_limit_mb) is not None:
        updater = replace(updater, memory_limit=memory_limit(config.compute.device, limit_mb))
    return tune_micro_batches(run, updater, longest=longest_row)


def _evaluation(context: RunContext) -> EvaluationPlan:
    """Build the evaluations on the validation problems and the benchmarks, each with its grader."""
    run, config, policy = context.run, context.config, context.policy
    validation, *tests = (
        JudgedBenchmark(
            require_room(evaluated_benchmark(loaded, config), context.encode, policy.context),
            context.graders.of(loaded.verifier),
            loaded.verifier or config.grader,
        )
        for loaded in (context.task.validation, *context.task.benchmarks)
    )
    return EvaluationPlan(
        run=run,
        validation=validation,
        tests=tuple(tests),
        draws=Draws(
            engine=context.engine,
            encode=context.encode,
            seed=config.evaluation.seed,
            run_seed=config.seed,
            wave_size=config.rollout.wave_size(policy.num_parameters),
        ),
        key=policy_key(config, policy, context.digest),
    )


def _collector(context: RunContext, problems: Sequence[Problem]) -> RolloutCollector:
    """Build the collector, which samples and grades groups of completions for `problems`."""
    run, config, rollout = context.run, context.config, context.config.rollout
    has_thread = context.servers is not None and not rollout.continuous
    return RolloutCollector(
        stream=ProblemStream(problems, config.seed),
        encode=context.encode,
        engine=context.engine,
        grader=context.graders.own,
        reward=config.reward,
        group_filter=config.algorithm.group_filter,
        per_reward=config.algorithm.advantage.per_reward,
        sampling=SamplingParams(
            max_new_tokens=rollout.max_new_tokens,
            temperature=rollout.temperature,
            stop=config.model.prompt.stop,
        ),
        num_prompts=rollout.num_prompts,
        group_size=rollout.group_size,
        seed=config.seed,
        sampling_stream=rollout.sampling_stream,
        ranks=run.ranks.on_own_connections() if has_thread else run.ranks,
        require_stop=config.reward.counts_cut_off_as_wrong,
    )


def _profiler(run: Run) -> StepProfiler | None:
    """Return the profiler for `compute.profile_step`, or None if that is not set or this is not rank 0."""
    step = run.config.compute.profile_step
    if step is None or not run.ranks.is_first:
        return None
    return StepProfiler(step=step, folder=run.folder.profile_dir, log=run.log)

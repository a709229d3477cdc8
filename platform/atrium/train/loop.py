"""The training loop: one for every device, engine and method.

Each step samples, grades, scores, updates, records, and now and then evaluates and saves. Everything
random is keyed by the run's seed and the step, so a step depends on nothing but the weights, the
optimiser's state and `TrainingState`; that is what makes a resumed run equal to an undisturbed one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from torch import Tensor

from atrium.base import metrics
from atrium.base.errors import Interrupted, PolicyDivergedError, TrainingDivergedError
from atrium.base.metrics import Quantity
from atrium.engines.engine import Engine
from atrium.runs.listener import Listener
from atrium.train.batches import ENGINE_ADVICE, Batches, BatchesBeside, Outside, Sampling
from atrium.train.checkpoint.checkpoint import CheckpointStore, TrainingState
from atrium.train.checkpoint.lagged import LaggedBatch
from atrium.train.collect import RolloutCollector
from atrium.train.continuous import ContinuousBatches, Stream
from atrium.train.guard.memory import PeakMemory
from atrium.train.guard.out_of_memory import memory_explained
from atrium.train.guard.profile import StepProfiler
from atrium.train.measure.measurements import Measurements
from atrium.train.measure.mismatch import check_mismatch, mismatch_cause, staleness
from atrium.train.measure.traces import token_traces
from atrium.train.ranks.rank_report import RankReport
from atrium.train.ranks.ranks import Ranks
from atrium.train.update.reference import MovingReference
from atrium.train.update.step import PolicyUpdater

_PHASES = (
    metrics.ROLLOUT_S,
    metrics.GRADE_WAIT_S,
    metrics.SCORE_S,
    metrics.UPDATE_S,
    metrics.KL_S,
    metrics.WEIGHTS_S,
    metrics.EVALUATE_S,
    metrics.CHECKPOINT_S,
)


class Evaluate(Protocol):
    """Evaluates the current policy, records the result, and reports the value that the best is chosen by."""

    def __call__(self, step: int, *, final: bool) -> float | None:
        """The validation score; `final` adds what is evaluated only before and after training."""
        ...


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """When the loop does what.

    With a `lag` of k, the batch of step t is sampled by the weights after step t - 1 - k, or by the first
    ones. `max_mismatch` bounds the mean difference of the engine's and the trainer's log-probabilities, in
    nats.
    """

    num_steps: int
    evaluate_every_num_steps: int | None
    checkpoint_every_num_steps: int
    pad_token_id: int
    device: str
    seed: int
    lag: int = 0
    max_mismatch: float | None = None


@dataclass(frozen=True, kw_only=True)
class Training:
    """The parts of a run that the loop drives.

    `weights` gives the policy's full state dict, for the engine; `listener` hears what happens; `should_stop`
    is asked after every step. `lagged` are the batches of the next steps, where they were sampled before the
    run was resumed; engines `outside` sample the next ones while the trainer works. `profiler` traces one
    step. `rank_report` knows the processes that share the run and says how they differ.
    """

    settings: LoopSettings
    collector: RolloutCollector
    updater: PolicyUpdater
    engine: Engine
    weights: Callable[[], Mapping[str, Tensor]]
    reference: MovingReference | None
    listener: Listener
    evaluate: Evaluate
    checkpoints: CheckpointStore
    should_stop: Callable[[], bool]
    lagged: tuple[LaggedBatch, ...] = ()
    outside: Outside | None = None
    stream: Callable[[], Stream] | None = None
    profiler: StepProfiler | None = None
    rank_report: RankReport = field(default_factory=RankReport)

    @property
    def ranks(self) -> Ranks:
        """The processes that share the run."""
        return self.rank_report.ranks


def train(run: Training, state: TrainingState) -> TrainingState:
    """Train from `state` to the last step; the state at the end.

    Raises `Interrupted` when asked to stop, after a checkpoint of the last whole step, and
    `TrainingDivergedError` after an evaluation of what it diverged to.
    """
    peak = PeakMemory(run.settings.device)
    run_started = time.perf_counter() - state.wall_s
    if state.step == 0:
        state = _evaluated(run, state, Measurements(), peak)
    with closing(_batches(run, state, peak)) as batches:
        state = _trained(run, state, batches, peak, run_started)
    run.checkpoints.finish()
    return state


def _batches(run: Training, state: TrainingState, peak: PeakMemory) -> Batches:
    """Where the batches come from."""
    sampling = Sampling(
        collector=run.collector,
        updater=run.updater,
        lag=run.settings.lag,
        pad_token_id=run.settings.pad_token_id,
        device=run.settings.device,
        enter=partial(_enter, run),
        peak=peak,
    )
    if run.stream is not None:
        return ContinuousBatches(sampling, run.stream(), state.cursor)
    if run.outside is None:
        return Batches(sampling, run.lagged)
    return BatchesBeside(sampling, run.lagged, run.outside)


def _trained(
    run: Training,
    state: TrainingState,
    batches: Batches,
    peak: PeakMemory,
    run_started: float,
) -> TrainingState:
    settings = run.settings
    step_started, checkpoint_s = time.perf_counter(), 0.0
    idle_s = run.engine.facts.idle_s or 0.0
    while state.step < settings.num_steps:
        step = state.step + 1
        try:
            with run.profiler.watch(step) if run.profiler else nullcontext():
                state, measurements = _stepped(run, state, batches, peak)
        except TrainingDivergedError:
            _evaluate_diverged(run, state)
            raise
        now = time.perf_counter()
        state = replace(state, wall_s=now - run_started)
        measurements.add(metrics.CHECKPOINT_S, checkpoint_s)
        _account(measurements, now - step_started, settings.lag)
        if (idle_now_s := run.engine.facts.idle_s) is not None:
            measurements.add(metrics.ENGINE_IDLE_S, idle_now_s - idle_s)
            idle_s = idle_now_s
        measurements.add(metrics.PEAK_MEMORY_MB, peak.peak_mb())
        run.rank_report.add(step, measurements)
        # Metrics come before the checkpoint: whoever resumes from it finds every step up to it recorded.
        run.listener.step(step, _named(measurements.values()))
        if (ratios := measurements.ratio_histogram()) is not None:
            run.listener.ratios(step, ratios)
        step_started = now
        stopping = run.ranks.any(run.should_stop())
        if _saves(run, state, stopping=stopping):
            _enter(run, step, "checkpoint")
            _save(run, state, batches.ahead(state))
        checkpoint_s = time.perf_counter() - now
        if stopping and step < settings.num_steps:
            run.checkpoints.finish()
            raise Interrupted(f"stopped after step {step} of {settings.num_steps}; its checkpoint is saved")
    return state


def _stepped(
    run: Training, state: TrainingState, batches: Batches, peak: PeakMemory
) -> tuple[TrainingState, Measurements]:
    """The state after one step, and what was measured."""
    step, batch = state.step + 1, batches.take(state)
    measurements = batch.measurements
    _enter(run, step, "update")
    with batches.during_update(), peak.of_phase(metrics.UPDATE_PEAK_MB, measurements):
        state = _updated(run, batches.sampling, state, batch)
    with _timed(metrics.WEIGHTS_S, measurements):
        run.engine.update_weights(run.weights(), state.weight_version)
        if run.reference is not None:
            run.reference.follow(run.weights(), state.objective.reference.share)
    if _evaluates(run.settings, step):
        state = _evaluated(run, state, measurements, peak)
    batches.advance(state, is_last=step == run.settings.num_steps)
    return state, measurements


def _enter(run: Training, step: int, phase: str) -> None:
    run.listener.phase(phase)
    run.ranks.enter(f"{phase} of step {step}")


def _account(measurements: Measurements, step_s: float, lag: int) -> None:
    """Record the step's duration and the part that no phase covers.

    With `lag`, sampling belongs to no single step, so that part is left out.
    """
    measurements.add(metrics.STEP_S, step_s)
    if lag:
        return
    found = measurements.values()
    other_s = max(0.0, step_s - sum(found.get(phase, 0.0) for phase in _PHASES))
    measurements.add(metrics.OTHER_S, other_s)
    measurements.add(metrics.IDLE_FRAC, found.get(metrics.GRADE_WAIT_S, 0.0) + other_s, step_s)


@contextmanager
def _timed(quantity: Quantity, measurements: Measurements) -> Iterator[None]:
    started = time.perf_counter()
    yield
    measurements.add(quantity, time.perf_counter() - started)


def _updated(run: Training, sampling: Sampling, state: TrainingState, batch: LaggedBatch) -> TrainingState:
    """The state after the step's updates. A step whose groups all lack a signal updates nothing."""
    settings, step = run.settings, state.step + 1
    collected, measurements = batch.collected, batch.measurements
    objective, carried, num_updates = state.objective, state.update, 0
    trace = run.ranks.any(run.listener.wants_rollouts(step))
    if any(collected.trains):
        rows = sampling.rows(collected, state.weight_version)
        measurements.add(metrics.STALENESS, *staleness(collected.groups, state.weight_version))
        output = run.updater.step(
            rows,
            objective,
            step=step,
            measurements=measurements,
            trace=trace,
            carried=carried,
        )
        num_updates, carried = output.num_updates, output.carried
        max_tokens = carried.micro_batch_tokens or run.updater.settings.micro_batch_tokens
        cause = partial(mismatch_cause, run.updater.forward, rows, max_tokens)
        check_mismatch(_named(measurements.values()), settings.max_mismatch, step, cause)
        if trace and output.traces is not None:
            run.listener.rollouts(step, collected.groups, token_traces(collected.groups, rows, output.traces))
    measured = _named(measurements.values())
    objective = run.updater.objective.update_state(objective, measured, step=step)
    return replace(
        state,
        step=step,
        cursor=collected.cursor,
        weight_version=state.weight_version + num_updates,
        num_tokens=state.num_tokens + int(measured[metrics.NUM_TOKENS.name]),
        objective=objective,
        update=carried,
    )


def _evaluated(
    run: Training, state: TrainingState, measurements: Measurements, peak: PeakMemory
) -> TrainingState:
    """The state after an evaluation, the best step included."""
    _enter(run, state.step, "evaluation")
    final = state.step in (0, run.settings.num_steps)
    with (
        _timed(metrics.EVALUATE_S, measurements),
        peak.of_phase(metrics.EVALUATE_PEAK_MB, measurements),
        memory_explained("evaluation", ENGINE_ADVICE),
    ):
        value = run.evaluate(state.step, final=final)
    if value is None or (state.best_value is not None and value <= state.best_value):
        return state
    return replace(state, best_step=state.step, best_value=value)


def _evaluate_diverged(run: Training, state: TrainingState) -> None:
    """Evaluate the policy that the step after `state` stopped at, so that the run has an outcome.

    Its weights are finite, since updates without a finite gradient are skipped before they change them. Where
    its logits are not, it can answer nothing.
    """
    step = state.step + 1
    run.updater.faults.log(f"training diverged in step {step}; what is left is evaluated")
    _enter(run, step, "evaluation")
    run.engine.update_weights(run.weights(), state.weight_version + 1)
    with suppress(PolicyDivergedError), memory_explained("evaluation", ENGINE_ADVICE):
        run.evaluate(step, final=True)


def _evaluates(settings: LoopSettings, step: int) -> bool:
    every = settings.evaluate_every_num_steps
    return step == settings.num_steps or (every is not None and step % every == 0)


def _saves(run: Training, state: TrainingState, *, stopping: bool) -> bool:
    settings = run.settings
    due = state.step % settings.checkpoint_every_num_steps == 0 or state.step == settings.num_steps
    new_best = run.checkpoints.keep_best and state.best_step == state.step
    return due or new_best or stopping


def _save(run: Training, state: TrainingState, lagged: Sequence[LaggedBatch]) -> None:
    run.listener.sync()
    reference = None if run.reference is None else run.reference.saved_weights()
    run.checkpoints.save(state, run.updater.optimizer.state(), reference, lagged)


def _named(values: Mapping[Quantity, float]) -> dict[str, float]:
    """Values by name, with the quantities that follow from others."""
    named = {quantity.name: value for quantity, value in values.items()}
    if total := values.get(metrics.SLOPE_SQUARED):
        named[metrics.HEAVIEST_TOKEN_FRAC.name] = values[metrics.SLOPE_SQUARED_MAX] / total
    square = values.get(metrics.RATIO_SQUARED)
    if square:
        # At most 1 by Cauchy-Schwarz; squares rounded to float32 may pass it in the eighth digit.
        named[metrics.EFFECTIVE_SAMPLE_FRAC.name] = min(1.0, values[metrics.RATIO_MEAN] ** 2 / square)
    return named

"""The training loop: one for every device, engine and method.

Each step samples, grades, scores, updates, records, and now and then evaluates and saves. Everything
random is keyed by the run's seed and the step, so a step depends on nothing but the weights, the
optimiser's state and `TrainingState`; that is what makes a resumed run equal to an undisturbed one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from atrium import metrics
from atrium.errors import Interrupted
from atrium.metrics import Quantity
from atrium.records import RolloutGroup
from atrium.rollout.collate import RolloutRows, collate
from atrium.rollout.engine import Engine
from atrium.tracking.tracker import TokenTrace, Tracker
from atrium.train.checkpoint import CheckpointStore, TrainingState
from atrium.train.collect import Collected, RolloutCollector
from atrium.train.measurements import Measurements
from atrium.train.memory import peak_memory_mb
from atrium.train.reference import MovingReference
from atrium.train.step import PolicyUpdater, RowTraces


class Evaluate(Protocol):
    """Evaluates the current policy, records the result, and reports the value that the best is chosen by."""

    def __call__(self, step: int, *, final: bool) -> float | None:
        """The validation score; `final` adds what is evaluated only before and after training."""
        ...


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """When the loop does what."""

    num_steps: int
    evaluate_every_num_steps: int | None
    checkpoint_every_num_steps: int
    pad_token_id: int
    device: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class Training:
    """The parts of a run that the loop drives.

    `weights` gives the policy's full state dict, for the engine; `should_stop` is asked after every step;
    `on_phase` is told what the loop is doing.
    """

    settings: LoopSettings
    collector: RolloutCollector
    updater: PolicyUpdater
    engine: Engine
    weights: Callable[[], Mapping[str, Tensor]]
    reference: MovingReference | None
    tracker: Tracker
    evaluate: Evaluate
    checkpoints: CheckpointStore
    should_stop: Callable[[], bool]
    on_phase: Callable[[str], None]


def train(run: Training, state: TrainingState) -> TrainingState:
    """Train from `state` to the last step; the state at the end.

    Raises `Interrupted` when asked to stop, after a checkpoint of the last whole step.
    """
    settings = run.settings
    run_started = time.perf_counter() - state.wall_s
    if state.step == 0:
        state = _evaluated(run, state, Measurements())
    step_started, checkpoint_s = time.perf_counter(), 0.0
    while state.step < settings.num_steps:
        step = state.step + 1
        measurements = Measurements()
        measurements.add(metrics.CHECKPOINT_S, checkpoint_s)
        run.on_phase("rollout")
        collected = run.collector.collect(step, state.cursor, measurements)
        run.on_phase("update")
        state = _updated(run, state, step, collected, measurements)
        run.engine.update_weights(run.weights(), state.weight_version)
        if run.reference is not None:
            run.reference.after_step(step, run.weights())
        if _evaluates(settings, step):
            state = _evaluated(run, state, measurements)
        now = time.perf_counter()
        state = replace(state, wall_s=now - run_started)
        measurements.add(metrics.STEP_S, now - step_started)
        measurements.add(metrics.PEAK_MEMORY_MB, peak_memory_mb(settings.device))
        # Metrics come before the checkpoint: whoever resumes from it finds every step up to it recorded.
        run.tracker.log_metrics(step, _named(measurements.values()))
        step_started = now
        stopping = run.should_stop()
        if _saves(run, state, stopping=stopping):
            run.on_phase("checkpoint")
            _save(run, state)
        checkpoint_s = time.perf_counter() - now
        if stopping and step < settings.num_steps:
            raise Interrupted(f"stopped after step {step} of {settings.num_steps}; its checkpoint is saved")
    return state


def _updated(
    run: Training, state: TrainingState, step: int, collected: Collected, measurements: Measurements
) -> TrainingState:
    """The state after the step's updates. A step whose groups all lack a signal updates nothing."""
    settings = run.settings
    objective = state.objective
    num_updates = 0
    trace = run.tracker.wants_rollouts(step)
    if any(collected.trains):
        rows = collate(
            collected.groups,
            trains=collected.trains,
            pad_token_id=settings.pad_token_id,
            seed=settings.seed,
            device=settings.device,
        )
        output = run.updater.step(rows, objective, step=step, measurements=measurements, trace=trace)
        num_updates = output.num_updates
        measured = _named(measurements.values())
        objective = run.updater.objective.update_state(objective, measured)
        if trace and output.traces is not None:
            run.tracker.log_rollouts(step, collected.groups, _traces(collected.groups, rows, output.traces))
    measured = _named(measurements.values())
    return replace(
        state,
        step=step,
        cursor=collected.cursor,
        weight_version=state.weight_version + num_updates,
        num_tokens=state.num_tokens + int(measured[metrics.NUM_TOKENS.name]),
        objective=objective,
    )


def _evaluated(run: Training, state: TrainingState, measurements: Measurements) -> TrainingState:
    """The state after an evaluation, the best step included."""
    run.on_phase("evaluation")
    started = time.perf_counter()
    final = state.step in (0, run.settings.num_steps)
    value = run.evaluate(state.step, final=final)
    measurements.add(metrics.EVALUATE_S, time.perf_counter() - started)
    if value is None or (state.best_value is not None and value <= state.best_value):
        return state
    return replace(state, best_step=state.step, best_value=value)


def _evaluates(settings: LoopSettings, step: int) -> bool:
    every = settings.evaluate_every_num_steps
    return step == settings.num_steps or (every is not None and step % every == 0)


def _saves(run: Training, state: TrainingState, *, stopping: bool) -> bool:
    settings = run.settings
    due = state.step % settings.checkpoint_every_num_steps == 0 or state.step == settings.num_steps
    new_best = run.checkpoints.keep_best and state.best_step == state.step
    return due or new_best or stopping


def _save(run: Training, state: TrainingState) -> None:
    run.tracker.sync()
    reference = None if run.reference is None else run.reference.saved_weights()
    run.checkpoints.save(state, run.updater.optimizer.state(), reference)


def _named(values: Mapping[Quantity, float]) -> dict[str, float]:
    """Values by name, with the quantities that follow from others."""
    named = {quantity.name: value for quantity, value in values.items()}
    square = values.get(metrics.RATIO_SQUARED)
    if square:
        # At most 1 by Cauchy-Schwarz; squares rounded to float32 may pass it in the eighth digit.
        named[metrics.EFFECTIVE_SAMPLE_FRAC.name] = min(1.0, values[metrics.RATIO_MEAN] ** 2 / square)
    return named


def _traces(
    groups: Sequence[RolloutGroup], rows: RolloutRows, traces: RowTraces
) -> dict[tuple[str, int], TokenTrace]:
    """The traces of every rollout, cut to its length."""
    keys = [
        (group.problem.problem_id, rollout.sample_index) for group in groups for rollout in group.rollouts
    ]
    lengths = rows.num_completion_tokens_B
    return {
        key: TokenTrace(
            advantage=tuple(traces.advantage_BT[row, : lengths[row]].tolist()),
            ratio=tuple(traces.ratio_BT[row, : lengths[row]].tolist()),
            entropy=tuple(traces.entropy_BT[row, : lengths[row]].tolist()),
            clipped=tuple(traces.clipped_BT[row, : lengths[row]].tolist()),
        )
        for row, key in enumerate(keys)
    }

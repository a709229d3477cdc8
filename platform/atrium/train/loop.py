"""The training loop, which is the same for all devices, engines and methods.

The loop runs steps (see `step`), records each, and saves checkpoints at intervals. Every random choice is
keyed by the run's seed and the step, so a step depends only on the contents of a checkpoint: the weights, the
optimizer's state, `TrainingState` and, with a lag, batches sampled earlier. Therefore a resumed run equals an
uninterrupted one, except with continuous sampling.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace

from atrium.base import metrics
from atrium.base.errors import Interrupted, PolicyDivergedError, TrainingDivergedError
from atrium.train.checkpoint.checkpoint import TrainingState
from atrium.train.collect import Collected
from atrium.train.continuous import ContinuousSteps
from atrium.train.guard.out_of_memory import memory_explained
from atrium.train.lag import LaggedSteps, OverlappedSteps
from atrium.train.measure.measurements import Measurements
from atrium.train.step import ENGINE_ADVICE, Steps, Training, evaluated

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


def train(run: Training, state: TrainingState) -> TrainingState:
    """Train from `state` to the last step, and return the final state.

    Raises `Interrupted` on a stop request, after saving a checkpoint of the last complete step, and
    `TrainingDivergedError` after evaluating the diverged policy.
    """
    started, num_steps = time.perf_counter() - state.wall_s, run.settings.num_steps
    if state.step == 0:
        state = evaluated(run, state, Measurements())
    with closing(_steps_of(run, state)) as steps:
        account = _Account(run)
        while state.step < num_steps:
            state, measurements = _next(run, steps, state)
            state = replace(state, wall_s=account.end_step(measurements) - started)
            _record(run, state.step, measurements)
            stopping = run.ranks.any(run.should_stop())
            if _saves(run, state, stopping=stopping):
                run.enter(state.step, "checkpoint")
                _save(run, state, steps.ahead(state))
            account.end_record()
            if stopping and state.step < num_steps:
                run.checkpoints.finish()
                raise Interrupted(
                    f"stopped after step {state.step} of {num_steps} with a checkpoint; "
                    "continue with --resume"
                )
    run.checkpoints.finish()
    return state


def _steps_of(run: Training, state: TrainingState) -> Steps:
    """Return the steps for the run's settings: synchronous, lagged, overlapped or continuous."""
    if run.servers is None:
        return LaggedSteps(run) if run.settings.lag else Steps(run)
    if run.settings.continuous:
        return ContinuousSteps(run, run.servers, state.cursor)
    return OverlappedSteps(run, run.servers)


def _next(run: Training, steps: Steps, state: TrainingState) -> tuple[TrainingState, Measurements]:
    """Run the next step, and return the state after it and its measurements.

    If training diverges, the policy before the failed update is evaluated before the error propagates.
    """
    try:
        with run.profiler.watch(state.step + 1) if run.profiler else nullcontext():
            return steps.step(state)
    except TrainingDivergedError:
        steps.close()
        _evaluate_diverged(run, state)
        raise


def _record(run: Training, step: int, measurements: Measurements) -> None:
    """Record a step. This happens before its checkpoint, so every step up to a checkpoint is recorded."""
    run.rank_report.add(step, measurements)
    run.listener.step(step, measurements.named())
    if (ratios := measurements.ratio_histogram()) is not None:
        run.listener.ratios(step, ratios)


class _Account:
    """The costs of each step: seconds, idle seconds of the engines, and peak memory."""

    def __init__(self, run: Training) -> None:
        self._run = run
        self._ended, self._checkpoint_s = time.perf_counter(), 0.0
        self._idle_s = run.engine.facts.idle_s or 0.0

    def end_step(self, measurements: Measurements) -> float:
        """Add a step's times and peak memory to `measurements`; return the current time in seconds.

        The step's time includes recording and saving the previous step.
        """
        now = time.perf_counter()
        step_s, self._ended = now - self._ended, now
        measurements.add(metrics.CHECKPOINT_S, self._checkpoint_s)
        measurements.add(metrics.STEP_S, step_s)
        if not self._run.settings.lag:  # with a lag, sampling belongs to no single step
            found = measurements.values()
            other_s = max(0.0, step_s - sum(found.get(phase, 0.0) for phase in _PHASES))
            measurements.add(metrics.OTHER_S, other_s)
            measurements.add(metrics.IDLE_FRAC, found.get(metrics.GRADE_WAIT_S, 0.0) + other_s, step_s)
        if (idle_s := self._run.engine.facts.idle_s) is not None:
            measurements.add(metrics.ENGINE_IDLE_S, idle_s - self._idle_s)
            self._idle_s = idle_s
        measurements.add(metrics.PEAK_MEMORY_MB, self._run.peak.peak_mb())
        return now

    def end_record(self) -> None:
        """Measure how long recording and saving a step took, to be counted as time of the next step."""
        self._checkpoint_s = time.perf_counter() - self._ended


def _evaluate_diverged(run: Training, state: TrainingState) -> None:
    """Evaluate the policy after training diverged in the step after `state`, so that the run has an outcome.

    The weights are finite, since an update without a finite gradient is not applied. A policy whose logits
    are not finite cannot generate answers, so it has no evaluation.
    """
    step = state.step + 1
    run.updater.faults.log(f"training diverged in step {step}; the remaining policy is evaluated")
    run.enter(step, "evaluation")
    run.engine.update_weights(run.weights(), state.weight_version + 1)
    with suppress(PolicyDivergedError), memory_explained("evaluation", ENGINE_ADVICE):
        run.evaluate(step, final=True)


def _saves(run: Training, state: TrainingState, *, stopping: bool) -> bool:
    settings = run.settings
    due = state.step % settings.checkpoint_every_num_steps == 0 or state.step == settings.num_steps
    new_best = run.checkpoints.keep_best and state.best_step == state.step
    return due or new_best or stopping


def _save(run: Training, state: TrainingState, ahead: Sequence[Collected]) -> None:
    run.listener.sync()
    reference = None if run.reference is None else run.reference.saved_weights()
    run.checkpoints.save(state, run.updater.optimizer.state(), reference, ahead)

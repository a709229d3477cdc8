"""The steps of a run: sample and grade a batch, update on it, send the weights to the engine, evaluate.

`Steps.step` is the synchronous step. Subclasses extend it for batches that are sampled earlier (`lag`) or
continuously (`continuous`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from atrium.base import metrics
from atrium.base.metrics import Quantity
from atrium.engines.collate import RolloutRows, collate
from atrium.engines.engine import Engine
from atrium.runs.listener import Listener
from atrium.train.checkpoint.checkpoint import CheckpointStore, TrainingState
from atrium.train.collect import Collected, RolloutCollector
from atrium.train.guard.memory import PeakMemory
from atrium.train.guard.out_of_memory import memory_explained
from atrium.train.guard.profile import StepProfiler
from atrium.train.measure.measurements import Measurements
from atrium.train.measure.mismatch import check_mismatch, mismatch_cause, staleness
from atrium.train.measure.traces import token_traces
from atrium.train.ranks.rank_report import RankReport
from atrium.train.ranks.ranks import Ranks
from atrium.train.update.reference import MovingReference
from atrium.train.update.updater import PolicyUpdater

if TYPE_CHECKING:  # its client is loaded only if servers sample
    from atrium.engines.server.engine import ServerEngine

ENGINE_ADVICE = "lower rollout.max_batch_tokens or the length limit of answers, or choose a smaller model"


class Evaluate(Protocol):
    """A function that evaluates the current policy and records the result."""

    def __call__(self, step: int, *, final: bool) -> float | None:
        """Evaluate the policy after `step`, and return its validation score.

        Returns None if there are no validation problems. The checkpoint with the highest score counts as the
        best. `final` adds the benchmarks that are evaluated only before and after training.
        """


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """The training loop's schedule.

    With a `lag` of k, the batch of step t is sampled by the weights after step t - 1 - k, or by the initial
    weights for the first steps. With `continuous`, it is sampled by weights that are at most k steps old.
    `max_mismatch` bounds the mean absolute difference between the engine's and the trainer's
    log-probabilities, in nats.
    """

    num_steps: int
    evaluate_every_num_steps: int | None
    checkpoint_every_num_steps: int
    pad_token_id: int
    device: str
    seed: int
    lag: int = 0
    continuous: bool = False
    max_mismatch: float | None = None


@dataclass(frozen=True, kw_only=True)
class Training:
    """The parts of a run that the loop uses.

    `weights` returns the policy's full state dict for the engine. `listener` receives events, and
    `should_stop` is called after every step. `lagged` contains the batches of the next steps that were
    sampled before the run was resumed. `servers` is the engine if it samples while the trainer works, and
    None otherwise. `profiler` traces one step. `rank_report` reports differences between the processes that
    share the run.
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
    lagged: tuple[Collected, ...] = ()
    servers: ServerEngine | None = None
    profiler: StepProfiler | None = None
    rank_report: RankReport = field(default_factory=RankReport)

    @property
    def ranks(self) -> Ranks:
        """The processes that share the run, with their communication."""
        return self.rank_report.ranks

    @cached_property
    def peak(self) -> PeakMemory:
        """The tracker of the run's memory peaks."""
        return PeakMemory(self.settings.device)

    def enter(self, step: int, phase: str) -> None:
        """Announce the start of a phase to the listeners and to the other ranks."""
        self.listener.phase(phase)
        self.ranks.enter(f"{phase} of step {step}")

    def rows(self, batch: Collected, weight_version: int | None = None) -> RolloutRows:
        """Return the batch as padded tensors for the trainer.

        `weight_version` is the version of the trainer's current weights, or None if these weights sampled the
        batch.
        """
        return collate(
            batch.groups,
            trains=batch.trains,
            pad_token_id=self.settings.pad_token_id,
            seed=self.settings.seed,
            device=self.settings.device,
            weight_version=weight_version,
        )


class Steps:
    """Synchronous steps: the engine samples a whole batch, then the trainer updates on it."""

    def __init__(self, run: Training) -> None:
        self.run = run

    def step(self, state: TrainingState) -> tuple[TrainingState, Measurements]:
        """Run the next training step; return the resulting state and the step's measurements."""
        batch = self.collect(state)
        state = update(self.run, state, batch)
        self.hand_over(state, batch.measurements)
        if _evaluates(self.run.settings, state.step):
            state = evaluated(self.run, state, batch.measurements)
        return state, batch.measurements

    def collect(self, state: TrainingState) -> Collected:
        """Sample and grade the batch of the next step."""
        self.run.enter(state.step + 1, "rollout")
        measurements = Measurements()
        measurements.add(metrics.STALENESS_STEPS, 0)
        with sampling(self.run, measurements):
            return self.run.collector.collect(state.step + 1, state.cursor, measurements)

    def hand_over(self, state: TrainingState, measurements: Measurements) -> None:
        """Send the updated weights to the engine, and move the reference policy by the method's rule."""
        with _timed(metrics.WEIGHTS_S, measurements):
            self.run.engine.update_weights(self.run.weights(), state.weight_version)
            if self.run.reference is not None:
                self.run.reference.follow(self.run.weights(), state.objective.reference.share)

    def ahead(self, state: TrainingState) -> Sequence[Collected]:
        """Return the batches already collected for later steps, to be saved in the checkpoint.

        The list is empty for synchronous steps, each of which samples its own batch.
        """
        return ()

    def close(self) -> None:
        """Cancel sampling. Has no effect on synchronous steps, whose sampling ends before each update."""


def update(run: Training, state: TrainingState, batch: Collected) -> TrainingState:
    """Update the policy on a step's batch, and return the state after the step.

    If the batch has no group to train on, the weights stay unchanged. Raises `EngineError` if the
    log-probabilities of engine and trainer differ by more than `max_mismatch` on average.
    """
    step, measurements = state.step + 1, batch.measurements
    run.enter(step, "update")
    carried, num_updates = state.update, 0
    trace = run.ranks.any(run.listener.wants_rollouts(step))
    with run.peak.of_phase(metrics.UPDATE_PEAK_MB, measurements):
        if any(batch.trains):
            rows = run.rows(batch, state.weight_version)
            measurements.add(metrics.STALENESS, *staleness(batch.groups, state.weight_version))
            output = run.updater.step(
                rows, state.objective, step=step, measurements=measurements, trace=trace, carried=carried
            )
            num_updates, carried = output.num_updates, output.carried
            max_tokens = carried.micro_batch_tokens or run.updater.settings.micro_batch_tokens
            cause = partial(mismatch_cause, run.updater.forward, rows, max_tokens)
            check_mismatch(measurements.named(), run.settings.max_mismatch, step, cause)
            if trace and output.traces is not None:
                run.listener.rollouts(step, batch.groups, token_traces(rows, output.traces))
        measured = measurements.named()
        objective = run.updater.objective.update_state(state.objective, measured, step=step)
    return replace(
        state,
        step=step,
        cursor=batch.cursor,
        weight_version=state.weight_version + num_updates,
        num_tokens=state.num_tokens + int(measured[metrics.NUM_TOKENS.name]),
        objective=objective,
        update=carried,
    )


def evaluated(run: Training, state: TrainingState, measurements: Measurements) -> TrainingState:
    """Evaluate the policy, and return `state` with the best step and the best score so far."""
    run.enter(state.step, "evaluation")
    with (
        _timed(metrics.EVALUATE_S, measurements),
        run.peak.of_phase(metrics.EVALUATE_PEAK_MB, measurements),
        memory_explained("evaluation", ENGINE_ADVICE),
    ):
        value = run.evaluate(state.step, final=state.step in (0, run.settings.num_steps))
    if value is None or (state.best_value is not None and value <= state.best_value):
        return state
    return replace(state, best_step=state.step, best_value=value)


@contextmanager
def sampling(run: Training, measurements: Measurements) -> Iterator[None]:
    """Measure the peak memory of sampling within the block, and add advice to out-of-memory errors."""
    with (
        run.peak.of_phase(metrics.ROLLOUT_PEAK_MB, measurements),
        memory_explained("sampling", ENGINE_ADVICE),
    ):
        yield


@contextmanager
def _timed(quantity: Quantity, measurements: Measurements) -> Iterator[None]:
    started = time.perf_counter()
    yield
    measurements.add(quantity, time.perf_counter() - started)


def _evaluates(settings: LoopSettings, step: int) -> bool:
    every = settings.evaluate_every_num_steps
    return step == settings.num_steps or (every is not None and step % every == 0)

"""Where the batches of steps come from: sampled between updates, or beside them by vLLM servers.

With `rollout.lag=k` the batch of step t is sampled by the weights after step t - 1 - k, or by the first
ones. Servers keep their weights until they have sampled their share of a batch, so batches that are sampled
beside updates equal those that are sampled between them, bit for bit. Engine and trainer are compared at the
weights that sampled: the trained parameters are kept for each batch whose weights have been updated since,
at most k times, and stand in for the comparison.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, nn

from atrium.base import metrics
from atrium.engines.collate import RolloutRows, collate, with_behavior
from atrium.engines.engine import Sampler
from atrium.models.shards import local_tensor
from atrium.train.checkpoint.checkpoint import TrainingState
from atrium.train.checkpoint.lagged import LaggedBatch
from atrium.train.collect import Collected, RolloutCollector
from atrium.train.guard.memory import PeakMemory
from atrium.train.guard.out_of_memory import memory_explained
from atrium.train.measure.measurements import Measurements
from atrium.train.measure.mismatch import measure_mismatch, mismatch_sums
from atrium.train.update.step import PolicyUpdater

ENGINE_ADVICE = "lower rollout.max_batch_tokens or the length limit of answers, or choose a smaller model"


@dataclass(frozen=True, kw_only=True)
class Outside:
    """Engines outside the trainer.

    Attributes
    ----------
    model
        The policy whose weights they have.
    sampler
        Gives what samples by the weights of now, whichever the engines have later.
    interrupt
        Lets the engines give up what they sample, within seconds.
    keeps_weights
        Whether earlier weights can be sampled from; otherwise all batches are waited for before an update
        reaches the engines.
    """

    model: nn.Module
    sampler: Callable[[], Sampler]
    interrupt: Callable[[], None]
    keeps_weights: bool


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Samples one batch, and compares engine and trainer on it.

    `enter` hears the phase that begins, and its step.
    """

    collector: RolloutCollector
    updater: PolicyUpdater
    lag: int
    pad_token_id: int
    device: str
    enter: Callable[[int, str], None]
    peak: PeakMemory

    def batch(self, state: TrainingState, step: int, cursor: int) -> LaggedBatch:
        """A step's batch, by the weights that the engine has now."""
        self.enter(step, "rollout")
        measurements = Measurements()
        with (
            self.peak.of_phase(metrics.ROLLOUT_PEAK_MB, measurements),
            memory_explained("sampling", ENGINE_ADVICE),
        ):
            collected = self.collector.collect(step, cursor, measurements)
            collected = self.compared(state, step, collected, measurements)
        return LaggedBatch(collected=collected, measurements=measurements)

    def compared(
        self, state: TrainingState, step: int, collected: Collected, measurements: Measurements
    ) -> Collected:
        """The batch of `step`, which the weights of now sampled, with what only they can say of it.

        Measured are the steps until its own, and how engine and trainer differ by these weights. Where the
        trainer's numbers anchor a lagged batch, they come with it.
        """
        measurements.add(metrics.STALENESS_STEPS, step - 1 - state.step)
        if not (self.lag and collected.groups):
            return collected
        rows, updater = self.rows(collected), self.updater
        if updater.settings.behavior_logprobs == "engine":
            max_tokens = state.update.micro_batch_tokens or updater.settings.micro_batch_tokens
            measure_mismatch(updater.forward, rows, max_tokens, measurements)
            return collected
        logprob_BT = updater.behavior_logprobs(rows, state.update, measurements)
        batch = rows.batch
        measurements.add_sums(mismatch_sums(logprob_BT, batch.rollout_logprob_BT, batch.mask_BT))
        return replace(collected, groups=with_behavior(collected.groups, logprob_BT))

    def rows(self, collected: Collected, weight_version: int | None = None) -> RolloutRows:
        """The batch as tensors for the trainer, whose weights have `weight_version`."""
        return collate(
            collected.groups,
            trains=collected.trains,
            pad_token_id=self.pad_token_id,
            seed=self.collector.seed,
            device=self.device,
            weight_version=weight_version,
        )


class Batches:
    """The batches of a run, in the order of its steps, each sampled between two updates.

    `lagged` are those of the next steps.
    """

    def __init__(self, sampling: Sampling, lagged: Sequence[LaggedBatch]) -> None:
        self.sampling = sampling
        self._ready = deque(lagged)

    def take(self, state: TrainingState) -> LaggedBatch:
        """The batch of the step after `state`."""
        num_before = len(self._ready)
        self._fill(state, self.sampling.lag + 1)
        return self._next(num_before)

    @contextmanager
    def during_update(self) -> Iterator[None]:
        """Sample what is sampled beside the update that is the body."""
        yield

    def advance(self, state: TrainingState, *, is_last: bool) -> None:
        """Go on after the step that led to `state`, whose weights the engine has now."""

    def ahead(self, state: TrainingState) -> Sequence[LaggedBatch]:
        """The batches of the `lag` steps after `state`, which a checkpoint has to hold."""
        return tuple(self._ready)

    def close(self) -> None:
        """Give up what is being sampled."""

    def _fill(self, state: TrainingState, num_batches: int) -> None:
        """Sample by the weights of now until `num_batches` are there."""
        while len(self._ready) < num_batches:
            step = state.step + 1 + len(self._ready)
            self._ready.append(self.sampling.batch(state, step, self._cursor(state)))

    def _next(self, num_before: int) -> LaggedBatch:
        """The next batch; `num_before` were there when the step began."""
        batch = self._ready.popleft()
        if self.sampling.lag:
            batch.measurements.add(metrics.QUEUE_BATCHES, num_before)
        return batch

    def _cursor(self, state: TrainingState) -> int:
        """Where the stream of problems goes on."""
        return self._ready[-1].collected.cursor if self._ready else state.cursor


class BatchesBeside(Batches):
    """The batches of a run with a lag whose engines outside sample them while the trainer works.

    Once the engines can have the weights of a step, the batch that they sample is requested. A step begins
    when its own batch is there and has been compared; the others are being sampled.
    """

    def __init__(self, sampling: Sampling, lagged: Sequence[LaggedBatch], outside: Outside) -> None:
        super().__init__(sampling, lagged)
        self._outside = outside
        self._pending: deque[_Pending] = deque()

    def take(self, state: TrainingState) -> LaggedBatch:
        """The batch of the step after `state`; the one that is due `lag` steps later is being sampled."""
        due = state.step + 1 + self.sampling.lag
        is_begun = bool(self._pending) and self._pending[-1].step == due
        num_before = len(self._ready) + len(self._pending) - is_begun
        if not is_begun:
            self._fill(state, self.sampling.lag)
            self._begin(state)
        return self._next(num_before)

    @contextmanager
    def during_update(self) -> Iterator[None]:
        """Keep the parameters for the batch that they sample. Where the body raises, sampling is given up."""
        self._pending[-1].before = [
            (parameter, local_tensor(parameter.detach()).clone())
            for parameter in self._outside.model.parameters()
            if parameter.requires_grad
        ]
        try:
            yield
        except BaseException:
            self.close()
            raise
        if not self._outside.keeps_weights:
            for pending in self._pending:
                pending.wait()

    def advance(self, state: TrainingState, *, is_last: bool) -> None:
        """Request the next batch, unless the run ends, and have the batch of the next step compared."""
        if not is_last:
            self._begin(state)
        if not self._ready:
            self._compare_next()

    def ahead(self, state: TrainingState) -> Sequence[LaggedBatch]:
        """The batches of the `lag` steps after `state`, which a checkpoint has to hold."""
        while len(self._ready) < self.sampling.lag:
            self._compare_next()
        return tuple(self._ready)

    def close(self) -> None:
        """Give up what is being sampled."""
        if self._pending:
            self._outside.interrupt()
        while self._pending:
            self._pending.popleft().join()

    def _begin(self, state: TrainingState) -> None:
        """Let a thread collect the batch that is due `lag` steps after the next one."""
        collector = self.sampling.collector
        cursor: Callable[[], int]
        if not self._pending:
            cursor = partial(int, self._cursor(state))
        elif collector.knows_next_cursor and collector.ranks.is_alone:
            cursor = partial(int, self._pending[-1].cursor() + collector.num_prompts)
        else:
            cursor = self._pending[-1].cursor_behind
        sampler = self._outside.sampler()
        self._pending.append(_Pending(collector, state, self.sampling.lag, cursor, sampler))

    def _compare_next(self) -> None:
        """Wait for the batch that was requested first, and compare engine and trainer on it."""
        pending = self._pending.popleft()
        pending.wait()
        with pending.weights_before():
            collected = self.sampling.compared(
                pending.state, pending.step, pending.collected, pending.measurements
            )
        self._ready.append(LaggedBatch(collected=collected, measurements=pending.measurements))


class _Pending:
    """A batch that is being sampled, and the parameters that sampled it once they have been updated."""

    def __init__(
        self,
        collector: RolloutCollector,
        state: TrainingState,
        lag: int,
        cursor: Callable[[], int],
        sampler: Sampler,
    ) -> None:
        self.state = state
        self.step = state.step + 1 + lag
        self.cursor = cursor
        self.measurements = Measurements()
        self.before: list[tuple[nn.Parameter, Tensor]] = []
        self._collected: Collected | None = None
        self._error: BaseException | None = None
        self._is_measured = False
        self._started = self._ended = time.perf_counter()
        self._thread = threading.Thread(
            target=self._run, args=(collector, sampler), name="sampling-beside", daemon=True
        )
        self._thread.start()

    @property
    def collected(self) -> Collected:
        """The batch, once it has been waited for."""
        assert self._collected is not None
        return self._collected

    def cursor_behind(self) -> int:
        """Wait for the batch; where the stream of problems goes on behind it."""
        self._joined()
        return self.collected.cursor

    def _run(self, collector: RolloutCollector, sampler: Sampler) -> None:
        try:
            self._collected = collector.collect(self.step, self.cursor(), self.measurements, sampler)
        except BaseException as error:  # raised again where the batch is waited for
            self._error = error
        self._ended = time.perf_counter()

    def join(self) -> None:
        """Wait until nothing is sampled any more."""
        self._thread.join()

    def wait(self) -> None:
        """Wait for the batch, and measure for how long it was sampled beside the trainer and waited for."""
        if self._is_measured:
            return
        asked = time.perf_counter()
        self._joined()
        self.measurements.add(metrics.OVERLAP_S, min(asked, self._ended) - self._started)
        self.measurements.add(metrics.BATCH_WAIT_S, max(0.0, self._ended - asked))
        self._is_measured = True

    def _joined(self) -> None:
        self.join()
        if self._error is not None:
            raise self._error

    @contextmanager
    def weights_before(self) -> Iterator[None]:
        """Let the policy have the parameters that it had when sampling began."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        """Exchange values, one tensor after the other: FSDP keeps hold of the memory of its shards."""
        for parameter, before in self.before:
            now = local_tensor(parameter.detach())
            kept = now.clone()
            now.copy_(before)
            before.copy_(kept)

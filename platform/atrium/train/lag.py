"""Training steps on batches sampled k steps earlier (`rollout.lag=k`), between updates or during them.

The batch of step t is sampled by the weights after step t - 1 - k, or by the initial ones. Servers keep their
weights until they have sampled their share of a batch, so batches sampled during updates are bitwise
identical to those sampled between them. Engine and trainer are compared under the weights that sampled the
batch. If these have been updated since, the trainer restores a copy of the trained parameters for the
comparison; it keeps at most k copies.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor, nn

from atrium.base import metrics
from atrium.engines.collate import with_behavior
from atrium.engines.engine import Sampler
from atrium.models.shards import local_tensor
from atrium.train.background import in_background
from atrium.train.checkpoint.checkpoint import TrainingState
from atrium.train.collect import Collected, RolloutCollector
from atrium.train.measure.measurements import Measurements
from atrium.train.measure.mismatch import measure_mismatch, mismatch_sums
from atrium.train.step import Steps, Training, sampling

if TYPE_CHECKING:
    from atrium.engines.server.engine import ServerEngine


class LaggedSteps(Steps):
    """Steps that first sample the batch due `lag` steps later, then update on their own batch."""

    def __init__(self, run: Training) -> None:
        super().__init__(run)
        self._lag = run.settings.lag
        self._ready = deque(run.lagged)

    def collect(self, state: TrainingState) -> Collected:
        """Sample the batch that is due `lag` steps after the next step; return the batch of the next step."""
        num_before = len(self._ready)
        self._fill(state, self._lag + 1)
        return self._next(num_before)

    def ahead(self, state: TrainingState) -> Sequence[Collected]:
        """Return the batches of the `lag` steps after `state`."""
        return tuple(self._ready)

    def _fill(self, state: TrainingState, num_batches: int) -> None:
        """Sample batches with the current weights until `num_batches` are ready."""
        while len(self._ready) < num_batches:
            step, measurements = state.step + 1 + len(self._ready), Measurements()
            self.run.enter(step, "rollout")
            with sampling(self.run, measurements):
                batch = self.run.collector.collect(step, self._cursor(state), measurements)
                self._ready.append(self._measured_by_sampling_weights(state, step, batch))

    def _next(self, num_before: int) -> Collected:
        """Return the next batch, and record that `num_before` batches were ready when the step began."""
        batch = self._ready.popleft()
        batch.measurements.add(metrics.QUEUE_BATCHES, num_before)
        return batch

    def _cursor(self, state: TrainingState) -> int:
        """Return the position in the stream of problems after the last batch that is ready."""
        return self._ready[-1].cursor if self._ready else state.cursor

    def _measured_by_sampling_weights(self, state: TrainingState, step: int, batch: Collected) -> Collected:
        """Return the batch of `step` with the measurements that require its sampling weights.

        Must be called while the policy has these weights. Measures the batch's staleness in steps and the
        mismatch of engine and trainer. Attaches the trainer's log-probabilities, unless the engine's serve as
        behavior log-probabilities.
        """
        measurements, updater = batch.measurements, self.run.updater
        measurements.add(metrics.STALENESS_STEPS, step - 1 - state.step)
        if not batch.groups:
            return batch
        rows = self.run.rows(batch)
        if updater.settings.behavior_logprobs == "engine":
            max_tokens = state.update.micro_batch_tokens or updater.settings.micro_batch_tokens
            measure_mismatch(updater.forward, rows, max_tokens, measurements)
            return batch
        logprob_BT = updater.behavior_logprobs(rows, state.update, measurements)
        measurements.add_sums(mismatch_sums(logprob_BT, rows.batch.rollout_logprob_BT, rows.batch.mask_BT))
        return replace(batch, groups=with_behavior(batch.groups, logprob_BT))


class OverlappedSteps(LaggedSteps):
    """Steps with a lag whose batches are sampled by servers while the trainer works.

    A batch is requested as soon as the servers can receive the weights that sample it. A step begins once its
    own batch has arrived and engine and trainer have been compared on it; later batches are still being
    sampled.
    """

    def __init__(self, run: Training, servers: ServerEngine) -> None:
        super().__init__(run)
        self._servers = servers
        self._pending: deque[_Pending] = deque()

    def step(self, state: TrainingState) -> tuple[TrainingState, Measurements]:
        """Run the next step, then request the batch that the updated weights sample.

        Returns the state after the step, and its measurements.
        """
        state, measurements = super().step(state)
        if state.step < self.run.settings.num_steps:
            self._begin(state)
        if not self._ready:
            self._compare_next()
        return state, measurements

    def collect(self, state: TrainingState) -> Collected:
        """Return the batch of the next step, while servers sample the batch due `lag` steps later.

        Keeps a copy of the parameters that sample the later batch, since the update changes them.
        """
        due = state.step + 1 + self._lag
        is_begun = bool(self._pending) and self._pending[-1].step == due
        num_before = len(self._ready) + len(self._pending) - is_begun
        if not is_begun:
            self._fill(state, self._lag)
            self._begin(state)
        self._pending[-1].before = [
            (parameter, local_tensor(parameter.detach()).clone())
            for parameter in self.run.updater.forward.model.parameters()
            if parameter.requires_grad
        ]
        return self._next(num_before)

    def hand_over(self, state: TrainingState, measurements: Measurements) -> None:
        """Send the weights to the servers.

        If servers cannot keep old weights, this first waits for pending batches.
        """
        if not self._servers.keeps_weights:
            for pending in self._pending:
                pending.wait()
        super().hand_over(state, measurements)

    def ahead(self, state: TrainingState) -> Sequence[Collected]:
        """Wait for the batches of the `lag` steps after `state`, and return them."""
        while len(self._ready) < self._lag:
            self._compare_next()
        return super().ahead(state)

    def close(self) -> None:
        """Cancel all pending batches, and wait until their sampling has ended."""
        if self._pending:
            self._servers.interrupt()
        while self._pending:
            self._pending.popleft().join()

    def _begin(self, state: TrainingState) -> None:
        """Start a thread that collects the batch due `lag` steps after the next step."""
        collector = self.run.collector
        cursor: Callable[[], int]
        if not self._pending:
            cursor = partial(int, self._cursor(state))
        elif collector.knows_next_cursor and collector.ranks.is_alone:
            cursor = partial(int, self._pending[-1].cursor() + collector.num_prompts)
        else:
            cursor = self._pending[-1].cursor_behind
        self._pending.append(_Pending(collector, state, self._lag, cursor, self._servers.at_this_version()))

    def _compare_next(self) -> None:
        """Wait for the oldest requested batch, and compare engine and trainer on it."""
        pending = self._pending.popleft()
        pending.wait()
        with pending.weights_before():
            self._ready.append(self._measured_by_sampling_weights(pending.state, pending.step, pending.batch))


@dataclass(eq=False)
class _Pending:
    """A batch that `sampler` samples in a separate thread.

    `cursor` returns the position of the batch's first problem in the stream, and may wait for the previous
    batch. `before` pairs each trained parameter with a copy of its value in the weights that sample the
    batch.
    """

    collector: RolloutCollector
    state: TrainingState
    lag: int
    cursor: Callable[[], int]
    sampler: Sampler
    before: list[tuple[nn.Parameter, Tensor]] = field(default_factory=list, init=False)
    _is_measured: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.step = self.state.step + 1 + self.lag
        self._started = self._ended = time.perf_counter()
        self._sampled = in_background(self._sample, "sampling-beside")

    def _sample(self) -> Collected:
        try:
            return self.collector.collect(self.step, self.cursor(), Measurements(), self.sampler)
        finally:
            self._ended = time.perf_counter()

    @property
    def batch(self) -> Collected:
        """The sampled batch. Access waits for the batch, and raises an error of the sampling thread."""
        return self._sampled.result()

    def cursor_behind(self) -> int:
        """Wait for the batch, and return the position in the stream of problems after its last problem."""
        return self.batch.cursor

    def join(self) -> None:
        """Wait until sampling has ended, without raising an error of the sampling thread."""
        self._sampled.exception()

    def wait(self) -> None:
        """Wait for the batch; record how long sampling ran before this call, and how long the call waited.

        Repeated calls record nothing.
        """
        if self._is_measured:
            return
        asked = time.perf_counter()
        measurements = self.batch.measurements
        measurements.add(metrics.OVERLAP_S, min(asked, self._ended) - self._started)
        measurements.add(metrics.BATCH_WAIT_S, max(0.0, self._ended - asked))
        self._is_measured = True

    @contextmanager
    def weights_before(self) -> Iterator[None]:
        """Restore the parameters that sampled the batch for the duration of the `with` block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        """Swap the current parameters with the copies in `before`, in place.

        FSDP holds references to the memory of its shards, so this memory must stay the same.
        """
        for parameter, before in self.before:
            now = local_tensor(parameter.detach())
            kept = now.clone()
            now.copy_(before)
            before.copy_(kept)

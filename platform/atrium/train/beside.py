"""Sampling a coming batch while the policy is updated (`rollout.lag` with `rollout.placement=beside`).

A thread asks engines in processes of their own and grades what they answer. They keep the weights that they
have until the update is over, so the batch is the one that would have been sampled before it, bit for bit.
Engine and trainer are compared at the weights that sampled: the trained parameters are kept as
they were before the update, which takes their size in memory, and stand in for the comparison.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from atrium import metrics
from atrium.models.shards import local_tensor
from atrium.train.checkpoint.lagged import LaggedBatch
from atrium.train.collect import Collected, RolloutCollector
from atrium.train.measure.measurements import Measurements

Compare = Callable[[Collected, Measurements], Collected]
"""Adds to a batch and its measurements what the trainer's present weights, which sampled it, say of it."""


@dataclass(frozen=True, kw_only=True)
class SamplingBeside:
    """Samples a batch beside an update.

    Attributes
    ----------
    model
        The policy whose parameters the update changes.
    interrupt
        Lets the engines give up what they sample, within seconds.
    """

    model: nn.Module
    interrupt: Callable[[], None]

    @contextmanager
    def sampling(self, collector: RolloutCollector, step: int, cursor: int) -> Iterator[Pending]:
        """Collect the batch of `step` in a thread while the body runs.

        Leaving the body waits for the batch, and raises what sampling raised. Where the body raises, sampling
        is given up.
        """
        pending = Pending(self.model, lambda found: collector.collect(step, cursor, found))
        try:
            yield pending
        except BaseException:
            self.interrupt()
            pending.join()
            raise
        pending.wait()


class Pending:
    """A batch that is being sampled, and the parameters that sampled it."""

    def __init__(self, model: nn.Module, collect: Callable[[Measurements], Collected]) -> None:
        self._measurements = Measurements()
        self._collected: Collected | None = None
        self._error: BaseException | None = None
        self._before = [
            (parameter, local_tensor(parameter.detach()).clone())
            for parameter in model.parameters()
            if parameter.requires_grad
        ]
        self._started = self._ended = time.perf_counter()
        self._thread = threading.Thread(
            target=self._run, args=(collect,), name="sampling-beside", daemon=True
        )
        self._thread.start()

    def _run(self, collect: Callable[[Measurements], Collected]) -> None:
        try:
            self._collected = collect(self._measurements)
        except BaseException as error:  # raised again where the batch is waited for
            self._error = error
        self._ended = time.perf_counter()

    def join(self) -> None:
        """Wait until nothing is sampled any more."""
        self._thread.join()

    def wait(self) -> None:
        """Wait for the batch, and measure for how long it was sampled beside the update and waited for."""
        update_ended = time.perf_counter()
        self.join()
        if self._error is not None:
            raise self._error
        self._measurements.add(metrics.OVERLAP_S, min(update_ended, self._ended) - self._started)
        self._measurements.add(metrics.BATCH_WAIT_S, max(0.0, self._ended - update_ended))

    def finished(self, compare: Compare) -> LaggedBatch:
        """The batch, compared at the weights that sampled it."""
        assert self._collected is not None
        with self._weights_before():
            collected = compare(self._collected, self._measurements)
        return LaggedBatch(collected=collected, measurements=self._measurements)

    @contextmanager
    def _weights_before(self) -> Iterator[None]:
        """Let the policy have the parameters that it had when sampling began."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        """Exchange values, one tensor after the other: FSDP keeps hold of the memory of its shards."""
        for parameter, before in self._before:
            now = local_tensor(parameter.detach())
            kept = now.clone()
            now.copy_(before)
            before.copy_(kept)

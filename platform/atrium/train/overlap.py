"""Sampling a coming batch while the policy is updated (`rollout.lag` with `rollout.overlap`).

A thread drives the engine, which has weights of its own and keeps those it has until the update is over; the
batch is therefore the one that would have been sampled before the update, to the last bit. Engine and
trainer are compared at the weights that sampled: the trained parameters are kept as they were before the
update, which takes their size in memory, and stand in for the comparison.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import Tensor, nn

from atrium import metrics
from atrium.rollout.engine import Engine, EngineFacts, Generation, GenerationRequest, SamplingParams
from atrium.train.checkpoint.lagged import LaggedBatch
from atrium.train.collect import Collected, RolloutCollector
from atrium.train.measure.measurements import Measurements

Compare = Callable[[Collected, Measurements], None]
"""Adds to measurements how engine and trainer differ on a batch, at the trainer's present weights."""


class Overlap:
    """Samples a step's batch beside the update of the step before.

    Parameters
    ----------
    model
        The policy whose parameters the update changes; the engine must not share them.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    @contextmanager
    def sampling(self, collector: RolloutCollector, step: int, cursor: int) -> Iterator[Pending]:
        """Collect the batch of `step` in a thread while the body runs.

        Leaving the body waits for the batch, and raises what sampling raised. Where the body raises, sampling
        ends with the next prompt that is finished, and what it raised is dropped.
        """
        pending = Pending(self._model)
        pending.start(collector, step, cursor)
        try:
            yield pending
        except BaseException:
            pending.give_up()
            raise
        pending.wait()


class Pending:
    """A batch that is being sampled, and the parameters that sampled it."""

    def __init__(self, model: nn.Module) -> None:
        self._measurements = Measurements()
        self._collected: Collected | None = None
        self._error: BaseException | None = None
        self._given_up = threading.Event()
        self._thread: threading.Thread | None = None
        self._started = self._ended = 0.0
        self._before = [
            (parameter, parameter.detach().clone())
            for parameter in model.parameters()
            if parameter.requires_grad
        ]

    def start(self, collector: RolloutCollector, step: int, cursor: int) -> None:
        """Begin to sample."""
        engine = _UntilGivenUp(engine=collector.engine, given_up=self._given_up)

        def collect() -> None:
            try:
                ours = replace(collector, engine=engine)
                self._collected = ours.collect(step, cursor, self._measurements)
            except BaseException as error:  # raised again where the batch is waited for
                self._error = error
            self._ended = time.perf_counter()

        self._thread = threading.Thread(target=collect, name="sampling-ahead", daemon=True)
        self._started = time.perf_counter()
        self._thread.start()

    def give_up(self) -> None:
        """End sampling without a batch."""
        self._given_up.set()
        self._join()

    def wait(self) -> None:
        """Wait for the batch, and measure for how long it was sampled beside the update."""
        update_ended = time.perf_counter()
        self._join()
        if self._error is not None:
            raise self._error
        self._measurements.add(metrics.OVERLAP_S, min(update_ended, self._ended) - self._started)

    def finished(self, compare: Compare) -> LaggedBatch:
        """The batch, compared at the weights that sampled it."""
        assert self._collected is not None
        with self._weights_before():
            compare(self._collected, self._measurements)
        return LaggedBatch(collected=self._collected, measurements=self._measurements)

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    @contextmanager
    def _weights_before(self) -> Iterator[None]:
        """Let the policy have the parameters that it had when sampling began; no values are copied."""
        now = [parameter.data for parameter, _ in self._before]
        for parameter, before in self._before:
            parameter.data = before
        try:
            yield
        finally:
            for (parameter, _), data in zip(self._before, now, strict=True):
                parameter.data = data


@dataclass(frozen=True)
class _UntilGivenUp:
    """An engine that stops between two prompts once its batch is not wanted any more."""

    engine: Engine
    given_up: threading.Event

    @property
    def weight_version(self) -> int:
        return self.engine.weight_version

    @property
    def facts(self) -> EngineFacts:
        return self.engine.facts

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> Iterator[Generation]:
        for generation in self.engine.generate(requests, sampling):
            if self.given_up.is_set():
                raise InterruptedError("sampling ahead was given up")
            yield generation

    def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        self.engine.update_weights(weights, version)

    def release_memory(self) -> None:
        self.engine.release_memory()

    def close(self) -> None:
        self.engine.close()

"""The measurements of one step's updates: sums over micro-batches, times, position counts, token traces."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atrium.base import metrics
from atrium.engines.collate import RolloutRows
from atrium.method.batch import PolicyTokens
from atrium.method.diagnostics import Sums
from atrium.method.objective import LossOutput
from atrium.train.measure.clock import Span
from atrium.train.measure.flops import ModelFlops
from atrium.train.measure.measurements import Measurements
from atrium.train.measure.mismatch import mismatch_sums
from atrium.train.measure.traces import RowTraces, empty_traces, exchange_traces, write_traces
from atrium.train.ranks.ranks import Ranks
from atrium.train.update.forward import PolicyForward
from atrium.train.update.packing import num_packed_tokens


@dataclass(kw_only=True, eq=False)
class StepRecord:
    """A record of a step's updates. For an update that is not applied, only computed positions are counted.

    `trace` says whether the rows' traces are recorded in `traces`. `peak_flops` is the devices' peak in FLOPs
    per second, or None if unknown.
    """

    measurements: Measurements
    forward: PolicyForward
    ranks: Ranks
    trace: bool
    peak_flops: float | None = None
    traces: RowTraces | None = field(default=None, init=False)
    scored: RolloutRows | None = field(default=None, init=False)
    num_updates: int = field(default=0, init=False)
    _num_flops: float = field(default=0.0, init=False)
    _num_attempts: int = field(default=0, init=False)
    _num_tokens: int = field(default=0, init=False)
    _num_positions: int = field(default=0, init=False)
    _sums: list[tuple[Sums, Tensor]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._span = Span(self.forward.device.type)
        self._place_B: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def begin_updates(self, rows: RolloutRows) -> None:
        """Store a batch with advantages, create its traces, and start measuring the time of its updates."""
        self.scored = rows
        self.traces = empty_traces(rows.batch) if self.trace else None
        self._span = Span(self.forward.device.type)

    def begin_update(self, number: int, place_B: NDArray[np.int64]) -> None:
        """Start update `number`, counted from 1, on the rows at indices `place_B` of the batch."""
        self._num_attempts, self._place_B = number, place_B

    def begin_passes(self) -> None:
        """Reset the sums and position counts of the current update.

        Called before the update's micro-batches, and again if they are repeated after memory ran out.
        """
        self._sums, self._num_positions = [], 0

    def see(
        self,
        place_B: NDArray[np.int64],
        rows: RolloutRows,
        policy: PolicyTokens,
        output: LossOutput,
        *,
        is_real: bool,
    ) -> None:
        """Add the results of the micro-batch `rows`, which are at indices `place_B` of the minibatch.

        With `is_real=False` (see `MicroBatch`), only positions are counted.
        """
        self._num_positions += self.forward.num_positions(rows)
        if not is_real:
            return
        sums, starts_update = dict(output.sums), not self._sums and self.ranks.is_first
        for quantity in (
            metrics.LOSS,
            metrics.REGULARIZER,
        ):  # summed over an update's micro-batches, counted once
            total, count = sums[quantity]
            sums[quantity] = (total, torch.full_like(count, starts_update))
        if self._num_attempts == 1:
            # Before a step's first update, the trainer has the weights that sampled the live rows
            # (`RolloutRows.live_B`).
            sums[metrics.KL_BEFORE_UPDATE] = sums[metrics.KL_K3]
            (low, count), (high, _) = sums[metrics.OUTSIDE_LOW_FRAC], sums[metrics.OUTSIDE_HIGH_FRAC]
            sums[metrics.OUTSIDE_BEFORE_UPDATE_FRAC] = (low + high, count)
            mask_BT = rows.batch.mask_BT & rows.live_B[:, None]
            sums |= mismatch_sums(policy.logprob_BT.detach(), rows.batch.rollout_logprob_BT, mask_BT)
        self._sums.append((sums, output.ratio_counts))
        if self.traces is not None:
            write_traces(self.traces, self._place_B[place_B], policy, output, update=self._num_attempts)

    def end_update(self, minibatch: RolloutRows, grad_norm: float, learning_rate: float | None) -> None:
        """Record an update, or only its computed positions if it is not applied (`learning_rate` is None)."""
        self._count_positions(minibatch)
        if learning_rate is None:
            return
        self.num_updates += 1
        self._num_tokens += int(minibatch.num_completion_tokens_B.sum())
        for sums, ratio_counts in self._sums:
            self.measurements.add_sums(sums)
            self.measurements.add_ratios(ratio_counts)
        self.measurements.add(metrics.GRAD_NORM, grad_norm)
        self.measurements.add(metrics.GRAD_NORM_MAX, grad_norm)
        self.measurements.add(metrics.LEARNING_RATE, learning_rate)

    def end_updates(self) -> None:
        """Add the time, counts and throughput of the step's updates, and combine the sums of all ranks."""
        self._span.end().wait()
        measurements, update_s = self.measurements, self._span.seconds()
        measurements.add(metrics.UPDATE_S, update_s)
        measurements.add(metrics.NUM_UPDATES, self.num_updates)
        measurements.add(metrics.NUM_SKIPPED_UPDATES, self._num_attempts - self.num_updates)
        measurements.add(metrics.NUM_TRAINED_TOKENS, self._num_tokens)
        measurements.add(metrics.TRAIN_TOKENS_PER_S, self._num_tokens, update_s)
        if self.peak_flops is not None and self._num_flops:
            measurements.add(metrics.MFU, self._num_flops, update_s * self.peak_flops)
        measurements.sum_over(self.ranks)
        if self.traces is not None:
            exchange_traces(self.traces, self.ranks)

    @cached_property
    def _flops(self) -> ModelFlops | None:
        return None if self.peak_flops is None else ModelFlops.of(self.forward.model)

    def _count_positions(self, minibatch: RolloutRows) -> None:
        """Add the number of computed positions, the share of padding and repeated prompts, and the FLOPs."""
        num_positions = sum(self.ranks.gather(self._num_positions))
        trained = minibatch.trained_rows()
        lengths = [length_B[trained] for length_B in minibatch.lengths]
        self.measurements.add(metrics.NUM_COMPUTED_POSITIONS, num_positions)
        self.measurements.add(
            metrics.PADDING_FRAC, num_positions - num_packed_tokens(*lengths), num_positions
        )
        if self._flops is not None:
            self._num_flops += self._flops.of_update(*lengths)

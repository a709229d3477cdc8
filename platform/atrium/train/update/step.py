"""One training step on one rollout batch: the passes that are needed, the updates, and what they measured."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atrium import metrics
from atrium.metrics import Quantity
from atrium.objective.batch import Batch, PolicyTokens
from atrium.objective.objective import Objective, ObjectiveState
from atrium.objective.selection import keyed_anew
from atrium.rollout.collate import RolloutRows
from atrium.seeding import derive_seed
from atrium.train.guard.faults import (
    NO_FAULTS,
    FaultHandling,
    SkippedUpdate,
    UpdateState,
    unfinite_parameters,
)
from atrium.train.guard.out_of_memory import MicroBatchBudget, memory_explained
from atrium.train.measure.flops import ModelFlops
from atrium.train.measure.measurements import Measurements
from atrium.train.measure.traces import RowTraces, empty_traces, exchange_traces, write_traces
from atrium.train.measure.update_sums import UpdateSums, micro_batch_sums
from atrium.train.ranks.ranks import Ranks
from atrium.train.update.forward import PolicyForward
from atrium.train.update.optimizer import PolicyOptimizer
from atrium.train.update.packing import num_packed_tokens
from atrium.train.update.scoring import BatchScoring, without_gradient


@dataclass(frozen=True, kw_only=True)
class UpdateSettings:
    """How a rollout batch becomes updates.

    `behavior_logprobs`: `engine` takes the engine's numbers as the behavior policy's, `recompute` runs a
    pass with the trainer. `micro_batch_tokens` bounds the padded tokens of one forward and backward.
    `reads_stored` says that some rollouts were sampled by other policies and read from disk. `shrinks` halves
    micro-batches where memory lacks. `peak_flops` is the device's, per second, or None where unknown.
    """

    num_minibatches: int
    num_epochs: int
    micro_batch_tokens: int
    behavior_logprobs: Literal["engine", "recompute"]
    seed: int
    reads_stored: bool = False
    shrinks: bool = False
    peak_flops: float | None = None


@dataclass(frozen=True, kw_only=True)
class StepOutput:
    """The number of updates that were made, what they carry on, and the traces if they were asked for."""

    num_updates: int
    carried: UpdateState
    traces: RowTraces | None


@dataclass(kw_only=True)
class _Step:
    """What the updates of one step share, and what of it they change."""

    number: int
    state: ObjectiveState
    measurements: Measurements
    budget: MicroBatchBudget
    num_skipped: int
    traces: RowTraces | None = None
    num_attempts: int = 0
    num_tokens: int = 0
    flops: float = 0.0


@dataclass
class PolicyUpdater:
    """Runs the objective on rollout batches. Holds the model and its optimiser, and no other state.

    `reference_forward` computes the reference policy's log-probabilities where the objective needs them;
    `faults` decides about updates whose gradient is not finite. Every one of the `ranks` has the whole
    batch; they divide its passes among them. Passes run within `memory_limit`.
    """

    objective: Objective
    forward: PolicyForward
    optimizer: PolicyOptimizer
    settings: UpdateSettings
    reference_forward: PolicyForward | None = None
    faults: FaultHandling = FaultHandling()
    ranks: Ranks = Ranks()
    memory_limit: AbstractContextManager[object] = nullcontext()

    @property
    def num_updates_per_batch(self) -> int:
        """The optimiser updates that a full rollout batch is used for."""
        return self.settings.num_minibatches * self.settings.num_epochs

    def step(
        self,
        rows: RolloutRows,
        state: ObjectiveState,
        *,
        step: int,
        measurements: Measurements,
        trace: bool,
        carried: UpdateState = NO_FAULTS,
    ) -> StepOutput:
        """Score the batch, run its updates, add what was seen to `measurements`.

        An update whose gradient is not finite is skipped before the optimiser sees it; raises
        `TrainingDivergedError` when that were too many in a row, `MemoryExhaustedError` when memory lacks.
        """
        current = _Step(
            number=step,
            state=state,
            measurements=measurements,
            budget=self._budget(carried),
            num_skipped=carried.num_skipped,
        )
        with self._timed(measurements, metrics.SCORE_S):
            current.budget.phase = "scoring a batch"
            rows = current.budget.fit(lambda: self._scoring(rows, current.budget))
        current.traces = empty_traces(rows.batch) if trace else None
        started = time.perf_counter()
        num_updates = 0
        for epoch in range(self.settings.num_epochs):
            for minibatch in self._minibatches(rows, step, epoch):
                num_updates += self._update(rows, minibatch, current)
        self._count(current, num_updates, time.perf_counter() - started)
        measurements.sum_over(self.ranks)
        if current.traces is not None:
            exchange_traces(current.traces, self.ranks)
        shrunk = current.budget.max_tokens != self._budget(carried).max_tokens
        tokens = current.budget.max_tokens if shrunk else carried.micro_batch_tokens
        left = UpdateState(num_skipped=current.num_skipped, micro_batch_tokens=tokens)
        return StepOutput(num_updates=num_updates, carried=left, traces=current.traces)

    def _budget(self, carried: UpdateState) -> MicroBatchBudget:
        return MicroBatchBudget(
            max_tokens=carried.micro_batch_tokens or self.settings.micro_batch_tokens,
            shrinks=self.settings.shrinks,
            log=self.faults.log,
            ranks=self.ranks,
            limit=self.memory_limit,
            recomputes=self.forward.recomputes,
        )

    def _count(self, current: _Step, num_updates: int, update_s: float) -> None:
        """Add what a step's updates amount to."""
        measurements = current.measurements
        measurements.add(metrics.UPDATE_S, update_s)
        measurements.add(metrics.NUM_UPDATES, num_updates)
        measurements.add(metrics.NUM_SKIPPED_UPDATES, current.num_attempts - num_updates)
        measurements.add(metrics.NUM_TRAINED_TOKENS, current.num_tokens)
        measurements.add(metrics.TRAIN_TOKENS_PER_S, current.num_tokens, update_s)
        if self.settings.peak_flops is not None and current.flops:
            measurements.add(metrics.MFU, current.flops, update_s * self.settings.peak_flops)

    @cached_property
    def _flops(self) -> ModelFlops | None:
        return None if self.settings.peak_flops is None else ModelFlops.of(self.forward.model)

    @property
    def _scoring(self) -> BatchScoring:
        return BatchScoring(
            objective=self.objective,
            forward=self.forward,
            reference_forward=self.reference_forward,
            num_updates_per_batch=self.num_updates_per_batch,
            behavior_logprobs=self.settings.behavior_logprobs,
            reads_stored=self.settings.reads_stored,
        )

    def _minibatches(self, rows: RolloutRows, step: int, epoch: int) -> Iterator[NDArray[np.int64]]:
        """Row indices of minibatches of whole groups, in an order keyed by step and epoch."""
        group_B = rows.batch.group_B.cpu().numpy()
        trains_B = rows.batch.trains_B.cpu().numpy()
        groups = np.unique(group_B)
        rng = np.random.default_rng(derive_seed(self.settings.seed, "minibatch_order", step, epoch))
        for part in np.array_split(rng.permutation(groups), self.settings.num_minibatches):
            minibatch = np.flatnonzero(np.isin(group_B, part))
            if trains_B[minibatch].any():
                yield minibatch

    def _update(self, rows: RolloutRows, minibatch: NDArray[np.int64], current: _Step) -> bool:
        """One optimiser update on one minibatch; whether it was made."""
        chosen, measurements, budget = rows.select(minibatch), current.measurements, current.budget
        current.num_attempts += 1
        budget.phase = "an update"
        seen = budget.fit(lambda: self._accumulate(chosen, minibatch, current))
        self._count_positions(chosen, seen, current)
        with (
            self._timed(measurements, metrics.OPTIMIZER_S),
            memory_explained("the optimiser's step", self.optimizer.memory_advice),
        ):
            norm = self.optimizer.clip_gradient()
            if is_made := math.isfinite(norm):
                learning_rate = self.optimizer.step(current.number)
                self.optimizer.zero_grad()  # what comes next, such as sampling, has its memory
        if not is_made:
            self._skip(chosen, norm, current)
            return False
        current.num_skipped = 0
        for sums, ratio_counts in seen.sums:
            measurements.add_sums(sums)
            measurements.add_ratios(ratio_counts)
        measurements.add(metrics.GRAD_NORM, norm)
        measurements.add(metrics.GRAD_NORM_MAX, norm)
        measurements.add(metrics.LEARNING_RATE, learning_rate)
        current.num_tokens += int(chosen.num_completion_tokens_B.sum())
        return True

    def _accumulate(self, rows: RolloutRows, minibatch: NDArray[np.int64], current: _Step) -> UpdateSums:
        """Leave the minibatch's gradient in the parameters; what was measured on the way."""
        seen, num_positions, budget = UpdateSums(), 0, current.budget
        self.optimizer.zero_grad()  # of passes that lacked memory
        policy = None
        if self.objective.needs.prepare_pass:
            policy = without_gradient(rows, self.forward, budget)
        prepared = self.objective.prepare(self._keyed(rows.batch, current), policy, current.state)
        if self.objective.method.regularizer.entropy is not None:
            current.measurements.add(metrics.ENTROPY_COEFFICIENT, prepared.entropy_coefficient)
        for number, (micro, counts) in enumerate(budget.split(self.forward, rows, _trained_rows(rows))):
            micro_rows = rows.select(micro)
            budget.phase = "the forward pass of an update"
            with self._timed(current.measurements, metrics.FORWARD_S):
                policy = self.forward(micro_rows, entropy=self._entropy)
                micro_prepared = prepared.select(_index(micro, policy), policy.logprob_BT.shape[1])
                output = self.objective.loss(micro_rows.batch, policy, micro_prepared)
            budget.phase = "the backward pass of an update"
            with self._timed(current.measurements, metrics.BACKWARD_S):
                (output.loss if counts else output.loss * 0.0).backward()
            num_positions += self.forward.num_positions(micro_rows)
            if not counts:
                continue
            starts, first = number == 0 and self.ranks.is_first, current.num_attempts == 1
            sums = micro_batch_sums(micro_rows, policy, output, starts_update=starts, with_mismatch=first)
            seen.sums.append((sums, output.ratio_counts))
            if (traces := current.traces) is not None:
                write_traces(traces, minibatch[micro], policy, output, update=current.num_attempts)
        return replace(seen, num_positions=sum(self.ranks.gather(num_positions)))

    def _keyed(self, batch: Batch, current: _Step) -> Batch:
        """The batch with keys of this update for the objective's random choices."""
        update = derive_seed(self.settings.seed, "update", current.number, current.num_attempts)
        return replace(batch, sample_key_B=keyed_anew(batch.sample_key_B, update))

    def _skip(self, rows: RolloutRows, norm: float, current: _Step) -> None:
        """Forget the gradient, and have the fault handled."""
        current.num_skipped += 1
        skipped = SkippedUpdate(
            step=current.number,
            update=current.num_attempts,
            grad_norm=norm,
            parameters=self._unfinite(),
            state=current.state,
            rows=rows,
        )
        self.optimizer.zero_grad()
        self.faults.handle(skipped, current.num_skipped)

    def _unfinite(self) -> tuple[str, ...]:
        """The parameters whose gradients are not finite on some rank, in the model's order."""
        gradients = self.optimizer.gradients()
        found = {name for names in self.ranks.gather(unfinite_parameters(gradients)) for name in names}
        return tuple(name for name in gradients if name in found)

    def _count_positions(self, rows: RolloutRows, seen: UpdateSums, current: _Step) -> None:
        """Add the positions that were computed, how many of them were needed, and the operations."""
        trained = _trained_rows(rows)
        shape = rows.num_prompt_tokens_B[trained], rows.num_tokens_B[trained], rows.prompt_index_B[trained]
        wasted = seen.num_positions - num_packed_tokens(*shape)
        current.measurements.add(metrics.NUM_COMPUTED_POSITIONS, seen.num_positions)
        current.measurements.add(metrics.PADDING_FRAC, wasted, seen.num_positions)
        if self._flops is not None:
            current.flops += self._flops.of_update(*shape)

    @property
    def _entropy(self) -> Literal["value", "gradient"]:
        return "gradient" if self.objective.needs.entropy == "gradient" else "value"

    @contextmanager
    def _timed(self, measurements: Measurements, quantity: Quantity) -> Iterator[None]:
        started = time.perf_counter()
        yield
        measurements.add(quantity, time.perf_counter() - started)


def _trained_rows(rows: RolloutRows) -> NDArray[np.int64]:
    return np.flatnonzero(rows.batch.trains_B.cpu().numpy())


def _index(rows: NDArray[np.int64], policy: PolicyTokens) -> Tensor:
    return torch.from_numpy(rows).to(policy.logprob_BT.device)

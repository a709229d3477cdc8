"""One training step on one rollout batch: the passes that are needed, the updates, and what they measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atrium import metrics
from atrium.errors import TrainingDivergedError
from atrium.metrics import Quantity
from atrium.objective.batch import Batch, PolicyTokens
from atrium.objective.objective import LossOutput, Objective, ObjectiveState
from atrium.rollout.collate import RolloutRows
from atrium.seeding import derive_seed
from atrium.train.logprobs import PolicyForward
from atrium.train.measurements import Measurements
from atrium.train.optimizer import PolicyOptimizer


@dataclass(frozen=True, kw_only=True)
class UpdateSettings:
    """How a rollout batch becomes updates.

    `behavior_logprobs`: `engine` takes the engine's numbers as the behavior policy's, `recompute` runs a
    pass with the trainer. `micro_batch_tokens` bounds the padded tokens of one forward and backward.
    """

    num_minibatches: int
    num_epochs: int
    micro_batch_tokens: int
    behavior_logprobs: Literal["engine", "recompute"]
    seed: int


@dataclass(frozen=True, kw_only=True)
class RowTraces:
    """Per row of a rollout batch, what the objective saw and did at its last update; [B, T] arrays."""

    advantage_BT: NDArray[np.float32]
    ratio_BT: NDArray[np.float32]
    entropy_BT: NDArray[np.float32]
    clipped_BT: NDArray[np.int8]


@dataclass(frozen=True, kw_only=True)
class StepOutput:
    """The number of updates that were made, and the traces if they were asked for."""

    num_updates: int
    traces: RowTraces | None


@dataclass
class PolicyUpdater:
    """Runs the objective on rollout batches. Holds the model and its optimiser, and no other state.

    `reference_forward` computes the reference policy's log-probabilities where the objective needs them.
    """

    objective: Objective
    forward: PolicyForward
    optimizer: PolicyOptimizer
    settings: UpdateSettings
    reference_forward: PolicyForward | None = None

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
    ) -> StepOutput:
        """Score the batch, run its updates, add what was seen to `measurements`.

        Raises `TrainingDivergedError` when a gradient is not finite, before the optimiser sees it.
        """
        with self._timed(measurements, metrics.SCORE_S):
            rows = self._scored(rows)
        traces = _empty_traces(rows.batch) if trace else None
        started = time.perf_counter()
        num_updates = num_tokens = 0
        for epoch in range(self.settings.num_epochs):
            for minibatch in self._minibatches(rows, step, epoch):
                first = num_updates == 0
                self._update(rows, minibatch, state, step, measurements, traces, first=first)
                num_updates += 1
                num_tokens += int(rows.num_completion_tokens_B[minibatch].sum())
        update_s = time.perf_counter() - started
        measurements.add(metrics.UPDATE_S, update_s)
        measurements.add(metrics.NUM_UPDATES, num_updates)
        measurements.add(metrics.NUM_TRAINED_TOKENS, num_tokens)
        measurements.add(metrics.TRAIN_TOKENS_PER_S, num_tokens, update_s)
        return StepOutput(num_updates=num_updates, traces=traces)

    def _scored(self, rows: RolloutRows) -> RolloutRows:
        """The rows with behavior and reference log-probabilities where they are needed, and advantages."""
        needs = self.objective.needs
        if needs.distribution != "none":
            rows = self._with_behavior_states(rows)
        batch = rows.batch
        if needs.behavior_pass or self.num_updates_per_batch > 1:
            behavior_BT = batch.rollout_logprob_BT
            if self.settings.behavior_logprobs == "recompute":
                behavior_BT = self._without_gradient(rows, self.forward).logprob_BT
            batch = replace(batch, behavior_logprob_BT=behavior_BT)
        if needs.reference_pass:
            assert self.reference_forward is not None, "assembled with a reference when one is needed"
            reference = self._without_gradient(rows, self.reference_forward)
            batch = replace(batch, reference_logprob_BT=reference.logprob_BT)
        return rows.with_batch(self.objective.score(batch))

    def _with_behavior_states(self, rows: RolloutRows) -> RolloutRows:
        """The rows with the states from which the behavior policy's distributions can be made again."""
        width = self.forward.model.get_output_embeddings().weight.shape[1]  # type: ignore[operator]
        state_BTD = rows.batch.rollout_logprob_BT.new_zeros((*rows.batch.mask_BT.shape, width))
        with torch.no_grad():
            for part in self.forward.split(rows, _all_rows(rows), self.settings.micro_batch_tokens):
                found_BTD = self.forward.states(rows.select(part))
                index = torch.from_numpy(part).to(state_BTD.device)
                state_BTD[index, : found_BTD.shape[1]] = found_BTD.to(state_BTD.dtype)
        self.forward.freeze_behavior_head()
        return replace(rows, behavior_state_BTD=state_BTD)

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

    def _update(
        self,
        rows: RolloutRows,
        minibatch: NDArray[np.int64],
        state: ObjectiveState,
        step: int,
        measurements: Measurements,
        traces: RowTraces | None,
        *,
        first: bool,
    ) -> None:
        """One optimiser update on one minibatch."""
        minibatch_rows = rows.select(minibatch)
        policy = None
        if self.objective.needs.prepare_pass:
            policy = self._without_gradient(minibatch_rows, self.forward)
        prepared = self.objective.prepare(minibatch_rows.batch, policy, state)
        self.optimizer.zero_grad()
        trained = np.flatnonzero(minibatch_rows.batch.trains_B.cpu().numpy())
        parts = self.forward.split(minibatch_rows, trained, self.settings.micro_batch_tokens)
        for number, micro in enumerate(parts):
            micro_rows = minibatch_rows.select(micro)
            with self._timed(measurements, metrics.FORWARD_S):
                policy = self.forward(micro_rows, entropy=self._entropy)
                micro_prepared = prepared.select(_index(micro, policy), policy.logprob_BT.shape[1])
                output = self.objective.loss(micro_rows.batch, policy, micro_prepared)
            with self._timed(measurements, metrics.BACKWARD_S):
                output.loss.backward()
            _measure(measurements, micro_rows, policy, output, starts_update=number == 0, with_mismatch=first)
            computed = self.forward.num_positions(micro_rows)
            measurements.add(metrics.NUM_COMPUTED_POSITIONS, computed)
            if traces is not None:
                _write_traces(traces, minibatch[micro], policy, output)
        with self._timed(measurements, metrics.OPTIMIZER_S):
            norm, learning_rate = self._apply(step)
        measurements.add(metrics.GRAD_NORM, norm)
        measurements.add(metrics.GRAD_NORM_MAX, norm)
        measurements.add(metrics.LEARNING_RATE, learning_rate)

    @property
    def _entropy(self) -> Literal["value", "gradient"]:
        return "gradient" if self.objective.needs.entropy == "gradient" else "value"

    def _apply(self, step: int) -> tuple[float, float]:
        norm = self.optimizer.clip_gradient()
        if not np.isfinite(norm):
            raise TrainingDivergedError(
                f"the gradient of step {step} is not finite (norm {norm}); lower optimizer.learning_rate or "
                "set a tighter algorithm.log_ratio_limit; the last checkpoint is intact"
            )
        return norm, self.optimizer.step(step)

    def _without_gradient(self, rows: RolloutRows, forward: PolicyForward) -> PolicyTokens:
        """The policy's numbers on all rows, by micro-batches of similar length, at their own places."""
        shape = rows.batch.mask_BT.shape
        logprob_BT = rows.batch.rollout_logprob_BT.new_zeros(shape)
        entropy_BT = torch.zeros_like(logprob_BT)
        parts = forward.split(rows, _all_rows(rows), self.settings.micro_batch_tokens)
        with torch.no_grad():
            for part in parts:
                policy = forward(rows.select(part), entropy="value")
                num_tokens = policy.logprob_BT.shape[1]
                index = _index(part, policy)
                logprob_BT[index, :num_tokens] = policy.logprob_BT
                assert policy.entropy_BT is not None
                entropy_BT[index, :num_tokens] = policy.entropy_BT
        return PolicyTokens(logprob_BT=logprob_BT, entropy_BT=entropy_BT)

    @contextmanager
    def _timed(self, measurements: Measurements, quantity: Quantity) -> Iterator[None]:
        started = time.perf_counter()
        yield
        measurements.add(quantity, time.perf_counter() - started)


def _all_rows(rows: RolloutRows) -> NDArray[np.int64]:
    return np.arange(len(rows.num_tokens_B))


def _index(rows: NDArray[np.int64], policy: PolicyTokens) -> Tensor:
    return torch.from_numpy(rows).to(policy.logprob_BT.device)


def _measure(
    measurements: Measurements,
    rows: RolloutRows,
    policy: PolicyTokens,
    output: LossOutput,
    *,
    starts_update: bool,
    with_mismatch: bool,
) -> None:
    """Add a micro-batch's sums. The losses of an update's micro-batches add up and count once."""
    sums = dict(output.sums)
    for quantity in (metrics.LOSS, metrics.REGULARIZER):
        total, count = sums[quantity]
        sums[quantity] = (total, torch.full_like(count, starts_update))
    mask_BT = rows.batch.mask_BT
    if with_mismatch:
        # Before the first update of a step the trainer's weights are those that sampled.
        gap_N = (policy.logprob_BT.detach() - rows.batch.rollout_logprob_BT)[mask_BT].double()
        count = mask_BT.sum()
        sums[metrics.MISMATCH_MEAN] = (gap_N.abs().sum(), count)
        sums[metrics.MISMATCH_MAX] = (gap_N.abs().max(), count)
        sums[metrics.MISMATCH_KL] = ((torch.expm1(gap_N) - gap_N).sum(), count)
    measurements.add_sums(sums)


def _empty_traces(batch: Batch) -> RowTraces:
    shape = tuple(batch.mask_BT.shape)
    assert batch.advantage_BT is not None, "rows are scored before they are traced"
    return RowTraces(
        advantage_BT=batch.advantage_BT.float().cpu().numpy(),
        ratio_BT=np.ones(shape, dtype=np.float32),
        entropy_BT=np.full(shape, np.nan, dtype=np.float32),
        clipped_BT=np.zeros(shape, dtype=np.int8),
    )


def _write_traces(
    traces: RowTraces, rows: NDArray[np.int64], policy: PolicyTokens, output: LossOutput
) -> None:
    details, num_tokens = output.details, policy.logprob_BT.shape[1]
    side_BT = torch.where(details.gate_BT > 1.0, 1, -1) * details.dropped_BT
    traces.ratio_BT[rows, :num_tokens] = details.gate_BT.float().cpu().numpy()
    traces.clipped_BT[rows, :num_tokens] = side_BT.to(torch.int8).cpu().numpy()
    if policy.entropy_BT is not None:
        traces.entropy_BT[rows, :num_tokens] = policy.entropy_BT.detach().float().cpu().numpy()

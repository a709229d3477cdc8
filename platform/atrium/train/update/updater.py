"""Policy updates of a training step, with memory limits, several ranks, and skipped updates."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from atrium.base import metrics
from atrium.engines.collate import RolloutRows
from atrium.method.diagnostics import kl_k3
from atrium.method.objective import ObjectiveState
from atrium.method.ratios import bounded
from atrium.train.guard.faults import (
    NO_FAULTS,
    FaultHandling,
    SkippedUpdate,
    UpdateState,
    unfinite_parameters,
)
from atrium.train.guard.out_of_memory import MicroBatchBudget
from atrium.train.measure.measurements import Measurements
from atrium.train.measure.step_record import StepRecord
from atrium.train.measure.traces import RowTraces
from atrium.train.ranks.ranks import Ranks
from atrium.train.update.update import Attempt, Update, without_gradient


@dataclass(frozen=True, kw_only=True)
class StepOutput:
    """The result of a step: the number of applied updates, the state for the next step, and any traces."""

    num_updates: int
    carried: UpdateState
    traces: RowTraces | None


@dataclass(kw_only=True)
class PolicyUpdater(Update):
    """An `Update` that runs within memory limits on one or several ranks, and may skip updates.

    `faults` handles updates whose gradient is not finite. Each of the `ranks` has the whole batch and
    computes a share of it. Passes run within `memory_limit`. `direct_token_id` is the token that begins an
    answer without reasoning, or None if the model has no such token.
    """

    faults: FaultHandling = FaultHandling()
    ranks: Ranks = Ranks()
    memory_limit: Callable[[], AbstractContextManager[None]] = nullcontext
    direct_token_id: int | None = None

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
        """Compute the batch's advantages, run its updates, and add their metrics to `measurements`.

        `carried` is the `UpdateState` after the previous step. An update whose gradient is not finite is
        skipped. Raises `TrainingDivergedError` for too many skipped updates in a row, and
        `MemoryExhaustedError` if memory runs out and smaller micro-batches are not allowed or not possible.
        """
        record = StepRecord(
            measurements=measurements,
            forward=self.forward,
            ranks=self.ranks,
            trace=trace,
            peak_flops=self.settings.peak_flops,
        )
        max_tokens = carried.micro_batch_tokens or self.settings.micro_batch_tokens
        budget = self._budget(max_tokens, measurements)
        num_skipped = carried.num_skipped
        if self.direct_token_id is not None:
            self._measure_work(rows, self.direct_token_id, budget, measurements)
        for attempt in self.update_batch(rows, state, step=step, budget=budget, record=record):
            record.end_update(attempt.minibatch, attempt.grad_norm, attempt.learning_rate)
            num_skipped = 0 if attempt.learning_rate is not None else num_skipped + 1
            if num_skipped:
                self._skip(attempt, num_skipped, state, step)
        record.end_updates()
        if record.num_updates and record.scored is not None:
            self._measure_kl(record.scored, budget, measurements)
        coefficient = self.objective.entropy_coefficient(state)
        if coefficient is not None:
            measurements.add(metrics.ENTROPY_COEFFICIENT, coefficient)
        shrunk = budget.max_tokens != max_tokens
        tokens = budget.max_tokens if shrunk else carried.micro_batch_tokens
        left = UpdateState(num_skipped=num_skipped, micro_batch_tokens=tokens)
        return StepOutput(num_updates=record.num_updates, carried=left, traces=record.traces)

    def behavior_logprobs(
        self, rows: RolloutRows, carried: UpdateState, measurements: Measurements
    ) -> Tensor:
        """Return the log-probabilities [B, T] of rows under the current weights, which sampled the rows."""
        budget = self._budget(carried.micro_batch_tokens or self.settings.micro_batch_tokens, measurements)
        with budget.phase("computing behavior log-probabilities", metrics.BEHAVIOR_S):
            return budget.fit(lambda: without_gradient(rows, self.forward, budget)).logprob_BT

    def _budget(self, max_tokens: int, measurements: Measurements) -> MicroBatchBudget:
        return MicroBatchBudget(
            max_tokens=max_tokens,
            shrinks=self.settings.shrinks,
            log=self.faults.log,
            measurements=measurements,
            ranks=self.ranks,
            limit=self.memory_limit,
            recomputes=self.forward.recomputes,
            device_type=self.forward.device.type,
        )

    def _measure_work(
        self, rows: RolloutRows, direct_token_id: int, budget: MicroBatchBudget, measurements: Measurements
    ) -> None:
        """Measure the probability that an answer begins with reasoning, as the mean over the batch's prompts.

        The probability is 1 minus that of `direct_token_id` as the first token of the answer. It comes from
        the policy's distribution, not from the samples.
        """
        _, first = np.unique(rows.prompt_index_B, return_index=True)
        token_BL = rows.token_BL.clone()
        token_BL[np.arange(len(token_BL)), rows.num_prompt_tokens_B] = direct_token_id
        direct = replace(rows, token_BL=token_BL, num_tokens_B=rows.num_prompt_tokens_B + 1).select(first)
        with budget.phase("measuring how answers begin", metrics.SCORE_S):
            policy = budget.fit(lambda: without_gradient(direct, self.forward, budget))
        prob_B = policy.logprob_BT[:, 0].double().exp()
        measurements.add(metrics.WORKED_FRAC, float((1.0 - prob_B).sum()), len(first))

    def _measure_kl(self, rows: RolloutRows, budget: MicroBatchBudget, measurements: Measurements) -> None:
        """Measure the KL divergence (k3) between the sampling and the updated policy on evenly spaced rows.

        Measures every k-th row, with k at most 8. The metrics of updates describe the policy before each
        update, so none of them shows the effect of the last update.
        """
        num_rows = rows.batch.num_rows
        some = rows.select(np.arange(0, num_rows, max(1, min(8, num_rows // 16))))
        with budget.phase("measuring the KL after the updates", metrics.KL_S):
            policy = budget.fit(lambda: without_gradient(some, self.forward, budget))
        batch = some.batch
        sampler_BT = batch.behavior_logprob_BT
        sampler_BT = batch.rollout_logprob_BT if sampler_BT is None else sampler_BT
        log_ratio_BT = bounded(
            policy.logprob_BT - sampler_BT, self.objective.method.algorithm.log_ratio_limit
        )
        total, count = kl_k3(log_ratio_BT, batch.mask_BT)
        measurements.add(metrics.KL_AFTER_UPDATE, float(total), float(count))

    def _skip(self, attempt: Attempt, num_in_a_row: int, state: ObjectiveState, step: int) -> None:
        """Discard an update whose gradient is not finite, and save its minibatch.

        Raises `TrainingDivergedError` after too many skipped updates in a row.
        """
        skipped = SkippedUpdate(
            step=step,
            update=attempt.number,
            grad_norm=attempt.grad_norm,
            parameters=self._unfinite(),
            state=state,
            rows=attempt.minibatch,
        )
        self.optimizer.zero_grad()
        self.faults.handle(skipped, num_in_a_row)

    def _unfinite(self) -> tuple[str, ...]:
        """Return the names of parameters whose gradients are not finite on at least one rank.

        The names are in the model's order.
        """
        gradients = self.optimizer.gradients()
        found = {name for names in self.ranks.gather(unfinite_parameters(gradients)) for name in names}
        return tuple(name for name in gradients if name in found)

"""The update of a policy by one rollout batch, in the order of the calls.

    with_advantages -> split_minibatches -> for each: prepare -> accumulate -> apply

A `MicroBatchBudget` distributes rows over ranks, splits them into micro-batches that fit into memory, and
repeats passes that run out of memory. A `StepRecord` records the measurements. `PolicyUpdater.step` skips an
update whose gradient is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from atrium.base import metrics
from atrium.base.errors import CheckpointError
from atrium.base.seeding import derive_seed
from atrium.engines.collate import RolloutRows, on_device
from atrium.method.batch import Batch, PolicyTokens
from atrium.method.objective import MinibatchConstants, Objective, ObjectiveState
from atrium.method.selection import keyed_anew
from atrium.train.guard.out_of_memory import MicroBatchBudget, memory_explained
from atrium.train.measure.step_record import StepRecord
from atrium.train.update.forward import PolicyForward
from atrium.train.update.optimizer import PolicyOptimizer


@dataclass(frozen=True, kw_only=True)
class UpdateSettings:
    """The settings of a rollout batch's updates.

    `behavior_logprobs` is the source of the behavior policy's log-probabilities: `engine`, or `recompute` for
    a pass of the trainer with the sampling weights. `micro_batch_tokens` bounds the tokens of one forward and
    backward pass, including any padding. `is_stale` says whether the sampling weights may differ from the
    weights at the start of a step. `shrinks` halves micro-batches when memory runs out. `peak_flops` is the
    device's peak FLOPs per second, or None if unknown.
    """

    num_minibatches: int
    num_epochs: int
    micro_batch_tokens: int
    behavior_logprobs: Literal["engine", "recompute"]
    seed: int
    is_stale: bool = False
    shrinks: bool = False
    peak_flops: float | None = None


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An attempted update on a minibatch. `learning_rate` is None if the update was not applied."""

    number: int
    minibatch: RolloutRows
    grad_norm: float
    learning_rate: float | None


@dataclass(kw_only=True)
class Update:
    """The objective, forward pass, optimizer and settings that an update on a rollout batch needs.

    `reference_forward` computes the reference policy's log-probabilities if the objective needs them.
    """

    objective: Objective
    forward: PolicyForward
    optimizer: PolicyOptimizer
    settings: UpdateSettings
    reference_forward: PolicyForward | None = None

    @property
    def num_updates_per_batch(self) -> int:
        """The number of optimizer updates per full rollout batch."""
        return self.settings.num_minibatches * self.settings.num_epochs

    def update_batch(
        self,
        rows: RolloutRows,
        state: ObjectiveState,
        *,
        step: int,
        budget: MicroBatchBudget,
        record: StepRecord,
    ) -> Iterator[Attempt]:
        """Run a batch's updates, and yield an `Attempt` after each.

        If an update was not applied, its gradient stays in the parameters, so that the caller can inspect it.
        """
        with budget.phase("scoring a batch", metrics.SCORE_S):
            rows = budget.fit(lambda: self.with_advantages(rows, budget))
        record.begin_updates(rows)
        number = 0
        for epoch in range(self.settings.num_epochs):
            for place_B in self.split_minibatches(rows, step, epoch):
                number += 1
                minibatch = self._keyed(rows.select(place_B), step, number)
                prepared = budget.fit(lambda: self.prepare(minibatch, state, budget))  # noqa: B023
                record.begin_update(number, place_B)
                budget.fit(lambda: self.accumulate(minibatch, prepared, budget, record))  # noqa: B023
                with budget.phase("the optimizer's step", metrics.OPTIMIZER_S):
                    grad_norm, learning_rate = self.apply(step)
                yield Attempt(
                    number=number, minibatch=minibatch, grad_norm=grad_norm, learning_rate=learning_rate
                )

    def with_advantages(self, rows: RolloutRows, budget: MicroBatchBudget) -> RolloutRows:
        """Return the batch with advantages, and with behavior and reference log-probabilities if needed."""
        needs = self.objective.needs
        if needs.distribution != "none":
            rows = self._with_proximal_states(rows, budget)
        batch = self._with_anchors(rows, budget)
        if needs.reference_pass:
            assert self.reference_forward is not None, "assembled with a reference if one is needed"
            reference = without_gradient(rows, self.reference_forward, budget)
            batch = replace(batch, reference_logprob_BT=reference.logprob_BT)
        return rows.with_batch(self.objective.with_advantages(batch))

    def split_minibatches(self, rows: RolloutRows, step: int, epoch: int) -> Iterator[NDArray[np.int64]]:
        """Yield row indices of minibatches of whole groups, in an order keyed by step and epoch.

        Minibatches without a group to train on are left out.
        """
        group_B = rows.batch.group_B.cpu().numpy()
        is_trained_B = rows.batch.is_trained_B.cpu().numpy()
        groups = np.unique(group_B)
        rng = np.random.default_rng(derive_seed(self.settings.seed, "minibatch_order", step, epoch))
        for part in np.array_split(rng.permutation(groups), self.settings.num_minibatches):
            minibatch = np.flatnonzero(np.isin(group_B, part))
            if is_trained_B[minibatch].any():
                yield minibatch

    def prepare(
        self, minibatch: RolloutRows, state: ObjectiveState, budget: MicroBatchBudget
    ) -> MinibatchConstants:
        """Return the constants that a minibatch's micro-batches share.

        If the objective requires it, they are computed from a pass over the minibatch without gradients.
        """
        policy = None
        if self.objective.needs.prepare_pass:
            policy = without_gradient(minibatch, self.forward, budget)
        return self.objective.prepare(minibatch.batch, policy, state)

    def accumulate(
        self,
        minibatch: RolloutRows,
        prepared: MinibatchConstants,
        budget: MicroBatchBudget,
        record: StepRecord,
    ) -> None:
        """Accumulate the minibatch's gradient in the parameters, one micro-batch after another."""
        entropy: Literal["gradient", "value"] = "value"
        if self.objective.needs.entropy == "gradient":
            entropy = "gradient"
        self.optimizer.zero_grad()  # discard the gradients of a pass that ran out of memory
        record.begin_passes()
        for place_B, is_real in budget.split(self.forward, minibatch, minibatch.trained_rows()):
            rows = minibatch.select(place_B)
            with budget.phase("the forward pass of an update", metrics.FORWARD_S):
                policy = self.forward(rows, entropy=entropy)
                index_B = on_device(place_B, policy.logprob_BT.device)
                constants = prepared.select(index_B, policy.logprob_BT.shape[1])
                output = self.objective.loss(rows.batch, policy, constants)
            with budget.phase("the backward pass of an update", metrics.BACKWARD_S):
                # A rank without remaining rows adds nothing, but takes part in the exchange of gradients.
                (output.loss if is_real else output.loss * 0.0).backward()
            record.see(place_B, rows, policy, output, is_real=is_real)

    def apply(self, step: int) -> tuple[float, float | None]:
        """Clip the gradient and apply the optimizer, unless the gradient is not finite.

        Returns the gradient's norm before clipping, and the learning rate (None if nothing was applied).
        """
        with memory_explained("the optimizer's step", self.optimizer.memory_advice):
            grad_norm = self.optimizer.clip_gradient()
            if not math.isfinite(grad_norm):
                return grad_norm, None
            learning_rate = self.optimizer.step(step)
        self.optimizer.zero_grad()  # the next phase, such as sampling, needs the memory
        return grad_norm, learning_rate

    def _with_anchors(self, rows: RolloutRows, budget: MicroBatchBudget) -> Batch:
        """Return the batch with behavior and proximal log-probabilities, if ratios can differ from 1.

        If the weights at the start of the step sampled the batch, behavior and proximal policy are equal: the
        log-probabilities of both are computed in one pass, or are those of the engine.
        """
        compares = self.objective.needs.anchor_pass or self.num_updates_per_batch > 1
        if self.settings.is_stale:
            return self._with_stale_anchors(rows, budget, compares=compares)
        if not compares:
            return rows.batch
        recomputes = self.settings.behavior_logprobs == "recompute"
        own_BT = without_gradient(rows, self.forward, budget).logprob_BT if recomputes else None
        anchor_BT = rows.batch.rollout_logprob_BT if own_BT is None else own_BT
        return replace(rows.batch, behavior_logprob_BT=anchor_BT, proximal_logprob_BT=anchor_BT)

    def _with_stale_anchors(self, rows: RolloutRows, budget: MicroBatchBudget, *, compares: bool) -> Batch:
        """Return a stale batch with behavior and, if needed, proximal log-probabilities.

        Ratios in a stale batch differ from 1 even at the first update. The behavior log-probabilities are
        those stored in the batch or, if it has none, the engine's. Completions read without log-probabilities
        (NaN) get those of the current policy. `compares` is whether the updates need the log-probabilities of
        the policy at the start of the step. These proximal log-probabilities are computed only if, in
        addition, the method has the anchor `proximal`.
        """
        batch = rows.batch
        rollout_BT, behavior_BT, proximal_BT = batch.rollout_logprob_BT, batch.behavior_logprob_BT, None
        if self.settings.behavior_logprobs == "recompute" and behavior_BT is None:
            raise CheckpointError(
                "a lagged batch of an earlier version lacks the trainer's log-probabilities under the "
                "weights that sampled it; start a new run, or finish this run with the version that "
                "began it"
            )
        is_unknown = bool((rollout_BT.isnan() & batch.mask_BT).any())
        begins = compares and "proximal" in self.objective.method.anchors
        if is_unknown or begins:
            own_BT = without_gradient(rows, self.forward, budget).logprob_BT
            rollout_BT = torch.where(rollout_BT.isnan(), own_BT, rollout_BT)
            proximal_BT = own_BT if begins else None
        return replace(
            batch,
            rollout_logprob_BT=rollout_BT,
            behavior_logprob_BT=rollout_BT if behavior_BT is None else behavior_BT,
            proximal_logprob_BT=proximal_BT,
        )

    def _with_proximal_states(self, rows: RolloutRows, budget: MicroBatchBudget) -> RolloutRows:
        """Return the rows with the current policy's last hidden states [B, T, D], and freeze its LM head.

        The states and the head determine the proximal policy's distributions during the step.
        """
        width = self.forward.model.get_output_embeddings().weight.shape[1]  # type: ignore[operator]
        state_BTD = rows.batch.rollout_logprob_BT.new_zeros((*rows.batch.mask_BT.shape, width))
        with torch.no_grad():
            for part, is_real in budget.split(self.forward, rows, np.arange(rows.batch.num_rows)):
                found_BTD = self.forward.states(rows.select(part))
                if not is_real:
                    continue
                index = on_device(part, state_BTD.device)
                state_BTD[index, : found_BTD.shape[1]] = found_BTD.to(state_BTD.dtype)
        budget.ranks.add_up(state_BTD)
        self.forward.freeze_proximal_head()
        return replace(rows, proximal_state_BTD=state_BTD)

    def _keyed(self, rows: RolloutRows, step: int, number: int) -> RolloutRows:
        """Return the rows with random keys unique to this update, for the objective's random choices."""
        occasion = derive_seed(self.settings.seed, "update", step, number)
        key_B = keyed_anew(rows.batch.sample_key_B, occasion)
        return rows.with_batch(replace(rows.batch, sample_key_B=key_B))


def without_gradient(rows: RolloutRows, forward: PolicyForward, budget: MicroBatchBudget) -> PolicyTokens:
    """Return the log-probabilities and entropies [B, T] of all rows, computed without gradients.

    Each rank computes a share of the rows in micro-batches, and all ranks receive all values.
    """
    shape = rows.batch.mask_BT.shape
    logprob_BT = rows.batch.rollout_logprob_BT.new_zeros(shape)
    entropy_BT = torch.zeros_like(logprob_BT)
    with torch.no_grad():
        for part, is_real in budget.split(forward, rows, np.arange(rows.batch.num_rows)):
            policy = forward(rows.select(part), entropy="value")
            if not is_real:
                continue
            num_tokens = policy.logprob_BT.shape[1]
            index = on_device(part, logprob_BT.device)
            logprob_BT[index, :num_tokens] = policy.logprob_BT.to(logprob_BT.dtype)
            assert policy.entropy_BT is not None
            entropy_BT[index, :num_tokens] = policy.entropy_BT.to(entropy_BT.dtype)
    # Values of other ranks are 0 here, so the sums are exact.
    budget.ranks.add_up(logprob_BT)
    budget.ranks.add_up(entropy_BT)
    return PolicyTokens(logprob_BT=logprob_BT, entropy_BT=entropy_BT)

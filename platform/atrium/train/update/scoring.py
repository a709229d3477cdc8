"""What a rollout batch lacks before its updates: log-probabilities of other policies, and advantages.

Nothing here has a gradient. Which passes run follows from what the objective needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from atrium.objective.batch import Batch, PolicyTokens
from atrium.objective.objective import Objective
from atrium.rollout.collate import RolloutRows
from atrium.train.guard.out_of_memory import MicroBatchBudget
from atrium.train.update.forward import PolicyForward


@dataclass(frozen=True, kw_only=True)
class BatchScoring:
    """Scores rollout batches: see `UpdateSettings` for `behavior_logprobs` and `reads_stored`."""

    objective: Objective
    forward: PolicyForward
    reference_forward: PolicyForward | None
    num_updates_per_batch: int
    behavior_logprobs: Literal["engine", "recompute"]
    reads_stored: bool

    def __call__(self, rows: RolloutRows, budget: MicroBatchBudget) -> RolloutRows:
        """The rows with behavior and reference log-probabilities where they are needed, and advantages."""
        needs = self.objective.needs
        if needs.distribution != "none":
            rows = self._with_behavior_states(rows, budget)
        batch = self._anchored(rows, budget)
        if needs.reference_pass:
            assert self.reference_forward is not None, "assembled with a reference when one is needed"
            reference = without_gradient(rows, self.reference_forward, budget)
            batch = replace(batch, reference_logprob_BT=reference.logprob_BT)
        return rows.with_batch(self.objective.score(batch))

    def _anchored(self, rows: RolloutRows, budget: MicroBatchBudget) -> Batch:
        """The batch with behavior log-probabilities where they are needed, and no rollout one unknown.

        Stored completions were sampled by another policy: ratios to its log-probabilities are not 1 even at
        the only update. Where they came without any, the policy as it is now stands in their place.
        """
        batch = rows.batch
        recomputes = self.behavior_logprobs == "recompute"
        compares = self.objective.needs.behavior_pass or self.num_updates_per_batch > 1
        compares |= self.reads_stored and not recomputes
        rollout_BT = behavior_BT = batch.rollout_logprob_BT
        is_unknown = self.reads_stored and bool((rollout_BT.isnan() & batch.mask_BT).any())
        if is_unknown or (compares and recomputes):
            own_BT = without_gradient(rows, self.forward, budget).logprob_BT
            rollout_BT = torch.where(rollout_BT.isnan(), own_BT, rollout_BT) if is_unknown else rollout_BT
            behavior_BT = own_BT if recomputes else rollout_BT
        return replace(
            batch,
            rollout_logprob_BT=rollout_BT,
            behavior_logprob_BT=behavior_BT if compares else batch.behavior_logprob_BT,
        )

    def _with_behavior_states(self, rows: RolloutRows, budget: MicroBatchBudget) -> RolloutRows:
        """The rows with the states from which the behavior policy's distributions can be made again."""
        width = self.forward.model.get_output_embeddings().weight.shape[1]  # type: ignore[operator]
        state_BTD = rows.batch.rollout_logprob_BT.new_zeros((*rows.batch.mask_BT.shape, width))
        with torch.no_grad():
            for part, counts in budget.split(self.forward, rows, _all_rows(rows)):
                found_BTD = self.forward.states(rows.select(part))
                if not counts:
                    continue
                index = torch.from_numpy(part).to(state_BTD.device)
                state_BTD[index, : found_BTD.shape[1]] = found_BTD.to(state_BTD.dtype)
        budget.ranks.add_up(state_BTD)
        self.forward.freeze_behavior_head()
        return replace(rows, behavior_state_BTD=state_BTD)


def without_gradient(rows: RolloutRows, forward: PolicyForward, budget: MicroBatchBudget) -> PolicyTokens:
    """The policy's numbers on all rows, by micro-batches of similar length, at their own places.

    Each rank computes a share; all of them get the whole.
    """
    shape = rows.batch.mask_BT.shape
    logprob_BT = rows.batch.rollout_logprob_BT.new_zeros(shape)
    entropy_BT = torch.zeros_like(logprob_BT)
    with torch.no_grad():
        for part, counts in budget.split(forward, rows, _all_rows(rows)):
            policy = forward(rows.select(part), entropy="value")
            if not counts:
                continue
            num_tokens = policy.logprob_BT.shape[1]
            index = torch.from_numpy(part).to(logprob_BT.device)
            logprob_BT[index, :num_tokens] = policy.logprob_BT
            assert policy.entropy_BT is not None
            entropy_BT[index, :num_tokens] = policy.entropy_BT
    # What other ranks compute is 0 here, so the sums are exact.
    budget.ranks.add_up(logprob_BT)
    budget.ranks.add_up(entropy_BT)
    return PolicyTokens(logprob_BT=logprob_BT, entropy_BT=entropy_BT)


def _all_rows(rows: RolloutRows) -> NDArray[np.int64]:
    return np.arange(len(rows.num_tokens_B))

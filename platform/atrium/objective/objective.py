"""An objective: one choice on every axis, composed into the two phases that a training step runs.

`score` turns a rollout batch's rewards into advantages. `prepare` computes, without gradient, what needs
more than one micro-batch; `loss` is additive over micro-batches and ranks. Everything that differs
between methods is in the axes; this module only says how they fit together:

    loss = - sum_tokens  row_factor x [ token_weight x correction x surrogate(w, A, region) - KL ] - entropy

The gradient is built from coefficients: each term contributes a detached coefficient on its token's
log-probability, so the backward pass through the objective is one multiplication.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from atrium import metrics
from atrium.objective.advantages import Advantage
from atrium.objective.batch import Batch, Needs, PolicyTokens, Sum, local_sum, neutral, num_tokens
from atrium.objective.boundary import Surrogate, SurrogateInputs, crossed_bound, moving_away
from atrium.objective.corrections import Correction, NoCorrection
from atrium.objective.diagnostics import TokenDetails, measure, measure_reference
from atrium.objective.groups import GroupFilter
from atrium.objective.phases import LossOutput, ObjectiveState, Prepared
from atrium.objective.ratio_histogram import count_ratios
from atrium.objective.ratios import Ratio, anchor_logprob, bounded, token_log_ratio
from atrium.objective.reductions import Reduction
from atrium.objective.references import FrozenReference, ReferenceRule
from atrium.objective.regions import Divergence, RegionInputs
from atrium.objective.regularizers import EntropyBonus, KLPenalty
from atrium.objective.token_weights import AllTokens, SelectionInputs, TokenWeight

__all__ = ["LossOutput", "Objective", "ObjectiveState", "Prepared"]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A method: one choice per axis. See the modules of this package for each axis.

    `gradient` says how the surrogate reaches the policy: `pathwise` through w, or `score` as a detached
    weight times the log-probability. The coefficients agree wherever a surrogate has both forms; beyond
    `log_ratio_limit`, where the bounded ratio is constant, a pathwise gradient is 0 and a score one is not.
    """

    advantage: Advantage
    gate: Ratio
    weight: Ratio
    divergence: Divergence
    surrogate: Surrogate
    gradient: Literal["pathwise", "score"]
    reduction: Reduction
    kl: KLPenalty | None = None
    entropy: EntropyBonus | None = None
    token_weight: TokenWeight = AllTokens()
    correction: Correction = NoCorrection()
    group_filter: GroupFilter = GroupFilter()
    reference: ReferenceRule = FrozenReference()
    log_ratio_limit: float | None = 20.0

    @property
    def needs(self) -> Needs:
        """The union of what the axes need."""
        parts = (
            self.advantage,
            self.divergence,
            self.surrogate,
            self.reduction,
            self.kl,
            self.entropy,
            self.token_weight,
            self.correction,
        )
        return reduce(Needs.__or__, (part.needs for part in parts if part is not None), Needs())

    def initial_state(self) -> ObjectiveState:
        """The state before the first step."""
        return ObjectiveState(entropy_coefficient=self.entropy.coefficient if self.entropy else 0.0)

    def update_state(
        self, state: ObjectiveState, measured: Mapping[str, float], *, step: int
    ) -> ObjectiveState:
        """The state after a step whose metrics were `measured`."""
        token_kl = measured.get(metrics.REFERENCE_KL.name)
        reference = self.reference.after_step(state.reference, step=step, token_kl=token_kl)
        state = replace(state, reference=reference)
        entropy = measured.get(metrics.ENTROPY.name)
        if self.entropy is None or entropy is None:
            return state
        return replace(
            state,
            entropy_coefficient=self.entropy.next_coefficient(state.entropy_coefficient, entropy),
            last_entropy=entropy,
        )

    def score(self, batch: Batch, sum_over_ranks: Sum = local_sum) -> Batch:
        """The rollout batch with its advantages; rewards are final and reference numbers are there."""
        penalty_BT = None
        if self.kl is not None and self.kl.placement == "reward":
            behavior_BT = batch.behavior_logprob_BT
            if behavior_BT is None:
                raise ValueError("a KL penalty in the reward needs behavior log-probabilities")
            penalty_BT = self.kl.at(behavior_BT, batch, self.log_ratio_limit).value_BT
        advantage_BT = self.advantage(batch, penalty_BT, sum_over_ranks)
        return replace(batch, advantage_BT=advantage_BT)

    @torch.no_grad()
    def prepare(
        self,
        minibatch: Batch,
        policy: PolicyTokens | None,
        state: ObjectiveState,
        sum_over_ranks: Sum = local_sum,
    ) -> Prepared:
        """The minibatch's constants.

        `policy` comes from a gradient-free pass at the current parameters, when `needs.prepare_pass`;
        otherwise it is None.
        """
        row_factor_B = self.reduction.row_factor(
            minibatch.mask_BT.sum(dim=1), minibatch.group_B, sum_over_ranks
        )
        bonus = self.entropy
        prepared = Prepared(
            row_factor_B=row_factor_B.to(minibatch.rollout_logprob_BT.dtype),
            token_weight_BT=None,
            row_constant_B=None,
            entropy_coefficient=(
                bonus.in_force(state.entropy_coefficient, state.last_entropy) if bonus else 0.0
            ),
        )
        if policy is None:
            return prepared
        assert minibatch.advantage_BT is not None, "`score` comes before `prepare`"
        logprob_BT = neutral(policy.logprob_BT, minibatch.mask_BT)
        region_inputs = self._region_inputs(logprob_BT, minibatch, policy.divergence_BT, None)
        prepared = replace(
            prepared,
            bounds=self.divergence.prepare(region_inputs, minibatch.advantage_BT, sum_over_ranks),
            row_constant_B=self.surrogate.row_constant(
                self.weight.log_ratio(logprob_BT, minibatch),
                self.weight.at_level(logprob_BT, minibatch.mask_BT),
                minibatch,
            ),
        )
        terms = self._terms(logprob_BT, policy.divergence_BT, minibatch, prepared)
        selection = SelectionInputs(batch=minibatch, policy=policy, dropped_BT=terms.details.dropped_BT)
        return replace(prepared, token_weight_BT=self.token_weight.prepare(selection, sum_over_ranks))

    def loss(self, micro_batch: Batch, policy: PolicyTokens, prepared: Prepared) -> LossOutput:
        """The micro-batch's share of the minibatch's loss; its gradient reaches `policy`'s tensors."""
        mask_BT = micro_batch.mask_BT
        logprob_BT = neutral(policy.logprob_BT, mask_BT)
        with torch.no_grad():
            detached_BT = logprob_BT.detach()
            terms = self._terms(detached_BT, policy.divergence_BT, micro_batch, prepared)
            factor_BT = prepared.row_factor_B[:, None] * mask_BT
            slope_BT = neutral(factor_BT * terms.details.coefficient_BT, mask_BT)
            constant = neutral(factor_BT * terms.value_BT, mask_BT).sum()
            sums = measure(terms.details, mask_BT)
            ratio_counts = count_ratios(terms.details.gate_BT, terms.details.advantage_BT, mask_BT)
            if micro_batch.reference_logprob_BT is not None:
                distance_BT = bounded(detached_BT - micro_batch.reference_logprob_BT, self.log_ratio_limit)
                sums |= measure_reference(distance_BT, mask_BT)
            sums[metrics.REGULARIZER] = (neutral(factor_BT * terms.penalty_BT, mask_BT).sum(), _one(constant))
        loss = -(constant + (slope_BT * (logprob_BT - detached_BT)).sum())
        if policy.entropy_BT is not None:
            entropy_BT = neutral(policy.entropy_BT, mask_BT)
            if prepared.entropy_coefficient != 0.0:
                loss = loss - prepared.entropy_coefficient * (factor_BT * entropy_BT).sum()
            sums[metrics.ENTROPY] = (entropy_BT.detach().sum(dtype=torch.float64), mask_BT.sum())
        if policy.divergence_BT is not None:
            divergence_BT = neutral(policy.divergence_BT, mask_BT)
            sums[metrics.STATE_DIVERGENCE] = (divergence_BT.sum(dtype=torch.float64), mask_BT.sum())
        sums[metrics.LOSS] = (loss.detach(), _one(constant))
        return LossOutput(loss=loss, sums=sums, ratio_counts=ratio_counts, details=terms.details)

    def _terms(
        self, logprob_BT: Tensor, divergence_BT: Tensor | None, batch: Batch, prepared: Prepared
    ) -> _Terms:
        """Every token's value and coefficient, from detached log-probabilities."""
        penalty = None if self.kl is None else self.kl.at(logprob_BT, batch, self.log_ratio_limit)
        placement = None if self.kl is None else self.kl.placement
        region_inputs = self._region_inputs(logprob_BT, batch, divergence_BT, prepared.bounds)
        inputs = self._surrogate_inputs(region_inputs, logprob_BT, batch, prepared)
        if penalty is not None and placement == "weight":
            regularized_BT = inputs.advantage_BT - penalty.coefficient_BT / inputs.weight_BT
            inputs = replace(inputs, advantage_BT=regularized_BT)
        coefficient_BT, value_BT, dropped_BT = self._surrogate_terms(inputs, logprob_BT, batch)

        token_log_BT = token_log_ratio("behavior", logprob_BT, batch)
        correction_BT = self.correction.factor(_log_mismatch(logprob_BT, batch), batch.mask_BT)
        weighted_log_BT = token_log_ratio(self.token_weight.anchor, logprob_BT, batch)
        weighting_BT = self.token_weight.factor(prepared.token_weight_BT, weighted_log_BT, batch)
        weighs_policy = self.token_weight.weighs == "surrogate"
        for factor_BT in (correction_BT, weighting_BT if weighs_policy else None):
            if factor_BT is not None:
                coefficient_BT, value_BT = factor_BT * coefficient_BT, factor_BT * value_BT
        penalty_BT = torch.zeros_like(value_BT)
        if penalty is not None and placement == "loss":
            penalty = penalty if weighs_policy else penalty.times(weighting_BT)
            penalty_BT = penalty.value_BT
            coefficient_BT, value_BT = coefficient_BT - penalty.coefficient_BT, value_BT - penalty_BT
        details = TokenDetails(
            log_ratio_BT=bounded(token_log_BT, self.log_ratio_limit),
            gate_BT=inputs.gate_BT,
            advantage_BT=inputs.advantage_BT,
            feasible_BT=inputs.region.feasible_BT,
            dropped_BT=dropped_BT,
            coefficient_BT=coefficient_BT,
        )
        return _Terms(details=details, value_BT=value_BT, penalty_BT=penalty_BT)

    def _surrogate_inputs(
        self, region_inputs: RegionInputs, logprob_BT: Tensor, batch: Batch, prepared: Prepared
    ) -> SurrogateInputs:
        """Gate, weight and region, with the advantages as they were scored."""
        assert batch.advantage_BT is not None, "`score` comes before `loss`"
        region, gate_BT = self.divergence.region(region_inputs), region_inputs.ratio_BT
        held_BT = crossed_bound(region, gate_BT)
        if self.weight.order == "clip_then_mean":
            away_BT = moving_away(region, gate_BT, batch.advantage_BT)
            clipped_BT = torch.where(away_BT, held_BT.log(), region_inputs.token_log_ratio_BT)
            log_weight_BT = self.weight.at_level(clipped_BT, batch.mask_BT)
            weight_BT = held_BT = bounded(log_weight_BT, self.log_ratio_limit).exp()
        else:
            log_weight_BT = self.weight.log_ratio(logprob_BT, batch)
            weight_BT = gate_BT
            if self.weight != self.gate:
                weight_BT = self.weight.capped(bounded(log_weight_BT, self.log_ratio_limit).exp())
        return SurrogateInputs(
            gate_BT=gate_BT,
            weight_BT=weight_BT,
            log_weight_BT=log_weight_BT,
            logprob_BT=self.weight.at_level(logprob_BT, batch.mask_BT),
            advantage_BT=batch.advantage_BT,
            rewarded_BT=(batch.reward_B > 0.0)[:, None].expand_as(batch.mask_BT),
            held_BT=held_BT,
            region=region,
            row_constant_B=prepared.row_constant_B,
        )

    def _region_inputs(
        self, logprob_BT: Tensor, batch: Batch, divergence_BT: Tensor | None, bounds: Tensor | None
    ) -> RegionInputs:
        """What the divergence is judged on: the gate ratio and the numbers behind it."""
        token_log_BT = token_log_ratio(self.gate.anchor, logprob_BT, batch)
        gate_log_BT = self.gate.at_level(token_log_BT, batch.mask_BT)
        return RegionInputs(
            ratio_BT=bounded(gate_log_BT, self.log_ratio_limit).exp(),
            token_log_ratio_BT=token_log_BT,
            anchor_logprob_BT=neutral(anchor_logprob(self.gate.anchor, logprob_BT, batch), batch.mask_BT),
            mask_BT=batch.mask_BT,
            divergence_BT=divergence_BT,
            bounds=bounds,
        )

    def _surrogate_terms(
        self, inputs: SurrogateInputs, logprob_BT: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The surrogate's coefficient, value and dropped tokens, in the form that `gradient` asks for."""
        output = self.surrogate(inputs)
        coefficient_BT = output.coefficient_BT
        if self.gradient == "score" or output.value_BT is None:
            return coefficient_BT, coefficient_BT * logprob_BT, output.dropped_BT
        value_BT = output.value_BT
        if self.weight.level == "sequence":
            # One value per row, spread over its tokens, so that a sum over tokens counts it once.
            value_BT = value_BT / num_tokens(batch.mask_BT)
        if self.surrogate.exponentiates and self.log_ratio_limit is not None:
            held_BT = inputs.log_weight_BT.abs() > self.log_ratio_limit
            coefficient_BT = torch.where(held_BT, 0.0, coefficient_BT)
        return coefficient_BT, value_BT, output.dropped_BT


@dataclass(frozen=True, kw_only=True)
class _Terms:
    """The objective at each token: details, the whole value, and the KL penalty's part of it."""

    details: TokenDetails
    value_BT: Tensor
    penalty_BT: Tensor


def _log_mismatch(logprob_BT: Tensor, batch: Batch) -> Tensor:
    """log(behavior / rollout) [B, T], by the trainer's and the engine's own numbers."""
    return anchor_logprob("behavior", logprob_BT, batch) - batch.rollout_logprob_BT


def _one(like: Tensor) -> Tensor:
    return torch.ones((), dtype=torch.long, device=like.device)

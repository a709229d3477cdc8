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
from typing import Literal, Self

import torch
from torch import Tensor

from atrium import metrics
from atrium.objective.advantages import Advantage
from atrium.objective.batch import Batch, Needs, PolicyTokens, Sum, local_sum, neutral, row_sum
from atrium.objective.corrections import Correction, NoCorrection
from atrium.objective.diagnostics import Sums, TokenDetails, measure
from atrium.objective.divergences import Divergence
from atrium.objective.groups import GroupFilter
from atrium.objective.ratios import Ratio, anchor_logprob, bounded
from atrium.objective.reductions import Reduction
from atrium.objective.regularizers import EntropyBonus, KLPenalty, Penalty
from atrium.objective.surrogates import Surrogate, SurrogateInputs
from atrium.objective.token_weights import AllTokens, TokenWeight

_TOKEN_RATIO = Ratio(level="token", anchor="behavior")


@dataclass(frozen=True, kw_only=True)
class ObjectiveState:
    """What an objective carries from step to step; saved in every checkpoint."""

    entropy_coefficient: float = 0.0
    last_entropy: float | None = None


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The detached constants of a minibatch that its micro-batches share."""

    row_factor_B: Tensor
    token_weight_BT: Tensor | None
    row_constant_B: Tensor | None
    entropy_coefficient: float

    def select(self, rows: Tensor, num_tokens: int | None = None) -> Self:
        """The constants of the given rows, cut to their first `num_tokens` tokens."""
        weight_BT, constant_B = self.token_weight_BT, self.row_constant_B
        return replace(
            self,
            row_factor_B=self.row_factor_B[rows],
            token_weight_BT=None if weight_BT is None else weight_BT[rows][:, :num_tokens],
            row_constant_B=None if constant_B is None else constant_B[rows],
        )


@dataclass(frozen=True, kw_only=True)
class LossOutput:
    """A micro-batch's share of the loss, what was measured on it, and the details per token."""

    loss: Tensor
    sums: Sums
    details: TokenDetails


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

    def update_state(self, state: ObjectiveState, measured: Mapping[str, float]) -> ObjectiveState:
        """The state after a step whose metrics were `measured`."""
        entropy = measured.get(metrics.ENTROPY.name)
        if self.entropy is None or entropy is None:
            return state
        return ObjectiveState(
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
            penalty_BT = self._kl_penalty(self.kl, behavior_BT, batch).value_BT
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
        row_constant_B = None
        if policy is not None:
            log_weight_BT = self.weight.log_ratio(policy.logprob_BT, minibatch)
            row_constant_B = self.surrogate.row_constant(log_weight_BT, minibatch)
        row_factor_B = self.reduction.row_factor(
            minibatch.mask_BT.sum(dim=1), minibatch.group_B, sum_over_ranks
        )
        bonus = self.entropy
        return Prepared(
            row_factor_B=row_factor_B.to(minibatch.rollout_logprob_BT.dtype),
            token_weight_BT=self.token_weight.factor(minibatch, policy),
            row_constant_B=row_constant_B,
            entropy_coefficient=(
                bonus.in_force(state.entropy_coefficient, state.last_entropy) if bonus else 0.0
            ),
        )

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
            sums[metrics.REGULARIZER] = (neutral(factor_BT * terms.penalty_BT, mask_BT).sum(), _one(constant))
        loss = -(constant + (slope_BT * (logprob_BT - detached_BT)).sum())
        if policy.entropy_BT is not None:
            entropy_BT = neutral(policy.entropy_BT, mask_BT)
            if prepared.entropy_coefficient != 0.0:
                loss = loss - prepared.entropy_coefficient * (factor_BT * entropy_BT).sum()
            sums[metrics.ENTROPY] = (entropy_BT.detach().sum(dtype=torch.float64), mask_BT.sum())
        sums[metrics.LOSS] = (loss.detach(), _one(constant))
        return LossOutput(loss=loss, sums=sums, details=terms.details)

    def _terms(
        self, logprob_BT: Tensor, divergence_BT: Tensor | None, batch: Batch, prepared: Prepared
    ) -> _Terms:
        """Every token's value and coefficient, from detached log-probabilities."""
        assert batch.advantage_BT is not None, "`score` comes before `loss`"
        raw_BT = _TOKEN_RATIO.log_ratio(logprob_BT, batch)
        raw_gate_BT = raw_BT if self.gate == _TOKEN_RATIO else self.gate.log_ratio(logprob_BT, batch)
        raw_weight_BT = raw_gate_BT if self.weight == self.gate else self.weight.log_ratio(logprob_BT, batch)
        gate_BT = bounded(raw_gate_BT, self.log_ratio_limit).exp()
        weight_BT = self.weight.capped(bounded(raw_weight_BT, self.log_ratio_limit).exp())

        penalty = None if self.kl is None else self._kl_penalty(self.kl, logprob_BT, batch)
        advantage_BT = batch.advantage_BT
        if penalty is not None and self.kl is not None and self.kl.placement == "weight":
            advantage_BT = advantage_BT - penalty.coefficient_BT / weight_BT
        gate_anchor_BT = neutral(anchor_logprob(self.gate.anchor, logprob_BT, batch), batch.mask_BT)
        inputs = SurrogateInputs(
            gate_BT=gate_BT,
            weight_BT=weight_BT,
            log_weight_BT=raw_weight_BT,
            advantage_BT=advantage_BT,
            region=self.divergence.region(gate_BT, gate_anchor_BT, divergence_BT),
            row_constant_B=prepared.row_constant_B,
        )
        coefficient_BT, value_BT, dropped_BT = self._surrogate_terms(inputs, logprob_BT, batch)
        correction_BT = self.correction.factor(_log_mismatch(logprob_BT, batch), batch.mask_BT)
        for factor_BT in (prepared.token_weight_BT, correction_BT):
            if factor_BT is not None:
                coefficient_BT, value_BT = factor_BT * coefficient_BT, factor_BT * value_BT
        penalty_BT = torch.zeros_like(value_BT)
        if penalty is not None and self.kl is not None and self.kl.placement == "loss":
            penalty_BT = penalty.value_BT
            coefficient_BT, value_BT = coefficient_BT - penalty.coefficient_BT, value_BT - penalty_BT
        details = TokenDetails(
            log_ratio_BT=bounded(raw_BT, self.log_ratio_limit),
            gate_BT=gate_BT,
            advantage_BT=advantage_BT,
            feasible_BT=inputs.region.feasible_BT,
            dropped_BT=dropped_BT,
            coefficient_BT=coefficient_BT,
        )
        return _Terms(details=details, value_BT=value_BT, penalty_BT=penalty_BT)

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
            value_BT = value_BT / _num_tokens(batch.mask_BT)
        if self.surrogate.exponentiates and self.log_ratio_limit is not None:
            held_BT = inputs.log_weight_BT.abs() > self.log_ratio_limit
            coefficient_BT = torch.where(held_BT, 0.0, coefficient_BT)
        return coefficient_BT, value_BT, output.dropped_BT

    def _kl_penalty(self, kl: KLPenalty, logprob_BT: Tensor, batch: Batch) -> Penalty:
        """The KL penalty of tokens with these detached log-probabilities, value and coefficient."""
        behavior_BT = anchor_logprob("behavior", logprob_BT, batch)
        anchor_BT = behavior_BT
        if kl.anchor == "reference":
            if batch.reference_logprob_BT is None:
                raise ValueError("a KL penalty against the reference needs its log-probabilities")
            anchor_BT = batch.reference_logprob_BT
        limit = self.log_ratio_limit if kl.log_ratio_limit is None else kl.log_ratio_limit
        x_BT = _at_level(logprob_BT - anchor_BT, kl.level, batch.mask_BT, limit)
        log_w_BT = _at_level(logprob_BT - behavior_BT, kl.level, batch.mask_BT, self.log_ratio_limit)
        log_v_BT = _at_level(anchor_BT - behavior_BT, kl.level, batch.mask_BT, self.log_ratio_limit)
        penalty = kl.penalty(x_BT, log_w_BT.exp(), log_v_BT.exp())
        if kl.level == "token":
            return penalty
        return Penalty(penalty.value_BT / _num_tokens(batch.mask_BT), penalty.coefficient_BT)


@dataclass(frozen=True, kw_only=True)
class _Terms:
    """The objective at each token: details, the whole value, and the KL penalty's part of it."""

    details: TokenDetails
    value_BT: Tensor
    penalty_BT: Tensor


def _at_level(log_ratio_BT: Tensor, level: str, mask_BT: Tensor, limit: float | None) -> Tensor:
    if level == "sequence":
        log_ratio_BT = row_sum(log_ratio_BT, mask_BT)[:, None].expand_as(log_ratio_BT)
    return bounded(neutral(log_ratio_BT, mask_BT), limit)


def _log_mismatch(logprob_BT: Tensor, batch: Batch) -> Tensor:
    """log(behavior / rollout) [B, T], by the trainer's and the engine's own numbers."""
    return anchor_logprob("behavior", logprob_BT, batch) - batch.rollout_logprob_BT


def _num_tokens(mask_BT: Tensor) -> Tensor:
    return mask_BT.sum(dim=1, keepdim=True).clamp(min=1)


def _one(like: Tensor) -> Tensor:
    return torch.ones((), dtype=torch.long, device=like.device)

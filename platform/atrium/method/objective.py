"""The objective of a method: its choices on all axes, combined into the phases of a training step.

`with_advantages` turns a rollout batch's rewards into advantages. `prepare` computes, without gradient, the
values that need more than one micro-batch; `loss` is additive over micro-batches and ranks. Everything that
differs between methods is in the axes; this module only combines them:

    loss = -sum_tokens row_factor x [token_weight x correction x surrogate(w, A, region) - KL - NLL] - entropy

The gradient is built from coefficients: each term contributes a detached coefficient on its token's
log-probability, so the backward pass through the objective is one multiplication.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from atrium.base import metrics
from atrium.method.batch import Batch, PolicyTokens, RowTensors, Sum, local_sum, neutral, num_tokens
from atrium.method.diagnostics import Sums, TokenDetails, measure, measure_reference, measure_slopes
from atrium.method.method import Method
from atrium.method.needs import Needs
from atrium.method.ratio_histogram import count_ratios
from atrium.method.ratios import anchor_logprob, at_level, bounded, token_log_ratio
from atrium.method.reductions import TokenMean, Totals, count_totals
from atrium.method.references import ReferenceState
from atrium.method.regions import RegionInputs
from atrium.method.regularizers import Penalty
from atrium.method.terms import SurrogateInputs
from atrium.method.token_weights import SelectionInputs


@dataclass(frozen=True, kw_only=True)
class ObjectiveState:
    """The state of an objective between steps. `last_entropy`, in nats per token, is None if not measured."""

    entropy_coefficient: float = 0.0
    last_entropy: float | None = None
    reference: ReferenceState = field(default_factory=ReferenceState)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Rebuild the state from its `dataclasses.asdict` form. Raise `TypeError` for unknown names."""
        reference = ReferenceState(**record.get("reference", {}))
        return cls(**{**record, "reference": reference})


@dataclass(frozen=True, kw_only=True)
class MinibatchConstants(RowTensors):
    """Detached constants shared by the micro-batches of a minibatch. Unused constants are None.

    `row_factor_B` is the reduction's factor, and `nll_B` the factor of the NLL term divided by it.
    `entropy_factor_B` is that of an entropy bonus with `reduction: token_mean`, and `entropy_coefficient` its
    coefficient, 0 without one. `row_constant_B` is the surrogate's constant, `token_weight_BT` the token
    weight's selection, and `correction_BT` a correction's factor, and `bounds` [2] a window.

    Examples
    --------
    The constants of two rows of 3 and 2 tokens, whose mean is over all 5, and the second row's token weights:

    >>> prepared = MinibatchConstants(
    ...     row_factor_B=torch.tensor([0.2, 0.2]),
    ...     token_weight_BT=torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]]),
    ...     row_constant_B=None,
    ...     entropy_coefficient=0.0,
    ... )
    >>> prepared.select(torch.tensor([1]), num_tokens=2).token_weight_BT
    tensor([[1., 1.]])
    """

    row_factor_B: Tensor
    token_weight_BT: Tensor | None
    row_constant_B: Tensor | None
    entropy_coefficient: float
    bounds: Tensor | None = None
    entropy_factor_B: Tensor | None = None
    nll_B: Tensor | None = None
    correction_BT: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Slopes:
    """The coefficients of log-probabilities in a loss, all detached.

    The loss is `-(constant + sum(slope_BT * (logprob_BT - sg(logprob_BT))))`, minus the entropy bonus. Its
    value is that of the method's formula, and its derivative with respect to log-probabilities is
    `-slope_BT`. `regularizer` is the part of `-constant` due to the NLL term and the KL penalties with
    `placement: loss`.
    """

    slope_BT: Tensor
    constant: Tensor
    regularizer: Tensor
    details: TokenDetails


@dataclass(frozen=True, kw_only=True)
class LossOutput:
    """A micro-batch's share of the loss, its metrics, and details per token.

    `ratio_counts` are the counts of `atrium.method.ratio_histogram`.
    """

    loss: Tensor
    sums: Sums
    ratio_counts: Tensor
    details: TokenDetails

    def means(self) -> dict[metrics.Quantity, Tensor]:
        """Return the micro-batch's value of each metric that is a mean, as zero-dimensional tensors."""
        return {
            quantity: total / count.clamp(min=1)
            for quantity, (total, count) in self.sums.items()
            if quantity.reduction is metrics.Reduction.MEAN
        }


@dataclass(frozen=True)
class Objective:
    """A method's computations: advantages of a batch, constants of a minibatch, loss of a micro-batch."""

    method: Method

    @property
    def needs(self) -> Needs:
        """The needs of the method's parts."""
        return self.method.needs

    @property
    def _limit(self) -> float | None:
        return self.method.algorithm.log_ratio_limit

    def initial_state(self) -> ObjectiveState:
        """Return the state before the first step."""
        bonus = self.method.regularizer.entropy
        return ObjectiveState(entropy_coefficient=bonus.coefficient if bonus else 0.0)

    def update_state(
        self, state: ObjectiveState, measured: Mapping[str, float], *, step: int
    ) -> ObjectiveState:
        """Return the state after `step`, given the step's metrics by name."""
        token_kl = measured.get(metrics.REFERENCE_KL.name)
        reference = self.method.algorithm.reference.after_step(state.reference, step=step, token_kl=token_kl)
        state = replace(state, reference=reference)
        bonus, entropy = self.method.regularizer.entropy, measured.get(metrics.ENTROPY.name)
        if bonus is None or entropy is None:
            return state
        return replace(
            state,
            entropy_coefficient=bonus.next_coefficient(state.entropy_coefficient, entropy),
            last_entropy=entropy,
        )

    def entropy_coefficient(self, state: ObjectiveState) -> float | None:
        """Return the entropy coefficient in a step that begins with `state`, or None without a bonus."""
        bonus = self.method.regularizer.entropy
        return None if bonus is None else bonus.in_force(state.entropy_coefficient, state.last_entropy)

    def with_advantages(self, batch: Batch, sum_over_ranks: Sum = local_sum) -> Batch:
        """Return the batch with advantages. Raise `ValueError` if a KL penalty lacks log-probabilities."""
        penalty_BT = None
        if in_reward := [kl for kl in self.method.regularizer.penalties if kl.placement == "reward"]:
            behavior_BT = batch.behavior_logprob_BT
            if behavior_BT is None:
                raise ValueError("a KL penalty in the reward requires behavior log-probabilities")
            values_BT = [kl.penalize(behavior_BT, batch, self._limit).value_BT for kl in in_reward]
            penalty_BT = torch.stack(values_BT).sum(dim=0)
        advantage_BT = self.method.algorithm.advantage.compute(batch, penalty_BT, sum_over_ranks)
        return replace(batch, advantage_BT=advantage_BT)

    @torch.no_grad()
    def prepare(
        self,
        minibatch: Batch,
        policy: PolicyTokens | None,
        state: ObjectiveState,
        sum_over_ranks: Sum = local_sum,
        totals: Totals | None = None,
    ) -> MinibatchConstants:
        """Return the constants that the micro-batches of a minibatch share.

        `policy` comes from a gradient-free pass at the current parameters if `needs.prepare_pass` is True,
        and is None otherwise. `totals` are the denominators of means, by default counted in the minibatch.
        """
        chosen = self.method.algorithm
        correction_BT = None
        if chosen.prepares_correction:
            now_BT = minibatch.rollout_logprob_BT if policy is None else policy.logprob_BT
            correction_BT = chosen.correction.prepare(now_BT, minibatch, sum_over_ranks)
        counted = replace(minibatch, mask_BT=self._counted(minibatch.mask_BT, correction_BT))
        prepared = self._constants(counted, state, sum_over_ranks, totals)
        prepared = replace(prepared, correction_BT=correction_BT)
        if policy is None:
            return prepared
        assert minibatch.advantage_BT is not None, "`with_advantages` must be called before `prepare`"
        logprob_BT = neutral(policy.logprob_BT, minibatch.mask_BT)
        region_inputs = self._region_inputs(logprob_BT, minibatch, policy.divergence_BT, None)
        prepared = replace(
            prepared,
            bounds=self.method.divergence.prepare_bounds(
                region_inputs, minibatch.advantage_BT, sum_over_ranks
            ),
            row_constant_B=chosen.surrogate.row_constant(
                chosen.ratio.weight.log_ratio(logprob_BT, minibatch),
                at_level(chosen.ratio.weight.level, logprob_BT, minibatch.mask_BT),
                minibatch,
            ),
        )
        dropped_BT = self.slopes(minibatch, policy, prepared).details.dropped_BT
        selection = SelectionInputs(batch=minibatch, policy=policy, dropped_BT=dropped_BT)
        return replace(prepared, token_weight_BT=chosen.token_weight.select(selection, sum_over_ranks))

    def _counted(self, mask_BT: Tensor, correction_BT: Tensor | None) -> Tensor:
        """Return a mask [B, T] of the tokens that denominators count: all, or only those not rejected."""
        if self.method.algorithm.reduction.counts == "all" or correction_BT is None:
            return mask_BT
        return mask_BT & (correction_BT != 0.0)

    def _constants(
        self, minibatch: Batch, state: ObjectiveState, sum_over_ranks: Sum, totals: Totals | None
    ) -> MinibatchConstants:
        """Return the constants that do not depend on the policy."""
        num_tokens_B = minibatch.mask_BT.sum(dim=1)
        totals = totals or count_totals(num_tokens_B, minibatch.group_B, sum_over_ranks)
        dtype = minibatch.rollout_logprob_BT.dtype
        bonus, nll = self.method.regularizer.entropy, self.method.regularizer.nll
        by_token = bonus is not None and bonus.reduction == "token_mean"
        factor_B, mean_factor_B = (
            reduction.row_factor(num_tokens_B, minibatch.group_B, totals)
            for reduction in (self.method.algorithm.reduction, TokenMean())
        )
        return MinibatchConstants(
            row_factor_B=factor_B.to(dtype),
            entropy_factor_B=mean_factor_B.to(dtype) if by_token else None,
            nll_B=None if nll is None else (nll.row_factor(minibatch, sum_over_ranks) / factor_B).to(dtype),
            token_weight_BT=None,
            row_constant_B=None,
            entropy_coefficient=self.entropy_coefficient(state) or 0.0,
        )

    def loss(self, micro_batch: Batch, policy: PolicyTokens, prepared: MinibatchConstants) -> LossOutput:
        """Return the micro-batch's loss, metrics and token details.

        The losses of all micro-batches add up to the minibatch's loss. The gradient flows into the
        log-probabilities of `policy` and, with an entropy bonus, into its entropies. `prepared` must contain
        the constants of the micro-batch's rows only.
        """
        mask_BT = micro_batch.mask_BT
        logprob_BT = neutral(policy.logprob_BT, mask_BT)
        detached_BT = logprob_BT.detach()
        slopes = self.slopes(micro_batch, policy, prepared)
        loss = -(slopes.constant + (slopes.slope_BT * (logprob_BT - detached_BT)).sum())
        details, one = slopes.details, slopes.constant.new_ones((), dtype=torch.long)
        sums = measure(details, mask_BT) | measure_slopes(slopes.slope_BT, details, mask_BT)
        ratio_counts = count_ratios(details.gate_BT, details.advantage_BT, mask_BT)
        if micro_batch.reference_logprob_BT is not None:
            distance_BT = bounded(detached_BT - micro_batch.reference_logprob_BT, self._limit)
            sums |= measure_reference(distance_BT, mask_BT)
        sums[metrics.REGULARIZER] = (slopes.regularizer, one)
        if policy.entropy_BT is not None:
            entropy_BT = neutral(policy.entropy_BT, mask_BT)
            if prepared.entropy_coefficient != 0.0:
                factor_B = prepared.entropy_factor_B
                factor_B = prepared.row_factor_B if factor_B is None else factor_B
                factor_BT = factor_B[:, None] * self._counted(mask_BT, prepared.correction_BT)
                loss = loss - prepared.entropy_coefficient * (factor_BT * entropy_BT).sum()
            sums[metrics.ENTROPY] = (entropy_BT.detach().sum(dtype=torch.float64), mask_BT.sum())
        if policy.divergence_BT is not None:
            divergence_BT = neutral(policy.divergence_BT, mask_BT)
            sums[metrics.STATE_DIVERGENCE] = (divergence_BT.sum(dtype=torch.float64), mask_BT.sum())
        sums[metrics.LOSS] = (loss.detach(), one)
        return LossOutput(loss=loss, sums=sums, ratio_counts=ratio_counts, details=details)

    @torch.no_grad()
    def slopes(self, batch: Batch, policy: PolicyTokens, prepared: MinibatchConstants) -> Slopes:
        """Return the loss of the batch's rows as coefficients of the tokens' log-probabilities."""
        mask_BT = batch.mask_BT
        logprob_BT = neutral(policy.logprob_BT.detach(), mask_BT)
        region_inputs = self._region_inputs(logprob_BT, batch, policy.divergence_BT, prepared.bounds)
        inputs = self._surrogate_inputs(region_inputs, logprob_BT, batch, prepared)
        for penalty in self._penalties("weight", logprob_BT, batch):
            regularized_BT = inputs.advantage_BT - penalty.coefficient_BT / inputs.weight_BT
            inputs = replace(inputs, advantage_BT=regularized_BT)
        coefficient_BT, value_BT, dropped_BT = self._surrogate_terms(inputs, logprob_BT, batch)
        weights_BT, penalty_weight_BT = self._token_weights(logprob_BT, batch, prepared)
        for weight_BT in weights_BT:
            coefficient_BT, value_BT = weight_BT * coefficient_BT, weight_BT * value_BT
        penalty_BT = torch.zeros_like(value_BT)
        for penalty in self._penalties("loss", logprob_BT, batch):
            weighed = penalty.times(penalty_weight_BT)
            penalty_BT = penalty_BT + weighed.value_BT
            coefficient_BT, value_BT = coefficient_BT - weighed.coefficient_BT, value_BT - weighed.value_BT
        if prepared.nll_B is not None:
            nll_BT = prepared.nll_B[:, None]
            penalty_BT = penalty_BT - nll_BT * logprob_BT
            coefficient_BT, value_BT = coefficient_BT + nll_BT, value_BT + nll_BT * logprob_BT
        factor_BT = prepared.row_factor_B[:, None] * self._counted(mask_BT, prepared.correction_BT)
        return Slopes(
            slope_BT=neutral(factor_BT * coefficient_BT, mask_BT),
            constant=neutral(factor_BT * value_BT, mask_BT).sum(),
            regularizer=neutral(factor_BT * penalty_BT, mask_BT).sum(),
            details=TokenDetails(
                log_ratio_BT=bounded(token_log_ratio("behavior", logprob_BT, batch), self._limit),
                gate_BT=inputs.gate_BT,
                advantage_BT=inputs.advantage_BT,
                feasible_BT=inputs.region.feasible_BT,
                dropped_BT=dropped_BT,
                coefficient_BT=coefficient_BT,
            ),
        )

    def _penalties(
        self, placement: Literal["weight", "loss"], logprob_BT: Tensor, batch: Batch
    ) -> list[Penalty]:
        """Return the KL penalties with the given placement, evaluated at each token."""
        penalties = self.method.regularizer.penalties
        return [kl.penalize(logprob_BT, batch, self._limit) for kl in penalties if kl.placement == placement]

    def _token_weights(
        self, logprob_BT: Tensor, batch: Batch, prepared: MinibatchConstants
    ) -> tuple[list[Tensor], Tensor | None]:
        """Return the factors [B, T] of the surrogate's terms and of the KL penalties (None: 1 everywhere)."""
        weight = self.method.algorithm.token_weight
        corrected_BT: list[Tensor | None] = [prepared.correction_BT]
        if prepared.correction_BT is None:
            steps = self.method.algorithm.correction.steps
            corrected_BT = [step.factor(step.log_mismatch(logprob_BT, batch), batch) for step in steps]
        log_ratio_BT = token_log_ratio(weight.anchor, logprob_BT, batch)
        weight_BT = weight.weigh(prepared.token_weight_BT, log_ratio_BT, batch)
        weighs_policy = weight.weighs == "surrogate"
        factors_BT = [*corrected_BT, weight_BT if weighs_policy else None]
        return [one for one in factors_BT if one is not None], None if weighs_policy else weight_BT

    def _surrogate_inputs(
        self, region_inputs: RegionInputs, logprob_BT: Tensor, batch: Batch, prepared: MinibatchConstants
    ) -> SurrogateInputs:
        """Return the surrogate's inputs: gate and weight ratios, trust region, and advantages."""
        assert batch.advantage_BT is not None, "`with_advantages` must be called before `loss`"
        ratios, gate_BT = self.method.algorithm.ratio, region_inputs.ratio_BT
        region, weight = self.method.divergence.region(region_inputs), ratios.weight
        clipped_ratio_BT = region.crossed_bound(gate_BT)
        if weight.order == "clip_then_mean":
            away_BT = region.moving_away(gate_BT, batch.advantage_BT)
            clipped_BT = torch.where(away_BT, clipped_ratio_BT.log(), region_inputs.token_log_ratio_BT)
            log_weight_BT = at_level(weight.level, clipped_BT, batch.mask_BT)
            weight_BT = clipped_ratio_BT = bounded(log_weight_BT, self._limit).exp()
        else:
            log_weight_BT = weight.log_ratio(logprob_BT, batch)
            weight_BT = gate_BT
            if not ratios.are_equal:
                weight_BT = weight.capped(bounded(log_weight_BT, self._limit).exp())
        return SurrogateInputs(
            gate_BT=gate_BT,
            weight_BT=weight_BT,
            log_weight_BT=log_weight_BT,
            logprob_BT=at_level(weight.level, logprob_BT, batch.mask_BT),
            advantage_BT=batch.advantage_BT,
            rewarded_BT=(batch.reward_B > 0.0)[:, None].expand_as(batch.mask_BT),
            clipped_ratio_BT=clipped_ratio_BT,
            region=region,
            row_constant_B=prepared.row_constant_B,
        )

    def _region_inputs(
        self, logprob_BT: Tensor, batch: Batch, divergence_BT: Tensor | None, bounds: Tensor | None
    ) -> RegionInputs:
        """Return the inputs of the divergence: the gate ratio and the log-probabilities that define it."""
        gate = self.method.algorithm.ratio.gate
        token_log_BT = token_log_ratio(gate.anchor, logprob_BT, batch)
        gate_log_BT = at_level(gate.level, token_log_BT, batch.mask_BT)
        return RegionInputs(
            ratio_BT=bounded(gate_log_BT, self._limit).exp(),
            token_log_ratio_BT=token_log_BT,
            anchor_logprob_BT=neutral(anchor_logprob(gate.anchor, logprob_BT, batch), batch.mask_BT),
            mask_BT=batch.mask_BT,
            divergence_BT=divergence_BT,
            bounds=bounds,
        )

    def _surrogate_terms(
        self, inputs: SurrogateInputs, logprob_BT: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the surrogate's coefficients and values, and a mask of the clipped tokens, all [B, T]."""
        surrogate, weight = self.method.algorithm.surrogate, self.method.algorithm.ratio.weight
        output = surrogate.terms(inputs)
        coefficient_BT = output.coefficient_BT
        if surrogate.form == "score" or output.value_BT is None:
            return coefficient_BT, coefficient_BT * logprob_BT, output.dropped_BT
        value_BT = output.value_BT
        if weight.level == "sequence":
            # One value per row, spread over its tokens, so that a sum over tokens counts it once.
            value_BT = value_BT / num_tokens(batch.mask_BT)
        if surrogate.exponentiates and self._limit is not None:
            constant_BT = inputs.log_weight_BT.abs() > self._limit
            coefficient_BT = torch.where(constant_BT, 0.0, coefficient_BT)
        return coefficient_BT, value_BT, output.dropped_BT

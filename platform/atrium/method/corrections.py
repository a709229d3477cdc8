"""How a mismatch between the engine's and the trainer's distribution is repaired.

A correction is a detached factor on every token of the policy's loss, a function of the ratio of two anchors.
As a rule these are the behavior policy (the trainer's numbers) and the rollout policy (the engine's), so that
it is about numerics alone. With the proximal policy above the line it is about staleness, too.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import model_validator

from atrium.base.section import NonNegative, Positive
from atrium.method.batch import Batch, Sum, neutral, row_mean, row_sum
from atrium.method.divergences import RowStatistic, TokenEstimator, estimate_divergence, rows_within
from atrium.method.needs import NOTHING, Anchor, Needs, Part, Policy
from atrium.method.ratios import Level, anchor_logprob, at_level

if TYPE_CHECKING:
    from torch import Tensor


_LIMIT = 20.0  # verl's and SkyRL's bound on log-ratios, which keeps weights without a cap finite
_LEAST_MEAN = 1e-8  # verl's: weights with a smaller mean are not divided by it


class Correction(Part, axis=True):
    """How a mismatch between sampler and trainer is repaired.

    `rejects` says whether its factor may be 0, so that `reduction.counts=kept` has an effect.
    """

    rejects: ClassVar[bool] = True

    @property
    def compares(self) -> tuple[Policy, Anchor] | None:
        """The policies above and below the line of its ratio; None where it has none."""
        return None

    @property
    def needs(self) -> Needs:
        """The numbers of the two policies that are compared."""
        if self.compares is None:
            return NOTHING
        is_current = "current" in self.compares
        return Needs(anchor_pass=not is_current, rollout_logprobs="rollout" in self.compares)

    def log_mismatch(self, logprob_BT: Tensor, batch: Batch) -> Tensor:
        """log(policy / anchor) [B, T] of the two policies that are compared; 0 where none are."""
        if self.compares is None:
            return logprob_BT.new_zeros(logprob_BT.shape)
        policy, anchor = self.compares
        return anchor_logprob(policy, logprob_BT, batch) - anchor_logprob(anchor, logprob_BT, batch)

    @property
    def steps(self) -> tuple[Correction, ...]:
        """The corrections whose factors are multiplied: itself, unless it is a product."""
        return (self,)

    @property
    def normalizes(self) -> bool:
        """Whether `normalized` changes the factor."""
        return False

    @abstractmethod
    def factor(self, log_mismatch_BT: Tensor, batch: Batch) -> Tensor | None:
        """The factor [B, T] on every token's terms, or None for 1 everywhere."""

    def normalized(self, factor_BT: Tensor, batch: Batch, sum_over_ranks: Sum) -> Tensor:
        """The factor in a whole minibatch, divided by its mean where the settings say so."""
        return factor_BT

    def prepare(self, logprob_BT: Tensor, batch: Batch, sum_over_ranks: Sum) -> Tensor:
        """The product [B, T] of all steps' factors in a whole minibatch."""
        product_BT = logprob_BT.new_ones(logprob_BT.shape)
        for step in self.steps:
            factor_BT = step.factor(step.log_mismatch(logprob_BT, batch), batch)
            if factor_BT is not None:
                product_BT = product_BT * step.normalized(factor_BT, batch, sum_over_ranks)
        return product_BT


class NoCorrection(Correction):
    """The engine's distribution is taken to be the trainer's."""

    kind: Literal["none"] = "none"
    rejects: ClassVar[bool] = False

    def factor(self, log_mismatch_BT: Tensor, batch: Batch) -> None:
        """None: 1 everywhere."""


class RatioCorrection(Correction):
    """A function of the ratio policy / anchor."""

    policy: Literal["behavior", "proximal", "current"] = "behavior"
    """Above the line: the weights that sampled, by the trainer's numbers, the start of the step, or the
    policy that is being trained, without gradient (verl's bypass mode)."""
    anchor: Literal["rollout", "behavior"] = "rollout"
    """Below the line: the weights that sampled, by the engine's numbers or by the trainer's."""

    @property
    def compares(self) -> tuple[Policy, Anchor]:
        """The policies above and below the line."""
        return self.policy, self.anchor

    @model_validator(mode="after")
    def _check_policies(self) -> Self:
        if self.policy == self.anchor:
            raise ValueError(f"two policies, not {self.anchor} for policy and anchor; choose anchor=rollout")
        return self


class TruncatedImportance(RatioCorrection):
    """behavior / rollout held within [lower, cap], per token or with the sequence's product (TIS, cap 2)."""

    kind: Literal["truncated_importance"] = "truncated_importance"
    cap: Positive | None
    """The largest importance weight; larger ones are truncated to it. null: no largest one."""
    lower: NonNegative = 0.0
    """The smallest importance weight; smaller ones are raised to it."""
    level: Literal["token", "sequence"] = "token"
    """One token, or the product over the completion."""
    normalize: Literal["none", "batch"] = "none"
    """`batch` divides the weights by their mean over the update's trained tokens, or over its completions
    with level=sequence, unless that mean is below 1e-8. Rejected tokens count in it."""
    rejects: ClassVar[bool] = False

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.cap is not None and self.lower >= self.cap:
            raise ValueError(f"a lower below cap={self.cap:g}, not lower={self.lower:g}")
        return self

    @property
    def normalizes(self) -> bool:
        """Whether the weights are divided by their mean."""
        return self.normalize == "batch"

    def factor(self, log_mismatch_BT: Tensor, batch: Batch) -> Tensor:
        """The importance ratio at its level, held within the range."""
        return _ratio(self.level, log_mismatch_BT, batch.mask_BT).clamp(self.lower, self.cap)

    def normalized(self, factor_BT: Tensor, batch: Batch, sum_over_ranks: Sum) -> Tensor:
        """The weights, divided by their mean over tokens or completions on all ranks."""
        if not self.normalizes:
            return factor_BT
        import torch

        mask_BT = batch.mask_BT
        by_token = self.level == "token"
        total_B = (row_sum if by_token else row_mean)(factor_BT.double(), mask_BT)
        count_B = mask_BT.sum(dim=1) if by_token else mask_BT.any(dim=1)
        total, count = sum_over_ranks(torch.stack([total_B.sum(), count_B.sum().double()]))
        mean = total / count.clamp(min=1.0)
        divisor: Tensor = mean.where(mean > _LEAST_MEAN, 1.0).to(factor_BT)
        return factor_BT / divisor


class MaskedImportance(RatioCorrection):
    """behavior / rollout where it lies in [lower, upper], else 0 (IcePop, arXiv 2510.18855; MIS)."""

    kind: Literal["masked_importance"] = "masked_importance"
    lower: NonNegative
    """The smallest ratio that counts."""
    upper: Positive
    """The largest ratio that counts."""
    level: Literal["token", "sequence", "sequence_mean"] = "token"
    """One token, the product over the completion, or its geometric mean."""
    keep_weight: bool = True
    """False rejects without reweighting what stays."""

    def factor(self, log_mismatch_BT: Tensor, batch: Batch) -> Tensor:
        """The importance ratio at its level, or 1, inside the range, and 0 outside."""
        ratio_BT = _ratio(self.level, log_mismatch_BT, batch.mask_BT)
        inside_BT = (ratio_BT >= self.lower) & (ratio_BT <= self.upper)
        return ratio_BT.where(inside_BT, 0.0) if self.keep_weight else inside_BT.to(ratio_BT.dtype)


class SequenceRejection(RatioCorrection):
    """Drop completions whose mismatch exceeds a bound: by their mean, sum or maximum over tokens.

    verl takes the mean or the sum; arXiv 2512.23075 masks a sequence if any token violates. Dropped
    completions stay in the denominators of means unless `reduction.counts` is `kept`.
    """

    kind: Literal["sequence_rejection"] = "sequence_rejection"
    estimator: TokenEstimator
    """The mismatch of a token with ratio x: -log x, (log x)^2 / 2, x - 1 - log x, or |x - 1|."""
    bound: Positive
    """The largest mean, sum or maximum over a completion's tokens that is kept."""
    over: RowStatistic = "mean"
    """The statistic over a completion's tokens."""
    direction: Literal["both", "outward"] = "both"
    """`both` drops all tokens of a completion beyond the bound. `outward` drops those whose advantage would
    move the ratio further from 1: sign(log x) A > 0 (open-instruct, after VACO, arXiv 2603.01365)."""

    def factor(self, log_mismatch_BT: Tensor, batch: Batch) -> Tensor:
        """1 at tokens that are kept, 0 at others."""
        mask_BT, log_mismatch_BT = batch.mask_BT, neutral(log_mismatch_BT, batch.mask_BT)
        estimate_BT = estimate_divergence(self.estimator, log_mismatch_BT)
        kept_B = rows_within(self.over, estimate_BT, mask_BT, self.bound)
        kept_BT = kept_B[:, None].expand_as(log_mismatch_BT)
        if self.direction == "outward":
            assert batch.advantage_BT is not None, "`with_advantages` comes first"
            kept_BT = kept_BT | (log_mismatch_BT.sign() * batch.advantage_BT <= 0.0)
        return kept_BT.to(log_mismatch_BT.dtype)


def _ratio(level: Level, log_mismatch_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return at_level(level, neutral(log_mismatch_BT, mask_BT), mask_BT).clamp(-_LIMIT, _LIMIT).exp()

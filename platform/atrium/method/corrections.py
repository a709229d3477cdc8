"""Corrections of the mismatch between the engine's and the trainer's distributions.

A correction multiplies every token of the policy's loss by a detached factor, which is a function of the
ratio of two policies. By default, the numerator is the behavior policy (log-probabilities from the trainer)
and the denominator is the rollout policy (log-probabilities from the engine). Both have the same weights,
so the ratio differs from 1 only because of numerics. With the proximal policy in the numerator, the ratio
also reflects staleness.
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
_LEAST_MEAN = 1e-8  # as in verl: weights with a smaller mean are not divided by it


class Correction(Part, axis=True):
    """A correction of the mismatch between engine and trainer.

    `rejects` says whether the factor may be 0, so that `reduction.counts=kept` has an effect.
    """

    rejects: ClassVar[bool] = True

    @property
    def compares(self) -> tuple[Policy, Anchor] | None:
        """The policies in the numerator and denominator of the ratio, or None if there is no ratio."""
        return None

    @property
    def needs(self) -> Needs:
        """The log-probabilities of the two policies that are compared."""
        if self.compares is None:
            return NOTHING
        is_current = "current" in self.compares
        return Needs(anchor_pass=not is_current, rollout_logprobs="rollout" in self.compares)

    def log_mismatch(self, logprob_BT: Tensor, batch: Batch) -> Tensor:
        """Return log(policy / anchor) [B, T] of the two compared policies, or 0 if none are compared."""
        if self.compares is None:
            return logprob_BT.new_zeros(logprob_BT.shape)
        policy, anchor = self.compares
        return anchor_logprob(policy, logprob_BT, batch) - anchor_logprob(anchor, logprob_BT, batch)

    @property
    def steps(self) -> tuple[Correction, ...]:
        """The corrections whose factors are multiplied: the correction itself, unless it is a product."""
        return (self,)

    @property
    def normalizes(self) -> bool:
        """Whether the factor is divided by its mean over a minibatch (by default, False)."""
        return False

    @abstractmethod
    def factor(self, log_mismatch_BT: Tensor, batch: Batch) -> Tensor | None:
        """Return the factor [B, T] that multiplies each token's terms; None means 1 everywhere.

        `log_mismatch_BT` is the result of `log_mismatch`.
        """

    def normalized(self, factor_BT: Tensor, batch: Batch, sum_over_ranks: Sum) -> Tensor:
        """Return the factor [B, T] of a whole minibatch, divided by its mean if `normalizes` is True."""
        return factor_BT

    def prepare(self, logprob_BT: Tensor, batch: Batch, sum_over_ranks: Sum) -> Tensor:
        """Return the product [B, T] of the factors of all `steps` for a whole minibatch."""
        product_BT = logprob_BT.new_ones(logprob_BT.shape)
        for step in self.steps:
            factor_BT = step.factor(step.log_mismatch(logprob_BT, batch), batch)
            if factor_BT is not None:
                product_BT = product_BT * step.normalized(factor_BT, batch, sum_over_ranks)
        return product_BT


class NoCorrection(Correction):
    """No correction: the engine's distribution counts as the trainer's."""

    kind: Literal["none"] = "none"
    rejects: ClassVar[bool] = False

    def factor(self, log_mismatch_BT: Tensor, batch: Batch) -> None:
        """Return None: the factor is 1 everywhere."""


class RatioCorrection(Correction):
    """A correction whose factor is a function of the ratio policy / anchor."""

    policy: Literal["behavior", "proximal", "current"] = "behavior"
    """Numerator: the weights that sampled (by the trainer's log-probabilities), the policy at the start of
    the step, or the policy being trained, without gradient (verl's bypass mode)."""
    anchor: Literal["rollout", "behavior"] = "rollout"
    """Denominator: the weights that sampled, by the engine's log-probabilities or by the trainer's."""

    @property
    def compares(self) -> tuple[Policy, Anchor]:
        """The policies in the numerator and denominator of the ratio."""
        return self.policy, self.anchor

    @model_validator(mode="after")
    def _check_policies(self) -> Self:
        if self.policy == self.anchor:
            raise ValueError(
                f"policy and anchor must be different, got {self.anchor} for both; choose anchor=rollout"
            )
        return self


class TruncatedImportance(RatioCorrection):
    """The ratio policy / anchor clamped to [lower, cap], per token or per sequence (TIS uses a cap of 2)."""

    kind: Literal["truncated_importance"] = "truncated_importance"
    cap: Positive | None
    """Maximum importance weight; larger ones are truncated to it. null for no maximum."""
    lower: NonNegative = 0.0
    """Minimum importance weight; smaller ones are raised to it."""
    level: Literal["token", "sequence"] = "token"
    """Level of the ratio: one token, or the product over the completion."""
    normalize: Literal["none", "batch"] = "none"
    """Normalization: `batch` divides the weights by their mean over the update's trained tokens, or over its
    completions with level=sequence, unless that mean is below 1e-8. The mean includes rejected tokens."""
    rejects: ClassVar[bool] = False

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.cap is not None and self.lower >= self.cap:
            raise ValueError(
                f"lower must be less than cap, got lower={self.lower:g} and cap={self.cap:g}; choose a "
                "smaller lower"
            )
        return self

    @property
    def normalizes(self) -> bool:
        """Whether the weights are divided by their mean."""
        return self.normalize == "batch"

    def factor(self, log_mismatch_BT: Tensor, batch: Batch) -> Tensor:
        """Return the ratio [B, T] at the chosen level, clamped to [lower, cap]."""
        return _ratio(self.level, log_mismatch_BT, batch.mask_BT).clamp(self.lower, self.cap)

    def normalized(self, factor_BT: Tensor, batch: Batch, sum_over_ranks: Sum) -> Tensor:
        """Return the factor [B, T], divided by its mean across all ranks if `normalizes` is True.

        The mean is over trained tokens. With `level: sequence`, it is over completions. A mean of at most
        1e-8 is not used as a divisor.
        """
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
    """The ratio policy / anchor if it is in [lower, upper], else 0 (IcePop, arXiv 2510.18855; MIS)."""

    kind: Literal["masked_importance"] = "masked_importance"
    lower: NonNegative
    """Minimum ratio that is kept."""
    upper: Positive
    """Maximum ratio that is kept."""
    level: Literal["token", "sequence", "sequence_mean"] = "token"
    """Level of the ratio: one token, the product over the completion, or its geometric mean."""
    keep_weight: bool = True
    """Whether kept tokens are weighted by the ratio; false only rejects tokens."""

    def factor(self, log_mismatch_BT: Tensor, batch: Batch) -> Tensor:
        """Return the ratio [B, T] where it lies in [lower, upper], and 0 elsewhere.

        If `keep_weight` is False, kept tokens have the factor 1 instead of the ratio.
        """
        ratio_BT = _ratio(self.level, log_mismatch_BT, batch.mask_BT)
        inside_BT = (ratio_BT >= self.lower) & (ratio_BT <= self.upper)
        return ratio_BT.where(inside_BT, 0.0) if self.keep_weight else inside_BT.to(ratio_BT.dtype)


class SequenceRejection(RatioCorrection):
    """Rejection of completions whose mean, sum or maximum mismatch over tokens exceeds a bound.

    verl uses the mean or the sum; arXiv 2512.23075 masks a sequence if any token exceeds the bound. With
    `direction: outward`, only the tokens of such a completion whose advantage would move the ratio further
    from 1 are rejected. Rejected tokens stay in the denominators of means unless `reduction.counts` is
    `kept`.
    """

    kind: Literal["sequence_rejection"] = "sequence_rejection"
    estimator: TokenEstimator
    """Estimator of the mismatch of a token with ratio x: -log x, (log x)^2 / 2, x - 1 - log x, or |x - 1|."""
    bound: Positive
    """Largest value of the statistic `over` at which a completion is kept."""
    over: RowStatistic = "mean"
    """Statistic over a completion's tokens."""
    direction: Literal["both", "outward"] = "both"
    """Tokens of a completion beyond the bound that are dropped. `both`: all tokens. `outward`: only tokens
    whose advantage would move the ratio further from 1: sign(log x) A > 0 (open-instruct, after VACO, arXiv
    2603.01365)."""

    def factor(self, log_mismatch_BT: Tensor, batch: Batch) -> Tensor:
        """Return a factor [B, T] of 1 at kept tokens and 0 at all others."""
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

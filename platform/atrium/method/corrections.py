"""How a mismatch between the engine's and the trainer's distribution is repaired.

A correction is a detached factor on every token of the policy's loss, a function of the ratio of two anchors.
As a rule these are the behavior policy (the trainer's numbers) and the rollout policy (the engine's), so that
it is about numerics alone. With the proximal policy above the line it is about staleness, too.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from atrium.base.section import Axis, NonNegative, Positive
from atrium.method.needs import NOTHING, Anchor, Needs


class Correction(Axis, axis=True):
    """How a mismatch between sampler and trainer is repaired."""

    @property
    def compares(self) -> tuple[Anchor, Anchor] | None:
        """The policies above and below the line of its ratio; None where it has none."""
        return None

    @property
    def needs(self) -> Needs:
        """The numbers of the two policies that are compared."""
        if self.compares is None:
            return NOTHING
        return Needs(anchor_pass=True, rollout_logprobs="rollout" in self.compares)


class NoCorrection(Correction):
    """The engine's distribution is taken to be the trainer's."""

    kind: Literal["none"] = "none"


class RatioCorrection(Correction):
    """A function of the ratio policy / anchor."""

    policy: Literal["behavior", "proximal"] = "behavior"
    """Above the line: the weights that sampled, by the trainer's numbers, or the start of the step."""
    anchor: Literal["rollout", "behavior"] = "rollout"
    """Below the line: the weights that sampled, by the engine's numbers or by the trainer's."""

    @property
    def compares(self) -> tuple[Anchor, Anchor]:
        """The policies above and below the line."""
        return self.policy, self.anchor

    @model_validator(mode="after")
    def _check_policies(self) -> Self:
        if self.policy == self.anchor:
            raise ValueError(f"two policies, not {self.anchor} for policy and anchor; choose anchor=rollout")
        return self


class TruncatedImportance(RatioCorrection):
    """min(behavior / rollout, cap), per token or with the sequence's product (TIS, cap 2)."""

    kind: Literal["truncated_importance"] = "truncated_importance"
    cap: Positive
    """The largest importance weight; larger ones are truncated to it."""
    level: Literal["token", "sequence"] = "token"
    """One token, or the product over the completion."""


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


class SequenceRejection(RatioCorrection):
    """Drop completions whose mismatch, by k1, k2 or k3 of their tokens, exceeds a bound.

    By their mean over tokens, as verl does, or by their maximum: arXiv 2512.23075 masks a sequence if any
    token violates. Dropped completions stay in the denominators of means.
    """

    kind: Literal["sequence_rejection"] = "sequence_rejection"
    estimator: Literal["k1", "k2", "k3"]
    """How the mismatch of a token is measured."""
    bound: Positive
    """The largest mean or maximum over a completion's tokens that is kept."""
    over: Literal["mean", "maximum"] = "mean"
    """What is taken over a completion's tokens."""

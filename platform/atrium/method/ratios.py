"""Whose probabilities are compared, and at which level."""

from __future__ import annotations

from typing import Literal

from atrium.base.section import Positive, Section
from atrium.method.needs import Anchor, Needs

Level = Literal["token", "sequence_mean", "sequence", "none"]


class Ratio(Section):
    """Whose probabilities are compared, at which level."""

    level: Level = "token"
    """One token, the geometric mean of the sequence, its product, or no ratio at all."""
    anchor: Anchor = "behavior"
    """Below the line: the weights that sampled, by the engine's numbers (rollout) or by the trainer's
    (behavior), or the policy at the start of the step (proximal)."""

    @property
    def needs(self) -> Needs:
        """The engine's numbers, where they stand below the line."""
        return Needs(rollout_logprobs=self.anchor == "rollout" and self.level != "none")


class WeightRatio(Ratio):
    """The ratio that multiplies the advantage."""

    cap: Positive | None = None
    """The largest weight, or null for none."""
    order: Literal["mean_then_clip", "clip_then_mean"] = "mean_then_clip"
    """Whether a sequence's mean is clipped (GSPO, arXiv 2507.18071), or its tokens before the mean is taken:
    each token's log-ratio is held at the bound that it crossed (GMPO, arXiv 2507.20673)."""


class Ratios(Section):
    """The ratio that the trust region looks at, and the one that multiplies the advantage."""

    gate: Ratio = Ratio()
    """The ratio that the trust region judges."""
    weight: WeightRatio = WeightRatio()
    """The ratio that multiplies the advantage."""

    @property
    def are_equal(self) -> bool:
        """Whether the weight is the gate's ratio, number by number."""
        gate, weight = self.gate, self.weight
        is_plain = weight.cap is None and weight.order == "mean_then_clip"
        return is_plain and (gate.level, gate.anchor) == (weight.level, weight.anchor)

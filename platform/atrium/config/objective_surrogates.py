"""The configuration of surrogates: one frozen model per kind, with its settings and ranges.

Which formula a kind stands for is said in `atrium.objective.surrogates`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atrium.config.base import Section

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class ClipConfig(Section):
    """PPO's clip over the chosen divergence."""

    kind: Literal["clip"]
    gradient: Literal["pathwise", "score"] = "pathwise"


class DualClipConfig(Section):
    """Clip, bounded below by cap x A for negative advantages."""

    kind: Literal["dual_clip"]
    gradient: Literal["pathwise", "score"] = "pathwise"
    cap: Annotated[float, Field(gt=1.0)]
    """The ratio above which a token with a negative advantage has no gradient."""


class TwoSidedClipConfig(Section):
    """INTELLECT-2: clip, and ratios capped for both signs of the advantage."""

    kind: Literal["two_sided_clip"]
    gradient: Literal["pathwise", "score"] = "pathwise"
    cap: Annotated[float, Field(gt=1.0)]
    """The ratio above which no token has a gradient."""


class MaskConfig(Section):
    """Only feasible tokens, whatever the sign of their advantage."""

    kind: Literal["mask"]
    gradient: Literal["pathwise", "score"] = "pathwise"


class WeightClipConfig(Section):
    """CISPO: the weight is clipped, no gradient is cut."""

    kind: Literal["weight_clip"]
    gradient: Literal["score"] = "score"


class SignedWeightClipConfig(Section):
    """TOPR: the weight is clipped where the reward is not positive, and 1 elsewhere."""

    kind: Literal["signed_weight_clip"]
    gradient: Literal["score"] = "score"
    lower: NonNegative
    upper: Positive


class GradientPreservingClipConfig(Section):
    """CE-GPPO: cut tokens keep a bounded gradient."""

    kind: Literal["gradient_preserving_clip"]
    gradient: Literal["pathwise"] = "pathwise"
    scale_low: NonNegative
    """Of the gradient of A < 0 below the window."""
    scale_high: NonNegative
    """Of the gradient of A > 0 above the window."""
    cap: Annotated[float, Field(gt=1.0)]
    """The ratio above which a token with a negative advantage has no gradient."""


class SoftGateConfig(Section):
    """SAPO: a sigmoid of the ratio."""

    kind: Literal["soft_gate"]
    gradient: Literal["pathwise", "score"] = "pathwise"
    tau_positive: Positive
    """The gate's temperature for positive advantages."""
    tau_negative: Positive
    """The gate's temperature for negative advantages."""


class QuadraticConfig(Section):
    """SPO: a quadratic penalty of the window's width."""

    kind: Literal["quadratic"]
    gradient: Literal["pathwise", "score"] = "pathwise"


class GammaWeightConfig(Section):
    """VESPO: the weight w^power exp(decay (1 - w)), by the sign of the advantage."""

    kind: Literal["gamma_weight"]
    gradient: Literal["score"] = "score"
    power_positive: NonNegative
    decay_positive: NonNegative
    power_negative: NonNegative
    decay_negative: NonNegative


class RegressionConfig(Section):
    """GVPO: regression of the implicit reward."""

    kind: Literal["implicit_reward_regression"]
    gradient: Literal["pathwise"] = "pathwise"
    beta: Positive
    """The KL coefficient of the implicit reward."""
    without: Literal["nothing", "variance", "covariance"] = "nothing"
    """The regularizing part of the loss that an ablation leaves out."""


class NoSurrogateConfig(Section):
    """Importance sampling alone."""

    kind: Literal["none"]
    gradient: Literal["pathwise", "score"] = "pathwise"


SurrogateConfig = Annotated[
    ClipConfig
    | DualClipConfig
    | TwoSidedClipConfig
    | MaskConfig
    | WeightClipConfig
    | SignedWeightClipConfig
    | GradientPreservingClipConfig
    | SoftGateConfig
    | QuadraticConfig
    | GammaWeightConfig
    | RegressionConfig
    | NoSurrogateConfig,
    Field(discriminator="kind"),
]

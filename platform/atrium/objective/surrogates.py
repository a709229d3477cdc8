"""What happens at the boundary of the trust region: every surrogate by name.

What a surrogate is, and the sign and meaning of its coefficient, is said in `boundary`.
"""

from __future__ import annotations

from collections.abc import Callable

from atrium.objective.boundary import Surrogate
from atrium.objective.clipping import (
    Clip,
    DualClip,
    GradientPreservingClip,
    Mask,
    SignedWeightClip,
    TwoSidedClip,
    Unclipped,
    WeightClip,
)
from atrium.objective.regression import ImplicitRewardRegression
from atrium.objective.smooth_surrogates import GammaWeight, Quadratic, SoftGate

SURROGATES: dict[str, Callable[..., Surrogate]] = {
    "none": Unclipped,
    "clip": Clip,
    "dual_clip": DualClip,
    "two_sided_clip": TwoSidedClip,
    "mask": Mask,
    "weight_clip": WeightClip,
    "signed_weight_clip": SignedWeightClip,
    "gradient_preserving_clip": GradientPreservingClip,
    "soft_gate": SoftGate,
    "quadratic": Quadratic,
    "gamma_weight": GammaWeight,
    "implicit_reward_regression": ImplicitRewardRegression,
}

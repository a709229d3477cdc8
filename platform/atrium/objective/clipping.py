"""Surrogates that cut or bound at the boundary of the trust region: clips, masks, bounded weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from atrium.objective.boundary import (
    Surrogate,
    SurrogateInputs,
    SurrogateOutput,
    UsesWindow,
    crossed_bound,
    either,
    gated,
    kept,
    moving_away,
    scored,
)
from atrium.objective.regions import Bound


@dataclass(frozen=True)
class Unclipped(Surrogate):
    """w A: importance sampling alone."""

    uses_window: ClassVar[UsesWindow] = "none"

    def __call__(self, inputs: SurrogateInputs) -> SurrogateOutput:
        """Keep every token."""
        return kept(inputs, inputs.weight_BT * inputs.advantage_BT)


@dataclass(frozen=True)
class Clip(Surrogate):
    """min(w A, clip(w, l, u) A), PPO's surrogate over any trust region (arXiv 1707.06347, eq. 7)."""

    def __call__(self, inputs: SurrogateInputs) -> SurrogateOutput:
        """Drop the gradient of tokens that are outside and moving away."""
        return gated(inputs, moving_away(inputs.region, inputs.gate_BT, inputs.advantage_BT))


@dataclass(frozen=True, kw_only=True)
class DualClip(Surrogate):
    """The clip surrogate, bounded below by c A for negative advantages (arXiv 1912.09729, eq. 5).

    `cap` is c > 1: a token with A < 0 and w >= c has no gradient either.
    """

    cap: float

    def __call__(self, inputs: SurrogateInputs) -> SurrogateOutput:
        """Drop what clip drops, and runaway ratios of negative advantages."""
        runaway_BT = (inputs.advantage_BT < 0.0) & (inputs.gate_BT >= self.cap)
        dropped_BT = moving_away(inputs.region, inputs.gate_BT, inputs.advantage_BT) | runaway_BT
        return gated(inputs, dropped_BT, torch.where(runaway_BT, self.cap, inputs.held_BT))


@dataclass(frozen=True, kw_only=True)
class TwoSidedClip(Surrogate):
    """min(min(w, c) A, clip(w, l, u) A): ratios are capped for both signs (INTELLECT-2, 2505.07291).

    With c >= u it is the dual clip with the same c; below u it caps positive advantages too.
    """

    cap: float

    def __call__(self, inputs: SurrogateInputs) -> SurrogateOutput:
        """Drop what clip drops, and ratios of at least the cap: for A < 0 where the region is left too."""
        raises_BT = inputs.advantage_BT > 0.0
        runaway_BT = (inputs.gate_BT >= self.cap) & (raises_BT | ~inputs.region.feasible_BT)
        away_BT = moving_away(inputs.region, inputs.gate_BT, inputs.advantage_BT)
        lowers_BT = torch.where(runaway_BT, inputs.held_BT.clamp(min=self.cap), inputs.held_BT)
        held_BT = torch.where(raises_BT, inputs.held_BT.clamp(max=self.cap), lowers_BT)
        return gated(inputs, away_BT | runaway_BT, held_BT)


@dataclass(frozen=True)
class Mask(Surrogate):
    """w A where feasible and nothing elsewhere, whatever the sign of A (as IcePop does, 2510.18855)."""

    def __call__(self, inputs: SurrogateInputs) -> SurrogateOutput:
        """Drop every infeasible token."""
        return gated(inputs, ~inputs.region.feasible_BT, torch.zeros_like(inputs.held_BT))


@dataclass(frozen=True, kw_only=True)
class WeightClip(Surrogate):
    """sg(clip(w, l, u)) A log pi: the weight is clipped, no gradient is cut (CISPO, arXiv 2506.13585)."""

    uses_window: ClassVar[UsesWindow] = "bounds"

    def __call__(self, inputs: SurrogateInputs) -> SurrogateOutput:
        """Bound the weight by the window."""
        bounded_BT = _clamp(inputs.weight_BT, inputs.region.lower, inputs.region.upper)
        return scored(inputs, bounded_BT * inputs.advantage_BT)


@dataclass(frozen=True, kw_only=True)
class SignedWeightClip(Surrogate):
    """A log pi where the reward is positive, sg(clip(w, lower, upper)) A log pi where not (TOPR).

    The sign is the reward's, not the advantage's. Source: arXiv 2503.14286.
    """

    lower: float
    upper: float
    uses_window: ClassVar[UsesWindow] = "none"

    def __call__(self, inputs: SurrogateInputs) -> SurrogateOutput:
        """Weigh only completions without a positive reward."""
        bounded_BT = inputs.weight_BT.clamp(self.lower, self.upper)
        return scored(inputs, torch.where(inputs.rewarded_BT, 1.0, bounded_BT) * inputs.advantage_BT)


@dataclass(frozen=True, kw_only=True)
class GradientPreservingClip(Surrogate):
    """Clip whose cut tokens keep a bounded gradient: scale x bound x A (CE-GPPO, arXiv 2509.20712).

    For A < 0 and w < l the coefficient is `scale_low` l A, for A > 0 and w > u it is `scale_high` u A;
    A < 0 and w >= `cap` has none, as in the dual clip.
    """

    scale_low: float
    scale_high: float
    cap: float
    uses_window: ClassVar[UsesWindow] = "bounds"

    def __call__(self, inputs: SurrogateInputs) -> SurrogateOutput:
        """Replace the coefficient of tokens that clip would cut."""
        away_BT = moving_away(inputs.region, inputs.gate_BT, inputs.advantage_BT)
        scale_BT = either(inputs.gate_BT > 1.0, self.scale_high, self.scale_low, inputs.gate_BT)
        preserved_BT = scale_BT * crossed_bound(inputs.region, inputs.gate_BT) * inputs.advantage_BT
        runaway_BT = (inputs.advantage_BT < 0.0) & (inputs.gate_BT >= self.cap)
        free_BT = inputs.weight_BT * inputs.advantage_BT
        value_BT = torch.where(away_BT, preserved_BT, free_BT)
        return SurrogateOutput(
            coefficient_BT=torch.where(runaway_BT, 0.0, value_BT),
            value_BT=torch.where(runaway_BT, self.cap * inputs.advantage_BT, value_BT),
            dropped_BT=runaway_BT,
        )


def _clamp(value_BT: Tensor, lower: Bound, upper: Bound) -> Tensor:
    low_BT = torch.as_tensor(lower, dtype=value_BT.dtype, device=value_BT.device)
    high_BT = torch.as_tensor(upper, dtype=value_BT.dtype, device=value_BT.device)
    return torch.minimum(torch.maximum(value_BT, low_BT), high_BT)

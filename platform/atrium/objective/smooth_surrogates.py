"""Surrogates without a hard boundary: soft gates, a quadratic penalty, and weights that fall off."""

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
    either,
    kept,
    scored,
)
from atrium.objective.regions import Bound


@dataclass(frozen=True, kw_only=True)
class SoftGate(Surrogate):
    """(4 / tau) sigmoid(tau (w - 1)) A, with tau by the sign of A (SAPO, arXiv 2511.20347).

    Its coefficient is w A at w = 1 and falls off smoothly on both sides.
    """

    tau_positive: float
    tau_negative: float
    uses_window: ClassVar[UsesWindow] = "none"

    def __call__(self, inputs: SurrogateInputs) -> SurrogateOutput:
        """Weigh every token by the gate's slope."""
        tau_BT = either(inputs.advantage_BT > 0.0, self.tau_positive, self.tau_negative, inputs.weight_BT)
        argument_BT = tau_BT * (inputs.weight_BT - 1.0)
        gate_BT = torch.sigmoid(argument_BT)
        # sigmoid(-x) rather than 1 - sigmoid(x), which is 0 too early.
        slope_BT = 4.0 * gate_BT * torch.sigmoid(-argument_BT) * inputs.weight_BT
        value_BT = 4.0 / tau_BT * gate_BT * inputs.advantage_BT
        return kept(inputs, value_BT, slope_BT * inputs.advantage_BT)


@dataclass(frozen=True)
class Quadratic(Surrogate):
    """w A - |A| (w - 1)^2 / (2 e), with e the window's width on w's side of 1 (SPO, arXiv 2401.16025).

    Its coefficient w (A - |A| (w - 1) / e) is 0 at the bound and pulls back beyond it. With a symmetric
    window it is SPO; an asymmetric one gives each side its own curvature.
    """

    uses_window: ClassVar[UsesWindow] = "bounds"

    def __call__(self, inputs: SurrogateInputs) -> SurrogateOutput:
        """Penalise the square of the distance from 1."""
        distance_BT = inputs.weight_BT - 1.0
        width_BT = torch.where(
            distance_BT > 0.0,
            _as_tensor(inputs.region.upper, distance_BT) - 1.0,
            1.0 - _as_tensor(inputs.region.lower, distance_BT),
        )
        pull_BT = inputs.advantage_BT.abs() * distance_BT / width_BT
        value_BT = inputs.weight_BT * inputs.advantage_BT - 0.5 * pull_BT * distance_BT
        return kept(inputs, value_BT, inputs.weight_BT * (inputs.advantage_BT - pull_BT))


@dataclass(frozen=True, kw_only=True)
class GammaWeight(Surrogate):
    """sg(w^k exp(c (1 - w))) A log pi, with (k, c) by the sign of A (VESPO, arXiv 2602.10693).

    The weight is 1 at w = 1, falls to 0 on both sides, and is largest at w = k / c.
    """

    power_positive: float
    decay_positive: float
    power_negative: float
    decay_negative: float
    uses_window: ClassVar[UsesWindow] = "none"

    def __call__(self, inputs: SurrogateInputs) -> SurrogateOutput:
        """Weigh in log space, where neither factor overflows."""
        raises_BT = inputs.advantage_BT > 0.0
        power_BT = either(raises_BT, self.power_positive, self.power_negative, inputs.weight_BT)
        decay_BT = either(raises_BT, self.decay_positive, self.decay_negative, inputs.weight_BT)
        log_BT = power_BT * inputs.weight_BT.log() + decay_BT * (1.0 - inputs.weight_BT)
        return scored(inputs, log_BT.exp() * inputs.advantage_BT)


def _as_tensor(bound: Bound, like: Tensor) -> Tensor:
    return torch.as_tensor(bound, dtype=like.dtype, device=like.device)

"""What a surrogate is given and returns: the coefficient that an objective puts on each token's gradient.

A surrogate maps a token's weight w, its advantage A and the trust region to a coefficient c. The
gradient of the objective (which is maximised) with respect to the token's log-probability is c; that is
the definition, and `Objective.loss` builds the loss from it. Pathwise surrogates also give the value
whose derivative with respect to log w is c, and autograd must agree with it (a test says so for each).
Score surrogates are stop-gradient weights times the log-probability: their value is c log pi.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from atrium.objective.batch import Batch, Needs
from atrium.objective.regions import Region

UsesWindow = Literal["none", "feasible", "bounds"]


@dataclass(frozen=True, kw_only=True)
class SurrogateInputs:
    """What a surrogate looks at, all [B, T] and without gradient.

    `gate_BT` is the ratio that the region was judged on, `weight_BT` the ratio that multiplies the
    advantage, `log_weight_BT` its logarithm without any bound, `logprob_BT` the policy's log-probability
    at the weight's level. `held_BT` is the ratio at which a token without gradient is held, and
    `rewarded_BT` is True in rows whose reward is above 0. `row_constant_B` is what the surrogate's
    `row_constant` found for these rows.
    """

    gate_BT: Tensor
    weight_BT: Tensor
    log_weight_BT: Tensor
    logprob_BT: Tensor
    advantage_BT: Tensor
    rewarded_BT: Tensor
    held_BT: Tensor
    region: Region
    row_constant_B: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class SurrogateOutput:
    """The coefficient [B, T], its pathwise value if there is one, and the tokens whose gradient is cut."""

    coefficient_BT: Tensor
    value_BT: Tensor | None
    dropped_BT: Tensor


class Surrogate(ABC):
    """A rule at the boundary of the trust region.

    `uses_window`: whether it reads the region's bounds, only which tokens are feasible, or neither.
    `exponentiates` is False where it looks at log-ratios only, which no limit then bounds.
    """

    uses_window: ClassVar[UsesWindow] = "feasible"
    exponentiates: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs()

    @abstractmethod
    def __call__(self, inputs: SurrogateInputs) -> SurrogateOutput:
        """Coefficient and value at every token."""

    def row_constant(self, log_weight_BT: Tensor, logprob_BT: Tensor, minibatch: Batch) -> Tensor | None:
        """A constant per row [B] that needs the whole minibatch at the current parameters, or None."""
        return None


def moving_away(region: Region, gate_BT: Tensor, advantage_BT: Tensor) -> Tensor:
    """True [B, T] at infeasible tokens that an ascent step would push further out: A (w - 1) > 0.

    For any feasibility test, dropping exactly these is the gradient of min(w A, clip_C(w) A)
    (arXiv 2602.05494, Theorem 4.1 for windows on the ratio).
    """
    return ~region.feasible_BT & (advantage_BT * (gate_BT - 1.0) > 0.0)


def crossed_bound(region: Region, gate_BT: Tensor) -> Tensor:
    """The bound [B, T] on the side of 1 where the ratio is."""
    upper_BT = torch.as_tensor(region.upper, dtype=gate_BT.dtype, device=gate_BT.device)
    lower_BT = torch.as_tensor(region.lower, dtype=gate_BT.dtype, device=gate_BT.device)
    return torch.where(gate_BT > 1.0, upper_BT, lower_BT)


def either(condition_BT: Tensor, if_true: float, if_false: float, like: Tensor) -> Tensor:
    """One of two numbers at each token, in the dtype of `like` (of numbers alone torch makes float32)."""
    return torch.where(condition_BT, torch.full_like(like, if_true), if_false)


def kept(inputs: SurrogateInputs, value_BT: Tensor, coefficient_BT: Tensor | None = None) -> SurrogateOutput:
    """A surrogate that cuts no gradient; its coefficient is its value where none is given."""
    return SurrogateOutput(
        coefficient_BT=value_BT if coefficient_BT is None else coefficient_BT,
        value_BT=value_BT,
        dropped_BT=torch.zeros_like(inputs.region.feasible_BT),
    )


def scored(inputs: SurrogateInputs, coefficient_BT: Tensor) -> SurrogateOutput:
    """A detached weight on the log-probability, without a value of its own; cuts no gradient."""
    dropped_BT = torch.zeros_like(inputs.region.feasible_BT)
    return SurrogateOutput(coefficient_BT=coefficient_BT, value_BT=None, dropped_BT=dropped_BT)


def gated(inputs: SurrogateInputs, dropped_BT: Tensor, held_BT: Tensor | None = None) -> SurrogateOutput:
    """w A where kept; the held ratio times A, without gradient, where dropped."""
    value_BT = inputs.weight_BT * inputs.advantage_BT
    constant_BT = (inputs.held_BT if held_BT is None else held_BT) * inputs.advantage_BT
    return SurrogateOutput(
        coefficient_BT=torch.where(dropped_BT, 0.0, value_BT),
        value_BT=torch.where(dropped_BT, constant_BT, value_BT),
        dropped_BT=dropped_BT,
    )

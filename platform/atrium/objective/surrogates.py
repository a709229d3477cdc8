"""What happens at the boundary: the coefficient that an objective puts on each token's gradient.

A surrogate maps a token's weight w, its advantage A and the trust region to a coefficient c. The
gradient of the objective (which is maximised) with respect to the token's log-probability is c; that is
the definition, and `Objective.loss` builds the loss from it. Pathwise surrogates also give the value
whose derivative with respect to log w is c, and autograd must agree with it (a test says so for each).
Score surrogates are stop-gradient weights times the log-probability: their value is c log pi.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from atrium.objective.advantages import group_mean
from atrium.objective.batch import Batch, Needs
from atrium.objective.divergences import Bound, Region

UsesWindow = Literal["none", "upper", "both"]


@dataclass(frozen=True, kw_only=True)
class SurrogateInputs:
    """What a surrogate looks at, all [B, T] and without gradient.

    `gate_BT` is the ratio that the region was judged on, `weight_BT` the ratio that multiplies the
    advantage, `log_weight_BT` its logarithm without any bound. `row_constant_B` is what the surrogate's
    `row_constant` found for these rows.
    """

    gate_BT: Tensor
    weight_BT: Tensor
    log_weight_BT: Tensor
    advantage_BT: Tensor
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

    `uses_window` names the bounds of the region that it reads; `exponentiates` is False where it looks
    at log-ratios only, which no limit then bounds.
    """

    uses_window: ClassVar[UsesWindow] = "both"
    exponentiates: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs()

    @abstractmethod
    def __call__(self, inputs: SurrogateInputs) -> SurrogateOutput:
        """Coefficient and value at every token."""

    def row_constant(self, log_weight_BT: Tensor, minibatch: Batch) -> Tensor | None:
        """A constant per row [B] that needs the whole minibatch at the current parameters, or None."""
        return None


def moving_away(inputs: SurrogateInputs) -> Tensor:
    """True [B, T] at infeasible tokens that an ascent step would push further out: A (w - 1) > 0.

    For any feasibility test, dropping exactly these is the gradient of min(w A, clip_C(w) A)
    (arXiv 2602.05494, Theorem 4.1 for windows on the ratio).
    """
    outward_BT = inputs.advantage_BT * (inputs.gate_BT - 1.0) > 0.0
    return ~inputs.region.feasible_BT & outward_BT


def _nearest_bound(inputs: SurrogateInputs) -> Tensor:
    """The bound that an infeasible token crossed, as a detached constant of the clipped value."""
    above_BT = inputs.gate_BT > 1.0
    upper_BT = torch.as_tensor(inputs.region.upper, dtype=inputs.gate_BT.dtype, device=above_BT.device)
    lower_BT = torch.as_tensor(inputs.region.lower, dtype=inputs.gate_BT.dtype, device=above_BT.device)
    return torch.where(above_BT, upper_BT, lower_BT)


@dataclass(frozen=True)
class Unclipped(Surrogate):
    """w A: importance sampling alone."""

    uses_window: ClassVar[UsesWindow] = "none"

    def __call__(self, inputs: SurrogateInputs) -> SurrogateOutput:
        """Keep every token."""
        value_BT = inputs.weight_BT * inputs.advantage_BT
        dropped_BT = torch.zeros_like(inputs.region.feasible_BT)
        return SurrogateOutput(coefficient_BT=value_BT, value_BT=value_BT, dropped_BT=dropped_BT)


@dataclass(frozen=True)
class Clip(Surrogate):
    """min(w A, clip(w, l, u) A), PPO's surrogate over any trust region (arXiv 1707.06347, eq. 7)."""

    def __call__(self, inputs: SurrogateInputs) -> SurrogateOutput:
        """Drop the gradient of tokens that are outside and moving away."""
        return _gated(inputs, moving_away(inputs))


@dataclass(frozen=True, kw_only=True)
class DualClip(Surrogate):
    """The clip surrogate, bounded below by c A for negative advantages (arXiv 1912.09729, eq. 5).

    `cap` is c > 1: a token with A < 0 and w >= c has no gradient either.
    """

    cap: float

    def __call__(self, inputs: SurrogateInputs) -> SurrogateOutput:
        """Drop what clip drops, and runaway ratios of negative advantages."""
        runaway_BT = (inputs.advantage_BT < 0.0) & (inputs.gate_BT >= self.cap)
        output = _gated(inputs, moving_away(inputs) | runaway_BT)
        assert output.value_BT is not None
        value_BT = torch.where(runaway_BT, self.cap * inputs.advantage_BT, output.value_BT)
        return SurrogateOutput(
            coefficient_BT=output.coefficient_BT, value_BT=value_BT, dropped_BT=output.dropped_BT
        )


@dataclass(frozen=True, kw_only=True)
class WeightClip(Surrogate):
    """sg(clip(w, l, u)) A log pi: the weight is clipped, no gradient is cut (CISPO, arXiv 2506.13585)."""

    def __call__(self, inputs: SurrogateInputs) -> SurrogateOutput:
        """Bound the weight by the window."""
        bounded_BT = _clamp(inputs.weight_BT, inputs.region.lower, inputs.region.upper)
        dropped_BT = torch.zeros_like(inputs.region.feasible_BT)
        coefficient_BT = bounded_BT * inputs.advantage_BT
        return SurrogateOutput(coefficient_BT=coefficient_BT, value_BT=None, dropped_BT=dropped_BT)


@dataclass(frozen=True)
class ImplicitRewardRegression(Surrogate):
    """-(1/2) e^2 for the residual e between implicit and given reward (GVPO, arXiv 2504.19599, eq. 9).

    e = beta (log W - group mean of log W) - A, with W the sequence ratio and A the reward less its group
    mean; the coefficient on each of the row's tokens is -beta e. Reductions of the group decide between
    the paper's 1/(k - 1) and a plain mean.
    """

    beta: float
    uses_window: ClassVar[UsesWindow] = "none"
    exponentiates: ClassVar[bool] = False
    needs: ClassVar[Needs] = Needs(prepare_pass=True, whole_groups=True)

    def __call__(self, inputs: SurrogateInputs) -> SurrogateOutput:
        """Regress the implicit reward onto the advantage."""
        assert inputs.row_constant_B is not None, "`prepare` computes it for every minibatch"
        implicit_BT = self.beta * (inputs.log_weight_BT - inputs.row_constant_B[:, None])
        residual_BT = implicit_BT - inputs.advantage_BT
        return SurrogateOutput(
            coefficient_BT=-self.beta * residual_BT,
            value_BT=-0.5 * residual_BT**2,
            dropped_BT=torch.zeros_like(inputs.region.feasible_BT),
        )

    def row_constant(self, log_weight_BT: Tensor, minibatch: Batch) -> Tensor:
        """The mean of the group's sequence log-ratios; detaching it changes no gradient (eq. 11)."""
        sequence_log_ratio_B = log_weight_BT[:, :1].sum(dim=1)  # the same at every token of a row
        return group_mean(sequence_log_ratio_B, minibatch.group_B)


def _gated(inputs: SurrogateInputs, dropped_BT: Tensor) -> SurrogateOutput:
    """w A where kept; the crossed bound times A, without gradient, where dropped."""
    value_BT = inputs.weight_BT * inputs.advantage_BT
    held_BT = _nearest_bound(inputs) * inputs.advantage_BT
    return SurrogateOutput(
        coefficient_BT=torch.where(dropped_BT, 0.0, value_BT),
        value_BT=torch.where(dropped_BT, held_BT, value_BT),
        dropped_BT=dropped_BT,
    )


def _clamp(value_BT: Tensor, lower: Bound, upper: Bound) -> Tensor:
    if isinstance(lower, Tensor) or isinstance(upper, Tensor):
        lower_BT, upper_BT = torch.as_tensor(lower), torch.as_tensor(upper)
        return torch.minimum(torch.maximum(value_BT, lower_BT), upper_BT)
    return value_BT.clamp(lower, upper)


SURROGATES: dict[str, Callable[..., Surrogate]] = {
    "none": Unclipped,
    "clip": Clip,
    "dual_clip": DualClip,
    "weight_clip": WeightClip,
    "implicit_reward_regression": ImplicitRewardRegression,
}

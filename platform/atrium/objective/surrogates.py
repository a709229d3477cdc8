"""What happens at the boundary of the trust region: the coefficient that each token's gradient gets.

A surrogate maps a token's weight w, its advantage A and the trust region to a coefficient c. The
gradient of the objective (which is maximised) with respect to the token's log-probability is c; that is
the definition, and `Objective.loss` builds the loss from it. Pathwise surrogates also give the value
whose derivative with respect to log w is c, and autograd must agree with it (a test says so for each). A
class that declares a formula instead is differentiated.
Score surrogates are stop-gradient weights times the log-probability: their value is c log pi.

The formulas and sources stand with the classes of `atrium.method.surrogates`, which are executed here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch

import torch
from torch import Tensor

from atrium.method.advantages import group_mean
from atrium.method.batch import Batch, row_mean
from atrium.method.regions import Region
from atrium.method.surrogates import (
    Clip,
    DualClip,
    GammaWeight,
    GradientPreservingClip,
    ImplicitRewardRegression,
    Mask,
    NoSurrogate,
    Quadratic,
    SignedWeightClip,
    SoftGate,
    Surrogate,
    TwoSidedClip,
    WeightClip,
)


@dataclass(frozen=True, kw_only=True)
class SurrogateInputs:
    """The inputs of a surrogate, all [B, T] and without gradient.

    `gate_BT` is the ratio that the region was judged on, `weight_BT` the ratio that multiplies the
    advantage, `log_weight_BT` its logarithm without any bound, `logprob_BT` the policy's log-probability
    at the weight's level. `clipped_ratio_BT` is the ratio at which a token without gradient is held, and
    `rewarded_BT` is True in rows whose reward is above 0. `row_constant_B` is what `row_constant` found for
    these rows.
    """

    gate_BT: Tensor
    weight_BT: Tensor
    log_weight_BT: Tensor
    logprob_BT: Tensor
    advantage_BT: Tensor
    rewarded_BT: Tensor
    clipped_ratio_BT: Tensor
    region: Region
    row_constant_B: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class SurrogateOutput:
    """The coefficient [B, T], its pathwise value if there is one, and the tokens whose gradient is cut.

    Examples
    --------
    PPO's clip of three tokens with advantage 1 at ratios 0.7, 1 and 1.3: the last is cut.

    >>> ratio = torch.tensor([[0.7, 1.0, 1.3]])
    >>> region = Region(lower=0.8, upper=1.2, feasible_BT=(ratio >= 0.8) & (ratio <= 1.2))
    >>> output = terms(
    ...     Clip(),
    ...     SurrogateInputs(
    ...         gate_BT=ratio,
    ...         weight_BT=ratio,
    ...         log_weight_BT=ratio.log(),
    ...         logprob_BT=torch.zeros(1, 3),
    ...         advantage_BT=torch.ones(1, 3),
    ...         rewarded_BT=torch.ones(1, 3, dtype=torch.bool),
    ...         clipped_ratio_BT=region.crossed_bound(ratio),
    ...         region=region,
    ...     ),
    ... )
    >>> output.coefficient_BT, output.dropped_BT
    (tensor([[0.7000, 1.0000, 0.0000]]), tensor([[False, False,  True]]))
    """

    coefficient_BT: Tensor
    value_BT: Tensor | None
    dropped_BT: Tensor


@singledispatch
def terms(surrogate: Surrogate, inputs: SurrogateInputs) -> SurrogateOutput:
    """Coefficient and value at every token: of the class's own formula, differentiated by log w.

    Where the class gives the coefficient in closed form, nothing is differentiated. A token counts as
    dropped where the coefficient is 0 and the advantage is not. Raises `NotImplementedError` for a class
    without a formula of which no function is registered either, and `TypeError` for a formula that does not
    depend on the policy.
    """
    coefficient_BT: Tensor | None = surrogate.coefficient(inputs)
    value_BT = surrogate.value(inputs) if coefficient_BT is not None else None
    if coefficient_BT is None:
        coefficient_BT, value_BT = _differentiated(surrogate, inputs)
    return SurrogateOutput(
        coefficient_BT=coefficient_BT,
        value_BT=value_BT,
        dropped_BT=(coefficient_BT == 0.0) & (inputs.advantage_BT != 0.0),
    )


def _differentiated(surrogate: Surrogate, inputs: SurrogateInputs) -> tuple[Tensor, Tensor]:
    """The derivative of the formula by log w, and its value, both [B, T]."""
    with torch.enable_grad():
        # e^0 = 1 times the weight is the weight to the bit, whatever bound it was computed under.
        step_BT = torch.zeros_like(inputs.weight_BT).requires_grad_()
        moved = replace(
            inputs,
            weight_BT=inputs.weight_BT * step_BT.exp(),
            log_weight_BT=inputs.log_weight_BT + step_BT,
            logprob_BT=inputs.logprob_BT + step_BT,
        )
        value_BT: Tensor = surrogate.value(moved)
        if not value_BT.requires_grad:
            raise TypeError(f"{type(surrogate).__name__}.value does not depend on the policy")
        (coefficient_BT,) = torch.autograd.grad(value_BT.sum(), step_BT)
    return coefficient_BT, value_BT.detach()


@singledispatch
def row_constant(
    surrogate: Surrogate, log_weight_BT: Tensor, logprob_BT: Tensor, minibatch: Batch
) -> Tensor | None:
    """A constant per row [B] that needs the whole minibatch at the current parameters, or None."""
    return None


@terms.register
def _(surrogate: NoSurrogate, inputs: SurrogateInputs) -> SurrogateOutput:
    return uncut(inputs, inputs.weight_BT * inputs.advantage_BT)


@terms.register
def _(surrogate: Clip, inputs: SurrogateInputs) -> SurrogateOutput:
    return cut_where(inputs, inputs.region.moving_away(inputs.gate_BT, inputs.advantage_BT))


@terms.register
def _(surrogate: DualClip, inputs: SurrogateInputs) -> SurrogateOutput:
    runaway_BT = (inputs.advantage_BT < 0.0) & (inputs.gate_BT >= surrogate.cap)
    dropped_BT = inputs.region.moving_away(inputs.gate_BT, inputs.advantage_BT) | runaway_BT
    return cut_where(inputs, dropped_BT, torch.where(runaway_BT, surrogate.cap, inputs.clipped_ratio_BT))


@terms.register
def _(surrogate: TwoSidedClip, inputs: SurrogateInputs) -> SurrogateOutput:
    # Ratios of at least the cap are dropped: for A < 0 only where the region is left too.
    raises_BT = inputs.advantage_BT > 0.0
    runaway_BT = (inputs.gate_BT >= surrogate.cap) & (raises_BT | ~inputs.region.feasible_BT)
    away_BT = inputs.region.moving_away(inputs.gate_BT, inputs.advantage_BT)
    clipped_BT = inputs.clipped_ratio_BT
    lowers_BT = torch.where(runaway_BT, clipped_BT.clamp(min=surrogate.cap), clipped_BT)
    clipped_BT = torch.where(raises_BT, clipped_BT.clamp(max=surrogate.cap), lowers_BT)
    return cut_where(inputs, away_BT | runaway_BT, clipped_BT)


@terms.register
def _(surrogate: Mask, inputs: SurrogateInputs) -> SurrogateOutput:
    return cut_where(inputs, ~inputs.region.feasible_BT, torch.zeros_like(inputs.clipped_ratio_BT))


@terms.register
def _(surrogate: WeightClip, inputs: SurrogateInputs) -> SurrogateOutput:
    lower_BT, upper_BT = inputs.region.bounds_like(inputs.weight_BT)
    bounded_BT = torch.minimum(torch.maximum(inputs.weight_BT, lower_BT), upper_BT)
    return score_form(inputs, bounded_BT * inputs.advantage_BT)


@terms.register
def _(surrogate: SignedWeightClip, inputs: SurrogateInputs) -> SurrogateOutput:
    bounded_BT = inputs.weight_BT.clamp(surrogate.lower, surrogate.upper)
    return score_form(inputs, torch.where(inputs.rewarded_BT, 1.0, bounded_BT) * inputs.advantage_BT)


@terms.register
def _(surrogate: GradientPreservingClip, inputs: SurrogateInputs) -> SurrogateOutput:
    away_BT = inputs.region.moving_away(inputs.gate_BT, inputs.advantage_BT)
    scale_BT = choose(inputs.gate_BT > 1.0, surrogate.scale_high, surrogate.scale_low, inputs.gate_BT)
    preserved_BT = scale_BT * inputs.region.crossed_bound(inputs.gate_BT) * inputs.advantage_BT
    runaway_BT = (inputs.advantage_BT < 0.0) & (inputs.gate_BT >= surrogate.cap)
    free_BT = inputs.weight_BT * inputs.advantage_BT
    value_BT = torch.where(away_BT, preserved_BT, free_BT)
    return SurrogateOutput(
        coefficient_BT=torch.where(runaway_BT, 0.0, value_BT),
        value_BT=torch.where(runaway_BT, surrogate.cap * inputs.advantage_BT, value_BT),
        dropped_BT=runaway_BT,
    )


@terms.register
def _(surrogate: SoftGate, inputs: SurrogateInputs) -> SurrogateOutput:
    tau_BT = choose(
        inputs.advantage_BT > 0.0, surrogate.tau_positive, surrogate.tau_negative, inputs.weight_BT
    )
    argument_BT = tau_BT * (inputs.weight_BT - 1.0)
    gate_BT = torch.sigmoid(argument_BT)
    # sigmoid(-x) rather than 1 - sigmoid(x), which is 0 too early.
    slope_BT = 4.0 * gate_BT * torch.sigmoid(-argument_BT) * inputs.weight_BT
    value_BT = 4.0 / tau_BT * gate_BT * inputs.advantage_BT
    return uncut(inputs, value_BT, slope_BT * inputs.advantage_BT)


@terms.register
def _(surrogate: Quadratic, inputs: SurrogateInputs) -> SurrogateOutput:
    distance_BT = inputs.weight_BT - 1.0
    lower_BT, upper_BT = inputs.region.bounds_like(distance_BT)
    width_BT = torch.where(distance_BT > 0.0, upper_BT - 1.0, 1.0 - lower_BT)
    width_BT = width_BT.clamp(min=torch.finfo(distance_BT.dtype).eps)  # a bound may round to 1
    pull_BT = inputs.advantage_BT.abs() * distance_BT / width_BT
    value_BT = inputs.weight_BT * inputs.advantage_BT - 0.5 * pull_BT * distance_BT
    return uncut(inputs, value_BT, inputs.weight_BT * (inputs.advantage_BT - pull_BT))


@terms.register
def _(surrogate: GammaWeight, inputs: SurrogateInputs) -> SurrogateOutput:
    raises_BT = inputs.advantage_BT > 0.0
    power_BT = choose(raises_BT, surrogate.power_positive, surrogate.power_negative, inputs.weight_BT)
    decay_BT = choose(raises_BT, surrogate.decay_positive, surrogate.decay_negative, inputs.weight_BT)
    # In log space neither factor overflows.
    log_BT = power_BT * inputs.weight_BT.log() + decay_BT * (1.0 - inputs.weight_BT)
    return score_form(inputs, log_BT.exp() * inputs.advantage_BT)


@terms.register
def _(surrogate: ImplicitRewardRegression, inputs: SurrogateInputs) -> SurrogateOutput:
    assert inputs.row_constant_B is not None, "`prepare` computes it for every minibatch"
    log_BT = _regressed_log_ratio(surrogate, inputs.log_weight_BT, inputs.logprob_BT)
    residual_BT = surrogate.beta * log_BT - inputs.advantage_BT - inputs.row_constant_B[:, None]
    coefficient_BT = -surrogate.beta * residual_BT
    if surrogate.without == "variance":  # the coefficient does not depend on the policy
        return uncut(inputs, coefficient_BT * inputs.logprob_BT, coefficient_BT)
    return uncut(inputs, -0.5 * residual_BT**2, coefficient_BT)


@row_constant.register
def _(
    surrogate: ImplicitRewardRegression, log_weight_BT: Tensor, logprob_BT: Tensor, minibatch: Batch
) -> Tensor:
    # Both means are taken over the rows with tokens, so that a group's residuals sum to 0.
    # Detaching the mean changes no gradient (arXiv 2504.19599, eq. 11).
    assert minibatch.advantage_BT is not None, "`score` comes before `prepare`"
    log_BT = _regressed_log_ratio(surrogate, log_weight_BT, logprob_BT)
    log_B = log_BT[:, :1].sum(dim=1)  # the same at every token of a row
    advantage_B = row_mean(minibatch.advantage_BT.double(), minibatch.mask_BT).to(log_B)
    distance_B = surrogate.beta * log_B - advantage_B
    return group_mean(distance_B, minibatch.group_B, minibatch.mask_BT.any(dim=1))


def _regressed_log_ratio(
    surrogate: ImplicitRewardRegression, log_weight_BT: Tensor, logprob_BT: Tensor
) -> Tensor:
    match surrogate.without:
        case "variance":
            return log_weight_BT - logprob_BT
        case "covariance":
            return logprob_BT
        case _:
            return log_weight_BT


def choose(condition_BT: Tensor, if_true: float, if_false: float, like: Tensor) -> Tensor:
    """One of two numbers at each token, in the dtype of `like` (of numbers alone torch makes float32)."""
    return torch.where(condition_BT, torch.full_like(like, if_true), if_false)


def uncut(inputs: SurrogateInputs, value_BT: Tensor, coefficient_BT: Tensor | None = None) -> SurrogateOutput:
    """A surrogate that cuts no gradient; its coefficient is its value where none is given."""
    return SurrogateOutput(
        coefficient_BT=value_BT if coefficient_BT is None else coefficient_BT,
        value_BT=value_BT,
        dropped_BT=torch.zeros_like(inputs.region.feasible_BT),
    )


def score_form(inputs: SurrogateInputs, coefficient_BT: Tensor) -> SurrogateOutput:
    """A detached weight on the log-probability, without a value of its own; cuts no gradient."""
    dropped_BT = torch.zeros_like(inputs.region.feasible_BT)
    return SurrogateOutput(coefficient_BT=coefficient_BT, value_BT=None, dropped_BT=dropped_BT)


def cut_where(
    inputs: SurrogateInputs, dropped_BT: Tensor, clipped_ratio_BT: Tensor | None = None
) -> SurrogateOutput:
    """w A where kept; the clipped ratio times A, without gradient, where dropped."""
    value_BT = inputs.weight_BT * inputs.advantage_BT
    clipped_BT = inputs.clipped_ratio_BT if clipped_ratio_BT is None else clipped_ratio_BT
    constant_BT = clipped_BT * inputs.advantage_BT
    return SurrogateOutput(
        coefficient_BT=torch.where(dropped_BT, 0.0, value_BT),
        value_BT=torch.where(dropped_BT, constant_BT, value_BT),
        dropped_BT=dropped_BT,
    )

"""How far is too far: what a trust region says about the tokens of a batch.

Divergences that are functions of the ratio alone are constant windows, computed once in float64 by
`atrium.method.windows`; whatever they are called, they run the code of plain clipping. Others have a
window per token, one per minibatch, or none: means over a row, and divergences of the whole distribution at
a position.

The formulas and sources stand with the classes of `atrium.method.divergences`, which are executed here.
q and p are the probabilities that anchor and policy give to the sampled token, w = p / q.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from atrium.method.batch import Sum, neutral, row_mean
from atrium.method.divergences import (
    BalancedWindow,
    BinaryKL,
    BinaryTotalVariation,
    Divergence,
    DynamicClip,
    SequenceMean,
    StateDivergence,
    TopKDivergence,
)

Bound = float | Tensor
_NEWTON_STEPS = 8  # from the outer bound they find the bounds to 1e-10 for budgets down to 1e-6


@dataclass(frozen=True, kw_only=True)
class RegionInputs:
    """The inputs of a divergence: [B, T] tensors without gradient, 0 log-ratio at masked positions.

    `ratio_BT` is the gate ratio; `token_log_ratio_BT` the log-ratio of single tokens to the gate's anchor,
    whatever the gate's level; `anchor_logprob_BT` the anchor's log-probabilities; `divergence_BT` the
    state divergence, where one is needed; `bounds` what `prepare_bounds` found.
    """

    ratio_BT: Tensor
    token_log_ratio_BT: Tensor
    anchor_logprob_BT: Tensor
    mask_BT: Tensor
    divergence_BT: Tensor | None = None
    bounds: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Region:
    """A trust region at a batch's tokens.

    `lower` and `upper` are the window's bounds on the ratio, as numbers or per token [B, T]; both are 1
    where there is no window. `feasible_BT` says whether each token satisfies the constraint.

    Examples
    --------
    >>> region = within(torch.tensor([[0.7, 1.0, 1.3]]), 0.8, 1.2)
    >>> region.feasible_BT
    tensor([[False,  True, False]])
    """

    lower: Bound
    upper: Bound
    feasible_BT: Tensor


@singledispatch
def judge(divergence: Divergence, inputs: RegionInputs) -> Region:
    """The region at these tokens: that of the constant window, unless the divergence has another."""
    window = divergence.window()
    if window is None:
        raise TypeError(f"{type(divergence).__name__} has no window, and nothing registered with `judge`")
    return within(inputs.ratio_BT, window.lower, window.upper)


@singledispatch
def prepare_bounds(
    divergence: Divergence, inputs: RegionInputs, advantage_BT: Tensor, sum_over_ranks: Sum
) -> Tensor | None:
    """Lower and upper bound [2] that need the whole minibatch at the current parameters, or None."""
    return None


def within(ratio_BT: Tensor, lower: Bound, upper: Bound) -> Region:
    """The region lower <= w <= upper."""
    return Region(lower=lower, upper=upper, feasible_BT=(ratio_BT >= lower) & (ratio_BT <= upper))


def _without_window(feasible_BT: Tensor) -> Region:
    return Region(lower=1.0, upper=1.0, feasible_BT=feasible_BT)


@judge.register
def _(divergence: BinaryTotalVariation, inputs: RegionInputs) -> Region:
    anchor_BT = inputs.anchor_logprob_BT.exp()
    lower_BT = (1.0 - divergence.delta_low / anchor_BT).clamp(min=0.0)
    upper_BT = torch.minimum(1.0 + divergence.delta_high / anchor_BT, 1.0 / anchor_BT)
    # By the probabilities themselves: the ratio is bounded for its exponential's sake.
    change_BT = (inputs.anchor_logprob_BT + inputs.token_log_ratio_BT).exp() - anchor_BT
    feasible_BT = (change_BT <= divergence.delta_high) & (change_BT >= -divergence.delta_low)
    return Region(lower=lower_BT, upper=upper_BT, feasible_BT=feasible_BT)


@judge.register
def _(divergence: BinaryKL, inputs: RegionInputs) -> Region:
    # In the policy's log-odds z the divergence is softplus(z) - q z up to a constant, convex, so Newton's
    # method from outside finds both bounds.
    largest = -torch.finfo(inputs.ratio_BT.dtype).eps
    anchor_logprob_BT = inputs.anchor_logprob_BT.clamp(max=largest)
    anchor_BT, rest_BT = anchor_logprob_BT.exp(), -torch.expm1(anchor_logprob_BT)
    anchor_odds_BT = anchor_logprob_BT - rest_BT.log()
    # softplus(z) - q z at the anchor is its entropy; the budget comes on top.
    level_BT = divergence.delta + softplus(anchor_odds_BT) - anchor_BT * anchor_odds_BT
    below_BT = -torch.minimum(level_BT / anchor_BT, _outer_odds(divergence.delta, rest_BT))
    above_BT = torch.minimum(level_BT / rest_BT, _outer_odds(divergence.delta, anchor_BT))
    below_BT = _log_odds_at(anchor_BT, level_BT, below_BT)
    above_BT = _log_odds_at(anchor_BT, level_BT, above_BT)
    log_lower_BT = (logsigmoid(below_BT) - anchor_logprob_BT).clamp(max=0.0)
    log_upper_BT = (logsigmoid(above_BT) - anchor_logprob_BT).clamp(min=0.0)
    # The log-ratio is judged, because the ratio is bounded for its exponential's sake.
    log_ratio_BT = inputs.token_log_ratio_BT
    return Region(
        lower=log_lower_BT.exp(),
        upper=log_upper_BT.exp(),
        feasible_BT=(log_ratio_BT >= log_lower_BT) & (log_ratio_BT <= log_upper_BT),
    )


def _outer_odds(delta: float, anchor_BT: Tensor) -> Tensor:
    """Log-odds beyond the bound: (p - q)^2 / (2 p) is at most the divergence for p above q."""
    spread_BT = (delta**2 + 2.0 * delta * anchor_BT).sqrt()
    outer_BT = (anchor_BT + delta + spread_BT).clamp(max=1.0)
    return outer_BT.log() - torch.log1p(-outer_BT)


def _log_odds_at(anchor_BT: Tensor, level_BT: Tensor, odds_BT: Tensor) -> Tensor:
    """Log-odds at which softplus(z) - q z reaches the level, from a start beyond them."""
    for _ in range(_NEWTON_STEPS):
        excess_BT = softplus(odds_BT) - anchor_BT * odds_BT - level_BT
        slope_BT = torch.sigmoid(odds_BT) - anchor_BT
        moved_BT = odds_BT - excess_BT / slope_BT
        odds_BT = torch.where(slope_BT == 0.0, odds_BT, moved_BT)
    return odds_BT


@judge.register
def _(divergence: DynamicClip, inputs: RegionInputs) -> Region:
    anchor_BT = inputs.anchor_logprob_BT.exp()
    lower_BT = 0.5 + 0.5 * (1.0 - 4.0 * divergence.epsilon_low / anchor_BT).clamp(min=0.0).sqrt()
    upper_BT = (0.5 + 0.5 * (1.0 + 4.0 * divergence.epsilon_high / anchor_BT).sqrt()).clamp(
        max=divergence.cap
    )
    return within(inputs.ratio_BT, lower_BT, upper_BT)


@judge.register
def _(divergence: BalancedWindow, inputs: RegionInputs) -> Region:
    assert inputs.bounds is not None, "`prepare` finds them for every minibatch"
    return within(inputs.ratio_BT, inputs.bounds[0], inputs.bounds[1])


@prepare_bounds.register
def _(divergence: BalancedWindow, inputs: RegionInputs, advantage_BT: Tensor, sum_over_ranks: Sum) -> Tensor:
    # The first window of the search with enough positive signal, or its last.
    candidates = divergence.candidates
    advantage_BT = neutral(advantage_BT, inputs.mask_BT).double()
    gain_BT, loss_BT = advantage_BT.clamp(min=0.0), -advantage_BT.clamp(max=0.0)
    sums = [
        torch.stack(
            [
                (inputs.ratio_BT.clamp(max=upper) * gain_BT).sum(),
                (inputs.ratio_BT.clamp(min=lower) * loss_BT).sum(),
            ]
        )
        for lower, upper in candidates
    ]
    positive_C, negative_C = sum_over_ranks(torch.stack(sums, dim=1))
    enough_C = positive_C >= divergence.positive_frac * (positive_C + negative_C)
    enough_C[-1] = True
    return inputs.ratio_BT.new_tensor(candidates)[enough_C.to(torch.uint8).argmax()]


@judge.register
def _(divergence: SequenceMean, inputs: RegionInputs) -> Region:
    value_BT = estimate_divergence(divergence.estimator, inputs.token_log_ratio_BT)
    feasible_B = row_mean(value_BT, inputs.mask_BT) <= divergence.delta
    return _without_window(feasible_B[:, None].expand_as(value_BT))


def estimate_divergence(estimator: str, log_ratio_BT: Tensor) -> Tensor:
    """k1, k2 or k3 of KL(anchor || policy) at each token, from log w."""
    match estimator:
        case "k1":
            return -log_ratio_BT
        case "k2":
            return 0.5 * log_ratio_BT**2
        case _:
            return torch.expm1(log_ratio_BT) - log_ratio_BT


@judge.register(StateDivergence)
@judge.register(TopKDivergence)
def _(divergence: StateDivergence | TopKDivergence, inputs: RegionInputs) -> Region:
    assert inputs.divergence_BT is not None, "`needs` asks for the distribution"
    return _without_window(inputs.divergence_BT <= divergence.delta)

"""An objective's metrics for a micro-batch, as sums and counts that add up exactly over micro-batches.

All sums stay on the device; `train` moves them to the host once per step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atrium.base import metrics
from atrium.base.metrics import Quantity
from atrium.method.batch import neutral

Sums = dict[Quantity, tuple[Tensor, Tensor]]
"""The total and count of each quantity, as zero-dimensional tensors."""


@dataclass(frozen=True, kw_only=True)
class TokenDetails:
    """The objective's values at each token, all [B, T] and detached.

    `log_ratio_BT` is log(policy / behavior), and `gate_BT` the ratio that the trust region reads.
    `dropped_BT` marks tokens whose policy gradient was clipped. `coefficient_BT` is the total coefficient of
    the token's log-probability, which includes KL penalties and the NLL term, but not the reduction's factor.
    """

    log_ratio_BT: Tensor
    gate_BT: Tensor
    advantage_BT: Tensor
    feasible_BT: Tensor
    dropped_BT: Tensor
    coefficient_BT: Tensor


def measure(details: TokenDetails, mask_BT: Tensor) -> Sums:
    """Return sums and counts over unmasked tokens for the metrics of ratios, clipping and KL.

    Tokens outside the trust region are counted separately for ratios above 1 and ratios of at most 1. Clipped
    tokens are counted in three classes: A > 0, A <= 0 with a ratio of at most 1, and A <= 0 with a ratio
    above 1. KL(behavior || policy) is estimated by k1, k2 and k3.
    """
    count = mask_BT.sum()
    ratio_BT = neutral(details.gate_BT, mask_BT)
    log_ratio_BT = neutral(details.log_ratio_BT, mask_BT)
    outside_BT = ~details.feasible_BT & mask_BT
    dropped_BT = details.dropped_BT & mask_BT
    above_BT = details.gate_BT > 1.0
    raises_BT = details.advantage_BT > 0.0
    means = {
        metrics.RATIO_MEAN: ratio_BT,
        metrics.RATIO_SQUARED: ratio_BT**2,
        metrics.OUTSIDE_HIGH_FRAC: outside_BT & above_BT,
        metrics.OUTSIDE_LOW_FRAC: outside_BT & ~above_BT,
        metrics.CLIP_HIGH_FRAC: dropped_BT & raises_BT,
        metrics.CLIP_LOW_FRAC: dropped_BT & ~raises_BT & ~above_BT,
        metrics.CLIP_RUNAWAY_FRAC: dropped_BT & ~raises_BT & above_BT,
        metrics.COEFFICIENT_ABS: neutral(details.coefficient_BT.abs(), mask_BT),
        metrics.ADVANTAGE_ABS: neutral(details.advantage_BT.abs(), mask_BT),
        metrics.KL_K1: -log_ratio_BT,
        metrics.KL_K2: 0.5 * log_ratio_BT**2,
    }
    sums: Sums = {name: (value_BT.sum(dtype=torch.float64), count) for name, value_BT in means.items()}
    sums[metrics.KL_K3] = kl_k3(details.log_ratio_BT, mask_BT)
    sums[metrics.RATIO_MAX] = (extreme(details.gate_BT, mask_BT, largest=True), count)
    sums[metrics.RATIO_MIN] = (extreme(details.gate_BT, mask_BT, largest=False), count)
    return sums


def measure_slopes(slope_BT: Tensor, details: TokenDetails, mask_BT: Tensor) -> Sums:
    """Return the sum and maximum of squared slopes, and the share of runaway tokens in the sum of |slope|.

    `slope_BT` is minus the derivative of the loss with respect to each log-probability. A runaway token has
    A < 0 and a ratio above the window. The `clip` surrogate keeps the gradient of such a token, which grows
    with the ratio. `dual_clip` removes this gradient above the cap.
    """
    size_BT = neutral(slope_BT.abs(), mask_BT).double()
    runaway_BT = ~details.feasible_BT & (details.gate_BT > 1.0) & (details.advantage_BT < 0.0)
    squared_BT, count = size_BT**2, mask_BT.sum()
    return {
        metrics.SLOPE_SQUARED: (squared_BT.sum(), count),
        metrics.SLOPE_SQUARED_MAX: (extreme(squared_BT, mask_BT, largest=True), count),
        metrics.RUNAWAY_SLOPE_FRAC: ((size_BT * runaway_BT).sum(), size_BT.sum()),
    }


def measure_reference(log_ratio_BT: Tensor, mask_BT: Tensor) -> Sums:
    """Return the sum and count of the k3 estimate of KL(policy || reference) over unmasked tokens.

    `log_ratio_BT` is log(policy / reference).
    """
    return {metrics.REFERENCE_KL: kl_k3(-log_ratio_BT, mask_BT)}


def kl_k3(log_ratio_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of w - 1 - log w over unmasked tokens, and the number of these tokens.

    The mean of w - 1 - log w estimates KL(p || q) if the tokens were sampled from p and w = q / p.
    """
    log_ratio_BT = neutral(log_ratio_BT, mask_BT)
    value_BT = torch.expm1(log_ratio_BT) - log_ratio_BT
    return value_BT.sum(dtype=torch.float64), mask_BT.sum()


def extreme(value_BT: Tensor, mask_BT: Tensor, *, largest: bool) -> Tensor:
    """Return the largest unmasked value, or the smallest one if `largest` is False.

    If no value is unmasked, the result is -inf for the largest value and inf for the smallest.
    """
    if value_BT.numel() == 0:
        return value_BT.new_tensor(-torch.inf if largest else torch.inf)
    if largest:
        return torch.where(mask_BT, value_BT, -torch.inf).max()
    return torch.where(mask_BT, value_BT, torch.inf).min()

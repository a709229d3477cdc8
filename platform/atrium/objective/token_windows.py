"""Trust regions whose window on the ratio differs from token to token: functions of w and of q.

q and p are the probabilities that anchor and policy give to the sampled token, w = p / q.
Sources: DPPO, arXiv 2602.04879 (binary divergences); DCPO, arXiv 2509.02333.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from atrium.objective.regions import Divergence, Region, RegionInputs, within

_NEWTON_STEPS = 8  # from the outer bound they find the bounds to 1e-10 for budgets down to 1e-6


@dataclass(frozen=True, kw_only=True)
class BinaryTotalVariation(Divergence):
    """|p - q| within a budget per side: p - q <= delta_high and q - p <= delta_low (DPPO-Binary-TV)."""

    delta_low: float
    delta_high: float

    def region(self, inputs: RegionInputs) -> Region:
        """The tokens whose probability moved by no more than the budget of its side."""
        anchor_BT = inputs.anchor_logprob_BT.exp()
        lower_BT = (1.0 - self.delta_low / anchor_BT).clamp(min=0.0)
        upper_BT = torch.minimum(1.0 + self.delta_high / anchor_BT, 1.0 / anchor_BT)
        change_BT = anchor_BT * (inputs.ratio_BT - 1.0)
        feasible_BT = (change_BT <= self.delta_high) & (change_BT >= -self.delta_low)
        return Region(lower=lower_BT, upper=upper_BT, feasible_BT=feasible_BT)


@dataclass(frozen=True, kw_only=True)
class BinaryKL(Divergence):
    """KL between the two-outcome distributions (this token, any other) of anchor and policy.

    q log(q / p) + (1 - q) log((1 - q) / (1 - p)) <= delta (DPPO-Binary-KL). In the policy's log-odds z it
    is softplus(z) - q z up to a constant, convex, so Newton's method from outside finds both bounds.
    """

    delta: float

    def region(self, inputs: RegionInputs) -> Region:
        """The tokens whose ratio lies in the window of their anchor probability."""
        largest = -torch.finfo(inputs.ratio_BT.dtype).eps
        anchor_logprob_BT = inputs.anchor_logprob_BT.clamp(max=largest)
        anchor_BT, rest_BT = anchor_logprob_BT.exp(), -torch.expm1(anchor_logprob_BT)
        anchor_odds_BT = anchor_logprob_BT - rest_BT.log()
        # softplus(z) - q z at the anchor is its entropy; the budget comes on top.
        level_BT = self.delta + softplus(anchor_odds_BT) - anchor_BT * anchor_odds_BT
        below_BT = -torch.minimum(level_BT / anchor_BT, self._outer_odds(rest_BT))
        above_BT = torch.minimum(level_BT / rest_BT, self._outer_odds(anchor_BT))
        below_BT = self._root(anchor_BT, level_BT, below_BT)
        above_BT = self._root(anchor_BT, level_BT, above_BT)
        lower_BT = (logsigmoid(below_BT) - anchor_logprob_BT).exp().clamp(max=1.0)
        upper_BT = (logsigmoid(above_BT) - anchor_logprob_BT).exp().clamp(min=1.0)
        return within(inputs.ratio_BT, lower_BT, upper_BT)

    def _outer_odds(self, anchor_BT: Tensor) -> Tensor:
        """Log-odds beyond the bound: (p - q)^2 / (2 p) is at most the divergence for p above q."""
        spread_BT = (self.delta**2 + 2.0 * self.delta * anchor_BT).sqrt()
        outer_BT = (anchor_BT + self.delta + spread_BT).clamp(max=1.0)
        return outer_BT.log() - torch.log1p(-outer_BT)

    @staticmethod
    def _root(anchor_BT: Tensor, level_BT: Tensor, odds_BT: Tensor) -> Tensor:
        """Log-odds at which softplus(z) - q z reaches the level, from a start beyond them."""
        for _ in range(_NEWTON_STEPS):
            excess_BT = softplus(odds_BT) - anchor_BT * odds_BT - level_BT
            slope_BT = torch.sigmoid(odds_BT) - anchor_BT
            moved_BT = odds_BT - excess_BT / slope_BT
            odds_BT = torch.where(slope_BT == 0.0, odds_BT, moved_BT)
        return odds_BT


@dataclass(frozen=True, kw_only=True)
class DynamicClip(Divergence):
    """DCPO's window, wider for tokens that the anchor found unlikely.

    w in [1/2 + 1/2 sqrt(max(1 - 4 epsilon_low / q, 0)), 1/2 + 1/2 sqrt(1 + 4 epsilon_high / q)], the
    upper bound at most `cap` (the authors' code).
    """

    epsilon_low: float
    epsilon_high: float
    cap: float

    def region(self, inputs: RegionInputs) -> Region:
        """The tokens whose ratio lies in the window of their anchor probability."""
        anchor_BT = inputs.anchor_logprob_BT.exp()
        lower_BT = 0.5 + 0.5 * (1.0 - 4.0 * self.epsilon_low / anchor_BT).clamp(min=0.0).sqrt()
        upper_BT = (0.5 + 0.5 * (1.0 + 4.0 * self.epsilon_high / anchor_BT).sqrt()).clamp(max=self.cap)
        return within(inputs.ratio_BT, lower_BT, upper_BT)

"""Divergences that depend on the probability of the sampled token: a window on the ratio for each token.

Sources: DPPO arXiv 2602.04879; DCPO arXiv 2509.02333.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from atrium.base.section import AboveOne
from atrium.method.divergences import Budget, Divergence
from atrium.method.regions import Region, RegionInputs
from atrium.method.terms import choose
from atrium.method.windows import Window, find_root

if TYPE_CHECKING:
    from torch import Tensor

_LEAST_LOG_ODDS = -750.0
_LEAST_PROBABILITY = 1e-6
_NEWTON_STEPS = 8  # reach 1e-10 from the outer bound, for budgets down to 1e-6


class BinaryTotalVariation(Divergence):
    """|p - q| within a budget per side: p - q <= delta_high and q - p <= delta_low (DPPO-Binary-TV).

    p and q are the probabilities of the sampled token under policy and anchor. Only the quadratic surrogate,
    which divides by the budgets, accepts budgets above 1.
    """

    kind: Literal["binary_total_variation"] = "binary_total_variation"
    delta_low: Budget
    """Maximum decrease of the sampled token's probability."""
    delta_high: Budget
    """Maximum increase of the sampled token's probability."""
    of_single_tokens: ClassVar[bool] = True
    measures_tokens: ClassVar[bool] = True

    def token_divergence(self, x: RegionInputs) -> Tensor:
        """Return |p - q| of the sampled token."""
        return _probability_change(x).abs()

    def _window_at(self, probability: float) -> Window:
        upper = min(1.0 + self.delta_high / probability, 1.0 / probability)
        return Window(max(0.0, 1.0 - self.delta_low / probability), upper)

    def region(self, x: RegionInputs) -> Region:
        """Return the region, computed from probabilities.

        The ratio is not used, because `log_ratio_limit` clamps it.
        """
        anchor_BT, change_BT = x.anchor_logprob_BT.exp(), _probability_change(x)
        return Region(
            lower=(1.0 - self.delta_low / anchor_BT).clamp(min=0.0),
            upper=(1.0 + self.delta_high / anchor_BT).minimum(1.0 / anchor_BT),
            widths=(self.delta_low / anchor_BT, self.delta_high / anchor_BT),
            feasible_BT=(change_BT <= self.delta_high) & (change_BT >= -self.delta_low),
        )


class BinaryKL(Divergence):
    """KL between the two-outcome distributions (this token, any other) of anchor and policy (DPPO-Binary-KL).

    q log(q / p) + (1 - q) log((1 - q) / (1 - p)) <= delta, where p and q are the probabilities of the sampled
    token under policy and anchor.
    """

    kind: Literal["binary_kl"] = "binary_kl"
    delta: Budget
    """Budget: a token is feasible while its divergence is at most delta."""
    delta_low: Budget | None = None
    """Budget of tokens that have become less likely than under the anchor (verl, SkyRL); null for `delta`."""
    direction: Literal["forward", "both"] = "forward"
    """Direction of the divergence. `forward`: KL(q || p). `both`: the larger of KL(q || p) and KL(p || q),
    with probabilities clamped to [1e-6, 1 - 1e-6] (KPop, prime-rl's pull request 3283); it gives no bounds on
    the ratio."""
    of_single_tokens: ClassVar[bool] = True
    measures_tokens: ClassVar[bool] = True

    @property
    def has_window(self) -> bool:  # type: ignore[override]
        """Whether the budget is equivalent to bounds on the ratio; True only with `direction: forward`."""
        return self.direction == "forward"

    @property
    def budgets(self) -> tuple[float, float]:
        """The budget for tokens with a ratio below 1, and the budget for all other tokens."""
        return self.delta if self.delta_low is None else self.delta_low, self.delta

    def token_divergence(self, x: RegionInputs) -> Tensor:
        """Return KL(q || p) of the two-outcome distributions.

        With `direction: both`, the result is the larger of KL(q || p) and KL(p || q).
        """
        anchor_BT = x.anchor_logprob_BT
        policy_BT = anchor_BT + x.token_log_ratio_BT
        if self.direction == "forward":
            return two_outcome_kl(anchor_BT, policy_BT)
        least, largest = math.log(_LEAST_PROBABILITY), math.log1p(-_LEAST_PROBABILITY)
        anchor_BT, policy_BT = anchor_BT.clamp(least, largest), policy_BT.clamp(least, largest)
        return two_outcome_kl(anchor_BT, policy_BT).maximum(two_outcome_kl(policy_BT, anchor_BT))

    def _window_at(self, probability: float) -> Window | None:
        if self.direction == "both":
            return None
        # In the policy's log-odds z the divergence is softplus(z) - q z up to a constant, and convex.
        odds = math.log(probability) - math.log1p(-probability)
        level_low, level_high = (delta + _softplus(odds) - probability * odds for delta in self.budgets)

        def excess(z: float) -> float:
            return _softplus(z) - probability * z - (level_low if z < odds else level_high)

        # Beyond these log-odds one of the two terms alone exceeds the level.
        below = max(-level_low / probability - 1.0, _LEAST_LOG_ODDS)
        above = min(level_high / (1.0 - probability) + 1.0, -_LEAST_LOG_ODDS)
        low = find_root(excess, below, odds, xtol=1e-14) if excess(below) > 0.0 else -math.inf
        high = find_root(excess, odds, above, xtol=1e-14) if excess(above) > 0.0 else math.inf
        lower, upper = (math.exp(-_softplus(-z)) / probability for z in (low, high))
        return Window(min(lower, 1.0), max(upper, 1.0))

    def region(self, x: RegionInputs) -> Region:
        """Return the region, computed from log-ratios.

        The ratio is not used, because `log_ratio_limit` clamps it.
        """
        if self.direction == "both":
            delta_BT = choose(x.token_log_ratio_BT < 0.0, *self.budgets, x.ratio_BT)
            return Region(feasible_BT=self.token_divergence(x) <= delta_BT)
        import torch
        from torch.nn.functional import logsigmoid, softplus

        # As in `_window_at`; Newton's method from outside finds both bounds, since the divergence is convex.
        largest = -torch.finfo(x.ratio_BT.dtype).eps
        anchor_logprob_BT = x.anchor_logprob_BT.clamp(max=largest)
        anchor_BT, rest_BT = anchor_logprob_BT.exp(), -anchor_logprob_BT.expm1()
        odds_BT = anchor_logprob_BT - rest_BT.log()
        # softplus(z) - q z at the anchor is its entropy; the budget is added to it.
        low, high = self.budgets
        low_BT, high_BT = (delta + softplus(odds_BT) - anchor_BT * odds_BT for delta in (low, high))
        below_BT = -(low_BT / anchor_BT).minimum(_outer_odds(low, rest_BT))
        above_BT = (high_BT / rest_BT).minimum(_outer_odds(high, anchor_BT))
        below_BT = _log_odds_at(anchor_BT, low_BT, below_BT)
        above_BT = _log_odds_at(anchor_BT, high_BT, above_BT)
        lower_BT = (logsigmoid(below_BT) - anchor_logprob_BT).clamp(max=0.0)
        upper_BT = (logsigmoid(above_BT) - anchor_logprob_BT).clamp(min=0.0)
        feasible_BT = (x.token_log_ratio_BT >= lower_BT) & (x.token_log_ratio_BT <= upper_BT)
        return Region(lower=lower_BT.exp(), upper=upper_BT.exp(), feasible_BT=feasible_BT)


class DynamicClip(Divergence):
    """DCPO's window, wider for tokens that are unlikely under the anchor.

    w in [1/2 + 1/2 sqrt(max(1 - 4 epsilon_low / q, 0)), 1/2 + 1/2 sqrt(1 + 4 epsilon_high / q)], where q is
    the token's probability under the anchor. As in the authors' code, the upper bound is at most `cap`.
    """

    kind: Literal["dynamic_clip"] = "dynamic_clip"
    epsilon_low: Budget
    """Approximate maximum decrease of the ratio below 1 for a token of probability 1."""
    epsilon_high: Budget
    """Approximate maximum increase of the ratio above 1 for a token of probability 1."""
    cap: AboveOne
    """Maximum upper bound of the ratio, however unlikely the token."""
    of_single_tokens: ClassVar[bool] = True

    def _window_at(self, probability: float) -> Window:
        lower = 0.5 + 0.5 * math.sqrt(max(1.0 - 4.0 * self.epsilon_low / probability, 0.0))
        upper = 0.5 + 0.5 * math.sqrt(1.0 + 4.0 * self.epsilon_high / probability)
        return Window(lower, min(upper, self.cap))

    def region(self, x: RegionInputs) -> Region:
        """Return the region, in which a token is feasible if its ratio lies in its own window."""
        anchor_BT = x.anchor_logprob_BT.exp()
        lower_BT = 0.5 + 0.5 * (1.0 - 4.0 * self.epsilon_low / anchor_BT).clamp(min=0.0).sqrt()
        upper_BT = 0.5 + 0.5 * (1.0 + 4.0 * self.epsilon_high / anchor_BT).sqrt()
        return Region.within(x.ratio_BT, lower_BT, upper_BT.clamp(max=self.cap))


def two_outcome_kl(first_BT: Tensor, second_BT: Tensor) -> Tensor:
    """Return KL(first || second) of the distributions over (this token, any other), in nats.

    The arguments are the token's log-probabilities; probabilities of 1 are reduced by one rounding error.
    """
    import torch

    largest = -torch.finfo(first_BT.dtype).eps
    first_BT, second_BT = first_BT.clamp(max=largest), second_BT.clamp(max=largest)
    rest_BT, other_BT = -first_BT.expm1(), -second_BT.expm1()
    return first_BT.exp() * (first_BT - second_BT) + rest_BT * (rest_BT.log() - other_BT.log())


def _probability_change(x: RegionInputs) -> Tensor:
    """Return p - q [B, T] of the sampled token."""
    return (x.anchor_logprob_BT + x.token_log_ratio_BT).exp() - x.anchor_logprob_BT.exp()


def _outer_odds(delta: float, anchor_BT: Tensor) -> Tensor:
    """Return a starting point for Newton's method: log-odds of p at or above the upper bound.

    `anchor_BT` is q. The log-odds are those of the p > q that solves (p - q)^2 / (2 p) = delta. Since the
    divergence is at least the left side of this equation, this p is not below the bound.
    """
    spread_BT = (delta**2 + 2.0 * delta * anchor_BT).sqrt()
    outer_BT = (anchor_BT + delta + spread_BT).clamp(max=1.0)
    return outer_BT.log() - (-outer_BT).log1p()


def _log_odds_at(anchor_BT: Tensor, level_BT: Tensor, odds_BT: Tensor) -> Tensor:
    """Solve softplus(z) - q z = level for the log-odds z by Newton's method, starting at `odds_BT`.

    `anchor_BT` is q. `odds_BT` must lie on the same side of the log-odds of q as the solution, and further
    from them.
    """
    from torch.nn.functional import softplus

    for _ in range(_NEWTON_STEPS):
        excess_BT = softplus(odds_BT) - anchor_BT * odds_BT - level_BT
        slope_BT = odds_BT.sigmoid() - anchor_BT
        odds_BT = odds_BT.where(slope_BT == 0.0, odds_BT - excess_BT / slope_BT)
    return odds_BT


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))

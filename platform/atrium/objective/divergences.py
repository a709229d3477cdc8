"""How far is too far: which tokens a trust region finds feasible, and the ratio window it stands for.

Divergences that are functions of the ratio alone become a `RatioWindow` with bounds computed once, in
float64, by `atrium.windows`; whatever they are called, they run the code of plain clipping.
Sources: the unified view C_t(theta) of arXiv 2602.05494; DPPO's binary divergences arXiv 2602.04879.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from atrium import windows
from atrium.objective.batch import Needs
from atrium.windows import UNBOUNDED, Window

Bound = float | Tensor


@dataclass(frozen=True, kw_only=True)
class Region:
    """A trust region at a batch's tokens.

    `lower` and `upper` are the window's bounds on the ratio, as numbers or per token [B, T];
    `feasible_BT` says whether each token satisfies the constraint.
    """

    lower: Bound
    upper: Bound
    feasible_BT: Tensor


class Divergence(ABC):
    """A divergence with its budget."""

    needs: ClassVar[Needs] = Needs()

    @property
    def constant_window(self) -> Window | None:
        """The window, where it is the same for all tokens; None where it is not, or does not exist."""
        return None

    @abstractmethod
    def region(self, ratio_BT: Tensor, anchor_logprob_BT: Tensor, divergence_BT: Tensor | None) -> Region:
        """The region at tokens with these gate ratios and anchor log-probabilities."""


@dataclass(frozen=True)
class RatioWindow(Divergence):
    """l <= w <= u with constant bounds: every divergence that is a function of the ratio alone."""

    bounds: Window

    @property
    def constant_window(self) -> Window:
        """The bounds themselves."""
        return self.bounds

    def region(self, ratio_BT: Tensor, anchor_logprob_BT: Tensor, divergence_BT: Tensor | None) -> Region:
        """The tokens whose ratio lies in the window."""
        lower, upper = self.bounds.lower, self.bounds.upper
        feasible_BT = (ratio_BT >= lower) & (ratio_BT <= upper)
        return Region(lower=lower, upper=upper, feasible_BT=feasible_BT)


def ratio_window(*, delta: float) -> RatioWindow:
    """|w - 1| <= delta, PPO's clip range (arXiv 1707.06347, eq. 7)."""
    return asymmetric_ratio_window(epsilon_low=delta, epsilon_high=delta)


def asymmetric_ratio_window(*, epsilon_low: float, epsilon_high: float) -> RatioWindow:
    """1 - epsilon_low <= w <= 1 + epsilon_high, clip-higher (DAPO, arXiv 2503.14476, eq. 10)."""
    return RatioWindow(Window(max(0.0, 1.0 - epsilon_low), 1.0 + epsilon_high))


def explicit_window(*, lower: float, upper: float) -> RatioWindow:
    """lower <= w <= upper: a point of the (l, u) plane itself."""
    return RatioWindow(Window(lower, upper))


def no_divergence() -> RatioWindow:
    """No trust region: every token is feasible."""
    return RatioWindow(UNBOUNDED)


def alpha_window(*, delta: float, alpha: float) -> RatioWindow:
    """(w^a - a w + a - 1) / (a (a - 1)) <= delta, with its limits at a = 0 and a = 1."""
    return RatioWindow(windows.window("alpha", delta, alpha=alpha))


def _named(kind: str) -> Callable[..., RatioWindow]:
    def build(*, delta: float) -> RatioWindow:
        return RatioWindow(windows.window(kind, delta))

    build.__name__ = f"{kind}_window"
    build.__doc__ = f"The window of `atrium.windows.DIVERGENCES[{kind!r}]` for a budget."
    return build


@dataclass(frozen=True, kw_only=True)
class BinaryTotalVariation(Divergence):
    """|p - q| within a budget per side: p - q <= delta_high and q - p <= delta_low.

    p and q are the probabilities that policy and anchor give to the sampled token, so the window on
    w = p / q depends on the token. Source: DPPO-Binary-TV, arXiv 2602.04879.
    """

    delta_low: float
    delta_high: float

    def region(self, ratio_BT: Tensor, anchor_logprob_BT: Tensor, divergence_BT: Tensor | None) -> Region:
        """The tokens whose probability moved by no more than the budget of its side."""
        anchor_BT = anchor_logprob_BT.exp()
        lower_BT = (1.0 - self.delta_low / anchor_BT).clamp(min=0.0)
        upper_BT = torch.minimum(1.0 + self.delta_high / anchor_BT, 1.0 / anchor_BT)
        change_BT = anchor_BT * (ratio_BT - 1.0)
        feasible_BT = (change_BT <= self.delta_high) & (change_BT >= -self.delta_low)
        return Region(lower=lower_BT, upper=upper_BT, feasible_BT=feasible_BT)


@dataclass(frozen=True, kw_only=True)
class BinaryKL(Divergence):
    """KL between the two-outcome distributions (this token, any other) within a budget.

    q log(q / p) + (1 - q) log((1 - q) / (1 - p)) <= delta with q the anchor's and p the policy's
    probability. Its bounds on w come from bisection. Source: DPPO-Binary-KL, arXiv 2602.04879.
    """

    delta: float

    def region(self, ratio_BT: Tensor, anchor_logprob_BT: Tensor, divergence_BT: Tensor | None) -> Region:
        """The tokens whose binary KL is within the budget."""
        anchor_BT = anchor_logprob_BT.exp()
        feasible_BT = self._value(ratio_BT, anchor_BT) <= self.delta
        lower_BT = self._bound(anchor_BT, torch.zeros_like(anchor_BT))
        upper_BT = self._bound(anchor_BT, 1.0 / anchor_BT)
        return Region(lower=lower_BT, upper=upper_BT, feasible_BT=feasible_BT)

    def _value(self, ratio_BT: Tensor, anchor_BT: Tensor) -> Tensor:
        rest_BT = 1.0 - anchor_BT
        policy_rest_BT = (1.0 - anchor_BT * ratio_BT).clamp(min=torch.finfo(ratio_BT.dtype).tiny)
        rest_term_BT = torch.where(rest_BT > 0.0, rest_BT * (rest_BT / policy_rest_BT).log(), 0.0)
        return -anchor_BT * ratio_BT.log() + rest_term_BT

    def _bound(self, anchor_BT: Tensor, outer_BT: Tensor) -> Tensor:
        inner_BT = torch.ones_like(anchor_BT)
        for _ in range(60):  # halves the bracket below float64's resolution of any ratio
            middle_BT = 0.5 * (inner_BT + outer_BT)
            inside_BT = self._value(middle_BT, anchor_BT) <= self.delta
            inner_BT = torch.where(inside_BT, middle_BT, inner_BT)
            outer_BT = torch.where(inside_BT, outer_BT, middle_BT)
        return inner_BT


@dataclass(frozen=True, kw_only=True)
class DynamicClip(Divergence):
    """DCPO's window, wider for tokens that the anchor found unlikely.

    w in [1/2 + 1/2 sqrt(max(1 - 4 epsilon_low / q, 0)), 1/2 + 1/2 sqrt(1 + 4 epsilon_high / q)], the
    upper bound at most `cap`. Source: arXiv 2509.02333, the authors' code.
    """

    epsilon_low: float
    epsilon_high: float
    cap: float

    def region(self, ratio_BT: Tensor, anchor_logprob_BT: Tensor, divergence_BT: Tensor | None) -> Region:
        """The tokens whose ratio lies in the window of their anchor probability."""
        anchor_BT = anchor_logprob_BT.exp()
        lower_BT = 0.5 + 0.5 * (1.0 - 4.0 * self.epsilon_low / anchor_BT).clamp(min=0.0).sqrt()
        upper_BT = (0.5 + 0.5 * (1.0 + 4.0 * self.epsilon_high / anchor_BT).sqrt()).clamp(max=self.cap)
        feasible_BT = (ratio_BT >= lower_BT) & (ratio_BT <= upper_BT)
        return Region(lower=lower_BT, upper=upper_BT, feasible_BT=feasible_BT)


DIVERGENCES: dict[str, Callable[..., Divergence]] = {
    "none": no_divergence,
    "ratio": ratio_window,
    "asymmetric_ratio": asymmetric_ratio_window,
    "window": explicit_window,
    "alpha": alpha_window,
    **{kind: _named(kind) for kind in windows.DIVERGENCES if kind != "ratio"},
    "binary_total_variation": BinaryTotalVariation,
    "binary_kl": BinaryKL,
    "dynamic_clip": DynamicClip,
}

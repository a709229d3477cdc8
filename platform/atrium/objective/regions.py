"""What a trust region says about tokens, and what it may look at to say it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from atrium.objective.batch import Needs, Sum
from atrium.windows import Window

Bound = float | Tensor


@dataclass(frozen=True, kw_only=True)
class RegionInputs:
    """What a divergence is judged on: [B, T] tensors without gradient, 0 log-ratio at masked positions.

    `ratio_BT` is the gate ratio; `token_log_ratio_BT` the log-ratio of single tokens to the gate's anchor,
    whatever the gate's level; `anchor_logprob_BT` the anchor's log-probabilities; `divergence_BT` the
    state divergence, where one is needed; `bounds` what the divergence's `prepare` found.
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
    """

    lower: Bound
    upper: Bound
    feasible_BT: Tensor


class Divergence(ABC):
    """A divergence with its budget. `has_window` is False where no bounds on the ratio stand for it."""

    has_window: ClassVar[bool] = True

    @property
    def needs(self) -> Needs:
        """What the divergence needs; nothing unless it says so."""
        return Needs()

    @property
    def constant_window(self) -> Window | None:
        """The window, where it is the same for all tokens; None where it is not, or does not exist."""
        return None

    @abstractmethod
    def region(self, inputs: RegionInputs) -> Region:
        """The region at these tokens."""

    def prepare(self, inputs: RegionInputs, advantage_BT: Tensor, sum_over_ranks: Sum) -> Tensor | None:
        """Lower and upper bound [2] that need the whole minibatch at the current parameters, or None."""
        return None


@dataclass(frozen=True)
class RatioWindow(Divergence):
    """l <= w <= u with constant bounds: every divergence that is a function of the ratio alone."""

    bounds: Window

    @property
    def constant_window(self) -> Window:
        """The bounds themselves."""
        return self.bounds

    def region(self, inputs: RegionInputs) -> Region:
        """The tokens whose ratio lies in the window."""
        return within(inputs.ratio_BT, self.bounds.lower, self.bounds.upper)


def within(ratio_BT: Tensor, lower: Bound, upper: Bound) -> Region:
    """The region lower <= w <= upper."""
    return Region(lower=lower, upper=upper, feasible_BT=(ratio_BT >= lower) & (ratio_BT <= upper))

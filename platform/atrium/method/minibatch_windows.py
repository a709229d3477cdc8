"""Windows on the ratio that are computed for every minibatch from its ratios and advantages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from atrium.method.batch import Sum, neutral
from atrium.method.divergences import Budget, Divergence
from atrium.method.needs import Needs
from atrium.method.regions import Region, RegionInputs
from atrium.method.windows import Window

if TYPE_CHECKING:
    from torch import Tensor

_NUM_CANDIDATES, _NUM_ROUNDS = 65, 10  # 64^10 = 2^60 parts, as fine as float64


class MinibatchWindow(Divergence):
    """One window for all tokens of a minibatch, computed in a gradient-free pass over the minibatch."""

    needs: ClassVar = Needs(prepare_pass=True)
    """A pass over the minibatch: the window depends on its ratios."""

    def region(self, x: RegionInputs) -> Region:
        """Return the region of the tokens whose ratio lies in the minibatch's window."""
        assert x.bounds is not None, "`prepare` computes them for every minibatch"
        return Region.within(x.ratio_BT, x.bounds[0], x.bounds[1])


class BalancedWindow(MinibatchWindow):
    """BAPO: bounds that move until positive advantages have a given share of the minibatch's signal.

    In every minibatch, the search starts at (lower, upper). It raises the lower bound by `step` up to
    `lower_max`, and then the upper bound up to `upper_max`. It stops at the first window [l, u] with
    P >= `positive_frac` (P + N), where P = sum_{A > 0} min(w, u) A and N = sum_{A < 0} max(w, l) |A|. Source:
    BAPO, arXiv 2510.18927, as in the recipe for verl.
    """

    kind: Literal["balanced_window"] = "balanced_window"
    lower: Annotated[float, Field(ge=0.0, le=1.0)]
    """Initial lower bound of the search."""
    upper: Annotated[float, Field(ge=1.0, le=10.0)]
    """Initial upper bound of the search."""
    lower_max: Annotated[float, Field(ge=0.0, le=1.0)]
    """Maximum lower bound of the search."""
    upper_max: Annotated[float, Field(ge=1.0, le=10.0)]
    """Maximum upper bound of the search."""
    step: Annotated[float, Field(ge=1e-3, le=10.0)]
    """Step by which a bound moves."""
    positive_frac: Annotated[float, Field(ge=0.0, le=1.0)]
    """Share of positive advantages in the signal at which the search stops."""

    def window(self) -> Window:
        """Return the initial window of the search."""
        return Window(self.lower, self.upper)

    def fixed_window(self) -> None:
        """Return None: every minibatch has its own window."""

    @property
    def candidates(self) -> list[tuple[float, float]]:
        """The windows (lower, upper) of the search, in order."""
        lowers = _ladder(self.lower, self.lower_max, self.step)
        uppers = _ladder(self.upper, self.upper_max, self.step)
        return [(lower, self.upper) for lower in lowers] + [(lowers[-1], upper) for upper in uppers[1:]]

    def prepare_bounds(self, x: RegionInputs, advantage_BT: Tensor, sum_over_ranks: Sum) -> Tensor:
        """Return the bounds [2] of the first window with enough positive signal.

        If no window has enough, the bounds of the last one are returned.
        """
        import torch

        advantage_BT = neutral(advantage_BT, x.mask_BT).double()
        gain_BT, loss_BT = advantage_BT.clamp(min=0.0), -advantage_BT.clamp(max=0.0)
        sums = [
            torch.stack(
                [
                    (x.ratio_BT.clamp(max=upper) * gain_BT).sum(),
                    (x.ratio_BT.clamp(min=lower) * loss_BT).sum(),
                ]
            )
            for lower, upper in self.candidates
        ]
        positive_C, negative_C = sum_over_ranks(torch.stack(sums, dim=1))
        enough_C = positive_C >= self.positive_frac * (positive_C + negative_C)
        enough_C[-1] = True
        return x.ratio_BT.new_tensor(self.candidates)[enough_C.to(torch.uint8).argmax()]


class SecondMoment(MinibatchWindow):
    """One window per minibatch that bounds the mean of (log w)^2 over tokens moving away from w = 1 (M2PO).

    Let H be the tokens with A > 0 and w > 1, or A < 0 and w < 1. The window is [exp(-t), exp(t)], where t
    makes the mean of min((log w)^2, t^2) over H equal to the budget. If the mean of (log w)^2 over H is
    within the budget, the window contains all ratios. Source: arXiv 2510.01161, as in verl's pull request
    4131, but over the whole minibatch.
    """

    kind: Literal["second_moment"] = "second_moment"
    delta: Budget
    """Budget of the mean squared log-ratio (0.04 in the authors' code)."""

    def prepare_bounds(self, x: RegionInputs, advantage_BT: Tensor, sum_over_ranks: Sum) -> Tensor:
        """Return exp(-t) and exp(t), or 0 and infinity if the mean of (log w)^2 is within the budget.

        The mean is over the tokens H on all ranks. The class docstring defines H and t.
        """
        import torch

        log_ratio_BT = x.ratio_BT.double().log()
        away_BT = neutral(advantage_BT, x.mask_BT).sign() * log_ratio_BT > 0.0
        square_N = log_ratio_BT[away_BT].square()
        num = sum_over_ranks(square_N.new_tensor(float(len(square_N))))
        total = self.delta * num
        if sum_over_ranks(square_N.sum()) <= total:
            return x.ratio_BT.new_tensor([0.0, math.inf])
        low = square_N.new_zeros(())
        high = low + (2.0 * math.log(torch.finfo(x.ratio_BT.dtype).max)) ** 2
        share_C = torch.linspace(0.0, 1.0, _NUM_CANDIDATES, dtype=square_N.dtype, device=square_N.device)
        for _ in range(_NUM_ROUNDS):
            tried_C = low + (high - low) * share_C
            cut_C = sum_over_ranks(square_N.minimum(tried_C[:, None]).sum(dim=1))
            place = (cut_C < total).sum().clamp(1, _NUM_CANDIDATES - 1)
            low, high = tried_C[place - 1], tried_C[place]
        kept_N = square_N < high  # no token lies between low and high, so the equation is linear in t^2
        sums = sum_over_ranks(torch.stack([square_N[kept_N].sum(), kept_N.sum().to(square_N)]))
        root = ((total - sums[0]) / (num - sums[1]).clamp(min=1.0)).sqrt()
        return torch.stack([(-root).exp(), root.exp()]).to(x.ratio_BT)


def _ladder(start: float, end: float, step: float) -> list[float]:
    """Return start, start + step, start + 2 step, ... and, as the last value, end."""
    rungs = [start]
    while rungs[-1] < end - 1e-12:
        rungs.append(min(start + len(rungs) * step, end))
    return rungs

"""How far is too far: every divergence by name, each with its budget.

Divergences that are functions of the ratio alone become a `RatioWindow` with bounds computed once, in
float64, by `atrium.windows`; whatever they are called, they run the code of plain clipping. Windows that
depend on the anchor's probability are in `token_windows`; here are those that depend on the minibatch,
and those that are no window: means over a row, and divergences of the whole distribution at a position.
Sources: the unified view C_t(theta) of arXiv 2602.05494; BAPO arXiv 2510.18927; DPPO arXiv 2602.04879;
TR-PPO arXiv 1903.07940; sequence masks arXiv 2512.23075 and 2512.02556.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from atrium import windows
from atrium.objective.batch import Needs, Sum, neutral, row_mean
from atrium.objective.regions import Divergence, RatioWindow, Region, RegionInputs, within
from atrium.objective.token_windows import BinaryKL, BinaryTotalVariation, DynamicClip
from atrium.windows import UNBOUNDED, Window


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
class BalancedWindow(Divergence):
    """BAPO's window, widened until positive advantages have their share of the minibatch's signal.

    From (lower, upper) the lower bound rises by `step` up to `lower_max`, then the upper one up to
    `upper_max`, and stops at the first window in which sum_{A > 0} min(w, u) A is at least
    `positive_frac` of itself plus sum_{A < 0} max(w, l) |A|; every minibatch starts afresh.
    Source: BAPO, arXiv 2510.18927, as in the recipe for verl.
    """

    lower: float
    upper: float
    lower_max: float
    upper_max: float
    step: float
    positive_frac: float

    @property
    def needs(self) -> Needs:
        """A pass over the minibatch: the window depends on its ratios."""
        return Needs(prepare_pass=True)

    def prepare(self, inputs: RegionInputs, advantage_BT: Tensor, sum_over_ranks: Sum) -> Tensor:
        """The first window of the search with enough positive signal, or its last."""
        candidates = self._candidates()
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
        enough_C = positive_C >= self.positive_frac * (positive_C + negative_C)
        enough_C[-1] = True
        return inputs.ratio_BT.new_tensor(candidates)[enough_C.to(torch.uint8).argmax()]

    def region(self, inputs: RegionInputs) -> Region:
        """The tokens within the minibatch's window."""
        assert inputs.bounds is not None, "`prepare` finds them for every minibatch"
        return within(inputs.ratio_BT, inputs.bounds[0], inputs.bounds[1])

    def _candidates(self) -> list[tuple[float, float]]:
        lowers = _ladder(self.lower, self.lower_max, self.step)
        uppers = _ladder(self.upper, self.upper_max, self.step)
        return [(lower, self.upper) for lower in lowers] + [(lowers[-1], upper) for upper in uppers[1:]]


def _ladder(start: float, end: float, step: float) -> list[float]:
    """start, start + step, ... up to and including end."""
    rungs = [start]
    while rungs[-1] < end - 1e-12:
        rungs.append(min(start + len(rungs) * step, end))
    return rungs


@dataclass(frozen=True, kw_only=True)
class SequenceMean(Divergence):
    """A row is feasible where its mean over tokens of k1, k2 or k3 is within the budget.

    k1 = -log w (DeepSeek-V3.2's off-policy mask, arXiv 2512.02556), k2 = (log w)^2 / 2, k3 = w - 1 - log w
    (arXiv 2512.23075).
    """

    estimator: Literal["k1", "k2", "k3"]
    delta: float
    has_window: ClassVar[bool] = False

    def region(self, inputs: RegionInputs) -> Region:
        """All tokens of feasible rows."""
        value_BT = divergence_estimate(self.estimator, inputs.token_log_ratio_BT)
        feasible_B = row_mean(value_BT, inputs.mask_BT) <= self.delta
        return Region(lower=1.0, upper=1.0, feasible_BT=feasible_B[:, None].expand_as(value_BT))


def divergence_estimate(estimator: str, log_ratio_BT: Tensor) -> Tensor:
    """k1, k2 or k3 of KL(anchor || policy) at each token, from log w."""
    match estimator:
        case "k1":
            return -log_ratio_BT
        case "k2":
            return 0.5 * log_ratio_BT**2
        case _:
            return torch.expm1(log_ratio_BT) - log_ratio_BT


@dataclass(frozen=True, kw_only=True)
class StateDivergence(Divergence):
    """KL(anchor || policy) or total variation of the next-token distribution, within a budget.

    Over the whole vocabulary (TR-PPO's state KL, arXiv 1903.07940), or over the anchor's `top_k` tokens,
    the sampled one among them, and one bucket for the rest (DPPO, arXiv 2602.04879). The value arrives as
    `divergence_BT`; see `atrium.objective.state_divergences`.
    """

    measure: Literal["kl", "total_variation"]
    delta: float
    top_k: int | None = None
    has_window: ClassVar[bool] = False

    @property
    def needs(self) -> Needs:
        """The distributions of anchor and policy at every position."""
        kind: Literal["full", "top_k"] = "full" if self.top_k is None else "top_k"
        return Needs(behavior_pass=True, distribution=kind, top_k=self.top_k or 0)

    def region(self, inputs: RegionInputs) -> Region:
        """The tokens whose position has moved by no more than the budget."""
        assert inputs.divergence_BT is not None, "`needs` asks for the distribution"
        return Region(lower=1.0, upper=1.0, feasible_BT=inputs.divergence_BT <= self.delta)


def state_kl(*, delta: float) -> StateDivergence:
    """KL(anchor || policy) over the vocabulary."""
    return StateDivergence(measure="kl", delta=delta)


def state_total_variation(*, delta: float) -> StateDivergence:
    """Half the L1 distance over the vocabulary."""
    return StateDivergence(measure="total_variation", delta=delta)


def top_k_kl(*, delta: float, top_k: int) -> StateDivergence:
    """KL(anchor || policy) over the anchor's top-k tokens and the rest."""
    return StateDivergence(measure="kl", delta=delta, top_k=top_k)


def top_k_total_variation(*, delta: float, top_k: int) -> StateDivergence:
    """Half the L1 distance over the anchor's top-k tokens and the rest."""
    return StateDivergence(measure="total_variation", delta=delta, top_k=top_k)


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
    "balanced_window": BalancedWindow,
    "sequence_mean": SequenceMean,
    "state_kl": state_kl,
    "state_total_variation": state_total_variation,
    "top_k_kl": top_k_kl,
    "top_k_total_variation": top_k_total_variation,
}

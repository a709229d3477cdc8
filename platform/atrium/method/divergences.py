"""The divergences with their budgets, and the equivalent windows on the ratio.

A divergence that is a function of the ratio alone is a constant window [l, u] (arXiv 2602.05494, Theorem 4.2
for KL3), which `window()` gives: computed once in float64, whatever it is called, it runs the code of plain
clipping. One that also looks at the probability q that the anchor gives to the sampled token has a window per
token (`method/token_windows.py`), which `window_at(q)` gives. Those that judge whole distributions or whole
completions have none. Windows that are found for every minibatch stand in `method/minibatch_windows.py`.
Sources: the unified view C_t(theta) of arXiv 2602.05494; DPPO arXiv 2602.04879; TR-PPO arXiv 1903.07940;
sequence masks arXiv 2512.23075 and 2512.02556.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from atrium.base.section import Count
from atrium.method import windows
from atrium.method.batch import Sum, neutral, row_mean, row_sum
from atrium.method.needs import Needs, Part
from atrium.method.regions import Region, RegionInputs
from atrium.method.windows import RatioDivergence, Window

if TYPE_CHECKING:
    from torch import Tensor

TokenEstimator = Literal["k1", "k2", "k3", "total_variation"]
"""Divergences of a token that need only its ratio."""
RowStatistic = Literal["mean", "sum", "maximum"]
"""Statistics over a completion's tokens."""
Budget = Annotated[float, Field(ge=1e-12, le=100.0)]


class Divergence(Part, axis=True):
    """The trust region's measure of distance from the anchor.

    `of_single_tokens` is True if the window depends on the sampled token's probability, `has_window` False if
    no bounds on the ratio are equivalent to the divergence, and `measures_tokens` True if `token_divergence`
    returns its value.
    """

    of_single_tokens: ClassVar[bool] = False
    has_window: ClassVar[bool] = True
    measures_tokens: ClassVar[bool] = False

    @property
    def has_token_windows(self) -> bool:
        """Whether each token has its own window, which `window_at` returns."""
        return self.of_single_tokens and self.has_window

    @property
    def of_ratio(self) -> RatioDivergence | None:
        """Return D(w) if the divergence is a function of the ratio with a budget; else None."""
        return None

    def window(self) -> Window | None:
        """Return the window shared by all tokens, or None; for BAPO the start of its search."""
        return None

    def fixed_window(self) -> Window | None:
        """Return the window of every token of every minibatch; None if bounds move or do not exist."""
        return self.window()

    def window_at(self, probability: float) -> Window | None:
        """Return the window of a token with behavior probability in (0, 1); None if there is none."""
        if not 0.0 < probability < 1.0:
            raise ValueError(f"a probability must be in (0, 1), got {probability}")
        return self._window_at(probability)

    def _window_at(self, probability: float) -> Window | None:
        return self.window()

    def widths(self) -> tuple[float, float] | None:
        """Return the distances from 1 at which the constraint binds if `window` ends earlier; else None."""
        return None

    @property
    def budgets(self) -> tuple[float, float]:
        """Return the budgets of tokens with a ratio below 1 and of the others.

        Raises `TypeError` for a divergence without budgets.
        """
        settings = self.model_dump()
        if "delta" in settings:
            return settings["delta"], settings["delta"]
        if "delta_low" in settings:
            return settings["delta_low"], settings["delta_high"]
        raise TypeError(f"{type(self).__name__} has no budget")

    def token_divergence(self, x: RegionInputs) -> Tensor:
        """Return the divergence [B, T] of each token, which `region` compares with the budget.

        Raises `TypeError` unless `measures_tokens`.
        """
        raise TypeError(f"{type(self).__name__} measures no divergence of tokens")

    def with_budget(self, budget: float) -> dict[str, Any] | None:
        """Return the settings with another budget on every side; None if the divergence has no budget.

        A clip range is not a budget: `asymmetric_ratio` and DCPO's have none.
        """
        settings = self.model_dump()
        names = ("delta", "delta_low", "delta_high")
        sides = [key for key, value in settings.items() if key in names and value is not None]
        return {**settings, **dict.fromkeys(sides, budget)} if sides else None

    def region(self, x: RegionInputs) -> Region:
        """Return the region at these tokens: by default that of the constant window."""
        window = self.window()
        if window is None:
            raise TypeError(f"{type(self).__name__} must define window or region")
        return Region.within(x.ratio_BT, window.lower, window.upper, self.widths())

    def prepare_bounds(self, x: RegionInputs, advantage_BT: Tensor, sum_over_ranks: Sum) -> Tensor | None:
        """Return bounds [2] that depend on the whole minibatch at the current parameters, or None."""
        return None


class NoDivergence(Divergence):
    """No trust region: every token is feasible."""

    kind: Literal["none"] = "none"

    def window(self) -> Window:
        """Return the window of all ratios."""
        return windows.UNBOUNDED


class BudgetDivergence(Divergence):
    """A divergence that is a function of the ratio alone, with one budget; see `atrium.method.windows`."""

    kind: Literal[
        "ratio",
        "k1",
        "k1_signed",
        "k2",
        "kl3",
        "kl3_reversed",
        "chi2",
        "hellinger",
        "jensen_shannon",
        "total_variation",
    ]
    delta: Budget
    """Budget: a token is feasible while its divergence is at most delta."""

    @property
    def of_ratio(self) -> RatioDivergence:
        """Return the function D(w)."""
        return windows.divergence(self.kind)

    def window(self) -> Window:
        """Return all ratios with D(w) <= delta; PPO's clip range (arXiv 1707.06347, eq. 7) exactly."""
        if self.kind == "ratio":
            return Window(max(0.0, 1.0 - self.delta), 1.0 + self.delta)
        return windows.window(self.kind, self.delta)

    def widths(self) -> tuple[float, float] | None:
        """Return the upper width for both sides, if D is symmetric about 1 and the window ends at ratio 0."""
        window = self.window()
        is_cut = self.kind in ("ratio", "total_variation", "chi2") and window.lower == 0.0
        return (window.upper - 1.0, window.upper - 1.0) if is_cut else None


class AlphaDivergence(Divergence):
    """(w^a - a w + a - 1) / (a (a - 1)) <= delta, with its limits at a = 0 and a = 1."""

    kind: Literal["alpha"] = "alpha"
    delta: Budget
    """Budget: a token is feasible while its divergence is at most delta."""
    alpha: Annotated[float, Field(ge=-10.0, le=10.0)]
    """Parameter a: 0 is KL3, 1 is w log w - w + 1, 2 is chi-squared."""

    @property
    def of_ratio(self) -> RatioDivergence:
        """Return the function D(w)."""
        return windows.divergence("alpha", alpha=self.alpha)

    def window(self) -> Window:
        """Return all ratios with D(w) <= delta."""
        return windows.window("alpha", self.delta, alpha=self.alpha)


class AsymmetricRatio(Divergence):
    """1 - epsilon_low <= w <= 1 + epsilon_high, clip-higher (DAPO, arXiv 2503.14476, eq. 10)."""

    kind: Literal["asymmetric_ratio"] = "asymmetric_ratio"
    epsilon_low: Budget
    """Maximum decrease of the ratio below 1."""
    epsilon_high: Budget
    """Maximum increase of the ratio above 1."""

    def window(self) -> Window:
        """Return the range itself."""
        return Window(max(0.0, 1.0 - self.epsilon_low), 1.0 + self.epsilon_high)

    def widths(self) -> tuple[float, float] | None:
        """Return both settings if the range ends at ratio 0."""
        return (self.epsilon_low, self.epsilon_high) if self.epsilon_low > 1.0 else None


class ExplicitWindow(Divergence):
    """lower <= w <= upper: an explicit point of the (l, u) plane."""

    kind: Literal["window"] = "window"
    lower: Annotated[float, Field(ge=0.0, le=1.0)]
    """Lower bound l: smaller ratios are infeasible."""
    upper: Annotated[float, Field(ge=1.0, le=1e6)]
    """Upper bound u: larger ratios are infeasible."""

    def window(self) -> Window:
        """Return the bounds themselves."""
        return Window(self.lower, self.upper)


class SequenceMean(Divergence):
    """A completion is feasible if its mean, sum or maximum over tokens is within the budget.

    k1 = -log w (DeepSeek-V3.2's off-policy mask, arXiv 2512.02556), k2 = (log w)^2 / 2, k3 = w - 1 - log w
    (verl's sequence masks), total_variation = |w - 1|. arXiv 2512.23075 uses the maximum. With a gate of
    single tokens, `clip` drops those tokens of an infeasible completion that move away.
    """

    kind: Literal["sequence_mean"] = "sequence_mean"
    estimator: TokenEstimator
    """Measure of a token's divergence."""
    delta: Budget
    """Budget: a completion is feasible while its divergence is at most delta."""
    over: RowStatistic = "mean"
    """Statistic over a completion's tokens."""
    has_window: ClassVar[bool] = False

    def region(self, x: RegionInputs) -> Region:
        """Return all tokens of the completions within the budget."""
        value_BT = estimate_divergence(self.estimator, x.token_log_ratio_BT)
        feasible_B = rows_within(self.over, value_BT, x.mask_BT, self.delta)
        return Region(feasible_BT=feasible_B[:, None].expand_as(value_BT))


class DistributionDivergence(Divergence):
    """A divergence of whole next-token distributions, measured where they are computed.

    It is passed as `PolicyTokens.divergence_BT`; see `method/state_divergences.py`.
    """

    has_window: ClassVar[bool] = False
    measures_tokens: ClassVar[bool] = True

    if TYPE_CHECKING:  # every value declares it
        delta: float

    @property
    def measure(self) -> Literal["kl", "total_variation"]:
        """The quantity measured between the two distributions."""
        return "kl" if self.kind.endswith("_kl") else "total_variation"

    def token_divergence(self, x: RegionInputs) -> Tensor:
        """Return the divergence at each position."""
        assert x.divergence_BT is not None, "`needs` asks for the distribution"
        return x.divergence_BT

    def region(self, x: RegionInputs) -> Region:
        """Return the tokens at whose positions the distributions are within the budget."""
        return Region(feasible_BT=self.token_divergence(x) <= self.delta)


class StateDivergence(DistributionDivergence):
    """KL(anchor || policy) or total variation of the next-token distribution, over the vocabulary (TR-PPO).

    The value is passed as `PolicyTokens.divergence_BT`; see `method/state_divergences.py`.
    """

    kind: Literal["state_kl", "state_total_variation"]
    delta: Budget
    """Budget: a token is feasible while its divergence is at most delta."""

    needs: ClassVar = Needs(anchor_pass=True, distribution="full")
    """The distributions of anchor and policy at every position."""


class TopKDivergence(DistributionDivergence):
    """The same over the anchor's most likely tokens and a bucket for the rest (DPPO, arXiv 2602.04879).

    The sampled token is never in the bucket.
    """

    kind: Literal["top_k_kl", "top_k_total_variation"]
    delta: Budget
    """Budget: a token is feasible while its divergence is at most delta."""
    top_k: Count
    """Number of tokens outside the bucket."""

    @property
    def needs(self) -> Needs:
        """The distributions of anchor and policy at every position."""
        return Needs(anchor_pass=True, distribution="top_k", top_k=self.top_k)


def rows_within(over: RowStatistic, value_BT: Tensor, mask_BT: Tensor, bound: float) -> Tensor:
    """Return whether [B] a statistic over each row's unmasked tokens is at most a positive bound."""
    match over:
        case "mean":
            return row_mean(value_BT, mask_BT) <= bound
        case "sum":
            return row_sum(value_BT, mask_BT) <= bound
        case "maximum":
            return (neutral(value_BT, mask_BT) <= bound).all(dim=1)


def estimate_divergence(estimator: TokenEstimator, log_ratio_BT: Tensor) -> Tensor:
    """Return k1, k2 or k3 of KL(anchor || policy), or |w - 1|, at each token, from log w."""
    match estimator:
        case "k1":
            return -log_ratio_BT
        case "k2":
            return 0.5 * log_ratio_BT**2
        case "k3":
            return log_ratio_BT.expm1() - log_ratio_BT
        case "total_variation":
            return log_ratio_BT.expm1().abs()

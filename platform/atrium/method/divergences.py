"""Divergences with their budgets, and the equivalent windows on the ratio.

A divergence that is a function of the ratio alone is equivalent to a constant window [l, u] (arXiv
2602.05494, Theorem 4.2 for KL3). `window()` computes this window once in float64, and every such divergence
then runs the code of plain clipping. A divergence that also depends on the anchor's probability q of the
sampled token has one window per token, `window_at(q)`; see `method/token_windows.py`. Divergences of whole
distributions or whole completions have no window. Windows that are computed for every minibatch are in
`method/minibatch_windows.py`.
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

    `of_single_tokens` says whether the window depends on the sampled token's probability, `has_window`
    whether the divergence is equivalent to bounds on the ratio, and `measures_tokens` whether
    `token_divergence` returns each token's value.
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
        """The function D(w), or None if the divergence has no budget or depends on more than the ratio."""
        return None

    def window(self) -> Window | None:
        """Return the constant window that all tokens share, or None if there is no such window.

        For BAPO, this is the window at which the search starts.
        """
        return None

    def fixed_window(self) -> Window | None:
        """Return the window if it is the same for all tokens and all minibatches, or None otherwise."""
        return self.window()

    def window_at(self, probability: float) -> Window | None:
        """Return the window of a token whose probability under the anchor is `probability`.

        If the divergence has no window per token, the result is that of `window`, which may be None. Raises
        `ValueError` for a probability outside (0, 1).
        """
        if not 0.0 < probability < 1.0:
            raise ValueError(f"probability must be greater than 0 and less than 1, got {probability}")
        return self._window_at(probability)

    def _window_at(self, probability: float) -> Window | None:
        return self.window()

    def widths(self) -> tuple[float, float] | None:
        """Return the distances below and above 1 at which the constraint binds (see `Region.widths`).

        None means 1 - l and u - 1 for the window [l, u]. The distances differ from these only if the window
        is cut off at ratio 0.
        """
        return None

    @property
    def budgets(self) -> tuple[float, float]:
        """The budget of tokens with a ratio below 1, and the budget of all other tokens.

        Raises `TypeError` for a divergence without budgets.
        """
        settings = self.model_dump()
        if "delta" in settings:
            return settings["delta"], settings["delta"]
        if "delta_low" in settings:
            return settings["delta_low"], settings["delta_high"]
        raise TypeError(
            f"{type(self).__name__} has no budget; choose a divergence with a budget, such as ratio"
        )

    def token_divergence(self, x: RegionInputs) -> Tensor:
        """Return the divergence [B, T] of each token, which `region` compares with the budget.

        Raises `TypeError` unless `measures_tokens`.
        """
        raise TypeError(
            f"{type(self).__name__} cannot measure the divergence of single tokens; choose another divergence"
        )

    def with_budget(self, budget: float) -> dict[str, Any] | None:
        """Return the settings with every budget set to `budget`, or None if the divergence has no budget.

        `asymmetric_ratio` and `dynamic_clip` have clip ranges instead of budgets.
        """
        settings = self.model_dump()
        names = ("delta", "delta_low", "delta_high")
        sides = [key for key, value in settings.items() if key in names and value is not None]
        return {**settings, **dict.fromkeys(sides, budget)} if sides else None

    def region(self, x: RegionInputs) -> Region:
        """Return the trust region at the tokens of `x`, by default from the constant window.

        Raises `TypeError` if there is no window and a subclass does not override this method.
        """
        window = self.window()
        if window is None:
            raise TypeError(f"{type(self).__name__} must define window or region")
        return Region.within(x.ratio_BT, window.lower, window.upper, self.widths())

    def prepare_bounds(self, x: RegionInputs, advantage_BT: Tensor, sum_over_ranks: Sum) -> Tensor | None:
        """Return the bounds [2] if the window depends on the whole minibatch, or None for other windows."""
        return None


class NoDivergence(Divergence):
    """No trust region: every token is feasible."""

    kind: Literal["none"] = "none"

    def window(self) -> Window:
        """Return the window that contains all ratios."""
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
        """The divergence as a function D(w) of the ratio."""
        return windows.divergence(self.kind)

    def window(self) -> Window:
        """Return the window D(w) <= delta. For `ratio`, it is PPO's clip range (arXiv 1707.06347, eq. 7)."""
        if self.kind == "ratio":
            return Window(max(0.0, 1.0 - self.delta), 1.0 + self.delta)
        return windows.window(self.kind, self.delta)

    def widths(self) -> tuple[float, float] | None:
        """Return (u - 1, u - 1) for a symmetric D whose window is cut off at ratio 0, otherwise None.

        D is symmetric if its value depends only on |w - 1|.
        """
        window = self.window()
        is_cut = self.kind in ("ratio", "total_variation", "chi2") and window.lower == 0.0
        return (window.upper - 1.0, window.upper - 1.0) if is_cut else None


class AlphaDivergence(Divergence):
    """The alpha-divergence (w^a - a w + a - 1) / (a (a - 1)), with one budget.

    For a = 0 and a = 1, the divergence is the limit of this formula.
    """

    kind: Literal["alpha"] = "alpha"
    delta: Budget
    """Budget: a token is feasible while its divergence is at most delta."""
    alpha: Annotated[float, Field(ge=-10.0, le=10.0)]
    """Parameter a: 0 is KL3, 1 is w log w - w + 1, 2 is chi-squared."""

    @property
    def of_ratio(self) -> RatioDivergence:
        """The divergence as a function D(w) of the ratio."""
        return windows.divergence("alpha", alpha=self.alpha)

    def window(self) -> Window:
        """Return the window D(w) <= delta."""
        return windows.window("alpha", self.delta, alpha=self.alpha)


class AsymmetricRatio(Divergence):
    """The clip-higher range 1 - epsilon_low <= w <= 1 + epsilon_high (DAPO, arXiv 2503.14476, eq. 10)."""

    kind: Literal["asymmetric_ratio"] = "asymmetric_ratio"
    epsilon_low: Budget
    """Maximum decrease of the ratio below 1."""
    epsilon_high: Budget
    """Maximum increase of the ratio above 1."""

    def window(self) -> Window:
        """Return [max(0, 1 - epsilon_low), 1 + epsilon_high]."""
        return Window(max(0.0, 1.0 - self.epsilon_low), 1.0 + self.epsilon_high)

    def widths(self) -> tuple[float, float] | None:
        """Return (epsilon_low, epsilon_high) if the range is cut off at ratio 0, or None otherwise."""
        return (self.epsilon_low, self.epsilon_high) if self.epsilon_low > 1.0 else None


class ExplicitWindow(Divergence):
    """The window lower <= w <= upper, with both bounds as settings."""

    kind: Literal["window"] = "window"
    lower: Annotated[float, Field(ge=0.0, le=1.0)]
    """Lower bound l: smaller ratios are infeasible."""
    upper: Annotated[float, Field(ge=1.0, le=windows.MAX_UPPER)]
    """Upper bound u: larger ratios are infeasible."""

    def window(self) -> Window:
        """Return the configured window [lower, upper]."""
        return Window(self.lower, self.upper)


class SequenceMean(Divergence):
    """A budget for the mean, sum or maximum of a divergence over a completion's tokens.

    The estimators of a token's divergence are k1 = -log w (DeepSeek-V3.2's off-policy mask, arXiv
    2512.02556), k2 = (log w)^2 / 2, k3 = w - 1 - log w (verl's sequence masks) and total_variation = |w - 1|.
    The maximum over tokens is from arXiv 2512.23075. If the gate ratio is per token, `clip` drops only those
    tokens of an infeasible completion that move away from ratio 1.
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
        """Return the region of all tokens in completions within the budget."""
        value_BT = estimate_divergence(self.estimator, x.token_log_ratio_BT)
        feasible_B = rows_within(self.over, value_BT, x.mask_BT, self.delta)
        return Region(feasible_BT=feasible_B[:, None].expand_as(value_BT))


class DistributionDivergence(Divergence):
    """A divergence of whole next-token distributions.

    The forward pass computes the divergence at each position (see `method/state_divergences.py`). The
    objective receives it as `PolicyTokens.divergence_BT`.
    """

    has_window: ClassVar[bool] = False
    measures_tokens: ClassVar[bool] = True

    if TYPE_CHECKING:  # every subclass declares it
        delta: float

    @property
    def measure(self) -> Literal["kl", "total_variation"]:
        """The measure of distance between the two distributions: KL or total variation."""
        return "kl" if self.kind.endswith("_kl") else "total_variation"

    def token_divergence(self, x: RegionInputs) -> Tensor:
        """Return the divergence [B, T] that the forward pass computed at each position."""
        assert x.divergence_BT is not None, "`needs` asks for the distribution"
        return x.divergence_BT

    def region(self, x: RegionInputs) -> Region:
        """Return the region of the positions whose divergence is within the budget."""
        return Region(feasible_BT=self.token_divergence(x) <= self.delta)


class StateDivergence(DistributionDivergence):
    """KL(anchor || policy) or total variation of next-token distributions over the vocabulary (TR-PPO).

    The objective receives the divergence as `PolicyTokens.divergence_BT`; see `method/state_divergences.py`.
    """

    kind: Literal["state_kl", "state_total_variation"]
    delta: Budget
    """Budget: a token is feasible while its divergence is at most delta."""

    needs: ClassVar = Needs(anchor_pass=True, distribution="full")
    """The distributions of anchor and policy at every position."""


class TopKDivergence(DistributionDivergence):
    """KL(anchor || policy) or total variation over the anchor's `top_k` tokens and a bucket for the rest.

    The sampled token is never in the bucket (DPPO, arXiv 2602.04879).
    """

    kind: Literal["top_k_kl", "top_k_total_variation"]
    delta: Budget
    """Budget: a token is feasible while its divergence is at most delta."""
    top_k: Count
    """Number of tokens outside the bucket."""

    @property
    def needs(self) -> Needs:
        """The anchor's and the policy's probabilities of the anchor's `top_k` tokens at every position."""
        return Needs(anchor_pass=True, distribution="top_k", top_k=self.top_k)


def rows_within(over: RowStatistic, value_BT: Tensor, mask_BT: Tensor, bound: float) -> Tensor:
    """Return a mask [B] of the rows whose mean, sum or maximum (`over`) is at most `bound` (> 0).

    The statistic is computed over the row's unmasked values.
    """
    match over:
        case "mean":
            return row_mean(value_BT, mask_BT) <= bound
        case "sum":
            return row_sum(value_BT, mask_BT) <= bound
        case "maximum":
            return (neutral(value_BT, mask_BT) <= bound).all(dim=1)


def estimate_divergence(estimator: TokenEstimator, log_ratio_BT: Tensor) -> Tensor:
    """Return |w - 1|, or the estimate k1, k2 or k3 of KL(anchor || policy), at each token."""
    match estimator:
        case "k1":
            return -log_ratio_BT
        case "k2":
            return 0.5 * log_ratio_BT**2
        case "k3":
            return log_ratio_BT.expm1() - log_ratio_BT
        case "total_variation":
            return log_ratio_BT.expm1().abs()

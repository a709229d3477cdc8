"""How far is too far: every divergence with its budget, and the window on the ratio that it stands for.

A divergence that is a function of the ratio alone is a constant window [l, u] (arXiv 2602.05494, Theorem 4.2
for KL3), which `window()` gives: computed once in float64, whatever it is called, it runs the code of plain
clipping. One that also looks at the probability q that the anchor gives to the sampled token has a window per
token, which `window_at(q)` gives. Those that judge whole distributions or whole completions have none.
Windows that are found for every minibatch stand in `method/minibatch_windows.py`.
Sources: the unified view C_t(theta) of arXiv 2602.05494; DPPO arXiv 2602.04879;
DCPO arXiv 2509.02333; TR-PPO arXiv 1903.07940; sequence masks arXiv 2512.23075 and 2512.02556.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from atrium.base.section import AboveOne, Count
from atrium.method import windows
from atrium.method.batch import Sum, neutral, row_mean, row_sum
from atrium.method.needs import Needs, Part
from atrium.method.regions import Region, RegionInputs
from atrium.method.terms import choose
from atrium.method.windows import RatioDivergence, Window, find_root

if TYPE_CHECKING:
    from torch import Tensor

TokenEstimator = Literal["k1", "k2", "k3", "total_variation"]
"""Divergences of a token that need its ratio alone."""
RowStatistic = Literal["mean", "sum", "maximum"]
"""Statistics over a completion's tokens."""
Budget = Annotated[float, Field(ge=1e-12, le=100.0)]
_LEAST_LOG_ODDS = -750.0
_LEAST_PROBABILITY = 1e-6
_NEWTON_STEPS = 8  # from the outer bound they find the bounds to 1e-10 for budgets down to 1e-6


class Divergence(Part, axis=True):
    """How far is too far.

    `of_single_tokens` is True where the window depends on the sampled token's probability, `has_window` False
    where no bounds on the ratio stand for the divergence, and `measures_tokens` True where `token_divergence`
    gives its value.
    """

    of_single_tokens: ClassVar[bool] = False
    has_window: ClassVar[bool] = True
    measures_tokens: ClassVar[bool] = False

    @property
    def has_token_windows(self) -> bool:
        """Whether each token has a window of its own, which `window_at` gives."""
        return self.of_single_tokens and self.has_window

    @property
    def of_ratio(self) -> RatioDivergence | None:
        """D(w), where the divergence is a function of the ratio with a budget; None elsewhere."""
        return None

    def window(self) -> Window | None:
        """The window that is the same for all tokens, or None; BAPO's is where its search starts."""
        return None

    def fixed_window(self) -> Window | None:
        """The window of every token of every minibatch; None where bounds move, or where there are none."""
        return self.window()

    def window_at(self, probability: float) -> Window | None:
        """The window of a token whose behavior probability lies in (0, 1); None where there is none."""
        if not 0.0 < probability < 1.0:
            raise ValueError(f"a probability lies in (0, 1), got {probability}")
        return self._window_at(probability)

    def _window_at(self, probability: float) -> Window | None:
        return self.window()

    def widths(self) -> tuple[float, float] | None:
        """The distances from 1 at which the constraint binds, where `window` ends before; None elsewhere."""
        return None

    @property
    def budgets(self) -> tuple[float, float]:
        """The budgets of tokens whose ratio is below 1 and of the others.

        Raises `TypeError` for a divergence without budgets.
        """
        settings = self.model_dump()
        if "delta" in settings:
            return settings["delta"], settings["delta"]
        if "delta_low" in settings:
            return settings["delta_low"], settings["delta_high"]
        raise TypeError(f"{type(self).__name__} has no budget")

    def token_divergence(self, x: RegionInputs) -> Tensor:
        """The divergence [B, T] of each token, which `region` compares with the budget.

        Raises `TypeError` unless `measures_tokens`.
        """
        raise TypeError(f"{type(self).__name__} measures no divergence of tokens")

    def with_budget(self, budget: float) -> dict[str, Any] | None:
        """The settings of the same divergence with another budget on every side; None where it has none.

        A clip range is not a budget: `asymmetric_ratio` and DCPO's have none.
        """
        settings = self.model_dump()
        names = ("delta", "delta_low", "delta_high")
        sides = [key for key, value in settings.items() if key in names and value is not None]
        return {**settings, **dict.fromkeys(sides, budget)} if sides else None

    def region(self, x: RegionInputs) -> Region:
        """The region at these tokens: that of the constant window, unless the divergence has another."""
        window = self.window()
        if window is None:
            raise TypeError(f"{type(self).__name__} must define window or region")
        return Region.within(x.ratio_BT, window.lower, window.upper, self.widths())

    def prepare_bounds(self, x: RegionInputs, advantage_BT: Tensor, sum_over_ranks: Sum) -> Tensor | None:
        """Lower and upper bound [2] that need the whole minibatch at the current parameters, or None."""
        return None


class NoDivergence(Divergence):
    """No trust region: every token is feasible."""

    kind: Literal["none"] = "none"

    def window(self) -> Window:
        """All ratios."""
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
    """The budget: a token is feasible while its divergence is at most delta."""

    @property
    def of_ratio(self) -> RatioDivergence:
        """The function D(w)."""
        return windows.divergence(self.kind)

    def window(self) -> Window:
        """All ratios with D(w) <= delta; PPO's clip range (arXiv 1707.06347, eq. 7) exactly."""
        if self.kind == "ratio":
            return Window(max(0.0, 1.0 - self.delta), 1.0 + self.delta)
        return windows.window(self.kind, self.delta)

    def widths(self) -> tuple[float, float] | None:
        """The upper width on both sides, where D is symmetric about w = 1 and the window ends at ratio 0."""
        window = self.window()
        is_cut = self.kind in ("ratio", "total_variation", "chi2") and window.lower == 0.0
        return (window.upper - 1.0, window.upper - 1.0) if is_cut else None


class AlphaDivergence(Divergence):
    """(w^a - a w + a - 1) / (a (a - 1)) <= delta, with its limits at a = 0 and a = 1."""

    kind: Literal["alpha"] = "alpha"
    delta: Budget
    """The budget: a token is feasible while its divergence is at most delta."""
    alpha: Annotated[float, Field(ge=-10.0, le=10.0)]
    """a: 0 is KL3, 1 is w log w - w + 1, 2 is chi-squared."""

    @property
    def of_ratio(self) -> RatioDivergence:
        """The function D(w)."""
        return windows.divergence("alpha", alpha=self.alpha)

    def window(self) -> Window:
        """All ratios with D(w) <= delta."""
        return windows.window("alpha", self.delta, alpha=self.alpha)


class AsymmetricRatio(Divergence):
    """1 - epsilon_low <= w <= 1 + epsilon_high, clip-higher (DAPO, arXiv 2503.14476, eq. 10)."""

    kind: Literal["asymmetric_ratio"] = "asymmetric_ratio"
    epsilon_low: Budget
    """How far the ratio may fall below 1."""
    epsilon_high: Budget
    """How far it may rise above 1."""

    def window(self) -> Window:
        """The range itself."""
        return Window(max(0.0, 1.0 - self.epsilon_low), 1.0 + self.epsilon_high)

    def widths(self) -> tuple[float, float] | None:
        """Both settings, where the range ends at ratio 0."""
        return (self.epsilon_low, self.epsilon_high) if self.epsilon_low > 1.0 else None


class ExplicitWindow(Divergence):
    """lower <= w <= upper: a point of the (l, u) plane itself."""

    kind: Literal["window"] = "window"
    lower: Annotated[float, Field(ge=0.0, le=1.0)]
    """The lower bound l: smaller ratios are infeasible."""
    upper: Annotated[float, Field(ge=1.0, le=1e6)]
    """The upper bound u: larger ratios are infeasible."""

    def window(self) -> Window:
        """The point itself."""
        return Window(self.lower, self.upper)


class BinaryTotalVariation(Divergence):
    """|p - q| within a budget per side: p - q <= delta_high and q - p <= delta_low (DPPO-Binary-TV).

    Only the quadratic surrogate, which divides by the budgets, takes them above 1.
    """

    kind: Literal["binary_total_variation"] = "binary_total_variation"
    delta_low: Budget
    """The largest loss of the sampled token's probability."""
    delta_high: Budget
    """The largest gain of the sampled token's probability."""
    of_single_tokens: ClassVar[bool] = True
    measures_tokens: ClassVar[bool] = True

    def token_divergence(self, x: RegionInputs) -> Tensor:
        """|p - q| of the sampled token."""
        return _probability_change(x).abs()

    def _window_at(self, probability: float) -> Window:
        upper = min(1.0 + self.delta_high / probability, 1.0 / probability)
        return Window(max(0.0, 1.0 - self.delta_low / probability), upper)

    def region(self, x: RegionInputs) -> Region:
        """By the probabilities themselves: the ratio is bounded for its exponential's sake."""
        anchor_BT, change_BT = x.anchor_logprob_BT.exp(), _probability_change(x)
        return Region(
            lower=(1.0 - self.delta_low / anchor_BT).clamp(min=0.0),
            upper=(1.0 + self.delta_high / anchor_BT).minimum(1.0 / anchor_BT),
            widths=(self.delta_low / anchor_BT, self.delta_high / anchor_BT),
            feasible_BT=(change_BT <= self.delta_high) & (change_BT >= -self.delta_low),
        )


class BinaryKL(Divergence):
    """KL between the two-outcome distributions (this token, any other) of anchor and policy (DPPO-Binary-KL).

    q log(q / p) + (1 - q) log((1 - q) / (1 - p)) <= delta.
    """

    kind: Literal["binary_kl"] = "binary_kl"
    delta: Budget
    """The budget: a token is feasible while its divergence is at most delta."""
    delta_low: Budget | None = None
    """The budget of tokens that have become less likely, if it is another one (verl, SkyRL); null: delta."""
    direction: Literal["forward", "both"] = "forward"
    """`forward`: KL(q || p). `both`: the larger of KL(q || p) and KL(p || q), with probabilities held within
    [1e-6, 1 - 1e-6] (KPop, prime-rl's pull request 3283); it gives no bounds on the ratio."""
    of_single_tokens: ClassVar[bool] = True
    measures_tokens: ClassVar[bool] = True

    @property
    def has_window(self) -> bool:  # type: ignore[override]
        """Whether bounds on the ratio stand for the divergence."""
        return self.direction == "forward"

    @property
    def budgets(self) -> tuple[float, float]:
        """The budgets below and above the anchor's probability."""
        return self.delta if self.delta_low is None else self.delta_low, self.delta

    def token_divergence(self, x: RegionInputs) -> Tensor:
        """KL(q || p) of the two outcomes, or the larger of both divergences."""
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
        """By the log-ratio, because the ratio is bounded for its exponential's sake."""
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
        # softplus(z) - q z at the anchor is its entropy; the budget comes on top.
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
    """DCPO's window, wider for tokens that the anchor found unlikely.

    w in [1/2 + 1/2 sqrt(max(1 - 4 epsilon_low / q, 0)), 1/2 + 1/2 sqrt(1 + 4 epsilon_high / q)], the
    upper bound at most `cap` (the authors' code).
    """

    kind: Literal["dynamic_clip"] = "dynamic_clip"
    epsilon_low: Budget
    """How far the ratio of a certain token may fall below 1."""
    epsilon_high: Budget
    """How far it may rise above 1."""
    cap: AboveOne
    """The largest upper bound of the ratio, however unlikely the token was."""
    of_single_tokens: ClassVar[bool] = True

    def _window_at(self, probability: float) -> Window:
        lower = 0.5 + 0.5 * math.sqrt(max(1.0 - 4.0 * self.epsilon_low / probability, 0.0))
        upper = 0.5 + 0.5 * math.sqrt(1.0 + 4.0 * self.epsilon_high / probability)
        return Window(lower, min(upper, self.cap))

    def region(self, x: RegionInputs) -> Region:
        """The window of each token."""
        anchor_BT = x.anchor_logprob_BT.exp()
        lower_BT = 0.5 + 0.5 * (1.0 - 4.0 * self.epsilon_low / anchor_BT).clamp(min=0.0).sqrt()
        upper_BT = 0.5 + 0.5 * (1.0 + 4.0 * self.epsilon_high / anchor_BT).sqrt()
        return Region.within(x.ratio_BT, lower_BT, upper_BT.clamp(max=self.cap))


class SequenceMean(Divergence):
    """A completion is feasible where its mean, sum or maximum over tokens is within the budget.

    k1 = -log w (DeepSeek-V3.2's off-policy mask, arXiv 2512.02556), k2 = (log w)^2 / 2, k3 = w - 1 - log w
    (verl's sequence masks), total_variation = |w - 1|. arXiv 2512.23075 takes the maximum. With a gate of
    single tokens, `clip` drops those tokens of an infeasible completion that move away.
    """

    kind: Literal["sequence_mean"] = "sequence_mean"
    estimator: TokenEstimator
    """How a token's divergence is measured."""
    delta: Budget
    """The budget: a completion is feasible while its divergence is at most delta."""
    over: RowStatistic = "mean"
    """The statistic over a completion's tokens."""
    has_window: ClassVar[bool] = False

    def region(self, x: RegionInputs) -> Region:
        """All tokens of the completions within the budget."""
        value_BT = estimate_divergence(self.estimator, x.token_log_ratio_BT)
        feasible_B = rows_within(self.over, value_BT, x.mask_BT, self.delta)
        return Region(feasible_BT=feasible_B[:, None].expand_as(value_BT))


class DistributionDivergence(Divergence):
    """A divergence of whole next-token distributions, whose value is measured where they are computed.

    It arrives as `PolicyTokens.divergence_BT`; see `method/state_divergences.py`.
    """

    has_window: ClassVar[bool] = False
    measures_tokens: ClassVar[bool] = True

    if TYPE_CHECKING:  # every value declares it
        delta: float

    @property
    def measure(self) -> Literal["kl", "total_variation"]:
        """What is measured between the two distributions."""
        return "kl" if self.kind.endswith("_kl") else "total_variation"

    def token_divergence(self, x: RegionInputs) -> Tensor:
        """The divergence at each position."""
        assert x.divergence_BT is not None, "`needs` asks for the distribution"
        return x.divergence_BT

    def region(self, x: RegionInputs) -> Region:
        """The tokens at whose positions the distributions are within the budget."""
        return Region(feasible_BT=self.token_divergence(x) <= self.delta)


class StateDivergence(DistributionDivergence):
    """KL(anchor || policy) or total variation of the next-token distribution, over the vocabulary (TR-PPO).

    The value arrives as `PolicyTokens.divergence_BT`; see `method/state_divergences.py`.
    """

    kind: Literal["state_kl", "state_total_variation"]
    delta: Budget
    """The budget: a token is feasible while its divergence is at most delta."""

    needs: ClassVar = Needs(anchor_pass=True, distribution="full")
    """The distributions of anchor and policy at every position."""


class TopKDivergence(DistributionDivergence):
    """The same over the anchor's most likely tokens and a bucket of the rest (DPPO, arXiv 2602.04879).

    The sampled token is always one of those that are told apart.
    """

    kind: Literal["top_k_kl", "top_k_total_variation"]
    delta: Budget
    """The budget: a token is feasible while its divergence is at most delta."""
    top_k: Count
    """How many tokens are told apart."""

    @property
    def needs(self) -> Needs:
        """The distributions of anchor and policy at every position."""
        return Needs(anchor_pass=True, distribution="top_k", top_k=self.top_k)


def two_outcome_kl(first_BT: Tensor, second_BT: Tensor) -> Tensor:
    """KL(first || second) of a token against all others, from the log-probabilities of the token.

    Probabilities of 1 are held one rounding error below it.
    """
    import torch

    largest = -torch.finfo(first_BT.dtype).eps
    first_BT, second_BT = first_BT.clamp(max=largest), second_BT.clamp(max=largest)
    rest_BT, other_BT = -first_BT.expm1(), -second_BT.expm1()
    return first_BT.exp() * (first_BT - second_BT) + rest_BT * (rest_BT.log() - other_BT.log())


def rows_within(over: RowStatistic, value_BT: Tensor, mask_BT: Tensor, bound: float) -> Tensor:
    """Whether [B] a statistic over each row's unmasked tokens is at most a bound above 0."""
    match over:
        case "mean":
            return row_mean(value_BT, mask_BT) <= bound
        case "sum":
            return row_sum(value_BT, mask_BT) <= bound
        case "maximum":
            return (neutral(value_BT, mask_BT) <= bound).all(dim=1)


def estimate_divergence(estimator: TokenEstimator, log_ratio_BT: Tensor) -> Tensor:
    """k1, k2 or k3 of KL(anchor || policy), or |w - 1|, at each token, from log w."""
    match estimator:
        case "k1":
            return -log_ratio_BT
        case "k2":
            return 0.5 * log_ratio_BT**2
        case "k3":
            return log_ratio_BT.expm1() - log_ratio_BT
        case "total_variation":
            return log_ratio_BT.expm1().abs()


def _probability_change(x: RegionInputs) -> Tensor:
    """p - q [B, T] of the sampled token."""
    return (x.anchor_logprob_BT + x.token_log_ratio_BT).exp() - x.anchor_logprob_BT.exp()


def _outer_odds(delta: float, anchor_BT: Tensor) -> Tensor:
    """Log-odds beyond the bound: (p - q)^2 / (2 p) is at most the divergence for p above q."""
    spread_BT = (delta**2 + 2.0 * delta * anchor_BT).sqrt()
    outer_BT = (anchor_BT + delta + spread_BT).clamp(max=1.0)
    return outer_BT.log() - (-outer_BT).log1p()


def _log_odds_at(anchor_BT: Tensor, level_BT: Tensor, odds_BT: Tensor) -> Tensor:
    """Log-odds at which softplus(z) - q z reaches the level, from a start beyond them."""
    from torch.nn.functional import softplus

    for _ in range(_NEWTON_STEPS):
        excess_BT = softplus(odds_BT) - anchor_BT * odds_BT - level_BT
        slope_BT = odds_BT.sigmoid() - anchor_BT
        odds_BT = odds_BT.where(slope_BT == 0.0, odds_BT - excess_BT / slope_BT)
    return odds_BT


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))

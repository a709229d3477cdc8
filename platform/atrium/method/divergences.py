"""How far is too far: every divergence with its budget, and the window on the ratio that it stands for.

A divergence that is a function of the ratio alone is a constant window [l, u] (arXiv 2602.05494, Theorem 4.2
for KL3), which `window()` gives. One that also looks at the behavior probability q of the sampled token has a
window per token, which `window_at(q)` gives. Those that judge whole distributions or whole completions have
none. Sources: the unified view C_t(theta) of arXiv 2602.05494; BAPO arXiv 2510.18927; DPPO arXiv 2602.04879;
DCPO arXiv 2509.02333; TR-PPO arXiv 1903.07940; sequence masks arXiv 2512.23075 and 2512.02556.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from atrium.base.section import AboveOne, Axis, Count, PositiveFrac
from atrium.method import windows
from atrium.method.needs import NOTHING, Needs
from atrium.method.windows import RatioDivergence, Window, find_root

Budget = Annotated[float, Field(ge=1e-12, le=100.0)]
_LEAST_LOG_ODDS = -750.0


class Divergence(Axis, axis=True):
    """How far is too far.

    `of_single_tokens` is True where the window depends on the sampled token's probability, `has_window` False
    where no bounds on the ratio stand for the divergence.
    """

    of_single_tokens: ClassVar[bool] = False
    has_window: ClassVar[bool] = True

    @property
    def needs(self) -> Needs:
        """The needs of the divergence; none unless it says so."""
        return NOTHING

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

    def with_budget(self, budget: float) -> dict[str, Any] | None:
        """The settings of the same divergence with another budget on every side; None where it has none.

        A clip range is not a budget: `asymmetric_ratio` and DCPO's have none.
        """
        settings = self.model_dump()
        sides = [key for key in settings if key in ("delta", "delta_low", "delta_high")]
        return {**settings, **dict.fromkeys(sides, budget)} if sides else None


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
    """|p - q| within a budget per side: p - q <= delta_high and q - p <= delta_low (DPPO-Binary-TV)."""

    kind: Literal["binary_total_variation"] = "binary_total_variation"
    delta_low: PositiveFrac
    """What the sampled token's probability may lose."""
    delta_high: PositiveFrac
    """What the sampled token's probability may gain."""
    of_single_tokens: ClassVar[bool] = True

    def _window_at(self, probability: float) -> Window:
        upper = min(1.0 + self.delta_high / probability, 1.0 / probability)
        return Window(max(0.0, 1.0 - self.delta_low / probability), upper)


class BinaryKL(Divergence):
    """KL between the two-outcome distributions (this token, any other) of anchor and policy (DPPO-Binary-KL).

    q log(q / p) + (1 - q) log((1 - q) / (1 - p)) <= delta.
    """

    kind: Literal["binary_kl"] = "binary_kl"
    delta: Budget
    """The budget: a token is feasible while its divergence is at most delta."""
    of_single_tokens: ClassVar[bool] = True

    def _window_at(self, probability: float) -> Window:
        # In the policy's log-odds z the divergence is softplus(z) - q z up to a constant, and convex.
        odds = math.log(probability) - math.log1p(-probability)
        level = self.delta + _softplus(odds) - probability * odds

        def excess(z: float) -> float:
            return _softplus(z) - probability * z - level

        # Beyond these log-odds one of the two terms alone exceeds the level.
        below = max(-level / probability - 1.0, _LEAST_LOG_ODDS)
        above = min(level / (1.0 - probability) + 1.0, -_LEAST_LOG_ODDS)
        low = find_root(excess, below, odds, xtol=1e-14) if excess(below) > 0.0 else -math.inf
        high = find_root(excess, odds, above, xtol=1e-14) if excess(above) > 0.0 else math.inf
        lower, upper = (math.exp(-_softplus(-z)) / probability for z in (low, high))
        return Window(min(lower, 1.0), max(upper, 1.0))


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


class BalancedWindow(Divergence):
    """BAPO: bounds that widen until positive advantages have their share of the minibatch's signal.

    From (lower, upper) the lower bound rises by `step` up to `lower_max`, then the upper one up to
    `upper_max`, and stops at the first window in which sum_{A > 0} min(w, u) A is at least
    `positive_frac` of itself plus sum_{A < 0} max(w, l) |A|; every minibatch starts afresh.
    Source: BAPO, arXiv 2510.18927, as in the recipe for verl.
    """

    kind: Literal["balanced_window"] = "balanced_window"
    lower: Annotated[float, Field(ge=0.0, le=1.0)]
    """The lower bound that the search starts with."""
    upper: Annotated[float, Field(ge=1.0, le=10.0)]
    """The upper bound that the search starts with."""
    lower_max: Annotated[float, Field(ge=0.0, le=1.0)]
    """The largest lower bound that is tried."""
    upper_max: Annotated[float, Field(ge=1.0, le=10.0)]
    """The largest upper bound that is tried."""
    step: Annotated[float, Field(ge=1e-3, le=10.0)]
    """What a bound moves by at a time."""
    positive_frac: Annotated[float, Field(ge=0.0, le=1.0)]
    """The share of the signal at which the search stops."""

    @property
    def needs(self) -> Needs:
        """A pass over the minibatch: the window depends on its ratios."""
        return Needs(prepare_pass=True)

    def window(self) -> Window:
        """Where the search starts."""
        return Window(self.lower, self.upper)

    def fixed_window(self) -> None:
        """None: every minibatch has its own."""

    @property
    def candidates(self) -> list[tuple[float, float]]:
        """The bounds that are tried, in their order."""
        lowers = _ladder(self.lower, self.lower_max, self.step)
        uppers = _ladder(self.upper, self.upper_max, self.step)
        return [(lower, self.upper) for lower in lowers] + [(lowers[-1], upper) for upper in uppers[1:]]


class SequenceMean(Divergence):
    """A completion is feasible where its mean over tokens of k1, k2 or k3 is within the budget.

    k1 = -log w (DeepSeek-V3.2's off-policy mask, arXiv 2512.02556), k2 = (log w)^2 / 2, k3 = w - 1 - log w
    (verl's sequence masks; arXiv 2512.23075 takes the maximum instead of the mean).
    """

    kind: Literal["sequence_mean"] = "sequence_mean"
    estimator: Literal["k1", "k2", "k3"]
    """How a token's divergence is measured."""
    delta: Budget
    """The budget: a token is feasible while its divergence is at most delta."""
    has_window: ClassVar[bool] = False


class StateDivergence(Divergence):
    """KL(anchor || policy) or total variation of the next-token distribution, over the vocabulary (TR-PPO).

    The value arrives as `PolicyTokens.divergence_BT`; see `method/state_divergences.py`.
    """

    kind: Literal["state_kl", "state_total_variation"]
    delta: Budget
    """The budget: a token is feasible while its divergence is at most delta."""
    has_window: ClassVar[bool] = False

    @property
    def needs(self) -> Needs:
        """The distributions of anchor and policy at every position."""
        return Needs(anchor_pass=True, distribution="full")

    @property
    def measure(self) -> Literal["kl", "total_variation"]:
        """What is measured between the two distributions."""
        return "kl" if self.kind == "state_kl" else "total_variation"


class TopKDivergence(Divergence):
    """The same over the anchor's most likely tokens and a bucket of the rest (DPPO, arXiv 2602.04879).

    The sampled token is always one of those that are told apart.
    """

    kind: Literal["top_k_kl", "top_k_total_variation"]
    delta: Budget
    """The budget: a token is feasible while its divergence is at most delta."""
    top_k: Count
    """How many tokens are told apart."""
    has_window: ClassVar[bool] = False

    @property
    def needs(self) -> Needs:
        """The distributions of anchor and policy at every position."""
        return Needs(anchor_pass=True, distribution="top_k", top_k=self.top_k)

    @property
    def measure(self) -> Literal["kl", "total_variation"]:
        """What is measured between the two distributions."""
        return "kl" if self.kind == "top_k_kl" else "total_variation"


def _ladder(start: float, end: float, step: float) -> list[float]:
    """start, start + step, ... up to and including end."""
    rungs = [start]
    while rungs[-1] < end - 1e-12:
        rungs.append(min(start + len(rungs) * step, end))
    return rungs


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))

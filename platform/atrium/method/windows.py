"""Divergences of one token's ratio, and the equivalent ratio windows, in float64 without torch.

In this module, a divergence is a function D(w) of the ratio w = pi_theta(a) / pi_behavior(a) with D(1) = 0
that does not decrease as w moves away from 1. The constraint D(w) <= delta is then equivalent to w in [l, u]
(arXiv 2602.05494, Theorem 4.2 for KL3), so the trust region of each such divergence is computed once per run
and costs as much as plain clipping. Functions take x = log w if that avoids cancellation near w = 1.

Divergences that also depend on the behavior probability, or on the whole distribution, have no constant
window; see `atrium.method.divergences`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from atrium.base.errors import MissingDependencyError

LogRatioFunction = Callable[[float], float]
_SERIES_BELOW = 1e-2
_LOG_RATIO_BRACKET = 700.0  # exp(700) is near the largest number of float64
MAX_UPPER = 1e6
"""Maximum upper bound of a window that is given by its bounds."""


@dataclass(frozen=True, slots=True)
class Window:
    """The ratios w with lower <= w <= upper. A `lower` of 0, or an infinite `upper`, never binds.

    Examples
    --------
    ATR's window is the asymmetric clip range equivalent to its budget (arXiv 2602.05494, Theorem 4.2):

    >>> atr = window("kl3", 0.02314)
    >>> f"[{atr.lower:.4f}, {atr.upper:.4f}]"
    '[0.8000, 1.2308]'
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.lower <= 1.0 <= self.upper:
            raise ValueError(f"a window must contain 1 and must not contain negative ratios, got {self}")

    @property
    def is_unbounded(self) -> bool:
        """Whether neither side ever binds."""
        return self.lower == 0.0 and math.isinf(self.upper)

    @property
    def digits(self) -> tuple[str, str]:
        """Both bounds as text with ten significant digits; equal texts mean the same trust region."""
        return f"{self.lower:.10g}", f"{self.upper:.10g}"


UNBOUNDED = Window(0.0, math.inf)


@dataclass(frozen=True, slots=True)
class RatioDivergence:
    """A divergence D(w): its value, its limit as w goes to 0, and its curvature at w = 1.

    `curvature` is D''(1), or None if D has a kink there. It determines the width of a small window (u - 1 and
    1 - l are about sqrt(2 delta / curvature)), so equal budgets of different divergences are not equal trust
    regions. `binds_above` is False for divergences that do not limit ratios above 1.
    """

    of_log_ratio: LogRatioFunction
    limit_at_zero: float
    curvature: float | None
    binds_above: bool = True

    def value(self, ratio: float) -> float:
        """Return D(w) for a ratio w >= 0."""
        if ratio < 0.0:
            raise ValueError(f"a ratio must not be negative, got {ratio}")
        return self.limit_at_zero if ratio == 0.0 else self.of_log_ratio(math.log(ratio))

    def window(self, delta: float) -> Window:
        """Return all ratios with D(w) <= delta, to a relative error of 1e-12 in both bounds.

        Raises `ValueError` for a budget that is negative or not finite.
        """
        if not 0.0 <= delta < math.inf:
            raise ValueError(f"a budget must be at least 0 and finite, got {delta}")
        if delta == 0.0:
            return Window(1.0, 1.0 if self.binds_above else math.inf)
        lower = 0.0 if delta >= self.limit_at_zero else math.exp(self._solve(delta, sign=-1.0))
        upper = math.exp(self._solve(delta, sign=1.0)) if self.binds_above else math.inf
        return Window(lower, upper)

    def _solve(self, delta: float, *, sign: float) -> float:
        """Return the log-ratio at which D equals delta, on the side of 0 that `sign` (+-1) gives.

        D grows monotonically from 0 on both sides. If it stays below delta as far as +-700, the result is
        infinity for sign 1 and -700 for sign -1.
        """
        edge = 1e-9
        while self.of_log_ratio(sign * edge) < delta:
            edge *= 2.0
            if edge > _LOG_RATIO_BRACKET:
                return sign * math.inf if sign > 0 else -_LOG_RATIO_BRACKET
        return sign * find_root(lambda size: self.of_log_ratio(sign * size) - delta, 0.0, edge, xtol=1e-300)


def share_after_batch(share: float, window: Window) -> float:
    """Return the share of good answers after training on one batch until the window stops all changes.

    Training raises the share p of good answers until its ratio is u, and lowers the share 1 - p of bad ones
    until its ratio is l. The looser bound decides: min(1, max(u p, 1 - l (1 - p))). This approximation
    assumes that one token decides whether an answer is good, and that steps are small (see
    `docs/designs.md`).

    Examples
    --------
    >>> f"{share_after_batch(0.4, Window(0.8, 1.2)):.2f}, {share_after_batch(0.6, Window(0.8, 1.2)):.2f}"
    '0.52, 0.72'
    """
    if share <= 0.0:
        return 1.0 - window.lower
    return min(1.0, max(window.upper * share, 1.0 - window.lower * (1.0 - share)))


def find_root(function: Callable[[float], float], low: float, high: float, *, xtol: float) -> float:
    """Return a function's root between `low` and `high`, where the function must have different signs.

    The error is at most `xtol` + 1e-15 |root|. Raises `MissingDependencyError` if scipy is not installed.
    Programs whose windows need no root search run without scipy.
    """
    try:
        from scipy.optimize import brentq
    except ImportError as error:
        raise MissingDependencyError(
            "the window of this divergence requires scipy, which is not installed; run `pip install scipy`"
        ) from error
    return float(brentq(function, low, high, xtol=xtol, rtol=1e-15))


def _exponential_remainder(x: float) -> float:
    """Return exp(x) - 1 - x without the cancellation near 0."""
    if abs(x) < _SERIES_BELOW:
        return x * x * (0.5 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720 + x / 5040)))))
    return math.expm1(x) - x


def _reversed_kl_remainder(x: float) -> float:
    """Return 1 + exp(x) (x - 1), that is w log w - w + 1, without the cancellation near 0."""
    if abs(x) < _SERIES_BELOW:
        return x * x * (0.5 + x * (1 / 3 + x * (1 / 8 + x * (1 / 30 + x * (1 / 144 + x / 840)))))
    return x * math.exp(x) - math.expm1(x)


def _jensen_shannon(x: float) -> float:
    ratio = math.exp(x)
    return 0.5 * (ratio * x - (ratio + 1.0) * math.log1p(0.5 * math.expm1(x)))


def alpha_divergence(alpha: float) -> RatioDivergence:
    """Return (w^a - a w + a - 1) / (a (a - 1)); its limits are KL3 at a = 0 and w log w - w + 1 at a = 1."""
    if alpha == 0.0:
        return DIVERGENCES["kl3"]
    if alpha == 1.0:
        return RatioDivergence(_reversed_kl_remainder, limit_at_zero=1.0, curvature=1.0)

    def of_log_ratio(x: float) -> float:
        if abs(rest := alpha - 1.0) < 0.1:  # near the limit at a = 1, the difference below cancels
            return (_reversed_kl_remainder(x) + math.exp(x) * _exponential_remainder(rest * x) / rest) / alpha
        # expm1(a x) - a expm1(x) = remainder(a x) - a remainder(x): the linear terms cancel exactly.
        remainder = _exponential_remainder(alpha * x) - alpha * _exponential_remainder(x)
        return remainder / (alpha * (alpha - 1.0))

    limit = 1.0 / alpha if alpha > 0.0 else math.inf
    return RatioDivergence(of_log_ratio, limit_at_zero=limit, curvature=1.0)


DIVERGENCES: dict[str, RatioDivergence] = {
    # |w - 1|: the clip range of PPO.
    "ratio": RatioDivergence(lambda x: abs(math.expm1(x)), limit_at_zero=1.0, curvature=None),
    # |log w|, the absolute value of the estimator k1.
    "k1": RatioDivergence(abs, limit_at_zero=math.inf, curvature=None),
    # -log w itself: bounds w from below only.
    "k1_signed": RatioDivergence(
        lambda x: max(-x, 0.0), limit_at_zero=math.inf, curvature=None, binds_above=False
    ),
    # (log w)^2 / 2.
    "k2": RatioDivergence(lambda x: 0.5 * x * x, limit_at_zero=math.inf, curvature=1.0),
    # w - 1 - log w, whose mean under the behavior policy is KL(behavior || policy).
    "kl3": RatioDivergence(_exponential_remainder, limit_at_zero=math.inf, curvature=1.0),
    # KL3 of 1 / w.
    "kl3_reversed": RatioDivergence(
        lambda x: _exponential_remainder(-x), limit_at_zero=math.inf, curvature=1.0
    ),
    # (w - 1)^2 / 2.
    "chi2": RatioDivergence(lambda x: 0.5 * math.expm1(x) ** 2, limit_at_zero=0.5, curvature=1.0),
    # (sqrt w - 1)^2, the squared Hellinger distance up to a factor.
    "hellinger": RatioDivergence(lambda x: math.expm1(0.5 * x) ** 2, limit_at_zero=1.0, curvature=0.5),
    # [w log w - (w + 1) log((w + 1) / 2)] / 2.
    "jensen_shannon": RatioDivergence(_jensen_shannon, limit_at_zero=0.5 * math.log(2.0), curvature=0.25),
    # |w - 1| / 2.
    "total_variation": RatioDivergence(lambda x: 0.5 * abs(math.expm1(x)), limit_at_zero=0.5, curvature=None),
}


@cache
def window(kind: str, delta: float, *, alpha: float = 0.0) -> Window:
    """Return the window of divergence `kind` at budget `delta`; `alpha` is used only by `kind="alpha"`."""
    return divergence(kind, alpha=alpha).window(delta)


def divergence(kind: str, *, alpha: float = 0.0) -> RatioDivergence:
    """Return the divergence `kind`: a key of `DIVERGENCES`, or `"alpha"`."""
    return alpha_divergence(alpha) if kind == "alpha" else DIVERGENCES[kind]


def budget_for_upper(kind: str, upper: float) -> float:
    """Return the budget whose window has this upper bound, such as 0.03314 for `kl3` and a bound of 1.28.

    Raises `ValueError` for `k1_signed`, which has no upper bound, and for a bound outside [1, 1e6].
    """
    chosen = divergence(kind)
    if not chosen.binds_above:
        raise ValueError(
            f"{kind} does not limit the ratio from above, so no budget gives the upper bound {upper}"
        )
    if not 1.0 <= upper <= MAX_UPPER:
        raise ValueError(f"upper must be at least 1 and at most {MAX_UPPER:g}, got {upper}")
    return chosen.value(upper)


def budget_for_lower(kind: str, lower: float) -> float:
    """Return the budget whose window has this lower bound, such as 0.02314 for `kl3` and a bound of 0.8.

    Raises `ValueError` for a bound outside (0, 1].
    """
    if not 0.0 < lower <= 1.0:
        raise ValueError(f"lower must be greater than 0 and at most 1, got {lower}")
    return divergence(kind).value(lower)

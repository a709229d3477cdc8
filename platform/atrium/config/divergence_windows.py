"""The window [l, u] that a configured divergence stands for, in float64 and without torch.

Three cases: a constant window; a window that depends on the behavior probability q of the sampled token;
none (whole distributions, whole completions, bounds found anew for each minibatch). The formulas of the
second case are those of `atrium.objective.token_windows`, which computes them per token.
"""

from __future__ import annotations

import math
from typing import Any

from scipy.optimize import brentq

from atrium import windows
from atrium.config.objective_divergences import (
    AlphaDivergenceConfig,
    AsymmetricRatioConfig,
    BalancedWindowConfig,
    BinaryKLConfig,
    BinaryTotalVariationConfig,
    BudgetDivergenceConfig,
    DivergenceConfig,
    DynamicClipConfig,
    NoDivergenceConfig,
    WindowConfig,
)
from atrium.windows import RatioDivergence, Window

_LEAST_LOG_ODDS = -750.0


def constant_window(divergence: DivergenceConfig) -> Window | None:
    """The window that is the same for all tokens, or None; BAPO's is where its search starts."""
    match divergence:
        case NoDivergenceConfig():
            return windows.UNBOUNDED
        case BudgetDivergenceConfig(kind="ratio", delta=delta):
            return Window(max(0.0, 1.0 - delta), 1.0 + delta)
        case BudgetDivergenceConfig() | AlphaDivergenceConfig():
            return ratio_divergence(divergence).window(divergence.delta)
        case AsymmetricRatioConfig(epsilon_low=low, epsilon_high=high):
            return Window(max(0.0, 1.0 - low), 1.0 + high)
        case WindowConfig(lower=lower, upper=upper) | BalancedWindowConfig(lower=lower, upper=upper):
            return Window(lower, upper)
        case _:
            return None


def ratio_divergence(divergence: BudgetDivergenceConfig | AlphaDivergenceConfig) -> RatioDivergence:
    """The function D(w) of a divergence that has one."""
    alpha = divergence.alpha if isinstance(divergence, AlphaDivergenceConfig) else 0.0
    return windows.divergence(divergence.kind, alpha=alpha)


def depends_on_probability(divergence: DivergenceConfig) -> bool:
    """Whether the window differs with the behavior probability of the sampled token."""
    return isinstance(divergence, BinaryTotalVariationConfig | BinaryKLConfig | DynamicClipConfig)


def window_at(divergence: DivergenceConfig, probability: float) -> Window | None:
    """The window of a token whose behavior probability lies in (0, 1); None where there is none."""
    if not 0.0 < probability < 1.0:
        raise ValueError(f"a probability lies in (0, 1), got {probability}")
    match divergence:
        case BinaryTotalVariationConfig(delta_low=low, delta_high=high):
            upper = min(1.0 + high / probability, 1.0 / probability)
            return Window(max(0.0, 1.0 - low / probability), upper)
        case BinaryKLConfig(delta=delta):
            return _binary_kl_window(probability, delta)
        case DynamicClipConfig(epsilon_low=low, epsilon_high=high, cap=cap):
            lower = 0.5 + 0.5 * math.sqrt(max(1.0 - 4.0 * low / probability, 0.0))
            return Window(lower, min(0.5 + 0.5 * math.sqrt(1.0 + 4.0 * high / probability), cap))
        case _:
            return constant_window(divergence)


def with_budget(divergence: DivergenceConfig, budget: float) -> dict[str, Any] | None:
    """The settings of the same divergence with another budget on every side; None where it has none.

    A clip range is not a budget: `asymmetric_ratio` and DCPO's have none.
    """
    settings = divergence.model_dump()
    sides = [key for key in settings if key in ("delta", "delta_low", "delta_high")]
    return {**settings, **dict.fromkeys(sides, budget)} if sides else None


def _binary_kl_window(probability: float, delta: float) -> Window:
    """Where q log(q / p) + (1 - q) log((1 - q) / (1 - p)) reaches delta on either side of p = q."""
    odds = math.log(probability) - math.log1p(-probability)
    level = delta + _softplus(odds) - probability * odds

    def excess(z: float) -> float:
        return _softplus(z) - probability * z - level

    # Beyond these log-odds one of the two terms alone exceeds the level.
    below = max(-level / probability - 1.0, _LEAST_LOG_ODDS)
    above = min(level / (1.0 - probability) + 1.0, -_LEAST_LOG_ODDS)
    low = brentq(excess, below, odds, xtol=1e-14, rtol=1e-15) if excess(below) > 0.0 else -math.inf
    high = brentq(excess, odds, above, xtol=1e-14, rtol=1e-15) if excess(above) > 0.0 else math.inf
    lower, upper = (math.exp(-_softplus(-z)) / probability for z in (low, high))
    return Window(min(lower, 1.0), max(upper, 1.0))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))

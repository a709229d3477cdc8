"""A fit of learning curves that separates a curve's ceiling from its efficiency.

    R(C) = R0 + (R_max - R0) / (1 + (C_mid / C)^B)

C is the cost in steps or tokens, R0 the given score at the start, R_max the ceiling, C_mid the cost at half
of the rise, and B the steepness of the rise. Source: arXiv 2510.13786 (ScaleRL), eq. 1. Atrium adds an
interval for the ceiling: the profile likelihood interval for independent errors.

If a curve does not bend, many ceilings fit it equally well. The interval is then wide, and the ceiling, C_mid
and B count as unknown.

Axes: N points of one curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq, least_squares
from scipy.special import fdtri

from atrium.stats.arrays import Floats
from atrium.stats.estimates import Interval

MIN_POINTS = 8
_NUM_CEILINGS = 24
_MAX_WIDTH, _MIN_WAY = 0.25, 0.75
"""Criteria for a known ceiling: maximum width of its interval as a share of the rise, and minimum share of
the rise reached."""
_MAX_LOG_STEEPNESS = 2.5
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingFit:
    """A curve's ceiling with its 95 % interval, and its efficiency: `midpoint` (C_mid) and `steepness` (B).

    `way_frac` is the share of the rise from `start` to the ceiling that the fitted curve has reached at the
    last point.
    """

    start: float
    ceiling: float
    ceiling_interval: Interval
    midpoint: float
    steepness: float
    way_frac: float

    @property
    def is_known(self) -> bool:
        """Whether the curve bends enough to determine its ceiling."""
        low, high = self.ceiling_interval
        return self.way_frac >= _MIN_WAY and high - low <= _MAX_WIDTH * (self.ceiling - self.start)


def fit_ceiling(spent_N: Floats, score_N: Floats, *, start: float, most: float = 1.0) -> CeilingFit | None:
    """Fit a curve that rises from `start` to a ceiling of at most `most`.

    Returns None unless at least 8 finite points have a cost above 0, at least one of them has a score above
    `start`, and `start` < `most`.
    """
    known_N = np.isfinite(spent_N) & np.isfinite(score_N) & (spent_N > 0.0)
    log_spent_N, score_N = np.log(spent_N[known_N]), score_N[known_N]
    if len(score_N) < MIN_POINTS or score_N.max() <= start or start >= most:
        return None
    curve = _Curve(log_spent_N, score_N, start)
    lowest = start + 0.02 * (most - start)
    tried = [curve.fit_at(float(one)) for one in np.linspace(lowest, most, _NUM_CEILINGS)]
    best = min(tried, key=lambda fit: fit.cost)
    fit = curve.fit([best.ceiling, best.log_midpoint, best.log_steepness], lowest, most)
    degrees = len(score_N) - 3
    allowed = fit.cost * (1.0 + float(fdtri(1, degrees, 0.95)) / degrees) + _ROUNDING

    def excess(ceiling: float) -> float:
        return curve.fit_at(ceiling).cost - allowed

    ends = [
        end if excess(end) <= 0.0 else float(brentq(excess, *sorted((end, fit.ceiling)), xtol=1e-5))
        for end in (lowest, most)
    ]
    return CeilingFit(
        start=start,
        ceiling=fit.ceiling,
        ceiling_interval=Interval(*ends),
        midpoint=math.exp(fit.log_midpoint),
        steepness=math.exp(fit.log_steepness),
        way_frac=float(_way(log_spent_N.max(), fit.log_midpoint, fit.log_steepness)),
    )


class _Fit(NamedTuple):
    """The parameters of a fit, and half its sum of squared errors (`cost`)."""

    cost: float
    ceiling: float
    log_midpoint: float
    log_steepness: float


@dataclass(frozen=True, slots=True)
class _Curve:
    """The points of a curve, and fits to them."""

    log_spent_N: Floats
    score_N: Floats
    start: float

    def fit(self, guess: Sequence[float], lowest: float, most: float) -> _Fit:
        """Return the best fit with a ceiling from `lowest` to `most`; the search starts at `guess`."""
        first, last = float(self.log_spent_N.min()), float(self.log_spent_N.max())
        reach = last - first + 10.0
        bounds = (
            [lowest, first - reach, -_MAX_LOG_STEEPNESS],
            [most + _ROUNDING, last + reach, _MAX_LOG_STEEPNESS],
        )
        found = least_squares(self._errors, np.clip(guess, *bounds), bounds=bounds)
        return _Fit(float(found.cost), *map(float, found.x))

    def fit_at(self, ceiling: float) -> _Fit:
        """Return the best fit for a given ceiling."""
        middle = float(np.median(self.log_spent_N))
        return self.fit([ceiling, middle, 0.0], ceiling - _ROUNDING, ceiling)

    def _errors(self, parameters: Floats) -> Floats:
        ceiling, log_midpoint, log_steepness = parameters
        way_N = _way(self.log_spent_N, log_midpoint, log_steepness)
        return np.asarray(self.start + (ceiling - self.start) * way_N - self.score_N)


def _way(log_spent_N: Floats, log_midpoint: float, log_steepness: float) -> Floats:
    """Return the share of the rise from start to ceiling that is reached at each cost."""
    exponent_N = np.exp(log_steepness) * (log_midpoint - log_spent_N)
    return np.asarray(1.0 / (1.0 + np.exp(np.clip(exponent_N, -50.0, 50.0))))

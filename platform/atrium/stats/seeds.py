"""Means over seeds of one number per run. Their t intervals over seeds hold for the same problems only.

Axes: S seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from atrium.stats.crossed import NO_SPREAD
from atrium.stats.simultaneous import CONFIDENCE


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over seeds, and its standard error (None for one seed)."""

    value: float
    standard_error: float | None
    num_seeds: int

    def interval(self) -> tuple[float, float] | None:
        """Return the 95 % t interval over seeds.

        Returns None for one seed, or if all seeds have the same value.
        """
        if self.standard_error is None or self.standard_error**2 <= NO_SPREAD:
            return None
        half = float(stdtrit(self.num_seeds - 1, 0.5 + CONFIDENCE / 2)) * self.standard_error
        return self.value - half, self.value + half


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The mean over seeds of a share in [0, 1], with its standard error and 95 % t interval if known."""

    value: float | None = None
    standard_error: float | None = None
    interval: tuple[float, float] | None = None


def mean_over_seeds(value_S: Sequence[float]) -> Mean:
    """Return the mean of one number per seed, for at least one seed."""
    values = np.asarray(value_S, dtype=np.float64)
    error = None if len(values) < 2 else float(values.std(ddof=1) / math.sqrt(len(values)))
    return Mean(float(values.mean()), error, len(values))


def score_over_seeds(value_S: Sequence[float | None]) -> Score:
    """Return the mean of the shares that are not None, with an interval truncated to [0, 1].

    If all shares are None, all fields of the result are None.
    """
    known = [value for value in value_S if value is not None]
    if not known:
        return Score()
    mean = mean_over_seeds(known)
    interval = mean.interval()
    ends = None if interval is None else (max(0.0, interval[0]), min(1.0, interval[1]))
    return Score(value=mean.value, standard_error=mean.standard_error, interval=ends)

"""Failure rates of an arm's runs with exact intervals, and the criterion for a collapsed score.

Sources: the exact interval of a share, Clopper and Pearson 1934.

Axes: P problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from atrium.stats.crossed import crossed_mean
from atrium.stats.estimates import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """The seeds of an arm's failed runs, and the number of all its runs."""

    seeds: tuple[int, ...]
    num_runs: int

    @property
    def interval(self) -> Interval:
        """The exact 95 % interval of the rate."""
        return exact_interval(len(self.seeds), self.num_runs)

    @property
    def words(self) -> str:
        """The rate as text, such as `2 of 5 (5.3 to 85.3 %, seeds 1, 3)`."""
        word = "seed" if len(self.seeds) == 1 else "seeds"
        named = f", {word} {', '.join(map(str, self.seeds))}" if self.seeds else ""
        return f"{self.short.removesuffix(')')}{named})"

    @property
    def short(self) -> str:
        """The rate as text without the seeds, such as `2 of 5 (5.3 to 85.3 %)`."""
        low, high = self.interval
        return f"{len(self.seeds)} of {self.num_runs} ({100 * low:.1f} to {100 * high:.1f} %)"


def exact_interval(count: float, num: int, *, confidence: float = 0.95) -> Interval:
    """Return the Clopper-Pearson interval of `count` / `num`; its coverage is at least `confidence`."""
    if not 0 <= count <= num or num < 1:
        raise ValueError(
            f"count must be between 0 and num, and num at least 1, got count={count} and num={num}"
        )
    tail = (1.0 - confidence) / 2.0
    low = float(betaincinv(count, num - count + 1, tail)) if count else 0.0
    high = float(betaincinv(count + 1, num - count, 1.0 - tail)) if count < num else 1.0
    return Interval(low, high)


def fell_below_start(before: Sequence[ArrayLike], after: Sequence[ArrayLike]) -> bool:
    """Return whether a run's score fell: whether the 95 % interval of the change is below 0.

    `before` and `after` have one array per benchmark, with each problem's share of correct answers, for the
    same problems in the same order. The interval is over problems, so the result is False if any benchmark
    has a single problem.
    """
    gaps = [np.subtract(end_P, start_P)[None, :] for start_P, end_P in zip(before, after, strict=True)]
    known = crossed_mean(gaps).new_problems if gaps else None
    return known is not None and known.interval.high < 0.0

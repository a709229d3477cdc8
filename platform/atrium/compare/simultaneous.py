"""Intervals that hold together: several candidates against one baseline, on one or several benchmarks.

Where five seeds or more are shared by all arms and their variances agree, the variance over seeds is pooled
over arms and the quantile is Dunnett's: the candidates share the baseline, so that their differences are
correlated by 1/2. Elsewhere each difference keeps its own error and Bonferroni's quantile is used. Arms that
vary unequally would make pooled intervals too narrow (they cover 80 to 94 % together, with a baseline three
times as noisy as the rest), and fewer seeds cannot show whether they do. Over benchmarks, Bonferroni.

Sources: Dunnett 1955; agreement of variances, Cochran's C (1941) at the level 0.2. The quantile is found by
integration: over the baseline by Gauss and Hermite, over the pooled variance by its quantiles.

Axes: A arms (the baseline first), S seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import chdtri, fdtri, ndtr, stdtr, stdtrit

CONFIDENCE = 0.95
MIN_SEEDS_POOLED = 5
_AGREEMENT = 0.2
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
_QUANTILES = (np.arange(200) + 0.5) / 200


class SeedSpread(NamedTuple):
    """The variance of a difference of two arms' means over seeds, pooled over arms, and how well known."""

    variance: float
    degrees_of_freedom: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What intervals have to hold together.

    `num_candidates` differences from one baseline on each of `num_benchmarks`, at each of `num_looks` planned
    numbers of seeds; `pooled` where the variance
    over seeds is pooled over arms, else None and `reason` says why not.
    """

    num_candidates: int = 1
    num_benchmarks: int = 1
    pooled: SeedSpread | None = None
    reason: str = ""
    num_looks: int = 1

    def quantile(self, degrees_of_freedom: float) -> float:
        """By how many standard errors an end lies from the difference, for 95 % over the family."""
        tail = (1.0 - CONFIDENCE) / (self.num_benchmarks * self.num_looks)
        if self.pooled is not None:
            return _dunnett_quantile(self.num_candidates, degrees_of_freedom, tail)
        return -float(stdtrit(degrees_of_freedom, tail / self.num_candidates / 2.0))

    def p_value(self, num_errors: float, degrees_of_freedom: float) -> float:
        """The least alpha at which an interval that lies so many standard errors from 0 leaves 0 out."""
        if self.pooled is not None:
            beyond = 1.0 - _dunnett_share(num_errors, self.num_candidates, degrees_of_freedom)
        else:
            beyond = self.num_candidates * 2.0 * float(stdtr(degrees_of_freedom, -num_errors))
        return min(max(beyond, 0.0) * self.num_benchmarks * self.num_looks, 1.0)

    @property
    def words(self) -> str:
        """The correction's name and what it covers; empty for a single difference."""
        name = "Dunnett" if self.pooled is not None else f"Bonferroni: {self.reason}"
        parts = (
            f"{self.num_candidates} candidates ({name})" if self.num_candidates > 1 else "",
            f"{self.num_benchmarks} benchmarks (Bonferroni)" if self.num_benchmarks > 1 else "",
            f"{self.num_looks} planned looks (Bonferroni)" if self.num_looks > 1 else "",
        )
        return " and ".join(part for part in parts if part)


SINGLE = Family()


def family_of(score_AS: NDArray[np.float64] | None, num_candidates: int, num_benchmarks: int = 1) -> Family:
    """The family of all candidates, from the seeds' means of all arms [A, S], or None if pairs differ.

    The shared part of a seed cancels in every difference, so the pooled variance is that of arms by seeds:
    twice the mean square over S, with (A - 1) (S - 1) degrees of freedom.
    """
    if num_candidates == 1:
        return Family(num_benchmarks=num_benchmarks)
    reason, pooled = "", None
    if score_AS is None:
        reason = "not all pairs are of the same seeds"
    elif score_AS.shape[1] < MIN_SEEDS_POOLED:
        reason = f"fewer than {MIN_SEEDS_POOLED} seeds"
    else:
        residual_AS = score_AS - score_AS.mean(axis=1, keepdims=True)
        residual_AS -= residual_AS.mean(axis=0)
        square_A = (residual_AS**2).sum(axis=1)
        if _agree(square_A, score_AS.shape[1]):
            degrees = float((len(score_AS) - 1) * (score_AS.shape[1] - 1))
            pooled = SeedSpread(2.0 * float(square_A.sum()) / degrees / score_AS.shape[1], degrees)
        else:
            reason = "the arms vary unequally"
    return Family(num_candidates=num_candidates, num_benchmarks=num_benchmarks, pooled=pooled, reason=reason)


def _agree(square_A: NDArray[np.float64], num_seeds: int) -> bool:
    """Whether no arm's share of the sum of squares is larger than chance makes it one time in five."""
    num_arms, total = len(square_A), float(square_A.sum())
    if total <= 1e-24:
        return True
    quantile = float(fdtri(num_seeds - 1, (num_arms - 1) * (num_seeds - 1), 1.0 - _AGREEMENT / num_arms))
    return float(square_A.max()) / total <= 1.0 / (1.0 + (num_arms - 1) / quantile)


@lru_cache(maxsize=4096)
def _dunnett_quantile(num_candidates: int, degrees_of_freedom: float, tail: float) -> float:
    def excess(num_errors: float) -> float:
        return _dunnett_share(num_errors, num_candidates, degrees_of_freedom) - (1.0 - tail)

    # Bonferroni's is never the smaller one, but for the error of integration.
    most = -float(stdtrit(degrees_of_freedom, tail / num_candidates / 2.0))
    return float(brentq(excess, 0.0, 1.1 * most, xtol=1e-6))


def _dunnett_share(num_errors: float, num_candidates: int, degrees_of_freedom: float) -> float:
    """The probability that no difference lies beyond so many standard errors of it, where none is real."""
    deviation = np.sqrt(chdtri(degrees_of_freedom, 1.0 - _QUANTILES) / degrees_of_freedom)
    reach = 2.0**0.5 * num_errors * deviation[:, None]
    within = (ndtr(_NODES + reach) - ndtr(_NODES - reach)) ** num_candidates
    return float((within @ _WEIGHTS).mean() / _WEIGHTS.sum())

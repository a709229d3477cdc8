"""Contrasts of curve outcomes: the difference of two arms' means, with its confidence interval over seeds.

Equal seeds of two arms share problems, initialization and random draws, so pairing them cancels much of the
variation between seeds. Unpaired seeds are compared as in `stats.unpaired`. The intervals of several
contrasts hold simultaneously by Bonferroni's method, which does not require a common baseline.

Axes: S seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atrium.compare.curve_index import recorded_curves
from atrium.runs.curve_outcomes import CurveOutcome
from atrium.runs.run_folder import RunFolder
from atrium.stats.estimates import Interval
from atrium.stats.pairing import pair_seeds
from atrium.stats.simultaneous import Family, SeedSpread
from atrium.stats.unpaired import unpaired_spread


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveContrast:
    """A candidate's mean outcome minus the baseline's, and the difference of each pair of seeds.

    `difference_S` is empty without pairing. The 95 % confidence interval holds simultaneously for all
    contrasts that are judged together. It is None if it cannot be estimated: if an arm has a single seed, or
    if the variance over seeds is 0.
    """

    difference: float
    difference_S: tuple[float, ...]
    interval: Interval | None

    @property
    def sign(self) -> int:
        """1 if the interval is above 0, -1 if it is below 0, and 0 otherwise."""
        if self.interval is None or self.interval.low <= 0.0 <= self.interval.high:
            return 0
        return 1 if self.difference > 0.0 else -1


def curve_contrast(
    candidate_S: Sequence[float],
    baseline_S: Sequence[float],
    *,
    num_together: int = 1,
    is_paired: bool = True,
) -> CurveContrast:
    """Return the difference of two arms' mean outcomes, with a 95 % confidence interval over seeds.

    The interval holds simultaneously for `num_together` contrasts. Paired arms list their seeds in the same
    order.

    Raises `ValueError` if an arm is empty, or if paired arms have different numbers of seeds.
    """
    if (is_paired and len(candidate_S) != len(baseline_S)) or not min(len(candidate_S), len(baseline_S)):
        raise ValueError("both arms must have at least one outcome, and paired arms must have the same seeds")
    difference_S, interval = np.zeros(0), None
    if is_paired:
        difference_S = np.subtract(candidate_S, baseline_S, dtype=np.float64)
        df_S = len(difference_S) - 1.0
        spread = SeedSpread(float(difference_S.var(ddof=1)) / (df_S + 1.0), df_S) if df_S else None
    else:
        spread = unpaired_spread(baseline_S, candidate_S)
    mean = float(np.mean(candidate_S) - np.mean(baseline_S))
    if spread and spread.variance > 0.0:
        quantile = Family(num_candidates=num_together).quantile(spread.degrees_of_freedom)
        half = quantile * spread.variance**0.5
        interval = Interval(mean - half, mean + half)
    return CurveContrast(difference=mean, difference_S=tuple(difference_S.tolist()), interval=interval)


def contrast_arms(
    value_by_arm: Mapping[str, Mapping[int, float | None]],
) -> dict[str, tuple[CurveContrast | None, str]]:
    """Return each later arm's contrast with the first arm, and a description of the seeds that were used.

    The result is keyed by the later arm. The intervals hold simultaneously for all contrasts. A contrast is
    None if an outcome that it needs is unknown.
    """
    (_, baseline), *candidates = value_by_arm.items()
    found: dict[str, tuple[CurveContrast | None, str]] = {}
    for name, candidate in candidates:
        pairing = pair_seeds(baseline, candidate)
        sides = (candidate, pairing.candidate), (baseline, pairing.baseline)
        known = [[value for seed in used if (value := own[seed]) is not None] for own, used in sides]
        contrast = None
        if all(len(values) == len(used) for values, (_, used) in zip(known, sides, strict=True)):
            contrast = curve_contrast(*known, num_together=len(candidates), is_paired=pairing.is_paired)
        found[name] = contrast, pairing.words
    return found


def curve_value(run: RunFolder, outcome: CurveOutcome) -> float | None:
    """Return the outcome of a run's recorded curve, or None if the curve does not determine it.

    Raises `OSError` if the run's metrics exist but cannot be read.
    """
    curves = recorded_curves(run)
    values = curves.columns.get(outcome.metric)
    return None if values is None else outcome.of_curve(curves.steps, values)

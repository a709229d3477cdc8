"""Arms compared by an outcome of their learning curves: each against the first one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atrium.base.errors import ConfigError
from atrium.compare.arms import Arm
from atrium.compare.curve_contrasts import CurveContrast, curve_contrast, curve_value
from atrium.compare.curve_index import recorded_curves
from atrium.compare.curves import Axis, axis_values
from atrium.runs.curve_outcomes import CurveOutcome
from atrium.runs.run_folder import RunFolder
from atrium.stats.ceilings import CeilingFit, fit_ceiling
from atrium.stats.pairing import SeedPairing, pair_seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCurves:
    """One outcome: each arm's values by seed, and each candidate's contrast with the first arm, by name."""

    outcome: CurveOutcome
    values: Mapping[str, Mapping[int, float]]
    contrasts: Mapping[str, CurveContrast]
    pairings: Mapping[str, SeedPairing]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCeilings:
    """Each arm's fits by seed (None where a curve cannot be fitted), and what can be said of candidates.

    The contrasts are of ceilings, and of the logarithm of the tokens at half way; they exist where every
    curve that they use shows its ceiling.
    """

    metric: str
    fits: Mapping[str, Mapping[int, CeilingFit | None]]
    ceilings: Mapping[str, CurveContrast]
    log_midpoints: Mapping[str, CurveContrast]
    pairings: Mapping[str, SeedPairing]


def compare_ceilings(arms: Sequence[Arm], metric: str) -> ArmCeilings:
    """Fit every run's curve of a metric against the tokens generated, and compare with the first arm."""
    fits = {arm.name: {seed: _fit(arm.runs[seed], metric) for seed in arm.seeds} for arm in arms}
    baseline, *candidates = arms
    pairings = _pairings(arms)
    ceilings, log_midpoints = {}, {}
    for arm in candidates:
        pairing = pairings[arm.name]
        own = [fits[arm.name][seed] for seed in pairing.candidate]
        other = [fits[baseline.name][seed] for seed in pairing.baseline]
        known = [[fit for fit in side if fit is not None and fit.is_known] for side in (own, other)]
        if len(known[0]) < len(own) or len(known[1]) < len(other):
            continue
        num, is_paired = len(candidates), pairing.is_paired
        of_ceilings = [[fit.ceiling for fit in side] for side in known]
        of_midpoints = [[math.log(fit.midpoint) for fit in side] for side in known]
        ceilings[arm.name] = curve_contrast(*of_ceilings, num_together=num, is_paired=is_paired)
        log_midpoints[arm.name] = curve_contrast(*of_midpoints, num_together=num, is_paired=is_paired)
    return ArmCeilings(
        metric=metric, fits=fits, ceilings=ceilings, log_midpoints=log_midpoints, pairings=pairings
    )


def _pairings(arms: Sequence[Arm]) -> dict[str, SeedPairing]:
    """The seeds that each candidate's contrast with the first arm uses, by the candidate's name."""
    return {arm.name: pair_seeds(arms[0].runs, arm.runs) for arm in arms[1:]}


def _fit(run: RunFolder, metric: str) -> CeilingFit | None:
    """The fit of a run's curve: a step's score is that of the policy before the step's tokens were spent."""
    columns = recorded_curves(run).columns
    tokens_N, score_N = axis_values(columns, Axis.TOKENS), columns.get(metric)
    if tokens_N is None or score_N is None or not len(score_N):
        return None
    return fit_ceiling(np.concatenate([[0.0], tokens_N[:-1]]), score_N, start=float(score_N[0]))


def compare_curves(arms: Sequence[Arm], outcome: CurveOutcome) -> ArmCurves:
    """The outcome of all arms, the first of which is the baseline; intervals hold together.

    Raises `ConfigError` where a run does not have it: no run is left out for that.
    """
    values = {arm.name: _values(arm, outcome) for arm in arms}
    baseline, *candidates = arms
    contrasts = {}
    pairings = _pairings(arms)
    for arm in candidates:
        pairing = pairings[arm.name]
        contrasts[arm.name] = curve_contrast(
            [values[arm.name][seed] for seed in pairing.candidate],
            [values[baseline.name][seed] for seed in pairing.baseline],
            num_together=len(candidates),
            is_paired=pairing.is_paired,
        )
    return ArmCurves(outcome=outcome, values=values, contrasts=contrasts, pairings=pairings)


def _values(arm: Arm, outcome: CurveOutcome) -> dict[int, float]:
    found = {}
    for seed in arm.seeds:
        value = curve_value(arm.runs[seed], outcome)
        if value is None:
            raise ConfigError(
                f"{arm.runs[seed].name} has no {outcome.words}: it did not record {outcome.metric} at all "
                "these steps; choose another metric or --until, or leave the run out"
            )
        found[seed] = value
    return found

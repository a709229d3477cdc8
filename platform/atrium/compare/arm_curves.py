"""Arms compared by an outcome of their learning curves: each against the first one, paired by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atrium.compare.arms import Arm, pair_seeds
from atrium.compare.ceilings import CeilingFit, fit_ceiling
from atrium.compare.curve_contrasts import CurveContrast, curve_contrast, curve_value
from atrium.compare.curve_index import recorded_curves
from atrium.compare.curves import Axis, axis_values
from atrium.errors import ConfigError
from atrium.tracking.curve_outcomes import CurveOutcome
from atrium.tracking.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCurves:
    """One outcome: each arm's values by seed, and each candidate's contrast with the first arm, by name."""

    outcome: CurveOutcome
    values: Mapping[str, Mapping[int, float]]
    contrasts: Mapping[str, CurveContrast]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCeilings:
    """Each arm's fits by seed (None where a curve cannot be fitted), and what can be said of candidates.

    The contrasts are of ceilings, and of the logarithm of the tokens at half way; they exist where every
    paired curve of both arms shows its ceiling.
    """

    metric: str
    fits: Mapping[str, Mapping[int, CeilingFit | None]]
    ceilings: Mapping[str, CurveContrast]
    log_midpoints: Mapping[str, CurveContrast]


def compare_ceilings(arms: Sequence[Arm], metric: str) -> ArmCeilings:
    """Fit every run's curve of a metric against the tokens generated, and compare with the first arm."""
    fits = {arm.name: {seed: _fit(arm.runs[seed], metric) for seed in arm.seeds} for arm in arms}
    baseline, *candidates = arms
    ceilings, log_midpoints = {}, {}
    for arm in candidates:
        pairs, _ = pair_seeds(baseline, arm)
        sides = [[fits[one.name][pair[side]] for pair in pairs] for side, one in enumerate((baseline, arm))]
        known = [[fit for fit in side if fit is not None and fit.is_known] for side in sides]
        if any(len(side) < len(pairs) for side in known):
            continue
        num = len(candidates)
        of_ceilings = [[fit.ceiling for fit in side] for side in known]
        of_midpoints = [[math.log(fit.midpoint) for fit in side] for side in known]
        ceilings[arm.name] = curve_contrast(*of_ceilings[::-1], num_together=num)
        log_midpoints[arm.name] = curve_contrast(*of_midpoints[::-1], num_together=num)
    return ArmCeilings(metric=metric, fits=fits, ceilings=ceilings, log_midpoints=log_midpoints)


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
    for arm in candidates:
        pairs, _ = pair_seeds(baseline, arm)
        contrasts[arm.name] = curve_contrast(
            [values[arm.name][seed] for _, seed in pairs],
            [values[baseline.name][seed] for seed, _ in pairs],
            num_together=len(candidates),
        )
    return ArmCurves(outcome=outcome, values=values, contrasts=contrasts)


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

"""The sections of a comparison on training: mean rewards, curve outcomes and staleness."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from atrium.base.errors import ConfigError
from atrium.base.metrics import (
    KL_BEFORE_UPDATE,
    OUTSIDE_BEFORE_UPDATE_FRAC,
    REWARD,
    STALENESS_STEPS,
    Quantity,
)
from atrium.base.records import Floats
from atrium.compare.arms import Arm
from atrium.compare.curve_contrasts import CurveContrast, contrast_arms, curve_value
from atrium.compare.curve_index import recorded_curves
from atrium.compare.curves import Band, GroupCurve, XAxis, axis_values, curve, group_curve
from atrium.document.document import Cell, Estimate, Row, Table, Unit, Value, plain_table
from atrium.runs.curve_outcomes import Area, CurveOutcome
from atrium.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from atrium.stats.ceilings import CeilingFit

_AGE: tuple[tuple[Quantity, str, Unit], ...] = (
    (STALENESS_STEPS, "age of a batch, steps", ""),
    (KL_BEFORE_UPDATE, "KL before the update, nats", ""),
    (OUTSIDE_BEFORE_UPDATE_FRAC, "outside the window before the update, %", "share"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Each arm's mean reward with the range over its seeds (None if not recorded), and tables on training."""

    rewards: dict[str, GroupCurve | None]
    tables: tuple[Table, ...]


def read_training(
    arms: Sequence[Arm],
    *,
    has_intervals: bool = True,
    outcomes: Sequence[CurveOutcome] = (),
    ceilings_of: Sequence[str] = (),
) -> Training:
    """Return the training rewards and tables of the arms.

    `has_intervals` says whether differences have intervals. `outcomes` are the requested outcomes of curves,
    and `ceilings_of` the metrics whose ceilings are estimated. Raises `ConfigError` if a run lacks an
    outcome.
    """
    wanted = [
        *(outcome_table(arms, one, has_intervals=has_intervals) for one in outcomes),
        *(ceiling_table(arms, one, has_intervals=has_intervals) for one in ceilings_of),
    ]
    columns = {arm.name: [recorded_curves(arm.runs[seed]).columns for seed in arm.seeds] for arm in arms}
    rewards = {}
    for name, of_seeds in columns.items():
        found = [(axis_values(one, XAxis.STEP), one.get(REWARD.name)) for one in of_seeds]
        drawn = [curve(x, y) for x, y in found if x is not None and y is not None]
        rewards[name] = group_curve(drawn, Band.RANGE)
    tables = (*wanted, *_areas(arms, rewards, has_intervals=has_intervals), *_staleness(columns))
    return Training(rewards=rewards, tables=tables)


def _areas(arms: Sequence[Arm], rewards: dict[str, GroupCurve | None], *, has_intervals: bool) -> list[Table]:
    """Return a list with one table: each arm's mean reward up to the last step that all runs recorded.

    The list is empty if a run lacks the reward of an earlier step, or if an arm has fewer than two steps with
    the rewards of all of its runs.
    """
    known = [one for one in rewards.values() if one is not None]
    whole = [one.x[one.num_runs == len(arm.seeds)] for one, arm in zip(known, arms, strict=False)]
    if len(known) < len(arms) or not all(len(steps) > 1 for steps in whole):
        return []
    until = int(min(steps[-1] for steps in whole))
    if any(len(steps[steps <= until]) < until for steps in whole):
        return []
    outcome = Area(kind="area", metric=REWARD.name, until=until)
    return [outcome_table(arms, outcome, has_intervals=has_intervals)]


def _staleness(columns: Mapping[str, Sequence[Mapping[str, Floats]]]) -> list[Table]:
    """Return a table on stale batches, in a list that is empty if every batch has age 0.

    The table contains means over steps and seeds: the age of a batch in steps, and, before the update,
    KL(behavior || policy) in nats per token and the share of tokens outside the trust region. `columns` maps
    arms to the curves of each seed.
    """

    def mean(of_seeds: Sequence[Mapping[str, Floats]], quantity: Quantity) -> float | None:
        found = [one[quantity.name] for one in of_seeds if quantity.name in one]
        finite = np.concatenate([values[np.isfinite(values)] for values in found]) if found else np.zeros(0)
        return float(finite.mean()) if len(finite) else None

    if not any(mean(of_seeds, STALENESS_STEPS) for of_seeds in columns.values()):
        return []
    rows = (
        Row((name, *(Value(mean(of_seeds, quantity), unit) for quantity, _, unit in _AGE)))
        for name, of_seeds in columns.items()
    )
    return [
        plain_table(
            "Staleness, means over steps and seeds",
            ("arm", *(title for _, title, _ in _AGE)),
            rows,
            key="staleness",
        )
    ]


def outcome_table(arms: Sequence[Arm], outcome: CurveOutcome, *, has_intervals: bool) -> Table:
    """Return each arm's mean of an outcome over seeds, and its difference from the first arm.

    Raises `ConfigError` if a run lacks the outcome, since leaving the run out would bias the mean.
    """
    values = {arm.name: _values(arm, outcome) for arm in arms}
    compared = contrast_arms(values)
    rows = []
    for name, value_by_seed in values.items():
        contrast, seeds = compared.get(name, (None, None))
        mean = Value(float(np.mean(list(value_by_seed.values()))))
        cells = _contrast_cells(contrast, has_intervals)
        rows.append((name, len(value_by_seed), mean, *cells, seeds))
    titles = ("arm", "seeds", "mean", "difference", "interval over seeds", "compared seeds")
    return plain_table(
        f"Training: {outcome.words}, against {arms[0].name}{_together(len(compared))}",
        titles,
        rows,
        key=f"outcome/{outcome.metric}",
    )


def _values(arm: Arm, outcome: CurveOutcome) -> dict[int, float]:
    found = {}
    for seed in arm.seeds:
        value = curve_value(arm.runs[seed], outcome)
        if value is None:
            raise ConfigError(
                f"{arm.runs[seed].name} has no {outcome.words}, since it did not record {outcome.metric} "
                "at every step; choose another metric or --until, or leave out the run"
            )
        found[seed] = value
    return found


def ceiling_table(arms: Sequence[Arm], metric: str, *, has_intervals: bool) -> Table:
    """Return a table of the ceilings of learning curves, with differences from the first arm.

    Each run's curve of the metric is fitted against the number of tokens generated. The table also contains
    the number of tokens at which the fitted curve has completed half of its rise. A difference is left out if
    a run that it uses has no known ceiling.
    """
    fits = {arm.name: {seed: _known_fit(arm.runs[seed], metric) for seed in arm.seeds} for arm in arms}

    def compared(of: Callable[[CeilingFit], float]) -> dict[str, tuple[CurveContrast | None, str]]:
        return contrast_arms(
            {
                arm: {seed: None if fit is None else of(fit) for seed, fit in own.items()}
                for arm, own in fits.items()
            }
        )

    ceilings = compared(lambda fit: fit.ceiling)
    log_midpoints = compared(lambda fit: math.log(fit.midpoint))
    rows = []
    for name, fit_by_seed in fits.items():
        known = [fit for fit in fit_by_seed.values() if fit is not None]
        middle: tuple[Cell, Cell] = ("unknown", "unknown")
        if known:
            ceiling = float(np.mean([fit.ceiling for fit in known]))
            midpoint = math.exp(np.mean([math.log(fit.midpoint) for fit in known]))
            middle = (Value(ceiling), Value(midpoint, "count"))
        contrast, seeds = ceilings.get(name, (None, None))
        rows.append(
            (
                name,
                f"{len(known)} of {len(fit_by_seed)}",
                middle[0],
                *_contrast_cells(contrast, has_intervals),
                middle[1],
                *_ratio_cells(log_midpoints.get(name, (None, None))[0], has_intervals),
                seeds,
            )
        )
    titles = ["arm", "curves with a ceiling", "ceiling", "difference", "interval"]
    titles += ["tokens at half of the rise", "ratio", "interval of the ratio", "compared seeds"]
    return plain_table(
        f"Learning curve of {metric} by tokens, fitted per seed: ceiling, and tokens at half of the "
        f"rise, against {arms[0].name}{_together(len(arms) - 1)}",
        titles,
        rows,
        key=f"ceiling/{metric}",
    )


def _known_fit(run: RunFolder, metric: str) -> CeilingFit | None:
    """Return the fit of a run's curve, or None if the curve does not determine its ceiling.

    A step's score belongs to the policy before this step, so its x-value is the tokens of earlier steps.
    """
    columns = recorded_curves(run).columns
    tokens_N, score_N = axis_values(columns, XAxis.TOKENS), columns.get(metric)
    if tokens_N is None or score_N is None or not len(score_N):
        return None
    from atrium.stats.ceilings import fit_ceiling  # scipy.optimize

    fit = fit_ceiling(np.concatenate([[0.0], tokens_N[:-1]]), score_N, start=float(score_N[0]))
    return fit if fit is not None and fit.is_known else None


def _contrast_cells(contrast: CurveContrast | None, has_interval: bool) -> tuple[Cell, Cell]:
    """Return the table cells of a difference and its confidence interval."""
    if contrast is None:
        return None, None
    interval = contrast.interval if has_interval else None
    return Value(contrast.difference, is_signed=True), Estimate(None, interval, is_signed=True)


def _ratio_cells(contrast: CurveContrast | None, has_interval: bool) -> tuple[Cell, Cell]:
    """Return the table cells of a ratio and its interval, from a difference of natural logarithms."""
    if contrast is None:
        return None, None
    ends = contrast.interval if has_interval else None
    interval = None if ends is None else (math.exp(ends.low), math.exp(ends.high))
    return Value(math.exp(contrast.difference), "ratio"), Estimate(None, interval, "ratio")


def _together(num_candidates: int) -> str:
    return f"; 95 % over {num_candidates} candidates (Bonferroni)" if num_candidates > 1 else ""

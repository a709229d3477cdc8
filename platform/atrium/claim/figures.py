"""Figures of a claim's runs, as in the paper: training curves, or scores by arm and number of samples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from atrium.claim.definition import Claim, CurveScore, ScoreOutcome
from atrium.claim.evidence import Runs, last_answers
from atrium.compare.curve_index import recorded_curves
from atrium.compare.judged_pairs import values_of
from atrium.compare.outcomes import OutcomeTable, outcome_table
from atrium.document.document import Axis, Bounds, Figure, Intervals, Lines, Picture, Series
from atrium.document.palette import places
from atrium.runs.run_folder import RunFolder
from atrium.stats.arm_pairs import MEAN, PASS

_WIDTH = 100
"""Number of steps in a curve's moving mean (or all steps, if fewer), as in Figure 2 of arXiv 2602.05494."""


def runs_picture(claim: Claim, runs: Runs) -> Picture:
    """Return the figures of a claim about runs as one picture, with all arms of its sweep."""
    outcome = claim.outcome
    place = places({arm: arm for arm in runs})
    figures: tuple[Figure, ...]
    if isinstance(outcome, CurveScore):
        figures = (_curves(outcome, runs, place),)
    else:
        assert isinstance(outcome, ScoreOutcome)
        tables = {arm: _tables(by_seed) for arm, by_seed in runs.items()}
        figures = (_scores(outcome, tables, place), *(_by_k(tables, m, place) for m in (MEAN, PASS)))
    title = f"{claim.title}: {claim.place}"
    return Picture(name=claim.name, title=title, figures=figures, num_columns=len(figures))


def _curves(outcome: CurveScore, runs: Runs, place: Mapping[str, int]) -> Lines:
    """Return a plot of a metric by training step, with one line per arm.

    A line is the metric's moving mean, averaged over seeds. `place` contains the place of each arm in the
    palette.
    """
    metric = outcome.curve.metric
    return Lines(
        key="curves",
        title=metric,
        x=Axis(title="training step", unit="count"),
        y=Axis(title=f"{metric}, mean of {_WIDTH} steps"),
        series=tuple(_smoothed(arm, by_seed, metric, place[arm]) for arm, by_seed in runs.items()),
    )


def _smoothed(arm: str, by_seed: Mapping[int, RunFolder], metric: str, place: int) -> Series:
    curves = [recorded_curves(run) for run in by_seed.values()]
    width = min(_WIDTH, len(curves[0].steps))
    weights = np.full(width, 1.0 / width)
    means = [np.convolve(curve.columns[metric], weights, mode="valid") for curve in curves]
    x, y = curves[0].steps[width - 1 :], np.mean(means, axis=0)
    return Series(name=arm, x=tuple(x.tolist()), y=tuple(y.tolist()), place=place)


def _scores(
    outcome: ScoreOutcome, tables: Mapping[str, list[OutcomeTable]], place: Mapping[str, int]
) -> Intervals:
    """Return a plot of each arm's score, with a dot per seed and the mean over seeds.

    Scores are averaged over benchmarks. `tables` contains one table per benchmark for each arm, and `place`
    the place of each arm in the palette.
    """
    rows = []
    for arm, found in tables.items():
        values = [values_of(one, outcome.measure, outcome.k).mean(axis=1) for one in found]
        mean_S = np.mean(values, axis=0)
        value, dots = float(mean_S.mean()), tuple(mean_S.tolist())
        rows.append(Bounds(name=arm, place=place[arm], value=value, dots=dots))
    return Intervals(
        key="scores",
        title="Scores by seed",
        x=Axis(title=f"{outcome.words}, %", unit="share"),
        rows=tuple(rows),
    )


def _by_k(tables: Mapping[str, list[OutcomeTable]], measure: str, place: Mapping[str, int]) -> Lines:
    """Return a plot of each arm's Pass@K or Mean@K against K, averaged over seeds and benchmarks.

    `measure` is `PASS` or `MEAN`. K ranges from 1 to the number of samples per problem. The line of
    Mean@K is flat, since the expected value of Mean@K does not depend on K.
    """
    series = []
    for arm, found in tables.items():
        k = min(min(table.num_samples_S) for table in found)
        if measure == MEAN:
            y_K = np.full(k, np.mean([values_of(table, MEAN, k).mean() for table in found]))
        else:
            y_K = np.mean([table.pass_up_to(k).mean(axis=(0, 1)) for table in found], axis=0)
        x = tuple(map(float, range(1, k + 1)))
        series.append(Series(name=arm, x=x, y=tuple(y_K.tolist()), place=place[arm]))
    return Lines(
        key=f"by_k/{measure}",
        title=f"{measure.capitalize()}@K by K",
        x=Axis(title="K", scale="log2"),
        y=Axis(title="%", unit="share"),
        series=tuple(series),
    )


def _tables(by_seed: Mapping[int, RunFolder]) -> list[OutcomeTable]:
    answers = [last_answers(run) for run in by_seed.values()]
    return [outcome_table(list(of_seeds)) for of_seeds in zip(*answers, strict=True)]

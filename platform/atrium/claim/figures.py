"""Draws the runs of a claim as its paper arranges them: curves by step, scores by arm and against k."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from atrium.claim.definition import Claim, CurveScore, ScoreOutcome
from atrium.claim.evidence import Runs, last_answers
from atrium.compare.arm_pairs import MEAN, values_of
from atrium.compare.curve_index import recorded_curves
from atrium.compare.figures.claims import Values, draw_claim_curves, draw_claim_scores
from atrium.compare.outcomes import OutcomeTable, outcome_table
from atrium.runs.run_folder import RunFolder

_WIDTH = 100
"""Steps that a curve's moving mean is over, as in Figure 2 of arXiv 2602.05494."""


def draw_runs(claim: Claim, runs: Runs, path: Path, cache_dir: Path) -> Path:
    """The figure of a claim about runs, with all arms of its sweep."""
    path.parent.mkdir(parents=True, exist_ok=True)
    outcome, title = claim.outcome, f"{claim.title}: {claim.place}"
    if isinstance(outcome, CurveScore):
        metric = outcome.curve.metric
        curves = {arm: _smoothed(list(by_seed.values()), metric) for arm, by_seed in runs.items()}
        return draw_claim_curves(title, f"{metric}, mean of {_WIDTH} steps", curves, path, cache_dir)
    assert isinstance(outcome, ScoreOutcome)
    tables = {arm: _tables(by_seed) for arm, by_seed in runs.items()}
    scores = {
        arm: np.mean([values_of(one, outcome.measure, outcome.k).mean(axis=1) for one in found], axis=0)
        for arm, found in tables.items()
    }
    by_k = {name: {arm: _by_k(found, name) for arm, found in tables.items()} for name in ("Mean@K", "Pass@K")}
    return draw_claim_scores(
        title, outcome.words, {arm: list(one) for arm, one in scores.items()}, by_k, path, cache_dir
    )


def _smoothed(runs: list[RunFolder], metric: str) -> tuple[Values, Values]:
    """Steps, and the mean over seeds of the metric's mean over the last steps."""
    curves = [recorded_curves(run) for run in runs]
    width = min(_WIDTH, len(curves[0].steps))
    weights = np.full(width, 1.0 / width)
    means = [np.convolve(curve.columns[metric], weights, mode="valid") for curve in curves]
    return curves[0].steps[width - 1 :], np.mean(means, axis=0)


def _tables(by_seed: Mapping[int, RunFolder]) -> list[OutcomeTable]:
    answers = [last_answers(run) for run in by_seed.values()]
    return [outcome_table(list(of_seeds)) for of_seeds in zip(*answers, strict=True)]


def _by_k(tables: list[OutcomeTable], name: str) -> list[float]:
    """Pass@k for k up to all samples; Mean@K does not depend on K."""
    k = min(min(table.num_samples_S) for table in tables)
    if name == "Mean@K":
        return [float(np.mean([values_of(table, MEAN, k).mean() for table in tables]))] * k
    curves = [table.pass_up_to(k).mean(axis=(0, 1)) for table in tables]
    return [float(value) for value in np.mean(curves, axis=0)]

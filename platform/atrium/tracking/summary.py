"""What came out of a run, as one small object computed from the rest of its folder: `summary.json`."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from atrium.metrics import NUM_TOKENS
from atrium.tracking.reader import EvaluationPoint, read_evaluations, read_findings, read_metrics, scores_of
from atrium.tracking.run_folder import RunFolder
from atrium.tracking.status import RunStatus, StatusUnreadableError, read_status

_IN_SUMMARY = (
    "step",
    "k",
    "mean_at_k",
    "pass_at_k",
    "interval_over_problems",
    "interval_sampling",
    "num_problems",
)
_BESIDE_SCORES = ("maj_at_k", "completion_length", "truncated_frac")
"""Where an evaluation recorded them: a score says little without its length and what was cut off."""


def summarize(folder: RunFolder) -> dict[str, object]:
    """The content of `summary.json`, from what the folder holds.

    `best` is the evaluation with the highest Mean@k of the same benchmark, and says in `selected_on` what
    it was chosen on: a best on test problems is an optimistic number, a verdict uses `last`. `findings` say
    what went wrong, by the rules of `diagnosis`.
    """
    try:
        status = read_status(folder.status_file)
    except StatusUnreadableError:
        status = RunStatus(state="unknown")
    metrics = read_metrics(folder)
    tokens = metrics.columns.get(NUM_TOKENS.name, np.zeros(0))
    evaluations = {}
    for benchmark, points in read_evaluations(folder).items():
        scores = scores_of(points)
        evaluations[benchmark] = {
            "first": entry(scores.first),
            "best": {**entry(scores.best), "selected_on": benchmark},
            "last": entry(scores.last),
        }
    return {
        "evaluations": evaluations,
        "num_steps": int(metrics.steps[-1]) if len(metrics.steps) else 0,
        "num_tokens": int(np.nansum(tokens)),
        "wall_s": status.wall_s,
        "status": str(status.state),
        "findings": [asdict(finding) for finding in read_findings(folder)],
    }


def entry(point: EvaluationPoint) -> dict[str, object]:
    """A point as `summary.json` holds it."""
    values = asdict(point)
    beside = {name: point.results[name] for name in _BESIDE_SCORES if name in point.results}
    return {**{name: values[name] for name in _IN_SUMMARY}, **beside}

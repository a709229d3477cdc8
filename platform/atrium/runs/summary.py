"""A run's results as one small object, `summary.json`, computed from the run directory."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from atrium.base.metrics import NUM_TOKENS
from atrium.runs.reader import read_evaluations, read_findings, read_metrics, scores_of
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import known_status


def summarize(folder: RunFolder) -> dict[str, object]:
    """Return the content of `summary.json`, computed from the other files of the run directory.

    Each benchmark has a `first`, `best` and `last` evaluation. `best` is the evaluation with the highest
    Mean@k on this benchmark, and also records the benchmark's name as `selected_on`. On test problems, the
    best score is optimistic, so conclusions should use `last`. `findings` are the problems found by the rules
    of `diagnosis`.
    """
    status = known_status(folder.status_file)
    metrics = read_metrics(folder)
    tokens = metrics.columns.get(NUM_TOKENS.name, np.zeros(0))
    evaluations = {}
    for benchmark, points in read_evaluations(folder).items():
        evaluations[benchmark] = scores = scores_of(points).as_record()
        scores["best"]["selected_on"] = benchmark
    return {
        "evaluations": evaluations,
        "num_steps": int(metrics.steps[-1]) if len(metrics.steps) else 0,
        "num_tokens": int(np.nansum(tokens)),
        "wall_s": status.wall_s,
        "status": str(status.state),
        "findings": [asdict(finding) for finding in read_findings(folder)],
    }

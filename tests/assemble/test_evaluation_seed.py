"""Every seed of a run sits the same exam: the answers' randomness has a seed of its own."""

from __future__ import annotations

import pyarrow.parquet as pq

from atrium.tracking.json_lines import read_json_lines


def first_answers(folder):
    """Every row of the evaluations before training, and the scores."""
    records = [r for r in read_json_lines(folder.evaluations_file).records if r["step"] == 0]
    rows = {
        path.parent.name: pq.read_table(path).to_pylist()
        for path in sorted(folder.evaluations_dir.glob("*/step-000000.parquet"))
    }
    return {record["benchmark"]: record["results"] for record in records}, rows


def test_the_one_starting_checkpoint_scores_alike_whatever_the_runs_seed(runs):
    first = runs.train("num_steps=1", "optimizer.num_warmup_steps=0", "seed=1", "experiment_name=first")
    second = runs.train("num_steps=1", "optimizer.num_warmup_steps=0", "seed=2", "experiment_name=second")
    assert first_answers(first) == first_answers(second)
    assert first_answers(first)[1].keys() == {"arithmetic-test", "arithmetic-validation"}
    other = runs.train(
        "num_steps=1", "optimizer.num_warmup_steps=0", "evaluation.seed=1", "experiment_name=other"
    )
    assert first_answers(other)[1] != first_answers(first)[1]

"""Which random draws an evaluation takes: before training one stream for all seeds, then one for each."""

from __future__ import annotations

import pyarrow.parquet as pq

from atrium.base.json_lines import read_json_lines


def answers(folder, step):
    """Every row of the evaluations at a step, and the scores."""
    records = [r for r in read_json_lines(folder.evaluations_file).records if r["step"] == step]
    rows = {
        path.parent.name: pq.read_table(path).to_pylist()
        for path in sorted(folder.evaluations_dir.glob(f"*/step-{step:06}.parquet"))
    }
    return {record["benchmark"]: record["results"] for record in records}, rows


def test_the_one_starting_checkpoint_scores_alike_whatever_the_runs_seed(runs):
    first = runs.train("num_steps=1", "optimizer.num_warmup_steps=0", "seed=1", "experiment_name=first")
    second = runs.train("num_steps=1", "optimizer.num_warmup_steps=0", "seed=2", "experiment_name=second")
    assert answers(first, 0) == answers(second, 0)
    assert answers(first, 0)[1].keys() == {"arithmetic-test", "arithmetic-validation"}
    other = runs.train(
        "num_steps=1", "optimizer.num_warmup_steps=0", "evaluation.seed=1", "experiment_name=other"
    )
    assert answers(other, 0)[1] != answers(first, 0)[1]


def test_after_training_different_seeds_share_no_draws_and_equal_seeds_of_two_methods_share_all(runs):
    """With a learning rate of nearly 0 all runs end with one policy, so that the draws alone tell."""
    still = ("num_steps=1", "optimizer.num_warmup_steps=0", "optimizer.learning_rate=1e-15")
    texts = {}
    for name, settings in {
        "one": ["seed=1"],
        "two": ["seed=2"],
        "grpo": ["seed=2", "algorithm=grpo"],
    }.items():
        _, by_benchmark = answers(runs.train(*still, *settings, f"experiment_name={name}"), 1)
        texts[name] = [row["text"] for rows in by_benchmark.values() for row in rows]
    assert texts["one"] != texts["two"], "two training seeds made the same slips at the same draws"
    assert texts["two"] == texts["grpo"]

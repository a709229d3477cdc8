"""From run directories to outcomes by seed and problem, at the point of training that was asked for."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from atrium.base.errors import RunFolderError
from atrium.compare.curve_index import index_of
from atrium.compare.outcomes import (
    At,
    OutcomeTable,
    common_answers,
    evaluations_at,
    outcome_table,
    read_answers,
    read_evaluated_run,
)


def test_answers_are_counted_by_problem(make_run):
    run = make_run("atr", 0, {("exam", 4): [0, 3, 4]})
    answers = read_answers(run, "exam", 4)
    assert answers.num_samples == 4
    assert answers.num_correct == {"p0": 0, "p1": 3, "p2": 4}


def test_runs_are_lined_up_on_the_problems_that_all_of_them_answered(make_run):
    short = read_answers(make_run("atr", 0, {("exam", 4): [1, 2]}), "exam", 4)
    long = read_answers(make_run("atr", 1, {("exam", 4): [4, 6, 8]}, k=8), "exam", 4)
    table = outcome_table([short, long])
    assert table.problem_ids == ("p0", "p1")
    assert_allclose(table.mean_at_k(), [[0.25, 0.5], [0.5, 0.75]])
    assert_allclose(table.pass_at(4), [[1.0, 1.0], [1 - 1 / 70, 1.0]])
    with pytest.raises(ValueError, match="smallest number of samples"):
        table.pass_at(5)


def test_equal_tokens_and_time_use_the_evaluation_nearest_to_the_cheapest_runs_cost(make_run):
    counts = {("exam", step): [2, 2] for step in (0, 2, 4)}
    cheap = read_evaluated_run(make_run("atr", 0, counts, step_tokens=100))
    dear = read_evaluated_run(make_run("grpo", 0, counts, step_tokens=200))
    assert dear.cost[At.TOKENS] == {0: 0.0, 2: 400.0, 4: 800.0}
    assert list(evaluations_at([cheap, dear], "exam", At.TOKENS).values()) == [4, 2]
    assert list(evaluations_at([cheap, dear], "exam", At.WALL_CLOCK).values()) == [4, 4]


def test_costs_do_not_depend_on_the_curve_index(make_run):
    run = make_run("atr", 0, {("exam", step): [2, 2] for step in (0, 2, 4)})
    without = read_evaluated_run(run).cost
    assert not run.cache_dir.exists(), "a run may be outside of any runs directory"
    run.cache_dir.mkdir()
    assert read_evaluated_run(run).cost == without
    index = index_of(run.cache_dir).path_of(run)
    written = index.stat().st_ino
    assert read_evaluated_run(run).cost == without
    assert index.stat().st_ino == written, "nothing new was recorded"
    index.write_bytes(b"damaged")
    assert read_evaluated_run(run).cost == without


def test_costs_follow_a_run_that_continues(make_run):
    run = make_run("atr", 0, {("exam", step): [2, 2] for step in (0, 2, 4)})
    run.cache_dir.mkdir()
    read_evaluated_run(run)
    lines = run.metrics_file.read_text().splitlines(keepends=True)
    run.metrics_file.write_text("".join(lines[:2]))
    assert read_evaluated_run(run).cost[At.TOKENS] == {0: 0.0, 2: 200.0, 4: 200.0}
    run.metrics_file.write_text("".join(lines))
    assert read_evaluated_run(run).cost[At.TOKENS] == {0: 0.0, 2: 200.0, 4: 400.0}
    run.metrics_file.unlink()
    assert At.TOKENS not in read_evaluated_run(run).cost


def test_equal_steps_use_the_last_step_that_all_runs_evaluated(make_run):
    runs = [
        read_evaluated_run(make_run("atr", 0, {("exam", step): [1] for step in steps}))
        for steps in ((0, 2, 3), (0, 2, 4))
    ]
    assert set(evaluations_at(runs, "exam", At.STEPS).values()) == {2}
    assert list(evaluations_at(runs, "exam", At.LAST).values()) == [3, 4]


def test_missing_and_damaged_answers_are_named(make_run):
    run = make_run("atr", 0, {("exam", 4): [1, 2]})
    with pytest.raises(RunFolderError, match="no samples of exam at step 2"):
        read_answers(run, "exam", 2)
    run.evaluation_path("exam", 4).write_bytes(b"no Parquet")
    with pytest.raises(RunFolderError, match="damaged"):
        read_answers(run, "exam", 4)


def test_runs_that_share_no_problem_cannot_be_lined_up(make_run):
    one = read_answers(make_run("atr", 0, {("exam", 4): [1, 2]}), "exam", 4)
    other = type(one)(benchmark="exam", step=4, num_samples=4, num_correct={"q": 1})
    with pytest.raises(RunFolderError, match="share no problem"):
        outcome_table([one, other])
    assert np.array_equal(outcome_table([one, one]).num_correct_SP, [[1, 2], [1, 2]])


def test_arms_are_compared_on_equal_numbers_of_answers():
    """More answers per problem make "every answer correct" rarer for the same policy."""
    generator = np.random.default_rng(0)
    names = tuple(f"p{number}" for number in range(400))

    def table(num_seeds):
        counts = generator.binomial(4, 0.9, (num_seeds, 400))
        return OutcomeTable(
            benchmark="exam", problem_ids=names, num_correct_SP=counts, num_samples_S=(4,) * num_seeds
        )

    tables = {"few": table(3), "many": table(8)}
    num_answers, correct = common_answers(tables)
    assert num_answers == 12
    shares = [np.mean(correct_P == num_answers) for correct_P in correct.values()]
    assert abs(shares[0] - shares[1]) < 0.08
    assert np.mean(tables["many"].num_correct_SP.sum(axis=0) == 32) < 0.08
    assert all((common_answers(tables)[1][name] == correct_P).all() for name, correct_P in correct.items())

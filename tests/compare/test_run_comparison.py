"""Whole comparisons of run directories: scores, pairs, verdicts, notes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from atrium.base.errors import ConfigError, RunFolderError
from atrium.compare.document_figures import pass_at
from atrium.compare.outcomes import At, outcome_table, read_answers
from atrium.compare.run_comparison import compare_runs
from atrium.stats import compare


def test_scores_are_means_over_seeds_and_problems_and_the_difference_is_of_scores(make_run):
    runs = [
        make_run("grpo", 0, {("exam", 4): [0, 2, 4]}),
        make_run("grpo", 1, {("exam", 4): [1, 2, 3]}),
        make_run("atr", 0, {("exam", 4): [2, 3, 4]}),
        make_run("atr", 1, {("exam", 4): [2, 2, 4]}),
    ]
    found = compare_runs(runs)
    assert [arm.arm.name for arm in found.arms] == ["grpo", "atr"]
    assert_allclose(found.arms[0].scores["mean"]["exam"].value, 0.5)
    pair = found.pair("atr", "mean", "exam")
    assert_allclose(pair.comparison.difference.value, (9 + 8) / 24 - 0.5)
    assert pair.pairing.words == "unpaired: seeds 0, 1 against 0, 1"
    assert found.title("mean") == "Mean@4"
    passed = [pass_at(found, "grpo", k).value for k in range(1, 5)]
    assert_allclose(passed, [0.5, (0 + 5 / 6 + 1 + 0.5 + 5 / 6 + 1) / 6, 0.7916666667, 5 / 6])
    assert found.num_problems == {"exam": 3}


def test_a_real_difference_is_found_and_noise_is_not(make_study):
    found = compare_runs(make_study({"grpo": 0.0, "atr": 0.25, "clip_higher": 0.0}, num_seeds=4))
    kinds = {arm: found.pair(arm, "mean", "exam").verdict.kind for arm in ("atr", "clip_higher")}
    assert kinds == {"atr": "better", "clip_higher": "not_distinguishable"}
    judged = found.pair("atr", "mean", "exam")
    assert judged.comparison.family.words == "2 candidates (Bonferroni)"
    assert found.best["mean", "exam"] == "atr"


def test_the_verdict_uses_the_macro_average_of_test_benchmarks(make_study):
    found = compare_runs(
        make_study({"grpo": 0.0, "atr": 0.2}, benchmarks=("easy", "hard", "exam-validation"))
    )
    assert found.benchmarks == ("easy", "hard")
    assert found.headline == "macro average"
    means = [found.arms[1].scores["mean"][name].value for name in ("easy", "hard", "macro average")]
    assert_allclose(means[2], np.mean(means[:2]))


def test_the_baseline_and_the_benchmarks_can_be_chosen(make_study):
    runs = make_study({"grpo": 0.0, "atr": 0.1}, benchmarks=("easy", "hard"))
    found = compare_runs(runs, baseline="atr", benchmarks=["hard"])
    assert [arm.arm.name for arm in found.arms] == ["atr", "grpo"]
    assert found.benchmarks == ("hard",)
    with pytest.raises(ConfigError, match="baseline dapo: unknown arm; use one of grpo, atr"):
        compare_runs(runs, baseline="dapo")
    with pytest.raises(ConfigError, match="benchmark aime"):
        compare_runs(runs, benchmarks=["aime"])


def test_checkpoints_of_one_arm_are_compared_by_seed_only_on_request(make_study):
    runs = make_study({"atr": 0.0}, num_seeds=2)
    with pytest.raises(ConfigError, match="group by seed"):
        compare_runs(runs)
    found = compare_runs(runs, by=["seed"])
    assert found.pairs[0].verdict.words.endswith("any difference is noise")
    assert not found.has_intervals


def test_runs_at_unequal_points_are_noted(make_run):
    counts = {("exam", step): [1, 2, 3] for step in (0, 4)}
    runs = [make_run("grpo", 0, counts), make_run("atr", 0, counts | {("exam", 6): [2, 2, 3]}, num_steps=6)]
    assert "at steps 4 to 6" in compare_runs(runs).notes[0]
    assert not compare_runs(runs, at=At.STEPS).notes
    dear = make_run("clip_higher", 0, counts, step_tokens=1000)
    assert "the nearest evaluations differ in tokens" in compare_runs([runs[0], dear], at=At.TOKENS).notes[0]


def test_runs_without_their_samples_cannot_be_compared(make_study):
    runs = make_study({"grpo": 0.0, "atr": 0.1}, num_seeds=1)
    runs[0].evaluation_path("exam", 4).unlink()
    with pytest.raises(RunFolderError, match="has no samples of exam"):
        compare_runs(runs)


def test_the_library_on_arrays_agrees_with_the_comparison_of_runs(make_study):
    runs = make_study({"grpo": 0.0, "atr": 0.25, "clip_higher": 0.0}, num_seeds=4)
    found = compare_runs(runs)
    answers = {
        one.arm.name: [read_answers(run, "exam", 4) for run in one.arm.runs.values()] for one in found.arms
    }
    values = {name: outcome_table(own).mean_at_k() for name, own in answers.items()}
    by_arrays = compare(values)
    assert [pair.words for pair in by_arrays.pairs] == [
        pair.words for pair in found.pairs if pair.measure == "mean" and pair.benchmark == "exam"
    ]
    assert by_arrays.best == found.best["mean", "exam"]

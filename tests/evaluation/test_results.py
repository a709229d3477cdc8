"""What a summary says beside the scores: majority, Pass^k, curves, lengths, and averages over benchmarks."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from atrium.base.records import EvaluatedSample, FinishReason, Problem, VerdictKind
from atrium.evaluation.results import summarize, summarize_all
from atrium.grading.grader import ENDLESS_THOUGHT
from atrium.stats.estimates import macro_average, pass_hat_k, sampling_interval

NUM_SAMPLES = 4
CORRECT = np.array([[1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1]], dtype=bool)


def sample(problem, index, *, is_correct, num_tokens=10, finish_reason=FinishReason.STOP, level="2"):
    return EvaluatedSample(
        problem=Problem(
            problem_id=f"p{problem}", question="q", answer="1", metadata={"level": level, "subject": "x"}
        ),
        sample_index=index,
        text="",
        verdict=VerdictKind.CORRECT if is_correct else VerdictKind.INCORRECT,
        reason="",
        extracted=None,
        is_correct=bool(is_correct),
        num_tokens=num_tokens,
        finish_reason=finish_reason,
        logprob_sum=0.0,
    )


def samples_of(correct_PK):
    return [
        sample(problem, index, is_correct=is_correct)
        for problem, row in enumerate(correct_PK)
        for index, is_correct in enumerate(row)
    ]


def results_of(correct_PK, **settings):
    return summarize(
        samples_of(correct_PK), num_samples=len(correct_PK[0]), pass_at=(1, 2, len(correct_PK[0])), **settings
    )


def test_the_curve_holds_every_k_and_ends_at_the_scores():
    results = results_of(CORRECT)
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    curve = results["curve"]
    assert {len(values) for values in curve.values()} == {NUM_SAMPLES}
    assert curve["mean_at_k"] == pytest.approx([2 / 3, 1 / 2, 5 / 9, 7 / 12])
    assert curve["mean_at_k"][-1] == pytest.approx(results["mean_at_k"])
    assert curve["pass_at_k"][-1] == pytest.approx(results["pass_at_k"])
    assert curve["pass_at_k"][1] == pytest.approx(results["pass_at"]["2"])
    assert curve["pass_at_k"][0] == curve["pass_hat_k"][0] == pytest.approx(results["mean_at_k"])


def test_pass_hat_k_has_both_intervals_and_its_sampling_noise_is_that_of_the_wrong_answers():
    results = results_of(CORRECT)
    num_correct_P = CORRECT.sum(axis=1)
    expected_PK = pass_hat_k(num_correct_P, NUM_SAMPLES)
    assert results["pass_hat"] == {
        str(k): pytest.approx(expected_PK[:, k - 1].mean()) for k in (1, 2, NUM_SAMPLES)
    }
    intervals = results["pass_hat_intervals"]
    wrong = sampling_interval(NUM_SAMPLES - num_correct_P, NUM_SAMPLES, 2)
    assert intervals["2"]["sampling"] == pytest.approx([1 - wrong.high, 1 - wrong.low])
    assert intervals["4"]["sampling"] is None, "needs 8 samples"
    low, high = intervals["2"]["over_problems"]
    assert low <= results["pass_hat"]["2"] <= high


def test_the_majority_is_there_where_it_was_counted():
    assert "maj_at_k" not in results_of(CORRECT)
    results = results_of(CORRECT, majority_P={2: np.array([0.5, 0.5, 0.0]), 4: np.array([0.5, 1.0, 0.0])})
    assert results["maj_at_k"] == results["maj_at"]["4"] == pytest.approx(0.5)
    assert results["maj_at"]["2"] == pytest.approx(1 / 3)
    assert results["maj_at_intervals"]["4"] == results["maj_interval_over_problems"]
    low, high = results["maj_interval_over_problems"]
    assert low < 0.5 < high


def test_answers_whose_reasoning_did_not_end_are_counted():
    samples = [sample(0, index, is_correct=False) for index in range(3)]
    samples[1] = replace(samples[1], reason=ENDLESS_THOUGHT)
    assert summarize(samples, num_samples=3, pass_at=(1,))["num_endless_thoughts"] == 1


def test_lengths_and_truncated_shares_stand_beside_every_score():
    samples = [
        sample(0, 0, is_correct=True, num_tokens=4, level="2"),
        sample(1, 0, is_correct=False, num_tokens=10, level="3", finish_reason=FinishReason.LENGTH),
        sample(2, 0, is_correct=False, num_tokens=6, level="3"),
    ]
    results = summarize(samples, num_samples=1, pass_at=(1,), breakdown_by=("level", "subject", "author"))
    assert (results["completion_length"], results["truncated_frac"]) == pytest.approx((20 / 3, 1 / 3))
    levels = results["breakdown"]["level"]
    assert (levels["2"]["completion_length"], levels["2"]["truncated_frac"]) == (4.0, 0.0)
    assert (levels["3"]["completion_length"], levels["3"]["truncated_frac"]) == (8.0, 0.5)
    assert results["breakdown"].keys() == {"level", "subject"}
    assert results["breakdown"]["subject"]["x"]["num_problems"] == 3


def test_the_macro_average_weighs_benchmarks_of_different_size_and_k_alike():
    other = np.array([[1, 0], [0, 0]], dtype=bool)
    macro = summarize_all([samples_of(CORRECT), samples_of(other)])
    assert macro["num_benchmarks"] == 2
    assert macro["mean_at_k"] == pytest.approx((7 / 12 + 1 / 4) / 2)
    assert macro["pass_at_k"] == pytest.approx((1 + 1 / 2) / 2)
    expected = macro_average([CORRECT.mean(axis=1), other.mean(axis=1)]).interval
    assert macro["interval_over_problems"] == pytest.approx(list(expected))
    assert json.loads(json.dumps(macro, allow_nan=False)) == macro

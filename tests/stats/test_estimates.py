"""Estimators against enumeration over subsets, their intervals against simulation, and degenerate cases."""

from __future__ import annotations

import runpy
from itertools import combinations, product
from math import comb, isclose
from pathlib import Path

import numpy as np
import pytest

from atrium.stats.estimates import (
    Interval,
    interval_over_problems,
    macro_average,
    mean_at_k,
    pass_at_k,
    pass_hat_k,
    sampling_interval,
)


@pytest.mark.parametrize("num_samples", range(1, 8))
def test_pass_at_k_and_pass_hat_k_equal_the_average_over_all_subsets(num_samples):
    num_correct_P = np.arange(num_samples + 1)
    passed_PK = pass_at_k(num_correct_P, num_samples)
    all_passed_PK = pass_hat_k(num_correct_P, num_samples)
    for num_correct in num_correct_P:
        outcomes = [True] * num_correct + [False] * (num_samples - num_correct)
        for k in range(1, num_samples + 1):
            subsets = list(combinations(outcomes, k))
            assert isclose(passed_PK[num_correct, k - 1], np.mean([any(s) for s in subsets]), abs_tol=1e-15)
            assert isclose(
                all_passed_PK[num_correct, k - 1], np.mean([all(s) for s in subsets]), abs_tol=1e-15
            )


def test_the_estimators_are_unbiased_over_all_outcomes_of_a_known_probability():
    num_samples, probability = 6, 0.3
    expected_at_K = np.zeros(num_samples)
    expected_hat_K = np.zeros(num_samples)
    for outcome in product([0, 1], repeat=num_samples):
        weight = np.prod([probability if hit else 1 - probability for hit in outcome])
        expected_at_K += weight * pass_at_k([sum(outcome)], num_samples)[0]
        expected_hat_K += weight * pass_hat_k([sum(outcome)], num_samples)[0]
    k_K = np.arange(1, num_samples + 1)
    np.testing.assert_allclose(expected_at_K, 1 - (1 - probability) ** k_K, rtol=1e-13)
    np.testing.assert_allclose(expected_hat_K, probability**k_K, rtol=1e-13)


@pytest.mark.parametrize(("num_samples", "k"), [(2, 1), (6, 1), (4, 2), (7, 2), (6, 3)])
def test_the_variance_behind_the_sampling_interval_is_unbiased(num_samples, k):
    """Over all outcomes, the mean of f_k^2 - f_2k is the true variance of the estimate."""
    probability = 0.35
    mean = mean_of_square = mean_of_estimate = 0.0
    for outcome in product([0, 1], repeat=num_samples):
        weight = np.prod([probability if hit else 1 - probability for hit in outcome])
        num_wrong = num_samples - sum(outcome)
        value = pass_at_k([sum(outcome)], num_samples)[0, k - 1]
        none_in_2k = comb(num_wrong, 2 * k) / comb(num_samples, 2 * k)
        mean += weight * value
        mean_of_square += weight * value**2
        mean_of_estimate += weight * ((1 - value) ** 2 - none_in_2k)
    assert isclose(mean_of_estimate, mean_of_square - mean**2, rel_tol=1e-12)


def with_one_more(standard_error, quantile, shift):
    """The margin of t after a further outcome that moves the mean by `shift`."""
    return shift + quantile * np.hypot(standard_error, shift)


def test_the_sampling_interval_of_mean_at_k_is_t_with_one_more_flip_at_each_end():
    """One problem: t with n - 1 degrees of freedom on n = 20 coin flips."""
    flips = np.array([1, 0] * 10)
    margin = with_one_more(flips.std(ddof=1) / np.sqrt(20), 2.0930240544, 0.5 / 21)
    interval = sampling_interval([flips.sum()], len(flips))
    np.testing.assert_allclose(interval, (0.5 - margin, 0.5 + margin), rtol=1e-9)


def test_the_interval_over_problems_is_t_with_one_more_problem_at_each_end():
    values = [0.3, 0.4, 0.5, 0.4, 0.4, 0.45, 0.35, 0.4]
    error = np.std(values, ddof=1) / np.sqrt(8)
    margin_low, margin_high = (with_one_more(error, 2.3646242510, end / 9) for end in (0.4, 0.6))
    interval = interval_over_problems(values)
    np.testing.assert_allclose(interval, (0.4 - margin_low, 0.4 + margin_high), rtol=1e-9)


@pytest.mark.parametrize("num_problems", [5, 30, 500])
@pytest.mark.parametrize("num_samples", [1, 2, 8])
def test_intervals_never_shrink_as_the_first_failures_appear(num_problems, num_samples):
    """The lower ends fall, and by symmetry the upper ends rise with the first answers that are right."""
    for interval_of in (
        lambda counts: interval_over_problems(mean_at_k(counts, num_samples)),
        lambda counts: sampling_interval(counts, num_samples),
    ):
        if interval_of(np.full(num_problems, num_samples)) is None:
            continue
        lows, highs = [], []
        for num_failures in range(4):
            counts = np.full(num_problems, num_samples)
            counts[:num_failures] -= 1
            lows.append(interval_of(counts).low)
            highs.append(interval_of(num_samples - counts).high)
        assert lows == sorted(lows, reverse=True)
        assert highs == sorted(highs)


def test_intervals_lie_within_zero_and_one():
    for interval in (interval_over_problems([0.0, 1.0]), sampling_interval([1, 7], 8)):
        assert interval is not None
        assert 0.0 <= interval.low <= interval.high <= 1.0


def test_large_numbers_of_samples_neither_overflow_nor_lose_precision():
    passed = pass_at_k([1, 5_000, 9_999, 10_000], 10_000)
    assert isclose(passed[0, 0], 1e-4, rel_tol=1e-10)
    assert isclose(passed[0, 4_999], 0.5, rel_tol=1e-10)
    exact = 1 - comb(5_000, 20) / comb(10_000, 20)
    assert isclose(passed[1, 19], exact, rel_tol=1e-13)
    assert np.all(passed[3] == 1.0)
    assert np.all(np.isfinite(passed))


def test_extremes_are_exact():
    assert np.all(pass_at_k([0], 12) == 0.0)
    assert np.all(pass_at_k([12], 12) == 1.0)
    assert np.all(pass_at_k([3], 12)[0, 9:] == 1.0), "ten of twelve must hold one of three"
    assert np.all(pass_hat_k([3], 12)[0, 3:] == 0.0)


def test_pass_at_1_and_pass_hat_1_are_mean_at_k():
    num_correct_P = np.array([0, 3, 5, 8])
    np.testing.assert_allclose(pass_at_k(num_correct_P, 8)[:, 0], mean_at_k(num_correct_P, 8))
    np.testing.assert_allclose(pass_hat_k(num_correct_P, 8)[:, 0], mean_at_k(num_correct_P, 8))


@pytest.mark.parametrize(
    ("num_samples", "k", "is_estimable"),
    [(1, 1, False), (2, 1, True), (3, 2, False), (4, 2, True), (8, 4, True), (8, 5, False)],
)
def test_sampling_noise_is_estimable_from_twice_k_samples(num_samples, k, is_estimable):
    interval = sampling_interval([1, num_samples], num_samples, k)
    assert (interval is not None) == is_estimable


def test_one_problem_says_nothing_about_other_problems():
    assert interval_over_problems([0.5]) is None
    assert macro_average([[0.5], [0.1, 0.9]]) == (0.5, None)


def test_equal_outcomes_are_not_certainty():
    quantile = 2.0452296421  # t of 29 degrees of freedom
    nothing_correct = interval_over_problems([0.0] * 30)
    assert nothing_correct.low == 0.0
    assert isclose(nothing_correct.high, (1 + quantile) / 31)
    assert isclose(interval_over_problems([1.0] * 30).low, 1 - (1 + quantile) / 31)
    # A run of equal outcomes has an exact bound, which is the farther one of many outcomes.
    assert sampling_interval([0] * 30, 8) == Interval(0.0, 1 - 0.025 ** (1 / 240))
    assert sampling_interval([8] * 5, 8, 4).low < 0.025 ** (1 / 10)
    mixed = sampling_interval([0, 2, 2, 2], 2)
    assert mixed is not None
    assert mixed.low < 0.75 < mixed.high


def test_the_macro_average_weighs_benchmarks_alike_and_adds_their_variances():
    small, large = np.array([0.4, 0.5, 0.6]), np.linspace(0.29, 0.31, 200)
    estimate = macro_average([small, large])
    assert isclose(estimate.value, (0.5 + 0.3) / 2)
    assert estimate.interval is not None
    standard_error = np.sqrt(small.var(ddof=1) / 3 + large.var(ddof=1) / 200) / 2
    # The small benchmark carries nearly all the variance, so its 2 degrees of freedom decide. A further
    # problem weighs most there: (1 - .5) / 4 of its mean, half of that of both.
    margin = with_one_more(standard_error, 4.29, 0.5 / 4 / 2)
    assert isclose(estimate.interval.high - 0.4, margin, rel_tol=0.01)
    assert macro_average([small]).interval == interval_over_problems(small)


COVERAGE = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "interval_coverage.py"))
CELLS = [
    ("beta(0.4, 0.6)", "Mean@K", 30, 8),
    ("beta(0.1, 0.9)", "Mean@K", 30, 8),
    ("beta(0.02, 0.98)", "Mean@K", 30, 8),
    ("logit-normal(.05, 2)", "Pass^4", 30, 8),
    ("beta(2.0, 0.2)", "Pass@4", 30, 8),
    ("two points, 0.98 at .9", "Pass@8", 30, 32),
    ("all equal 0.02", "Mean@K", 192, 1),
    ("all equal 0.99", "Mean@K", 30, 64),
    ("two points, 0.02 at .9", "Mean@K", 192, 4),
]


@pytest.mark.parametrize(("family", "metric", "num_problems", "num_samples"), CELLS)
def test_both_intervals_cover_their_own_target_near_0_and_1_too(family, metric, num_problems, num_samples):
    """`make bench-coverage` measures all cells; t alone covers 29 to 90 % in some of these."""
    [cell] = [
        cell
        for cell in COVERAGE["cells"]()
        if (cell.family.name, cell.metric.name, *cell[2:]) == (family, metric, num_problems, num_samples)
    ]
    found = COVERAGE["measure"](cell, 500)
    # At least 93 %, less two standard errors of 500 exams.
    assert found["over_problems"] >= 0.907
    assert found["sampling"] is None or found["sampling"] >= 0.907


def test_more_confidence_gives_a_wider_interval():
    narrow, wide = (interval_over_problems([0.2, 0.4, 0.5], c) for c in (0.5, 0.9))
    assert narrow is not None
    assert wide is not None
    assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.parametrize(
    "call",
    [
        lambda: mean_at_k([3], 2),
        lambda: pass_at_k([-1], 2),
        lambda: pass_at_k([], 2),
        lambda: pass_at_k([0.5], 2),
        lambda: pass_hat_k([[1]], 2),
        lambda: mean_at_k([0], 0),
        lambda: sampling_interval([1], 4, 0),
        lambda: interval_over_problems([0.1, 1.5]),
        lambda: interval_over_problems([0.1, float("nan")]),
        lambda: interval_over_problems([]),
        lambda: interval_over_problems([0.1, 0.2], confidence=1.0),
        lambda: macro_average([]),
    ],
)
def test_impossible_input_is_refused(call):
    with pytest.raises(ValueError, match=r"\w"):
        call()

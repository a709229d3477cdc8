"""Seeds of two arms: paired by counts alone, or all runs against all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose

from atrium.stats.comparison import TwoArms, verdict_on
from atrium.stats.pairing import pair_seeds
from atrium.stats.unpaired import unpaired_difference


@pytest.mark.parametrize(
    ("baseline", "candidate", "num_paired"),
    [
        ((0, 1, 2), (0, 1, 2), 3),
        ((0, 1, 2, 3), (0, 1, 2, 7), 3),
        ((0, 1, 2, 3, 4), (0, 1, 2, 7, 8), 0),
        ((0, 1, 2), (0, 1, 2, 3, 4), 0),
        ((0, 1, 2, 3), (0, 1, 2, 3, 4, 5), 4),
        ((0, 1), (0, 1), 0),
        ((0, 1, 2), (5, 6, 7), 0),
        ((0,), (0,), 0),
    ],
)
def test_seeds_are_paired_where_three_and_two_thirds_of_each_arm_are_common(baseline, candidate, num_paired):
    found = pair_seeds(baseline, candidate)
    assert found.is_paired == (num_paired > 0)
    if num_paired:
        assert found.baseline == found.candidate == tuple(sorted(set(baseline) & set(candidate)))
        assert found.num_left_out == len(baseline) + len(candidate) - 2 * num_paired
    else:
        assert (found.baseline, found.candidate) == (baseline, candidate)


def test_the_seeds_of_a_difference_are_worded():
    assert pair_seeds(range(5), range(5)).words == "paired seeds 0–4"
    unpaired = pair_seeds((0, 1, 2), range(10, 18))
    assert unpaired.words == "unpaired: seeds 10–17 against 0–2"


def shares(num_seeds, num_problems, shift=0.0, *, seed=0):
    generator = np.random.default_rng([seed, num_seeds, num_problems])
    easy_P = np.random.default_rng(seed).uniform(0.2, 0.7, num_problems)
    noise = generator.normal(0.0, 0.02, (num_seeds, 1)) + generator.normal(0, 0.1, (num_seeds, num_problems))
    return np.clip(easy_P + shift + noise, 0.0, 1.0)


def test_renumbering_the_seeds_of_an_arm_changes_no_unpaired_result():
    one, other = shares(3, 30, seed=1), shares(4, 30, 0.03, seed=1)
    reference = TwoArms([one], [other], is_paired=False).compared()
    for order in itertools.permutations(range(3)):
        for other_order in ([0, 1, 2, 3], [2, 0, 3, 1]):
            found = TwoArms([one[list(order)]], [other[other_order]], is_paired=False).compared()
            assert_allclose(
                found.difference.new_seeds_and_problems.interval,
                reference.difference.new_seeds_and_problems.interval,
                rtol=1e-12,
            )


def test_the_unpaired_standard_error_is_that_of_its_formula():
    one, other = shares(5, 40), shares(8, 40)
    found = unpaired_difference([one], [other])
    scores = [arm.mean(axis=1) for arm in (one, other)]
    pooled = (4 * scores[0].var(ddof=1) + 7 * scores[1].var(ddof=1)) / 11
    v_one, v_other = (max(s.var(ddof=1), pooled) / len(s) for s in scores)
    residuals = [
        ((arm - arm.mean(0) - arm.mean(1, keepdims=True) + arm.mean()) ** 2).sum() / (len(arm) - 1) / 39
        for arm in (one, other)
    ]
    r_one, r_other = residuals[0] / (5 * 40), residuals[1] / (8 * 40)
    v_problem = (other.mean(0) - one.mean(0)).var(ddof=1) / 40
    total = v_one + v_other + v_problem - r_one - r_other
    assert total > max(v_one + v_other, v_problem)
    assert_allclose(found.value, other.mean() - one.mean())
    assert_allclose(found.new_seeds_and_problems.standard_error**2, total)
    terms = [(v_one, 4), (v_other, 7), (v_problem, 39), (r_one, 4 * 39), (r_other, 7 * 39)]
    spread = sum(variance**2 / degrees for variance, degrees in terms)
    assert_allclose(found.new_seeds_and_problems.degrees_of_freedom, total**2 / spread)
    assert_allclose(found.new_seeds.standard_error**2, v_one + v_other)


def test_all_runs_of_both_arms_count_where_seeds_share_no_numbers():
    few, many = shares(3, 60), shares(8, 60)
    unpaired = unpaired_difference([few], [many]).new_seeds_and_problems.interval
    in_order = TwoArms([few], [many[:3]]).compared().difference.new_seeds_and_problems.interval
    assert unpaired.high - unpaired.low < in_order.high - in_order.low


def test_an_arm_with_one_or_two_seeds_is_not_judged_however_large_the_other_arm():
    names = ("grpo", "atr")
    for num_seeds, kind in ((1, "one_seed"), (2, "two_seeds")):
        found = unpaired_difference([shares(num_seeds, 60)], [shares(10, 60, 0.3)])
        judged = verdict_on(found, (num_seeds, 10), names=names)
        assert judged.kind == kind
        assert (found.new_seeds_and_problems is None) == (num_seeds == 1)


def test_seeds_that_do_not_vary_take_the_pooled_variance():
    flat, varied = np.full((2, 20), 0.5), shares(10, 20)
    found = unpaired_difference([flat], [varied]).new_seeds
    pooled = 9 * varied.mean(axis=1).var(ddof=1) / 10
    own = varied.mean(axis=1).var(ddof=1)
    assert_allclose(found.standard_error**2, pooled / 2 + own / 10)


@pytest.mark.parametrize("seed", range(5))
def test_unpaired_interval_for_new_problems_is_never_narrower_than_for_the_same_ones(seed):
    draw = np.random.default_rng(seed).standard_normal
    many, few = (
        np.clip(mean + 0.1 * draw((num, 1)) + 0.2 * draw((num, 40)), 0, 1)
        for mean, num in ((0.7, 5), (0.6, 2))
    )
    found = unpaired_difference([many], [few])
    new, same = found.new_seeds_and_problems.interval, found.new_seeds.interval
    assert new.low <= same.low
    assert same.high <= new.high

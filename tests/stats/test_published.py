"""What a published table can say, against studies that are simulated answer by answer."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from atrium.stats.published import (
    StatedScore,
    best_of_inflation,
    is_attainable,
    stated_difference,
    stated_plan,
)
from atrium.stats.simultaneous import Family

NUM_STUDIES = 300


def covers(interval, value):
    return interval.low <= value <= interval.high


def draw_exam(generator, mean, num_problems):
    """The difficulty of each problem: a share that any checkpoint of the method gets right."""
    return generator.beta(2.0 * mean, 2.0 * (1.0 - mean), size=num_problems)


@pytest.mark.parametrize(("share", "num", "best_of"), [(0.3188, 1440, 20), (0.05, 480, 5), (0.9, 30, 3)])
def test_the_inflation_is_that_of_simulated_evaluations(share, num, best_of):
    generator = np.random.default_rng(0)
    best = generator.binomial(num, share, size=(20_000, best_of)).max(axis=1) / num - share
    expected = best_of_inflation(share, num, best_of)
    assert abs(best.mean() - expected) < 4.0 * best.std() / len(best) ** 0.5
    # Problems of unlike difficulty have less sampling noise, so the best of them is inflated less.
    difficulty_P = draw_exam(generator, share, 30)
    answers = generator.binomial(max(num // 30, 1), difficulty_P, size=(1_000, best_of, 30)).mean(axis=2)
    noise = answers / max(num // 30, 1) - difficulty_P.mean()
    assert noise.max(axis=1).mean() < best_of_inflation(difficulty_P.mean(), num, best_of) + 3e-3


def test_one_evaluation_and_sure_scores_are_not_inflated():
    assert best_of_inflation(0.3, 1440, 1) == best_of_inflation(0.0, 90, 20) == 0.0
    assert best_of_inflation(0.3, 1440, 40) > best_of_inflation(0.3, 1440, 20)
    assert StatedScore(score=0.3, num_problems=90, num_samples=16).inflation is None


@pytest.mark.parametrize("mean", [0.1, 0.5, 0.85])
@pytest.mark.parametrize("best_of", [1, 8])
def test_intervals_of_a_score_cover_in_simulated_studies(mean, best_of):
    generator = np.random.default_rng(1)
    covered = {"sampling": 0, "problems": 0}
    for _ in range(NUM_STUDIES):
        difficulty_P = draw_exam(generator, mean, 30)
        scores = generator.binomial(16, difficulty_P, size=(best_of, 30)).mean(axis=1) / 16
        stated = StatedScore(
            score=scores.max(), num_problems=30, num_samples=16, num_evaluations=best_of, num_seeds=1
        )
        covered["sampling"] += covers(stated.interval("sampling"), difficulty_P.mean())
        covered["problems"] += covers(stated.interval("problems"), mean)
    assert min(covered.values()) >= 0.95 * NUM_STUDIES


@pytest.mark.parametrize(("num_seeds", "best_of"), [(3, 1), (5, 4)])
def test_intervals_of_a_difference_cover_in_simulated_studies(num_seeds, best_of):
    generator = np.random.default_rng(2)
    means, seed_sd = (0.35, 0.45), 0.03
    covered = dict.fromkeys(("sampling", "problems", "seeds", "seeds and problems"), 0)
    for _ in range(NUM_STUDIES):
        exam_P = draw_exam(generator, 0.4, 30)
        arms, truths = [], []
        for mean in means:
            on_exam = exam_P.mean() + mean - 0.4
            seed_S = seed_sd * generator.standard_normal(num_seeds)
            share_SP = np.clip(exam_P + (mean - 0.4) + seed_S[:, None], 0.0, 1.0)
            shape = (best_of, *share_SP.shape)
            score_S = generator.binomial(16, share_SP, size=shape).mean(axis=2).max(axis=0) / 16
            arms.append(
                StatedScore(
                    score=score_S.mean(),
                    num_problems=30,
                    num_samples=16,
                    num_seeds=num_seeds,
                    num_evaluations=best_of,
                    seed_sd=score_S.std(ddof=1),
                )
            )
            truths.append((share_SP.mean(), on_exam))
        found = stated_difference([arms[1]], [arms[0]])
        (sampled, on_exam), (sampled_2, on_exam_2) = truths
        covered["sampling"] += covers(found.intervals["sampling"], sampled_2 - sampled)
        covered["seeds"] += covers(found.intervals["seeds"], on_exam_2 - on_exam)
        for question in ("problems", "seeds and problems"):
            covered[question] += covers(found.intervals[question], means[1] - means[0])
    assert min(covered.values()) >= 0.94 * NUM_STUDIES


def test_a_difference_of_averages_is_that_of_its_benchmarks():
    def scores(*shares):
        return [
            StatedScore(
                score=one, num_problems=30, num_samples=8, num_evaluations=1, num_seeds=4, seed_sd=0.01
            )
            for one in shares
        ]

    whole = stated_difference(scores(0.5, 0.4), scores(0.4, 0.2))
    assert_allclose(whole.value, 0.15)
    parts = [
        stated_difference(scores(*one), scores(*two)) for one, two in (((0.5,), (0.4,)), ((0.4,), (0.2,)))
    ]
    widths = [one.intervals["problems"].high - one.intervals["problems"].low for one in (whole, *parts)]
    assert widths[0] < min(widths[1:])
    assert whole.intervals["seeds"].low == pytest.approx(parts[0].intervals["seeds"].low + 0.05)
    together = stated_difference(scores(0.5), scores(0.4), family=Family(num_candidates=6))
    assert together.intervals["problems"].low < parts[0].intervals["problems"].low


def test_nothing_is_established_without_seeds_spread_or_the_number_of_evaluations():
    known = {"num_problems": 3000, "num_samples": 4, "num_seeds": 3, "num_evaluations": 1, "seed_sd": 0.004}

    def established(**changes):
        arms = [StatedScore(score=score, **(known | changes)) for score in (0.7, 0.5)]
        return stated_difference(arms[:1], arms[1:]).is_established

    assert established()
    assert not established(num_seeds=2)
    assert not established(num_seeds=None)
    assert not established(seed_sd=None)
    assert not established(num_evaluations=None)
    assert not established(seed_sd=0.1)


def test_a_plan_without_a_spread_names_problems_alone_and_they_suffice():
    arms = [StatedScore(score=score, num_problems=90, num_samples=16) for score in (0.36, 0.28)]
    plan = stated_plan(arms[:1], arms[1:], 0.08)
    assert (plan.has_seeds, plan.num_seeds) == (False, None)
    assert plan.num_problems_with == {}
    # Problems always or never solved, methods independent: the bound that the plan assumes.
    generator, num = np.random.default_rng(3), plan.num_problems
    gaps = generator.binomial(num, 0.36, 4000) / num - generator.binomial(num, 0.28, 4000) / num
    error = ((0.36 * 0.64 + 0.28 * 0.72) / num) ** 0.5
    assert 0.78 < np.mean(gaps / error > 1.96) < 0.83


def test_a_plan_with_a_spread_names_seeds_and_fewer_problems_with_more_seeds():
    exact = {"num_problems": 90, "num_samples": 16, "seed_sd": 0.015}
    arms = [StatedScore(score=score, **exact) for score in (0.3188, 0.2819)]
    plan = stated_plan(arms[:1], arms[1:], 0.0369)
    assert plan.num_seeds == 5
    with_seeds = [num for num in plan.num_problems_with.values() if num is not None]
    assert plan.num_problems_with[3] is None
    assert with_seeds == sorted(with_seeds, reverse=True)
    assert with_seeds[-1] > plan.num_problems
    generator = np.random.default_rng(4)
    score_SN = generator.normal(0.0369, 0.015 * 2**0.5, size=(5, 4000))
    errors = score_SN.mean(axis=0) / (score_SN.std(axis=0, ddof=1) / 5**0.5)
    assert np.mean(errors > 2.776) >= 0.8
    few = [StatedScore(score=score, num_seeds=3, **exact) for score in (0.3188, 0.2819)]
    assert stated_plan(few[:1], few[1:], 0.0369).num_seeds > 5


def test_a_score_that_no_count_of_answers_gives_is_recognized():
    assert is_attainable(0.3188, 1440, 1e-4)  # 459 of 1440
    assert is_attainable(0.2791, 1440, 1e-4)  # 402 of 1440, cut and not rounded
    assert not is_attainable(0.3191, 1440, 1e-4)
    assert is_attainable(0.5, 30, 1e-3)
    assert not is_attainable(0.51, 30, 1e-2 / 10)

"""Comparisons of two arms, and the words of their verdicts."""

from __future__ import annotations

import numpy as np
import pytest

from atrium.stats.comparison import TwoArms, verdict
from atrium.stats.simultaneous import SINGLE, Family
from atrium.stats.wording import before_plan, points, under_both_readings, unfinished, worded

NAMES = {"baseline_name": "grpo", "candidate_name": "atr"}


def arms(num_seeds, num_problems, effect, *, seed=0, seed_sd=0.01):
    """Shares of two arms that see the same problems, one better by `effect`."""
    generator = np.random.default_rng(seed)
    easy_P = generator.uniform(0.2, 0.7, size=num_problems)
    made = []
    for shift in (0.0, effect):
        noise = generator.normal(0.0, seed_sd, (num_seeds, 1)) + generator.normal(
            0, 0.05, (num_seeds, num_problems)
        )
        made.append([np.clip(easy_P + shift + noise, 0.0, 1.0)])
    return made


def test_a_large_difference_is_called_better_or_worse_by_direction():
    low, high = arms(5, 100, 0.1)
    for before, after, kind in ((low, high, "better"), (high, low, "worse")):
        judged = verdict(TwoArms(before, after).compared(), **NAMES)
        assert judged.kind == kind
    assert judged.words.startswith("grpo is better than atr by ")
    assert judged.names_difference
    assert not judged.withheld


def test_no_difference_is_not_distinguishable_and_says_what_its_interval_excludes():
    comparison = TwoArms(*arms(3, 40, 0.0)).compared()
    judged = verdict(comparison, **NAMES)
    assert judged.kind == "not_distinguishable"
    low, high = comparison.difference.new_seeds_and_problems.interval
    assert judged.words.startswith("not distinguishable; if no run diverges, differences larger than ")
    said = float(judged.words.split("larger than ")[1].split(" point")[0])
    assert max(-low, high) <= said / 100 < max(-low, high) + 0.001


@pytest.mark.parametrize("effect", [0.0, 0.01, 0.02, 0.03, 0.1])
@pytest.mark.parametrize("family", [SINGLE, Family(num_candidates=5, num_benchmarks=3)])
def test_a_verdict_never_contradicts_the_interval_that_is_shown(effect, family):
    for seed in range(10):
        comparison = TwoArms(*arms(5, 40, effect, seed=seed), family=family).compared()
        known = comparison.difference.new_seeds_and_problems
        is_outside = not known.interval.low <= 0.0 <= known.interval.high
        assert (verdict(comparison, **NAMES).kind != "not_distinguishable") == is_outside
        assert (known.p_value < 0.05) == is_outside


def test_one_seed_is_not_judged():
    comparison = TwoArms(*arms(1, 200, 0.1)).compared()
    judged = verdict(comparison, **NAMES)
    assert judged.kind == "one_seed"
    assert judged.words.startswith("one seed: not judged; estimated difference +")
    assert judged.withheld
    assert comparison.improvement is None
    assert comparison.difference.components is None


def test_two_seeds_are_never_called_better_or_worse():
    judged = verdict(TwoArms(*arms(2, 200, 0.3, seed_sd=0.001)).compared(), **NAMES)
    assert judged.kind == "two_seeds"
    assert judged.words.startswith("two seeds: not judged; estimated difference +")


def test_a_verdict_that_other_runs_may_change_gives_an_estimate_and_no_sentence():
    early = unfinished("preliminary", 0.031, ["study/atr-1 is still running"])
    assert early.words == "preliminary: study/atr-1 is still running; estimated difference +3.1 points"
    planned = before_plan(-0.02, 3, 5)
    assert planned.label == "3 of 5 planned seeds"
    assert planned.words == "3 of 5 planned seeds: no verdict yet; estimated difference −2.0 points"
    assert all(one.withheld and not one.names_difference for one in (early, planned))


def test_a_verdict_holds_only_if_it_holds_however_diverged_runs_count():
    better, worse = worded("better", "by score"), worded("worse", "as wrong")
    assert under_both_readings(better, worse, []) is better
    assert under_both_readings(better, better, ["1 of atr"]).kind == "better"
    torn = under_both_readings(better, worse, ["1 of atr"])
    assert torn.kind == "depends_on_diverged"
    assert torn.withheld
    assert "with their recorded scores, by score; counted as always wrong, as wrong" in torn.words


def test_arms_with_equal_windows_are_said_to_be_the_same_method():
    judged = verdict(TwoArms(*arms(4, 50, 0.0)).compared(), **NAMES, same_method=True)
    assert judged.kind == "same_method"
    assert judged.words.startswith("the same method (equal windows): any difference is noise")


def test_arms_without_any_difference_are_judged_by_what_one_more_problem_could_say():
    arm = [np.full((3, 10), 0.5)]
    judged = verdict(TwoArms(arm, arm).compared(), **NAMES)
    assert judged.kind == "not_distinguishable"
    beyond = "if no run diverges, differences larger than 29.7 points are ruled out"
    assert judged.words == f"not distinguishable; {beyond}"
    single = verdict(TwoArms([np.full((3, 1), 0.5)], [np.full((3, 1), 0.7)]).compared(), **NAMES)
    assert single.kind == "not_estimable"


def test_pairing_shrinks_the_standard_error():
    comparison = TwoArms(*arms(5, 300, 0.02)).compared()
    paired = comparison.difference.new_seeds_and_problems.standard_error
    alone = [arm.new_seeds_and_problems.standard_error for arm in (comparison.baseline, comparison.candidate)]
    assert paired**2 < 0.5 * (alone[0] ** 2 + alone[1] ** 2)


def test_what_few_seeds_cannot_support_appears_with_enough_of_them():
    few, some, many = (TwoArms(*arms(n, 30, 0.03)).compared() for n in (5, 6, 10))
    assert few.permutation_p is None
    assert some.permutation_p is not None
    assert few.iqm_candidate is not None
    assert TwoArms(*arms(3, 30, 0.03)).compared().iqm_candidate is None
    assert some.iqm_difference_interval is None
    assert many.iqm_difference_interval.low < 0.03 < many.iqm_difference_interval.high
    assert few.improvement is None
    assert some.improvement is None
    assert many.improvement_interval.low <= many.improvement <= many.improvement_interval.high


def test_arms_of_different_shapes_or_values_are_refused():
    with pytest.raises(ValueError, match="same benchmarks"):
        TwoArms([np.zeros((2, 3))], [np.zeros((2, 4))]).compared()
    with pytest.raises(ValueError, match="between 0 and 1"):
        TwoArms([np.full((2, 3), 2.0)], [np.zeros((2, 3))]).compared()


def test_points_are_written_as_people_say_them():
    assert [points(share) for share in (0.028, 0.01, -0.01, 0.3)] == [
        "2.8 points",
        "1 point",
        "-1 point",
        "30 points",
    ]

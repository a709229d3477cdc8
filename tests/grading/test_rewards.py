"""Rewards: a table of verdicts and lengths, and two controls."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from atrium.errors import ConfigError
from atrium.grading.rewards import (
    REWARDS,
    FormatReward,
    OverlongPenalty,
    RandomReward,
    Reward,
    RewardFunction,
)
from atrium.records import Completion, FinishReason, Verdict, VerdictKind


def completion(num_tokens: int = 5, reason: FinishReason = FinishReason.STOP) -> Completion:
    return Completion(
        token_ids=np.zeros(num_tokens, np.int32),
        logprobs=np.zeros(num_tokens, np.float32),
        text="",
        finish_reason=reason,
        weight_version=0,
    )


def verdict(kind: VerdictKind) -> Verdict:
    extracted = None if kind is VerdictKind.NO_ANSWER else "42"
    return Verdict(kind=kind, reason="a reason", extracted=extracted)


@pytest.mark.parametrize(
    ("kind", "stopped", "cut_off"),
    [
        (VerdictKind.CORRECT, 2.0, -1.0),
        (VerdictKind.INCORRECT, -1.0, -1.0),
        (VerdictKind.NO_ANSWER, -3.0, -3.0),
        (VerdictKind.TIMED_OUT, -1.0, -1.0),
        (VerdictKind.CRASHED, -1.0, -1.0),
    ],
)
def test_each_verdict_has_its_value(kind: VerdictKind, stopped: float, cut_off: float):
    reward = Reward(correct=2.0, incorrect=-1.0, no_answer=-3.0, require_stop=True)
    assert reward("p", 0, 0, verdict(kind), completion()) == stopped
    truncated = completion(reason=FinishReason.LENGTH)
    assert reward("p", 0, 0, verdict(kind), truncated) == cut_off
    lenient = dataclasses.replace(reward, require_stop=False)
    assert lenient("p", 0, 0, verdict(kind), truncated) == stopped


def test_the_overlong_penalty_follows_the_formula_of_dapo():
    penalty = OverlongPenalty(max_tokens=100, buffer_tokens=20)
    for num_tokens in range(121):
        if num_tokens <= 80:
            expected = 0.0
        elif num_tokens <= 100:
            expected = ((100 - 20) - num_tokens) / 20
        else:
            expected = -1.0
        assert penalty(num_tokens) == pytest.approx(expected, abs=1e-15)
    assert dataclasses.replace(penalty, factor=0.5)(100) == -0.5
    reward = Reward(overlong=penalty)
    assert reward("p", 0, 0, verdict(VerdictKind.CORRECT), completion(90)) == 0.5
    assert reward("p", 0, 0, verdict(VerdictKind.INCORRECT), completion(90)) == -0.5


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: OverlongPenalty(max_tokens=10, buffer_tokens=0), "buffer_tokens"),
        (lambda: OverlongPenalty(max_tokens=10, buffer_tokens=11), "buffer_tokens"),
        (lambda: OverlongPenalty(max_tokens=10, buffer_tokens=5, factor=-1.0), "factor"),
        (lambda: RandomReward(seed=0, probability=1.5), "probability"),
    ],
)
def test_impossible_settings_are_refused_by_name(make, key: str):
    with pytest.raises(ConfigError, match=key):
        make()


def test_the_random_reward_is_keyed_and_has_its_probability():
    reward = RandomReward(seed=3, probability=0.3)
    args = (verdict(VerdictKind.CORRECT), completion())
    draws = [reward(f"p{p}", g, s, *args) for p in range(40) for g in range(8) for s in range(10)]
    assert set(draws) == {0.0, 1.0}
    assert np.mean(draws) == pytest.approx(0.3, abs=0.03)
    again = [reward(f"p{p}", g, s, *args) for p in range(40) for g in range(8) for s in range(10)]
    assert draws == again
    other = RandomReward(seed=4, probability=0.3)
    assert (
        draws[:100]
        != [other(f"p{p}", g, s, *args) for p in range(2) for g in range(8) for s in range(10)][:100]
    )
    assert {RandomReward(seed=0, probability=p)("p", 0, 0, *args) for p in (0.0,)} == {0.0}
    assert RandomReward(seed=0, probability=1.0)("p", 0, 0, *args) == 1.0


def test_the_random_reward_ignores_what_was_answered():
    reward = RandomReward(seed=0)
    assert len({reward("p", 0, 0, verdict(kind), completion()) for kind in VerdictKind}) == 1


@pytest.mark.parametrize("kind", VerdictKind)
def test_the_format_reward_asks_for_a_box_only(kind: VerdictKind):
    value = FormatReward()("p", 0, 0, verdict(kind), completion())
    assert value == float(kind is not VerdictKind.NO_ANSWER)


def test_the_table_holds_frozen_rewards_with_one_signature():
    made: list[RewardFunction] = [
        REWARDS["correctness"](),
        REWARDS["random"](seed=0),
        REWARDS["format"](),
    ]
    assert len(made) == len(REWARDS)
    for reward in made:
        assert reward("p", 0, 0, verdict(VerdictKind.CORRECT), completion()) in (0.0, 1.0)
        assert dataclasses.is_dataclass(reward)
        assert type(reward).__dataclass_params__.frozen  # type: ignore[attr-defined]

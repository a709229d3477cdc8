"""Rewards: a table of verdicts and lengths, two controls, and what a group of its own may look at."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from atrium.base.errors import ConfigError, PluginError
from atrium.base.records import Completion, FinishReason, Problem, Verdict, VerdictKind
from atrium.grading.rewards import (
    CorrectnessReward,
    FormatReward,
    GradedGroup,
    OverlongPenalty,
    RandomReward,
    checked_rewards,
)


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


def graded(
    *pairs: tuple[VerdictKind, Completion], name: str = "p", step: int = 0, seed: int = 0
) -> GradedGroup:
    return GradedGroup(
        problem=Problem(problem_id=name, question="?", answer="42"),
        completions=tuple(one for _, one in pairs),
        verdicts=tuple(verdict(kind) for kind, _ in pairs),
        step=step,
        seed=seed,
        max_new_tokens=100,
    )


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
    reward = CorrectnessReward(correct=2.0, incorrect=-1.0, no_answer=-3.0, require_stop=True)
    group = graded((kind, completion()), (kind, completion(reason=FinishReason.LENGTH)))
    assert reward(group) == [stopped, cut_off]
    assert reward.model_copy(update={"require_stop": False})(group) == [stopped, stopped]


def test_the_overlong_penalty_follows_the_formula_of_dapo():
    penalty = OverlongPenalty(buffer_tokens=20, factor=1.0)
    for num_tokens in range(121):
        if num_tokens <= 80:
            expected = 0.0
        elif num_tokens <= 100:
            expected = ((100 - 20) - num_tokens) / 20
        else:
            expected = -1.0
        assert penalty(num_tokens, 100) == pytest.approx(expected, abs=1e-15)
    assert OverlongPenalty(buffer_tokens=20, factor=0.5)(100, 100) == -0.5
    reward = CorrectnessReward(overlong=penalty)
    group = graded((VerdictKind.CORRECT, completion(90)), (VerdictKind.INCORRECT, completion(90)))
    assert reward(group) == [0.5, -0.5]


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: OverlongPenalty(buffer_tokens=0, factor=1.0), "buffer_tokens"),
        (lambda: OverlongPenalty(buffer_tokens=5, factor=-1.0), "factor"),
        (lambda: RandomReward(probability=1.5), "probability"),
    ],
)
def test_impossible_settings_are_refused_by_name(make, key: str):
    with pytest.raises(ValidationError, match=key):
        make()


def test_what_only_the_length_limit_makes_impossible_is_refused_by_name():
    reward = CorrectnessReward(overlong=OverlongPenalty(buffer_tokens=11, factor=1.0))
    with pytest.raises(ConfigError, match=r"reward\.overlong\.buffer_tokens must be .* got 11"):
        reward.check(10)
    reward.check(11)
    with pytest.raises(ConfigError, match=r"reward\.correct=0 must be greater than"):
        CorrectnessReward(correct=0.0).check(10)


def test_the_random_reward_is_keyed_and_has_its_probability():
    eight = [(VerdictKind.CORRECT, completion())] * 8

    def draws(seed: int) -> list[float]:
        groups = [graded(*eight, name=f"p{p}", step=s, seed=seed) for p in range(40) for s in range(10)]
        return [reward for group in groups for reward in RandomReward(probability=0.3)(group)]

    found = draws(3)
    assert set(found) == {0.0, 1.0}
    assert np.mean(found) == pytest.approx(0.3, abs=0.03)
    assert found == draws(3)
    assert found != draws(4)


def test_the_random_reward_ignores_what_was_answered():
    values = [RandomReward()(graded((kind, completion()))) for kind in VerdictKind]
    assert values == [values[0]] * len(VerdictKind)


@pytest.mark.parametrize("kind", VerdictKind)
def test_the_format_reward_asks_for_an_answer_only(kind: VerdictKind):
    assert FormatReward()(graded((kind, completion()))) == [float(kind is not VerdictKind.NO_ANSWER)]


@pytest.mark.parametrize("given", [["1", "0"], "10", [np.nan, 0.0], [1.0], 1.0], ids=str)
def test_a_reward_that_returns_text_or_not_one_number_each_is_refused(given):
    group = graded(*[(VerdictKind.CORRECT, completion())] * 2)
    with pytest.raises(
        PluginError, match=r"test_rewards\.py, line \d+.* must return a finite number, or None"
    ):
        checked_rewards(lambda group: given, group)

"""Several rewards: weights, abstentions and names, and functions in the conventions of other trainers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from pydantic import ValidationError

from atrium.base.errors import ConfigError, PluginError
from atrium.base.records import Completion, FinishReason, Problem, Verdict, VerdictKind
from atrium.grading.reward_functions import from_trl, from_verifiers
from atrium.grading.rewards import (
    CorrectnessReward,
    FormatReward,
    GradedGroup,
    LengthReward,
    Reward,
    checked_rewards,
)
from atrium.grading.several import SeveralReward, rewards_of, weighted_sum

KINDS = (VerdictKind.CORRECT, VerdictKind.INCORRECT, VerdictKind.NO_ANSWER, VerdictKind.CORRECT)
LENGTHS = (4, 9, 2, 12)


def make_group(texts=("a", "bb", "ccc", "dddd")):
    return GradedGroup(
        problem=Problem(
            problem_id="p",
            question="1+1?",
            answer="2",
            metadata={"level": "3"},
            turns=(("system", "Answer."),),
        ),
        completions=tuple(
            Completion(
                token_ids=np.arange(num, dtype=np.int32),
                logprobs=np.zeros(num, np.float32),
                text=text,
                finish_reason=FinishReason.STOP,
                weight_version=0,
            )
            for num, text in zip(LENGTHS, texts, strict=True)
        ),
        verdicts=tuple(
            Verdict(kind=kind, reason="", extracted=None if kind is VerdictKind.NO_ANSWER else "2")
            for kind in KINDS
        ),
        step=1,
        seed=0,
        max_new_tokens=16,
    )


class AbstainsAt(Reward):
    """0.1 for each completion but some."""

    kind: str = "correctness"
    places: tuple[int, ...] = ()

    def __call__(self, group):
        return [None if place in self.places else 0.1 for place in range(len(group.completions))]


def several(**parts):
    found = {
        name: {"weight": weight, "reward": {"kind": kind}}
        if isinstance(kind, str)
        else {"weight": weight, "reward": kind}
        for name, (weight, kind) in parts.items()
    }
    return SeveralReward.model_validate({"kind": "several", "parts": found})


def with_part(reward, name, weight, part):
    """The reward with one more part, of a class that the axis does not know."""
    made = next(iter(reward.parts.values())).model_construct(weight=weight, reward=part)
    return reward.model_copy(update={"parts": {**reward.parts, name: made}})


def test_the_reward_is_the_weighted_sum_and_every_part_is_kept():
    reward = several(correct=(2.0, "correctness"), form=(-0.5, "format"))
    found, parts = rewards_of(reward, make_group())
    assert found == [1.5, -0.5, 0.0, 1.5]
    assert parts[0] == {"correct": (1.0, 2.0), "form": (1.0, -0.5)}
    assert reward(make_group()) == found


def test_one_reward_of_weight_1_gives_that_reward_bit_for_bit():
    alone, group = CorrectnessReward(correct=0.1 + 0.2, incorrect=-1 / 3), make_group()
    one = several(only=(1.0, alone.model_dump()))
    assert rewards_of(one, group)[0] == checked_rewards(alone, group)
    assert rewards_of(alone, group) == (checked_rewards(alone, group), [{}] * 4)


def test_the_order_of_rewards_changes_no_bit():
    parts = {"a": (0.1, "correctness"), "b": (0.7, "format"), "c": (1 / 3, {"kind": "length", "limit": 5})}
    found = {
        tuple(several(**{name: parts[name] for name in order})(make_group()))
        for order in itertools.permutations(parts)
    }
    assert len(found) == 1


def test_a_reward_of_weight_0_is_recorded_and_counts_as_absent():
    both = several(correct=(1.0, "correctness"), form=(0.0, "format"))
    found, parts = rewards_of(both, make_group())
    assert found == CorrectnessReward()(make_group())
    assert parts[1]["form"] == (1.0, 0.0)
    abstaining = with_part(several(form=(0.0, "format")), "rare", 1.0, AbstainsAt(places=(1,)))
    assert abstaining(make_group()) == [0.1, None, 0.1, 0.1]


def test_an_abstaining_reward_is_left_out_of_the_sum():
    reward = with_part(several(form=(2.0, "format")), "rare", 1.0, AbstainsAt(places=(0, 2)))
    found, parts = rewards_of(reward, make_group())
    assert found == [2.0, 2.1, 0.0, 2.1]
    assert parts[0]["rare"] == (None, 1.0)
    alone = with_part(several(form=(0.0, "format")), "rare", 1.0, AbstainsAt(places=(0,)))
    assert alone(make_group())[0] is None
    assert weighted_sum({}) is None


def test_short_completions_have_the_length_reward():
    group = make_group()
    assert LengthReward(limit=4)(group) == [1.0, 0.0, 1.0, 0.0]
    assert LengthReward(limit=12, only_correct=True)(group) == [1.0, 0.0, 0.0, 1.0]
    with pytest.raises(ConfigError, match=r"reward\.limit must be less than .* got 16"):
        LengthReward(limit=16).check(16)


def test_settings_that_cannot_work_are_refused_by_name():
    with pytest.raises(ConfigError, match="correct, form are all 0"):
        several(correct=(0.0, "correctness"), form=(0.0, "format")).check(16)
    with pytest.raises(ConfigError, match=r"reward\.parts\.my-form: a name must start with a letter"):
        several(**{"my-form": (1.0, "format")}).check(16)
    with pytest.raises(ConfigError, match=r"reward\.parts\.short: reward\.limit must be .* got 20"):
        several(short=(1.0, {"kind": "length", "limit": 20})).check(16)
    for wrong in (
        {},
        {"form": (float("inf"), "format")},
        {"form": (float("nan"), "format")},
        {"form": (1.0, "several")},
        {"form": (1.0, "nothing_of_this_name")},
    ):
        with pytest.raises(ValidationError):
            several(**wrong)


def test_cut_off_answers_count_as_wrong_if_a_weighted_reward_says_so():
    strict = {"kind": "correctness", "require_stop": True}
    assert several(a=(1.0, strict), b=(1.0, "format")).counts_cut_off_as_wrong
    assert not several(a=(0.0, strict), b=(1.0, "format")).counts_cut_off_as_wrong


def undeclared(declared):
    """The class, no longer known to the axis, so that other tests see the shipped ones alone."""
    for kind in declared.own_kinds():
        del Reward.kinds[kind]
    return declared


def test_a_function_of_trl_gets_columns_and_messages():
    calls = []

    def short_text(completions, level, **columns):
        calls.append((completions, level, columns))
        return [None if len(one[0]["content"]) > 3 else float(len(one[0]["content"])) for one in completions]

    reward = undeclared(from_trl(short_text))()
    assert reward.kind == "short_text"
    assert checked_rewards(reward, make_group()) == [1.0, 2.0, 3.0, None]
    completions, level, columns = calls[0]
    assert completions[0] == [{"role": "assistant", "content": "a"}]
    assert level == ["3"] * 4
    assert columns["prompts"][0] == [
        {"role": "system", "content": "Answer."},
        {"role": "user", "content": "1+1?"},
    ]
    assert columns["answer"] == columns["solution"] == ["2"] * 4
    assert [len(ids) for ids in columns["completion_ids"]] == list(LENGTHS)


def test_a_function_of_trl_may_take_plain_text_under_another_kind():
    def rewards(completions):
        return [float(len(one)) for one in completions]

    reward = undeclared(from_trl(rewards, kind="text_length", messages=False))()
    assert (reward.kind, reward(make_group())) == ("text_length", [1.0, 2.0, 3.0, 4.0])


def test_a_function_of_verifiers_gets_the_arguments_that_it_names():
    async def matches(completion, answer, info, state):
        assert (info, state["task"], state["answer"]) == ({"level": "3"}, "p", answer)
        return float(completion[-1]["content"] == answer)

    reward = undeclared(from_verifiers(matches))()
    assert checked_rewards(reward, make_group(("2", "3", "2", ""))) == [1.0, 0.0, 1.0, 0.0]


def test_the_error_of_a_wrong_return_names_the_function():
    def too_few(completions, **_):
        return [1.0]

    with pytest.raises(
        PluginError, match=r"test_several_rewards\.py, line \d+, in .*too_few: the reward must return"
    ):
        checked_rewards(undeclared(from_trl(too_few))(), make_group())
    with pytest.raises(TypeError, match="must be a Python function"):
        from_trl(FormatReward())

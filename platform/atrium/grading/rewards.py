"""Rewards of the completions of a group, computed from their verdicts.

A reward is one class. Its settings are the section `reward` of a configuration. Calling a reward with a group
(problem, completions and verdicts) returns a number, or None to abstain, for each completion; the result must
be deterministic. Modules with further rewards must be imported before the configuration's classes.

`random` and `format` are controls: some models improve on a benchmark when trained on a reward without
information about correctness (arXiv 2506.10947), so a reward has to show a gain over a control.

Axes: G completions per problem.
"""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Annotated, Any, Literal

from pydantic import Field

from atrium.base.errors import ConfigError, PluginError
from atrium.base.records import Completion, FinishReason, Problem, Verdict, VerdictKind
from atrium.base.section import Choice, Count, Number, Positive, Section
from atrium.base.seeding import derive_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedGroup:
    """The completions and verdicts of one problem in a training step, both in the order of the samples.

    `seed` is the run's seed, for random rewards; `max_new_tokens` is the length limit of a completion.
    """

    problem: Problem
    completions: tuple[Completion, ...]
    verdicts: tuple[Verdict, ...]
    step: int
    seed: int
    max_new_tokens: int


RewardFunction = Callable[[GradedGroup], Sequence[float | None]]
"""A `Reward` as a function: it takes a group and returns a reward, or None, for each completion [G]."""


def checked_rewards(reward: RewardFunction, group: GradedGroup) -> list[float | None]:
    """Call a reward with a group, and return the rewards [G] after a check of their number and values.

    Raises `PluginError`, with the location of the reward's code, unless the reward returns one finite number
    or None for each completion.
    """
    given: Sequence[Any] = reward(group)  # of any type: a user's code
    try:
        # `float` also accepts text, but the digits of an answer are no reward.
        rewards = [None if one is None else math.nan if isinstance(one, str) else float(one) for one in given]
    except (TypeError, ValueError):
        rewards = [math.nan]
    if len(rewards) != len(group.completions) or not all(
        one is None or math.isfinite(one) for one in rewards
    ):
        function = reward if hasattr(reward, "__code__") else type(reward).__call__
        code: CodeType = inspect.unwrap(function).__code__
        raise PluginError(
            f"{code.co_filename}, line {code.co_firstlineno}, in {code.co_qualname}: the reward must "
            f"return a finite number, or None to abstain, for each of the {len(group.completions)} "
            f"completions of problem {group.problem.problem_id}, got {str(given)[:200]}"
        )
    return rewards


class Reward(Choice, axis=True):
    """A reward, which gives each completion of a group a number, or None to abstain.

    A completion without a reward is excluded from the update: from its group's mean, deviation, size and
    filter, and from all reward metrics. A group with abstentions and fewer than two rewards is dropped.
    """

    @property
    def counts_cut_off_as_wrong(self) -> bool:
        """Whether the group filter counts truncated completions as incorrect."""
        return False

    def check(self, max_new_tokens: int) -> None:
        """Raise `ConfigError` for settings that do not fit completions of at most `max_new_tokens` tokens."""

    @abstractmethod
    def __call__(self, group: GradedGroup) -> Sequence[float | None]:
        """Return the rewards [G], finite or None, in the order of the group's completions."""


class OverlongPenalty(Section):
    """A penalty that grows over the last tokens before the length limit.

    With the limit L, B = `buffer_tokens` (1 <= B <= L), f = `factor`, and a completion of n tokens including
    the stop token, the penalty is 0 for n <= L - B, -f (n - (L - B)) / B for L - B < n < L, and -f for n >=
    L.

    Source: DAPO, arXiv 2503.14476, equation 13 (soft overlong punishment), where f is 1.
    """

    buffer_tokens: Count
    """Number of tokens before the limit over which the penalty grows; at most the limit itself."""
    factor: Positive
    """Size of the penalty at the limit."""

    def __call__(self, num_tokens: int, max_tokens: int) -> float:
        """Return the penalty, in [-factor, 0], for `num_tokens` tokens with the limit `max_tokens`."""
        num_over = num_tokens - (max_tokens - self.buffer_tokens)
        share = min(max(num_over, 0), self.buffer_tokens) / self.buffer_tokens
        return -self.factor * share if share > 0 else 0.0


class CorrectnessReward(Reward):
    """A reward with a value for each kind of verdict, and an optional length penalty.

    An answer whose grading timed out or crashed has the value of an incorrect answer; the share of such
    answers is a metric of the run. With `partial`, the value of an incorrect answer rises from `incorrect`
    toward `correct` in proportion to its partial score. With `require_stop`, any answer in a truncated
    completion has the value `incorrect`. The penalty is added to the value in all cases.
    """

    kind: Literal["correctness"] = "correctness"
    """Kind of reward."""
    correct: Number = 1.0
    """Reward of a correct answer; must be greater than `incorrect` and `no_answer`."""
    incorrect: Number = 0.0
    """Reward of an incorrect answer, and of an answer that could not be graded."""
    no_answer: Number = 0.0
    """Reward of a completion without an answer."""
    require_stop: bool = True
    """Whether a truncated completion counts as incorrect even if its answer is correct."""
    partial: bool = True
    """Whether an incorrect answer with a partial score, as from reasoning_gym, gets a proportional reward."""
    overlong: OverlongPenalty | None = None
    """Penalty for completions near the length limit; null for no penalty."""

    @property
    def counts_cut_off_as_wrong(self) -> bool:
        """Whether `require_stop` is set."""
        return self.require_stop

    def check(self, max_new_tokens: int) -> None:
        """Raise `ConfigError` unless correct answers have the highest reward.

        Also raises it if the overlong penalty has more `buffer_tokens` than `max_new_tokens`.
        """
        for name, value in (("incorrect", self.incorrect), ("no_answer", self.no_answer)):
            if self.correct <= value:
                raise ConfigError(
                    f"reward.correct={self.correct:g} must be greater than reward.{name}={value:g}, so "
                    "that a correct answer has the highest reward"
                )
        if self.overlong is not None and self.overlong.buffer_tokens > max_new_tokens:
            raise ConfigError(
                f"reward.overlong.buffer_tokens must be at most rollout.max_new_tokens={max_new_tokens}, "
                f"the maximum length of a completion, got {self.overlong.buffer_tokens}"
            )

    def __call__(self, group: GradedGroup) -> list[float]:
        """Return the value of each verdict plus the penalty for the completion's length."""
        pairs = zip(group.verdicts, group.completions, strict=True)
        return [self._of(verdict, completion, group.max_new_tokens) for verdict, completion in pairs]

    def _of(self, verdict: Verdict, completion: Completion, max_new_tokens: int) -> float:
        is_cut_off = completion.finish_reason is FinishReason.LENGTH
        if verdict.kind is VerdictKind.NO_ANSWER:
            value = self.no_answer
        elif verdict.is_correct and not (self.require_stop and is_cut_off):
            value = self.correct
        else:
            value = self.incorrect
            if self.partial and verdict.score and not (self.require_stop and is_cut_off):
                value += verdict.score * (self.correct - self.incorrect)
        return value + (self.overlong(completion.num_tokens, max_new_tokens) if self.overlong else 0.0)


class FormatReward(Reward):
    """A control reward: 1 for a completion with an answer, whether correct or not, else 0."""

    kind: Literal["format"] = "format"
    """Kind of reward."""

    def __call__(self, group: GradedGroup) -> list[float]:
        """Return 1 for each completion in which the grader found an answer, else 0."""
        return [float(verdict.extracted is not None) for verdict in group.verdicts]


class LengthReward(Reward):
    """A reward for short completions: 1 for a completion of at most `limit` tokens, else 0.

    Source: the length reward of GDPO's experiments on mathematics (arXiv 2601.05242); `only_correct` selects
    its variant for correct answers only. The details of both were not checked against the paper.
    """

    kind: Literal["length"] = "length"
    """Kind of reward."""
    limit: Count
    """Maximum rewarded length in tokens, including the stop token."""
    only_correct: bool = False
    """Whether a completion must also be correct for a reward of 1."""

    def check(self, max_new_tokens: int) -> None:
        """Raise `ConfigError` if no completion can be longer than the limit."""
        if self.limit >= max_new_tokens:
            raise ConfigError(
                f"reward.limit must be less than rollout.max_new_tokens={max_new_tokens} to have an "
                f"effect, got {self.limit}; use a smaller limit"
            )

    def __call__(self, group: GradedGroup) -> list[float]:
        """Return 1 for each completion that is short enough (and correct, with `only_correct`), else 0."""
        pairs = zip(group.completions, group.verdicts, strict=True)
        return [
            float(one.num_tokens <= self.limit and (verdict.is_correct or not self.only_correct))
            for one, verdict in pairs
        ]


class RandomReward(Reward):
    """A control reward: 1 or 0 at random, regardless of the completion.

    The run's seed, the problem, the sample and the step determine the reward, so a resumed run draws the same
    rewards. Source: arXiv 2506.10947, section on random rewards.
    """

    kind: Literal["random"] = "random"
    """Kind of reward."""
    probability: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Probability of a reward of 1; otherwise it is 0."""

    def __call__(self, group: GradedGroup) -> list[float]:
        """Return, for each completion, 1 with probability `probability` and 0 otherwise."""
        places = range(len(group.completions))
        key = group.seed, "random_reward", group.problem.problem_id
        draws = [derive_seed(*key, sample_index, group.step) for sample_index in places]
        return [float(draw < self.probability * 2**63) for draw in draws]

"""Verdicts to rewards: a number for each completion, from its verdict and its length.

Rewards are pure and know nothing of groups, advantages or algorithms. All kinds are called alike:
`reward(problem_id, sample_index, step, verdict, completion)`.

`random` and `format` are controls: some models improve on a benchmark when trained on a reward that says
nothing about correctness (arXiv 2506.10947), so a gain over a control is what a reward has to show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from atrium.errors import ConfigError
from atrium.records import Completion, FinishReason, Verdict, VerdictKind
from atrium.seeding import derive_seed


class RewardFunction(Protocol):
    """What all kinds of reward have in common."""

    def __call__(
        self,
        problem_id: str,
        sample_index: int,
        step: int,
        verdict: Verdict,
        completion: Completion,
    ) -> float:
        """The reward of one completion: sample `sample_index` of a problem in training step `step`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlongPenalty:
    """A penalty that grows over the last tokens before the length limit.

    With the limit L = `max_tokens`, B = `buffer_tokens` (1 <= B <= L), f = `factor` (>= 0), and a
    completion of n tokens, stop token included: 0 for n <= L - B, then -f (n - (L - B)) / B, and -f for
    n >= L.

    Source: DAPO, arXiv 2503.14476, equation 13 (soft overlong punishment), where f is 1.
    """

    max_tokens: int
    buffer_tokens: int
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.buffer_tokens <= self.max_tokens:
            raise ConfigError(
                f"reward.overlong.buffer_tokens is {self.buffer_tokens}, must be between 1 and the "
                f"length limit of {self.max_tokens} tokens"
            )
        if not self.factor >= 0:
            raise ConfigError(f"reward.overlong.factor is {self.factor}, must be at least 0")

    def __call__(self, num_tokens: int) -> float:
        """The penalty for a completion of that many tokens, in [-factor, 0]."""
        num_over = num_tokens - (self.max_tokens - self.buffer_tokens)
        share = min(max(num_over, 0), self.buffer_tokens) / self.buffer_tokens
        return -self.factor * share if share > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """A value for each kind of verdict, with an optional penalty for length.

    A grade that timed out or crashed has the value of an incorrect answer; its share is a metric of the
    run. With `require_stop` a correct answer of a completion that was cut off counts as incorrect. The
    penalty is added to whatever the value is.
    """

    correct: float = 1.0
    incorrect: float = 0.0
    no_answer: float = 0.0
    require_stop: bool = True
    overlong: OverlongPenalty | None = None

    def __call__(
        self,
        problem_id: str,
        sample_index: int,
        step: int,
        verdict: Verdict,
        completion: Completion,
    ) -> float:
        """The value of the verdict plus the penalty for the completion's length."""
        is_cut_off = completion.finish_reason is FinishReason.LENGTH
        if verdict.kind is VerdictKind.NO_ANSWER:
            value = self.no_answer
        elif verdict.is_correct and not (self.require_stop and is_cut_off):
            value = self.correct
        else:
            value = self.incorrect
        return value + (self.overlong(completion.num_tokens) if self.overlong else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomReward:
    """1 with probability `probability` and else 0, whatever the completion says.

    The draw is keyed by the run's seed, the problem, the sample and the step, so a resumed run draws the
    same. Source: arXiv 2506.10947, section on random rewards.
    """

    seed: int
    probability: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ConfigError(f"reward.probability is {self.probability}, must be in [0, 1]")

    def __call__(
        self,
        problem_id: str,
        sample_index: int,
        step: int,
        verdict: Verdict,
        completion: Completion,
    ) -> float:
        """A coin keyed by where the completion stands in the run."""
        draw = derive_seed(self.seed, "random_reward", problem_id, sample_index, step)
        return float(draw < self.probability * 2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatReward:
    """1 for a completion with a boxed answer, right or wrong, and 0 for one without."""

    def __call__(
        self,
        problem_id: str,
        sample_index: int,
        step: int,
        verdict: Verdict,
        completion: Completion,
    ) -> float:
        """Whether the grader found an answer to look at."""
        return float(verdict.extracted is not None)


REWARDS: dict[str, type[Reward] | type[RandomReward] | type[FormatReward]] = {
    "correctness": Reward,
    "random": RandomReward,
    "format": FormatReward,
}

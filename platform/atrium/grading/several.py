"""Several rewards at once: each with a name and a weight, and their weighted sum.

The class is declared after all other rewards, including those of plugins, since any of them may be a part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from atrium.base.errors import ConfigError
from atrium.base.records import NamedRewards
from atrium.base.section import Number, Section
from atrium.grading.rewards import GradedGroup, Reward, RewardFunction, checked_rewards

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")


class WeightedReward(Section):
    """A reward and its weight."""

    weight: Number = 1.0
    """Factor of the reward. With 0 it is recorded but not used in training."""
    reward: Reward
    """Reward that is weighted."""


class SeveralReward(Reward):
    """The weighted sum of several rewards.

    The sum of a completion leaves out the rewards that abstained for it, and those of weight 0; if none is
    left, the completion has no reward. It does not depend on the order of the rewards.
    `algorithm.advantage.per_reward` says whether the rewards are added before or after their statistics are
    computed.
    """

    kind: Literal["several"] = "several"
    """Kind of reward."""
    parts: Annotated[dict[str, WeightedReward], Field(min_length=1, max_length=32)]
    """Rewards by name (a letter, then letters, digits and underscores), under which each is recorded."""

    @property
    def counts_cut_off_as_wrong(self) -> bool:
        """Whether this holds for any reward with a weight other than 0."""
        return any(part.reward.counts_cut_off_as_wrong for part in self.parts.values() if part.weight)

    def check(self, max_new_tokens: int) -> None:
        """Check names, weights and each reward; messages name the reward."""
        if not any(part.weight for part in self.parts.values()):
            raise ConfigError(
                f"reward.parts: the weights of {', '.join(self.parts)} are all 0, so the reward is always "
                "0; set one to another number"
            )
        for name, part in self.parts.items():
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"reward.parts.{name}: a name must be a letter and up to 39 letters, digits and "
                    "underscores, such as short_enough"
                )
            try:
                part.reward.check(max_new_tokens)
            except ConfigError as error:
                raise ConfigError(f"reward.parts.{name}: {error}") from error

    def by_name(self, group: GradedGroup) -> list[NamedRewards]:
        """Return the rewards [G] of the group's completions by name, each with its weight, sorted by name."""
        values = {name: checked_rewards(part.reward, group) for name, part in self.parts.items()}
        return [
            {name: (values[name][place], self.parts[name].weight) for name in sorted(values)}
            for place in range(len(group.completions))
        ]

    def __call__(self, group: GradedGroup) -> list[float | None]:
        """Return the weighted sum for each completion."""
        return [weighted_sum(parts) for parts in self.by_name(group)]


def weighted_sum(parts: NamedRewards) -> float | None:
    """Return the sum of the rewards that have a value and a weight other than 0; None if there are none.

    It is rounded once, so that the order of the rewards does not matter.
    """
    terms = [weight * value for value, weight in parts.values() if value is not None and weight]
    return math.fsum(terms) if terms else None


def rewards_of(
    reward: RewardFunction, group: GradedGroup
) -> tuple[Sequence[float | None], Sequence[NamedRewards]]:
    """Return a group's rewards [G], and the named rewards that each sums up; none for a single reward."""
    if isinstance(reward, SeveralReward):
        named = reward.by_name(group)
        return [weighted_sum(parts) for parts in named], named
    return checked_rewards(reward, group), [{} for _ in group.completions]

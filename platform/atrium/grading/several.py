"""Combination of several rewards, each with a name and a weight, into a weighted sum.

`SeveralReward` is declared after all other rewards, including those of plugins, since any may be a part of
it.
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
    """Factor of the reward. A reward with weight 0 is recorded but not used in training."""
    reward: Reward
    """Reward to be weighted."""


class SeveralReward(Reward):
    """The weighted sum of several rewards.

    A completion's sum excludes rewards that abstain and rewards of weight 0; if no reward remains, the
    completion has no reward. The sum does not depend on the order of the rewards. By default, the baseline
    and scale of the advantage apply to the sum. With `algorithm.advantage.per_reward`, they apply to each
    reward before the rewards are weighted and added.
    """

    kind: Literal["several"] = "several"
    """Kind of reward."""
    parts: Annotated[dict[str, WeightedReward], Field(min_length=1, max_length=32)]
    """Rewards by the name under which each is recorded: a letter, then letters, digits and underscores."""

    @property
    def counts_cut_off_as_wrong(self) -> bool:
        """Whether any reward with a nonzero weight counts truncated completions as incorrect."""
        return any(part.reward.counts_cut_off_as_wrong for part in self.parts.values() if part.weight)

    def check(self, max_new_tokens: int) -> None:
        """Raise `ConfigError` if a name or a reward is invalid, or if all weights are 0."""
        if not any(part.weight for part in self.parts.values()):
            raise ConfigError(
                "reward.parts: at least one weight must differ from 0, but the weights of "
                f"{', '.join(self.parts)} are all 0; change one of them"
            )
        for name, part in self.parts.items():
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"reward.parts.{name}: a name must start with a letter, followed by up to 39 letters, "
                    "digits and underscores, such as short_enough"
                )
            try:
                part.reward.check(max_new_tokens)
            except ConfigError as error:
                raise ConfigError(f"reward.parts.{name}: {error}") from error

    def by_name(self, group: GradedGroup) -> list[NamedRewards]:
        """Return, for each completion [G], a mapping from each reward's name to (reward, weight)."""
        values = {name: checked_rewards(part.reward, group) for name, part in self.parts.items()}
        return [
            {name: (values[name][place], self.parts[name].weight) for name in sorted(values)}
            for place in range(len(group.completions))
        ]

    def __call__(self, group: GradedGroup) -> list[float | None]:
        """Return the weighted sum for each completion."""
        return [weighted_sum(parts) for parts in self.by_name(group)]


def weighted_sum(parts: NamedRewards) -> float | None:
    """Return the weighted sum of the rewards with a value and a nonzero weight, or None if there are none.

    The sum is rounded only once, so that the order of the rewards does not matter.
    """
    terms = [weight * value for value, weight in parts.values() if value is not None and weight]
    return math.fsum(terms) if terms else None


def rewards_of(
    reward: RewardFunction, group: GradedGroup
) -> tuple[Sequence[float | None], Sequence[NamedRewards]]:
    """Return the rewards [G] of a group, and a list [G] of mappings from names to (reward, weight).

    The mappings contain the parts of a `SeveralReward`, and are empty for any other reward.
    """
    if isinstance(reward, SeveralReward):
        named = reward.by_name(group)
        return [weighted_sum(parts) for parts in named], named
    return checked_rewards(reward, group), [{} for _ in group.completions]

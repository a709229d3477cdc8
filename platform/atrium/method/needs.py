"""What a part of a method needs beyond the policy's log-probabilities, and what a run does with a method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Anchor = Literal["behavior", "rollout"]
"""Whose log-probabilities a ratio is taken against: the trainer's as the step begins, or the engine's."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The passes and tensors that a part of a method needs.

    Attributes
    ----------
    behavior_pass
        Log-probabilities of the step's starting policy even when each batch is used for one update.
    reference_pass
        Log-probabilities of the reference policy.
    prepare_pass
        A gradient-free pass over the whole minibatch at the current parameters before its loss.
    entropy
        Entropy per token: not at all, as a value, or with its gradient.
    whole_groups
        Minibatches hold all rows of a group.
    distribution
        `PolicyTokens.divergence_BT`: not at all, over the vocabulary, or over the anchor's `top_k` tokens
        and a bucket for the rest.

    Examples
    --------
    >>> both = Needs(prepare_pass=True, entropy="value") | Needs(entropy="gradient")
    >>> both.prepare_pass, both.entropy, both.reference_pass
    (True, 'gradient', False)
    """

    behavior_pass: bool = False
    reference_pass: bool = False
    prepare_pass: bool = False
    entropy: Literal["none", "value", "gradient"] = "none"
    whole_groups: bool = False
    distribution: Literal["none", "full", "top_k"] = "none"
    top_k: int = 0

    def __or__(self, other: Needs) -> Needs:
        """The needs of both parts together."""
        order = ("none", "value", "gradient")
        distributions = ("none", "top_k", "full")
        return Needs(
            behavior_pass=self.behavior_pass or other.behavior_pass,
            reference_pass=self.reference_pass or other.reference_pass,
            prepare_pass=self.prepare_pass or other.prepare_pass,
            entropy=max(self.entropy, other.entropy, key=order.index),
            whole_groups=self.whole_groups or other.whole_groups,
            distribution=max(self.distribution, other.distribution, key=distributions.index),
            top_k=max(self.top_k, other.top_k),
        )


NOTHING = Needs()


@dataclass(frozen=True, kw_only=True)
class Use:
    """A run's use of its method, as far as it decides which parts go together.

    Attributes
    ----------
    num_updates_per_batch
        Optimiser updates that each batch of rollouts gets.
    group_size
        Completions per prompt.
    behavior_logprobs
        The setting `compute.behavior_logprobs`: where the numbers below a ratio come from.
    sampled_elsewhere
        The setting by which other weights have sampled than those that a step begins with, such as
        `rollout.lag=1`; None where the same have.
    dtype
        The setting `compute.dtype`.
    max_length
        The most tokens of a completion.
    """

    num_updates_per_batch: int
    group_size: int
    behavior_logprobs: str = "auto"
    sampled_elsewhere: str | None = None
    dtype: str = "float32"
    max_length: int = 1

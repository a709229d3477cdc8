"""What a part of a method needs beyond the policy's log-probabilities, and what a run does with a method."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from atrium.base.section import Axis

Anchor = Literal["rollout", "behavior", "proximal"]
"""The policies that log-probabilities are taken against.

`rollout`: the weights that sampled, by the engine's numerics. `behavior`: the same weights by the trainer's.
`proximal`: the policy as the step begins, by the trainer's, which without a lag is `behavior`.
"""
Policy = Literal["current", "rollout", "behavior", "proximal"]
"""The anchors, and `current`: the policy that is being trained, as a number without gradient."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The passes and tensors that a part of a method needs.

    Attributes
    ----------
    anchor_pass
        Log-probabilities of the anchors as numbers, even where one is the policy itself at its only update.
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
    rollout_logprobs
        The log-probabilities of the engine that sampled.
    rewards
        Each completion's reward, beside its advantage.
    sample_keys
        A key per completion, for random choices.

    Examples
    --------
    >>> both = Needs(prepare_pass=True, entropy="value") | Needs(entropy="gradient")
    >>> both.prepare_pass, both.entropy, both.reference_pass
    (True, 'gradient', False)
    """

    anchor_pass: bool = False
    reference_pass: bool = False
    prepare_pass: bool = False
    entropy: Literal["none", "value", "gradient"] = "none"
    whole_groups: bool = False
    distribution: Literal["none", "full", "top_k"] = "none"
    top_k: int = 0
    rollout_logprobs: bool = False
    rewards: bool = False
    sample_keys: bool = False

    def __or__(self, other: Needs) -> Needs:
        """The needs of both parts together."""

        def more(name: str) -> Any:  # noqa: ANN401 - of the field's type
            order = {"entropy": ("none", "value", "gradient"), "distribution": ("none", "top_k", "full")}
            key = order[name].index if name in order else None
            return max(getattr(self, name), getattr(other, name), key=key)

        return Needs(**{field.name: more(field.name) for field in fields(self)})


NOTHING = Needs()


class Part(Axis):
    """A value of an axis of a method."""

    @property
    def needs(self) -> Needs:
        """The needs of the part; none unless its class declares some."""
        return NOTHING


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
    lag
        The setting `rollout.lag`: the steps by which sampling is ahead.
    reads_stored
        Whether some completions are read from disk, and anyone may have written them.
    dtype
        The setting `compute.dtype`.
    max_length
        The most tokens of a completion.
    """

    num_updates_per_batch: int
    group_size: int
    behavior_logprobs: str = "auto"
    lag: int = 0
    reads_stored: bool = False
    dtype: str = "float32"
    max_length: int = 1

    @property
    def is_stale(self) -> bool:
        """Whether other weights may have sampled than those that a step begins with."""
        return self.lag > 0 or self.reads_stored

    def names(self, anchor: Anchor) -> Anchor:
        """The anchor by the one name that it has here: without stale data `proximal` is `behavior`."""
        return "behavior" if anchor == "proximal" and not self.is_stale else anchor

    def stays_at(self, anchor: Anchor) -> bool:
        """Whether every ratio of the policy to this anchor is 1, since a batch gets one update."""
        begins_there = anchor == "proximal" or (anchor == "behavior" and not self.is_stale)
        return begins_there and self.num_updates_per_batch == 1

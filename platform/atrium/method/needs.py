"""The inputs that a part of a method needs, and the properties of a run that uses a method."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from atrium.base.section import Choice

Anchor = Literal["rollout", "behavior", "proximal"]
"""Policies in the denominator of a ratio.

`rollout`: the weights that sampled, by the engine's numerics. `behavior`: the same weights, by the trainer's
numerics. `proximal`: the policy at the start of the step, by the trainer's numerics; without a lag, it is
`behavior`.
"""
Policy = Literal["current", "rollout", "behavior", "proximal"]
"""The anchors, and `current`: the policy being trained, as values without gradient."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The passes and tensors that a part of a method needs besides the policy's log-probabilities.

    Attributes
    ----------
    anchor_pass
        Log-probabilities of the anchors, without gradient, even if a batch gets a single update and
        an anchor is therefore the current policy.
    reference_pass
        Log-probabilities of the reference policy.
    prepare_pass
        A gradient-free pass over the whole minibatch at the current parameters, before the loss is computed.
    entropy
        Entropy per token: not needed, as a value, or with its gradient.
    whole_groups
        All rows of a group in one minibatch.
    distribution
        Tokens over which `PolicyTokens.divergence_BT` is computed: none, the whole vocabulary, or the
        anchor's `top_k` tokens and a bucket for the rest.
    rollout_logprobs
        The log-probabilities that the engine returned for the tokens it sampled.
    rewards
        Each completion's reward, in addition to its advantage.
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
        """Return the needs of both parts together."""

        def more(name: str) -> Any:  # noqa: ANN401 - of the field's type
            order = {"entropy": ("none", "value", "gradient"), "distribution": ("none", "top_k", "full")}
            key = order[name].index if name in order else None
            return max(getattr(self, name), getattr(other, name), key=key)

        return Needs(**{field.name: more(field.name) for field in fields(self)})


NOTHING = Needs()


class Part(Choice):
    """A choice on an axis of a method."""

    @property
    def needs(self) -> Needs:
        """The needs of the part; by default, none."""
        return NOTHING


@dataclass(frozen=True, kw_only=True)
class Use:
    """The properties of a run that determine which parts are compatible.

    Attributes
    ----------
    num_updates_per_batch
        Number of optimizer updates per batch of rollouts.
    group_size
        Completions per prompt.
    behavior_logprobs
        The setting `compute.behavior_logprobs`: the source of the behavior policy's
        log-probabilities.
    lag
        The setting `rollout.lag`: the number of steps by which sampling is ahead of training.
    reads_stored
        Whether some completions are read from disk; the weights that sampled them are unknown.
    dtype
        The setting `compute.dtype`.
    max_length
        Maximum number of tokens of a completion.
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
        """Whether a batch may have been sampled by weights other than those at the start of the step."""
        return self.lag > 0 or self.reads_stored

    def names(self, anchor: Anchor) -> Anchor:
        """Return the anchor's canonical name in this run.

        `proximal` becomes `behavior` if no batch is stale, because both names then refer to the same policy.
        """
        return "behavior" if anchor == "proximal" and not self.is_stale else anchor

    def stays_at(self, anchor: Anchor) -> bool:
        """Return whether every ratio to this anchor is 1.

        This is so if a batch gets a single update and the update starts at the anchor.
        """
        begins_there = anchor == "proximal" or (anchor == "behavior" and not self.is_stale)
        return begins_there and self.num_updates_per_batch == 1

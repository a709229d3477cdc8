"""Rules that update a regularizer's reference policy.

After each step, a rule returns the share of the policy's weights that the reference adopts: 0 leaves the
reference unchanged, 1 replaces it by the policy, and a value in between is one step of a moving average.
`train` then updates the reference's weights. Sources: iterative references of RPG, arXiv 2505.17508 (every K
steps, or when a running mean of the token KL exceeds a bound), and of GRPO, arXiv 2402.03300, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from atrium.base.section import Choice, Count, Positive


@dataclass(frozen=True, kw_only=True)
class ReferenceState:
    """The state of a rule between steps.

    `share` is the share of the policy's weights that the reference adopts after the step, in [0, 1].
    `token_kl` is the running mean of the KL per token since the reference last moved, in nats. It is None
    before the first measurement since then, and for rules that do not use it.
    """

    share: float = 0.0
    token_kl: float | None = None


class Reference(Choice, axis=True):
    """A rule that decides after each step how far the reference moves.

    `moves` is False for a reference that never changes.
    """

    moves: ClassVar[bool] = True

    def after_step(self, state: ReferenceState, *, step: int, token_kl: float | None) -> ReferenceState:
        """Return the rule's state after `step`, including the share of the policy that the reference adopts.

        `token_kl` is the step's KL per token in nats, or None if it was not measured.
        """
        return state


class NoReference(Reference):
    """No reference policy."""

    kind: Literal["none"] = "none"
    moves: ClassVar[bool] = False


class FrozenReference(Reference):
    """The policy at the start of training, never updated."""

    kind: Literal["frozen"] = "frozen"
    moves: ClassVar[bool] = False


class PeriodicReference(Reference):
    """The policy after the latest step whose number is a multiple of `num_steps`."""

    kind: Literal["every_num_steps"] = "every_num_steps"
    num_steps: Count
    """Number of steps after which the reference becomes the policy."""

    def after_step(self, state: ReferenceState, *, step: int, token_kl: float | None) -> ReferenceState:
        """Return share 1 (adopt the policy) if `step` is a multiple of `num_steps`, else share 0."""
        return ReferenceState(share=float(step % self.num_steps == 0))


class AveragedReference(Reference):
    """An exponential moving average of the policy's weights: decay x reference + (1 - decay) x policy."""

    kind: Literal["moving_average"] = "moving_average"
    decay: Annotated[float, Field(ge=0.0, lt=1.0)]
    """Share of itself that the reference keeps at each step."""

    def after_step(self, state: ReferenceState, *, step: int, token_kl: float | None) -> ReferenceState:
        """Return share 1 - `decay` at every step."""
        return ReferenceState(share=1.0 - self.decay)


class BoundedReference(Reference):
    """The policy after the latest step at which the running mean of the KL exceeded a bound.

    The KL of a step is the k3 estimate of KL(policy || reference) per sampled token. The running mean becomes
    smoothing x (running mean) + (1 - smoothing) x (KL of the step) at each step, and restarts whenever the
    reference moves.
    """

    kind: Literal["token_kl"] = "token_kl"
    bound: Positive
    """KL per token in nats above which the reference becomes the policy."""
    smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """Share that the running mean of the KL keeps at each step; 0 uses single steps."""

    def after_step(self, state: ReferenceState, *, step: int, token_kl: float | None) -> ReferenceState:
        """Return share 1 and no mean if the running mean exceeds the bound, else share 0 and the new mean.

        If `token_kl` is None, the result is share 0 and the mean so far.
        """
        if token_kl is None:
            return ReferenceState(token_kl=state.token_kl)
        before = token_kl if state.token_kl is None else state.token_kl
        running = self.smoothing * before + (1.0 - self.smoothing) * token_kl
        if running > self.bound:
            return ReferenceState(share=1.0)
        return ReferenceState(token_kl=running)

"""What else pulls on the policy: KL penalties by every estimator in use, and entropy bonuses.

Sources: RPG, arXiv 2505.17508, ICLR version, Tables 1 and 2 (UFKL, URKL) and Table 4 (FKL, RKL);
k1, k2, k3: Schulman 2020; their gradients: arXiv 2510.01555 and 2512.21852; the correction of k3 by a
weight that is differentiated: arXiv 2505.17508, section 3, and 2512.02556.
"""

from __future__ import annotations

from typing import Literal

from atrium.base.section import Exponent, NonNegative, Positive, Section
from atrium.method.needs import Anchor, Needs

Estimator = Literal["k1", "k1_absolute", "k2", "k3", "k3_straight_through", "fkl", "rkl", "ufkl", "urkl"]
KLCorrection = Literal["none", "weight", "detached_weight"]


class KLPenalty(Section):
    """coefficient x KL between the policy and an anchor, estimated on the behavior policy's samples."""

    estimator: Estimator
    """How the KL of a token is estimated, in value and gradient."""
    coefficient: Positive
    """The beta of the papers."""
    anchor: Literal["reference"] | Anchor
    """The other policy: a reference (frozen or moving), the weights that sampled by the engine's numbers
    (rollout) or the trainer's (behavior), or the policy at the start of the step (proximal)."""
    placement: Literal["reward", "weight", "loss"]
    """`loss`: added to the loss. `weight`: added to the advantage, before the surrogate's gate, so that the
    coefficient of an open gate is w A - coefficient x dKL (RPG-REINFORCE, arXiv 2505.17508, Algorithm 2).
    `reward`: subtracted from the reward without gradient, before advantages."""
    correction: KLCorrection = "none"
    """For the k estimators: multiply by the importance weight, with or without its gradient."""
    level: Literal["token", "sequence"] = "token"
    """One token, or log-ratios summed over the completion first."""
    log_ratio_limit: Exponent | None = None
    """Bounds the log-ratio before it is exponentiated; null for the objective's own limit. Peers that clamp
    the penalty's value (10 in verl and in the code of RPG's authors) clamp something else."""

    @property
    def needs(self) -> Needs:
        """The numbers of the anchor, and for a placement in the reward those that are penalised."""
        return Needs(
            reference_pass=self.anchor == "reference",
            rollout_logprobs=self.anchor == "rollout",
            anchor_pass=self.placement == "reward",
        )


class EntropyBonus(Section):
    """coefficient x the policy's entropy, added to the objective.

    With `target` the coefficient adapts: it grows by `step` after each step whose mean entropy is at most
    the target, shrinks by it otherwise, never below 0, and applies only while entropy is at most the
    target (Skywork-OR1, arXiv 2505.22312).
    """

    coefficient: NonNegative
    """What the entropy is multiplied by, at the first step where it adapts."""
    target: Positive | None = None
    """The entropy below which the bonus applies and grows; null keeps the coefficient fixed."""
    step: NonNegative = 0.0
    """What the coefficient changes by after each step."""
    reduction: Literal["loss", "token_mean"] = "loss"
    """How the tokens' entropies become one number: as the method reduces its loss (verl), or as their mean
    over all tokens of the minibatch, whatever the loss does (TRL). Under sums over tokens the first is the
    coefficient times the mean length."""

    @property
    def needs(self) -> Needs:
        """The entropy with its gradient."""
        return Needs(entropy="gradient")

    def next_coefficient(self, coefficient: float, entropy: float) -> float:
        """The coefficient after a step with this mean entropy."""
        if self.target is None:
            return coefficient
        change = self.step if entropy <= self.target else -self.step
        return max(0.0, coefficient + change)

    def in_force(self, coefficient: float, entropy: float | None) -> float:
        """The coefficient that applies in the next step, given the last step's mean entropy."""
        if self.target is None or entropy is None or entropy <= self.target:
            return coefficient
        return 0.0


class Regularizer(Section):
    """What else pulls on the policy."""

    kl: KLPenalty | None = None
    """A KL penalty; null for none."""
    entropy: EntropyBonus | None = None
    """An entropy bonus, fixed or adaptive; null for none."""

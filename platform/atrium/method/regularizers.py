"""What else pulls on the policy: KL penalties by every estimator in use, and entropy bonuses.

Each estimator is a pair of functions of the policy-to-anchor log-ratio x = log(pi / anchor), the
importance weight w = pi / behavior and the density ratio v = anchor / behavior (1 where the anchor is the
behavior policy): the penalty's value, and its coefficient, the derivative with respect to log pi that an
unclipped loss would put on the token.

Sources: RPG, arXiv 2505.17508, ICLR version, Tables 1 and 2 (UFKL, URKL) and Table 4 (FKL, RKL);
k1, k2, k3: Schulman 2020; their gradients: arXiv 2510.01555 and 2512.21852; the correction of k3 by a
weight that is differentiated: arXiv 2505.17508, section 3, and 2512.02556.
Exact for one decision. Summed over the tokens of a longer sequence they are biased, since the prefix's
distribution and the KL still to come are missing; `level: sequence` is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from atrium.base.section import Exponent, NonNegative, Positive, Section
from atrium.method.batch import Batch, neutral, num_tokens, row_sum
from atrium.method.needs import Anchor, Needs
from atrium.method.ratios import anchor_logprob, bounded

if TYPE_CHECKING:
    from torch import Tensor

Estimator = Literal["k1", "k1_absolute", "k2", "k3", "k3_straight_through", "fkl", "rkl", "ufkl", "urkl"]
KLCorrection = Literal["none", "weight", "detached_weight"]


@dataclass(frozen=True)
class Penalty:
    """A penalty's value and its coefficient on the gradient, both [B, T]."""

    value_BT: Tensor
    coefficient_BT: Tensor

    def times(self, factor_BT: Tensor | None) -> Penalty:
        """The penalty with a detached factor on every token; None is 1 everywhere."""
        if factor_BT is None:
            return self
        return Penalty(factor_BT * self.value_BT, factor_BT * self.coefficient_BT)


KL_ESTIMATORS: dict[Estimator, Callable[[Tensor, Tensor, Tensor], Penalty]] = {
    # x: unbiased for KL(pi || anchor); as a loss its gradient has mean zero.
    "k1": lambda x, w, v: Penalty(x, x.new_ones(x.shape)),
    # |x|, not an estimate of a KL; KL-Cov's penalty (arXiv 2505.22617).
    "k1_absolute": lambda x, w, v: Penalty(x.abs(), x.sign()),
    # x^2 / 2: biased value, exact gradient on-policy.
    "k2": lambda x, w, v: Penalty(0.5 * x**2, x),
    # 1/e^x - 1 + x: unbiased value; its gradient on-policy is that of KL(anchor || pi).
    "k3": lambda x, w, v: Penalty((-x).expm1() + x, -(-x).expm1()),
    # The value of k3 with the gradient of k2.
    "k3_straight_through": lambda x, w, v: Penalty((-x).expm1() + x, x),
    # KL(anchor || pi).
    "fkl": lambda x, w, v: Penalty(-v * x, -v),
    # KL(pi || anchor).
    "rkl": lambda x, w, v: Penalty(w * x, w * (x + 1.0)),
    # The unnormalised KL(anchor || pi).
    "ufkl": lambda x, w, v: Penalty(w - v - v * x, w - v),
    # The unnormalised KL(pi || anchor).
    "urkl": lambda x, w, v: Penalty(w * x - w + v, w * x),
}


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

    def penalize(self, logprob_BT: Tensor, batch: Batch, limit: float | None) -> Penalty:
        """The penalty [B, T] of tokens with these detached log-probabilities.

        `limit` bounds log-ratios before they are exponentiated. A value of the sequence level is spread
        over the row's tokens, so that a sum over tokens counts it once. Raises `ValueError` where the
        reference's log-probabilities are needed and missing.
        """
        behavior_BT = anchor_logprob("behavior", logprob_BT, batch)
        anchor_BT = self._anchor_logprob(logprob_BT, batch)
        own_limit = limit if self.log_ratio_limit is None else self.log_ratio_limit
        x_BT = self._at_level(logprob_BT - anchor_BT, batch.mask_BT, own_limit)
        log_w_BT = self._at_level(logprob_BT - behavior_BT, batch.mask_BT, limit)
        log_v_BT = self._at_level(anchor_BT - behavior_BT, batch.mask_BT, limit)
        penalty = self.estimate(x_BT, log_w_BT.exp(), log_v_BT.exp())
        if self.level == "token":
            return penalty
        return Penalty(penalty.value_BT / num_tokens(batch.mask_BT), penalty.coefficient_BT)

    def estimate(self, x_BT: Tensor, w_BT: Tensor, v_BT: Tensor) -> Penalty:
        """Value and coefficient [B, T], the penalty's own coefficient included."""
        plain = KL_ESTIMATORS[self.estimator](x_BT, w_BT, v_BT)
        value_BT, slope_BT = plain.value_BT, plain.coefficient_BT
        if self.correction == "weight":
            value_BT, slope_BT = w_BT * value_BT, w_BT * (slope_BT + value_BT)
        elif self.correction == "detached_weight":
            value_BT, slope_BT = w_BT * value_BT, w_BT * slope_BT
        return Penalty(self.coefficient * value_BT, self.coefficient * slope_BT)

    def _anchor_logprob(self, logprob_BT: Tensor, batch: Batch) -> Tensor:
        if self.anchor != "reference":
            return anchor_logprob(self.anchor, logprob_BT, batch)
        if batch.reference_logprob_BT is None:
            raise ValueError("a KL penalty against the reference needs its log-probabilities")
        return batch.reference_logprob_BT

    def _at_level(self, log_ratio_BT: Tensor, mask_BT: Tensor, limit: float | None) -> Tensor:
        if self.level == "sequence":
            log_ratio_BT = row_sum(log_ratio_BT, mask_BT)[:, None].expand_as(log_ratio_BT)
        return bounded(neutral(log_ratio_BT, mask_BT), limit)


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

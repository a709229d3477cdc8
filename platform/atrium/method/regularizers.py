"""Regularizers: KL penalties with all common estimators, entropy bonuses, and a likelihood term.

Each estimator is a pair of functions of the policy-to-anchor log-ratio x = log(pi / anchor), the importance
weight w = pi / behavior and the density ratio v = anchor / behavior (1 where the anchor is the behavior
policy). One function is the penalty's value. The other is its coefficient: the derivative of an unclipped
loss with respect to the token's log pi.

Sources: RPG, arXiv 2505.17508, ICLR version, Tables 1 and 2 (UFKL, URKL) and Table 4 (FKL, RKL); k1, k2, k3:
Schulman 2020; their gradients: arXiv 2510.01555 and 2512.21852; k3 times an importance weight that has a
gradient: arXiv 2505.17508, section 3, and 2512.02556. The properties stated beside `KL_ESTIMATORS` hold
for completions of one token. Sums over the tokens of longer completions are biased, since they ignore the
distribution of prefixes and the KL of later tokens; `level: sequence` is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from atrium.base.section import Exponent, NonNegative, Positive, Section
from atrium.method.batch import Batch, Sum, neutral, num_tokens
from atrium.method.needs import Anchor, Needs
from atrium.method.ratios import anchor_logprob, at_level, bounded

if TYPE_CHECKING:
    from torch import Tensor

Estimator = Literal[
    "k1", "k1_absolute", "k2", "k3", "k3_straight_through", "fkl", "rkl", "ufkl", "urkl", "ujs"
]
KLCorrection = Literal["none", "weight", "detached_weight"]


@dataclass(frozen=True)
class Penalty:
    """A penalty's value and its gradient coefficient, both [B, T]."""

    value_BT: Tensor
    coefficient_BT: Tensor

    def times(self, factor_BT: Tensor | None) -> Penalty:
        """Return the penalty times a detached factor per token; None means 1 everywhere."""
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
    # The unnormalized KL(anchor || pi).
    "ufkl": lambda x, w, v: Penalty(w - v - v * x, w - v),
    # The unnormalized KL(pi || anchor).
    "urkl": lambda x, w, v: Penalty(w * x - w + v, w * x),
    # Half of the sum of the last two (`rpg_ujs` in the code of RPG's authors).
    "ujs": lambda x, w, v: Penalty(0.5 * (w * x - v * x), 0.5 * (w * x + w - v)),
}


class KLPenalty(Section):
    """coefficient x KL between the policy and an anchor, estimated on the behavior policy's samples."""

    estimator: Estimator
    """Estimator of a token's KL, for value and gradient."""
    gradient: Literal["own", "k2"] = "own"
    """Gradient of the penalty. `own`: that of the estimator. `k2`: that of k2, for the value of another k
    estimator (verl's `k1+`, `abs+` and `k3+`)."""
    value_limit: Positive | None = None
    """Maximum absolute value of the estimate; beyond it the value is constant and its own gradient 0. It is
    10 for k3 in verl and for all but fkl in the code of RPG's authors. null for none."""
    coefficient: Positive
    """Coefficient of the penalty, beta in the papers."""
    anchor: Literal["reference"] | Anchor
    """Policy from which the KL is measured: a reference (frozen or moving), the weights that sampled, by the
    engine's log-probabilities (rollout) or by the trainer's (behavior), or the policy at the start of the
    step (proximal)."""
    placement: Literal["reward", "weight", "loss"]
    """Placement of the penalty. `loss`: added to the loss. `weight`: added to the advantage, before the
    surrogate's gate, so that the coefficient of an open gate is w A - coefficient x dKL (RPG-REINFORCE, arXiv
    2505.17508, Algorithm 2). `reward`: subtracted from the reward without gradient, before advantages."""
    correction: KLCorrection = "none"
    """Correction of the k estimators: multiply by the importance weight, with or without its gradient."""
    correction_level: Literal["token", "sequence_mean", "sequence"] = "token"
    """Level of the importance weight in `correction`: one token, or the completion's geometric mean (TRL) or
    product. The gradient of a completion's weight reaches all of its tokens."""
    level: Literal["token", "sequence"] = "token"
    """Level of the estimate: one token, or log-ratios summed over the completion first."""
    log_ratio_limit: Exponent | None = None
    """Bound on the log-ratio before it is exponentiated; null for the objective's own limit. `value_limit`
    bounds the estimate instead."""

    @property
    def needs(self) -> Needs:
        """The log-probabilities of the anchor and, for a penalty in the reward, of the behavior policy."""
        return Needs(
            reference_pass=self.anchor == "reference",
            rollout_logprobs=self.anchor == "rollout",
            anchor_pass=self.placement == "reward",
        )

    def penalize(self, logprob_BT: Tensor, batch: Batch, limit: float | None) -> Penalty:
        """Return the value and gradient coefficient [B, T] of the penalty at detached log-probabilities.

        `limit` bounds log-ratios before they are exponentiated. With `level: sequence`, a row's value is
        spread over its tokens, so that a sum over tokens counts it once. Raises `ValueError` if the
        reference's log-probabilities are needed but missing.
        """
        behavior_BT = anchor_logprob("behavior", logprob_BT, batch)
        anchor_BT = self._anchor_logprob(logprob_BT, batch)
        own_limit = limit if self.log_ratio_limit is None else self.log_ratio_limit
        x_BT = self._at_level(logprob_BT - anchor_BT, batch.mask_BT, own_limit)
        log_w_BT = self._at_level(logprob_BT - behavior_BT, batch.mask_BT, limit)
        log_v_BT = self._at_level(anchor_BT - behavior_BT, batch.mask_BT, limit)
        penalty = self.limited(x_BT, log_w_BT.exp(), log_v_BT.exp())
        if self.correction_level != "token":
            log_w_BT = neutral(logprob_BT - behavior_BT, batch.mask_BT)
            log_w_BT = bounded(at_level(self.correction_level, log_w_BT, batch.mask_BT), limit)
        penalty = self._corrected(penalty, log_w_BT.exp(), batch.mask_BT)
        if self.level == "token":
            return penalty
        return Penalty(penalty.value_BT / num_tokens(batch.mask_BT), penalty.coefficient_BT)

    def limited(self, x_BT: Tensor, w_BT: Tensor, v_BT: Tensor) -> Penalty:
        """Return the estimate [B, T], clamped to +-`value_limit`, with the gradient set by `gradient`.

        The module docstring defines x, w and v. Where the estimate is clamped, the estimator's own gradient
        is 0.
        """
        estimate = KL_ESTIMATORS[self.estimator](x_BT, w_BT, v_BT)
        value_BT, slope_BT = estimate.value_BT, estimate.coefficient_BT
        if self.value_limit is not None:
            slope_BT = slope_BT.masked_fill(value_BT.abs() > self.value_limit, 0.0)
            value_BT = value_BT.clamp(-self.value_limit, self.value_limit)
        return Penalty(value_BT, x_BT if self.without_alias().gradient == "k2" else slope_BT)

    def without_alias(self) -> KLPenalty:
        """Return the penalty with the alias `k3_straight_through` replaced by k3 with the gradient of k2."""
        is_alias = self.estimator == "k3_straight_through"
        return self.model_copy(update={"estimator": "k3", "gradient": "k2"}) if is_alias else self

    def _corrected(self, estimate: Penalty, w_BT: Tensor, mask_BT: Tensor) -> Penalty:
        """Return the estimate times the penalty's coefficient and, as `correction` says, times `w_BT`.

        `w_BT` is the importance weight. Its gradient is included with `correction: weight`, but not with
        `detached_weight`.
        """
        value_BT, slope_BT = estimate.value_BT, estimate.coefficient_BT
        if self.correction == "weight":
            moved_BT = at_level(self.correction_level, value_BT, mask_BT)
            value_BT, slope_BT = w_BT * value_BT, w_BT * (slope_BT + moved_BT)
        elif self.correction == "detached_weight":
            value_BT, slope_BT = w_BT * value_BT, w_BT * slope_BT
        return Penalty(self.coefficient * value_BT, self.coefficient * slope_BT)

    def _anchor_logprob(self, logprob_BT: Tensor, batch: Batch) -> Tensor:
        if self.anchor != "reference":
            return anchor_logprob(self.anchor, logprob_BT, batch)
        if batch.reference_logprob_BT is None:
            raise ValueError(
                "a KL penalty with anchor=reference requires the reference policy's log-probabilities; "
                "add them to the batch"
            )
        return batch.reference_logprob_BT

    def _at_level(self, log_ratio_BT: Tensor, mask_BT: Tensor, limit: float | None) -> Tensor:
        return bounded(neutral(at_level(self.level, log_ratio_BT, mask_BT), mask_BT), limit)


class EntropyBonus(Section):
    """The policy's entropy times `coefficient`, added to the objective.

    With `target`, the coefficient adapts (Skywork-OR1, arXiv 2505.22312). After each training step, it
    increases by `step` if the mean entropy is at most the target. Otherwise it decreases by `step`, but not
    below 0. The bonus applies only while the entropy is at most the target.
    """

    coefficient: NonNegative
    """Coefficient of the entropy, or its initial value if it adapts."""
    target: Positive | None = None
    """Entropy below which the bonus applies and grows; null keeps the coefficient fixed."""
    step: NonNegative = 0.0
    """Change of the coefficient after each step."""
    reduction: Literal["loss", "token_mean"] = "loss"
    """Reduction of the tokens' entropies. `loss`: as the method reduces its loss (verl); if it sums over
    tokens, the bonus is proportional to the mean length. `token_mean`: the mean over all tokens of the
    minibatch, whatever the loss (TRL)."""

    @property
    def needs(self) -> Needs:
        """The entropy with its gradient."""
        return Needs(entropy="gradient")

    def next_coefficient(self, coefficient: float, entropy: float) -> float:
        """Return the coefficient that follows `coefficient` after a training step.

        `entropy` is the step's mean entropy in nats per token. Without `target`, the coefficient does not
        change.
        """
        if self.target is None:
            return coefficient
        change = self.step if entropy <= self.target else -self.step
        return max(0.0, coefficient + change)

    def in_force(self, coefficient: float, entropy: float | None) -> float:
        """Return the coefficient that applies in the next training step.

        It is 0 if `entropy` is above `target`, and `coefficient` otherwise. `entropy` is the mean entropy of
        the last step in nats per token, or None if it was not measured.
        """
        if self.target is None or entropy is None or entropy <= self.target:
            return coefficient
        return 0.0


class PositiveNLL(Section):
    """coefficient x the mean of -log pi over the tokens of completions with a positive reward.

    The term is subtracted from the objective. The mean is over the whole minibatch. Source: VAPO, arXiv
    2504.05118, eq. 10. NeMo-RL uses the mean of each micro-batch instead.
    """

    coefficient: Positive
    """Coefficient of the term, mu in the paper."""

    needs: ClassVar = Needs(rewards=True)
    """Rewards, whose sign selects completions."""

    def row_factor(self, batch: Batch, sum_over_ranks: Sum) -> Tensor:
        """Return the factor [B] (float64) of each row's log-probabilities in the objective.

        The factor is the coefficient divided by the number of tokens, on all ranks, in rows with a positive
        reward. It is 0 for rows whose reward is at most 0.
        """
        counted_B = batch.mask_BT.sum(dim=1).double() * (batch.reward_B > 0.0)
        total = sum_over_ranks(counted_B.sum()).clamp(min=1.0)
        return self.coefficient * (batch.reward_B > 0.0).double() / total


def _read_penalties(data: Any) -> Any:  # noqa: ANN401 - unvalidated input
    """Convert a list of one penalty to that penalty, and an empty list to None.

    Other input is returned unchanged.
    """
    if not isinstance(data, list | tuple) or len(data) > 1:
        return data
    return data[0] if data else None


class Regularizer(Section):
    """The terms of the objective other than the surrogate."""

    kl: Annotated[
        KLPenalty | Annotated[list[KLPenalty], Field(max_length=16)] | None,
        BeforeValidator(_read_penalties),
    ] = None
    """KL penalty, or a list of penalties, whose sum is used; null for none."""
    entropy: EntropyBonus | None = None
    """Entropy bonus, fixed or adaptive; null for none."""
    nll: PositiveNLL | None = None
    """Term that increases the likelihood of correct completions; null for none."""

    @property
    def penalties(self) -> tuple[KLPenalty, ...]:
        """The KL penalties as a tuple; the objective uses their sum."""
        if self.kl is None:
            return ()
        return tuple(self.kl) if isinstance(self.kl, list) else (self.kl,)

    def without_aliases(self) -> Regularizer:
        """Return a copy whose KL penalties use no aliases (see `KLPenalty.without_alias`)."""
        penalties = [kl.without_alias() for kl in self.penalties]
        return self.model_copy(update={"kl": _read_penalties(penalties)})

    @property
    def parts(self) -> tuple[KLPenalty | EntropyBonus | PositiveNLL, ...]:
        """All configured terms: KL penalties, entropy bonus and NLL term."""
        return self.penalties + tuple(part for part in (self.entropy, self.nll) if part is not None)

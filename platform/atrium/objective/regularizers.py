"""The KL penalties that pull on the policy, by every estimator in use: value and gradient of each.

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

import torch
from torch import Tensor

from atrium.method.batch import Batch, neutral, num_tokens, row_sum
from atrium.method.ratios import anchor_logprob, bounded
from atrium.method.regularizers import Estimator, KLPenalty


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


def _k1(x_BT: Tensor, w_BT: Tensor, v_BT: Tensor) -> Penalty:
    return Penalty(x_BT, torch.ones_like(x_BT))


def _k1_absolute(x_BT: Tensor, w_BT: Tensor, v_BT: Tensor) -> Penalty:
    return Penalty(x_BT.abs(), torch.sign(x_BT))


def _k2(x_BT: Tensor, w_BT: Tensor, v_BT: Tensor) -> Penalty:
    return Penalty(0.5 * x_BT**2, x_BT)


def _k3(x_BT: Tensor, w_BT: Tensor, v_BT: Tensor) -> Penalty:
    return Penalty(torch.expm1(-x_BT) + x_BT, -torch.expm1(-x_BT))


def _k3_straight_through(x_BT: Tensor, w_BT: Tensor, v_BT: Tensor) -> Penalty:
    return Penalty(torch.expm1(-x_BT) + x_BT, x_BT)


def _fkl(x_BT: Tensor, w_BT: Tensor, v_BT: Tensor) -> Penalty:
    return Penalty(-v_BT * x_BT, -v_BT)


def _rkl(x_BT: Tensor, w_BT: Tensor, v_BT: Tensor) -> Penalty:
    return Penalty(w_BT * x_BT, w_BT * (x_BT + 1.0))


def _ufkl(x_BT: Tensor, w_BT: Tensor, v_BT: Tensor) -> Penalty:
    return Penalty(w_BT - v_BT - v_BT * x_BT, w_BT - v_BT)


def _urkl(x_BT: Tensor, w_BT: Tensor, v_BT: Tensor) -> Penalty:
    return Penalty(w_BT * x_BT - w_BT + v_BT, w_BT * x_BT)


KL_ESTIMATORS: dict[Estimator, Callable[[Tensor, Tensor, Tensor], Penalty]] = {
    "k1": _k1,  # x: unbiased for KL(pi || anchor); as a loss its gradient has mean zero
    "k1_absolute": _k1_absolute,  # |x|, not an estimate of a KL; KL-Cov's penalty (arXiv 2505.22617)
    "k2": _k2,  # x^2 / 2: biased value, exact gradient on-policy
    "k3": _k3,  # 1/e^x - 1 + x: unbiased value; its gradient on-policy is that of KL(anchor || pi)
    "k3_straight_through": _k3_straight_through,  # the value of k3 with the gradient of k2
    "fkl": _fkl,  # KL(anchor || pi)
    "rkl": _rkl,  # KL(pi || anchor)
    "ufkl": _ufkl,  # the unnormalised KL(anchor || pi)
    "urkl": _urkl,  # the unnormalised KL(pi || anchor)
}


def penalize(kl: KLPenalty, logprob_BT: Tensor, batch: Batch, limit: float | None) -> Penalty:
    """The penalty [B, T] of tokens with these detached log-probabilities.

    `limit` bounds log-ratios before they are exponentiated. A value of the sequence level is spread
    over the row's tokens, so that a sum over tokens counts it once. Raises `ValueError` where the
    reference's log-probabilities are needed and missing.
    """
    behavior_BT = anchor_logprob("behavior", logprob_BT, batch)
    anchor_BT = _anchor(kl, logprob_BT, batch)
    own_limit = limit if kl.log_ratio_limit is None else kl.log_ratio_limit
    x_BT = _at_level(kl, logprob_BT - anchor_BT, batch.mask_BT, own_limit)
    log_w_BT = _at_level(kl, logprob_BT - behavior_BT, batch.mask_BT, limit)
    log_v_BT = _at_level(kl, anchor_BT - behavior_BT, batch.mask_BT, limit)
    penalty = estimate_penalty(kl, x_BT, log_w_BT.exp(), log_v_BT.exp())
    if kl.level == "token":
        return penalty
    return Penalty(penalty.value_BT / num_tokens(batch.mask_BT), penalty.coefficient_BT)


def estimate_penalty(kl: KLPenalty, x_BT: Tensor, w_BT: Tensor, v_BT: Tensor) -> Penalty:
    """Value and coefficient [B, T], the penalty's own coefficient included."""
    plain = KL_ESTIMATORS[kl.estimator](x_BT, w_BT, v_BT)
    value_BT, slope_BT = plain.value_BT, plain.coefficient_BT
    if kl.correction == "weight":
        value_BT, slope_BT = w_BT * value_BT, w_BT * (slope_BT + value_BT)
    elif kl.correction == "detached_weight":
        value_BT, slope_BT = w_BT * value_BT, w_BT * slope_BT
    return Penalty(kl.coefficient * value_BT, kl.coefficient * slope_BT)


def _anchor(kl: KLPenalty, logprob_BT: Tensor, batch: Batch) -> Tensor:
    if kl.anchor != "reference":
        return anchor_logprob(kl.anchor, logprob_BT, batch)
    if batch.reference_logprob_BT is None:
        raise ValueError("a KL penalty against the reference needs its log-probabilities")
    return batch.reference_logprob_BT


def _at_level(kl: KLPenalty, log_ratio_BT: Tensor, mask_BT: Tensor, limit: float | None) -> Tensor:
    if kl.level == "sequence":
        log_ratio_BT = row_sum(log_ratio_BT, mask_BT)[:, None].expand_as(log_ratio_BT)
    return bounded(neutral(log_ratio_BT, mask_BT), limit)

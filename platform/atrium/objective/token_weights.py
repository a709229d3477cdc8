"""Which tokens count, and how much: detached factors on each token's terms.

A weighting has two functions. `select` chooses among all tokens of a minibatch, without gradient; `weigh`
gives what multiplies a micro-batch's terms: those of the surrogate, or those of the KL penalty.
The classes of `atrium.method.token_weights` say what each of them weighs; they are executed here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor
from torch.nn.functional import pad

from atrium.method.batch import Batch, PolicyTokens, Sum, neutral, row_mean
from atrium.method.selection import exactly_largest, largest, token_mean, uniform
from atrium.method.token_weights import (
    FutureRatio,
    OffPolicyMask,
    RandomCovarianceDrop,
    TokenWeight,
    TopCovariancePenalty,
    TopEntropy,
)

_CLIP_COV, _KL_COV = 1, 2  # purposes of random choices; distinct choices are independent


@dataclass(frozen=True, kw_only=True)
class SelectionInputs:
    """A minibatch, what the policy says about it, and the tokens whose gradient the surrogate cuts."""

    batch: Batch
    policy: PolicyTokens
    dropped_BT: Tensor


@singledispatch
def select(weight: TokenWeight, inputs: SelectionInputs, sum_over_ranks: Sum) -> Tensor | None:
    """The selection over the whole minibatch [B, T], or None where the weighting needs none."""
    return None


@singledispatch
def weigh(
    weight: TokenWeight, prepared_BT: Tensor | None, log_ratio_BT: Tensor, batch: Batch
) -> Tensor | None:
    """The factor [B, T], or None for 1 everywhere; `log_ratio_BT` is log(policy / anchor) of tokens."""
    return prepared_BT


@select.register
def _(weight: TopEntropy, inputs: SelectionInputs, sum_over_ranks: Sum) -> Tensor:
    entropy_BT, mask_BT = inputs.policy.entropy_BT, inputs.batch.mask_BT
    assert entropy_BT is not None, "`needs` asks for entropies"
    _, count = token_mean(entropy_BT, mask_BT, sum_over_ranks)
    num_chosen = 1.0 + (weight.frac * (count - 1.0)).floor()  # those at or above the (1 - frac) quantile
    chosen_BT = largest(entropy_BT, mask_BT, num_chosen, sum_over_ranks)
    return chosen_BT.to(entropy_BT.dtype)


@select.register
def _(weight: RandomCovarianceDrop, inputs: SelectionInputs, sum_over_ranks: Sum) -> Tensor:
    batch = inputs.batch
    covariance_BT, count = _covariance(inputs, sum_over_ranks)
    inside_BT = (covariance_BT > weight.lower) & (covariance_BT < weight.upper)
    candidate_BT = inside_BT & ~inputs.dropped_BT & batch.mask_BT
    num_candidates = sum_over_ranks(candidate_BT.sum().double()).clamp(min=1.0)
    probability = _share(count, weight.frac) / num_candidates
    drawn_BT = uniform(batch.sample_key_B, batch.mask_BT.shape[1], _CLIP_COV) < probability
    return (~(candidate_BT & drawn_BT)).to(covariance_BT.dtype)


@select.register
def _(weight: TopCovariancePenalty, inputs: SelectionInputs, sum_over_ranks: Sum) -> Tensor:
    covariance_BT, count = _covariance(inputs, sum_over_ranks)
    batch = inputs.batch
    chosen_BT = exactly_largest(
        covariance_BT,
        batch.mask_BT,
        _share(count, weight.frac),
        uniform(batch.sample_key_B, batch.mask_BT.shape[1], _KL_COV),
        sum_over_ranks,
    )
    return chosen_BT.to(covariance_BT.dtype)


@weigh.register
def _(weight: OffPolicyMask, prepared_BT: Tensor | None, log_ratio_BT: Tensor, batch: Batch) -> Tensor:
    assert batch.advantage_BT is not None, "`score` comes first"
    known_BT = torch.where(log_ratio_BT.isnan(), 0.0, log_ratio_BT)
    far_B = row_mean(-known_BT, batch.mask_BT) > weight.delta
    dropped_BT = far_B[:, None] & (batch.advantage_BT < 0.0)
    return (~dropped_BT).to(log_ratio_BT.dtype)


@weigh.register
def _(weight: FutureRatio, prepared_BT: Tensor | None, log_ratio_BT: Tensor, batch: Batch) -> Tensor:
    own_BT = neutral(log_ratio_BT, batch.mask_BT)
    if weight.max_ratio is not None:
        own_BT = torch.where(own_BT > math.log(weight.max_ratio), 0.0, own_BT)
    factor_BT = _discounted_sums(own_BT, weight.half_life).exp().clamp(weight.lower, weight.upper)
    if weight.safe_ratio is None:
        return factor_BT
    assert batch.advantage_BT is not None, "`score` comes first"
    unsafe_BT = (batch.advantage_BT < 0.0) & (log_ratio_BT > math.log(weight.safe_ratio))
    return torch.where(unsafe_BT, factor_BT.clamp(max=1.0), factor_BT)


def _discounted_sums(value_BT: Tensor, half_life: float) -> Tensor:
    """Sums over each token and all after it, which count half every `half_life` tokens."""
    reach, sum_BT = 1, value_BT
    while reach < value_BT.shape[1]:  # sums over 1, 2, 4, ... tokens: no matrix of T x T, few launches
        later_BT = pad(sum_BT[:, reach:], (0, reach))
        sum_BT = sum_BT + 2.0 ** (-reach / half_life) * later_BT
        reach *= 2
    return sum_BT


def _covariance(inputs: SelectionInputs, sum_over_ranks: Sum) -> tuple[Tensor, Tensor]:
    """(A - mean A)(log pi - mean log pi) [B, T], and the number of tokens of all ranks."""
    batch = inputs.batch
    assert batch.advantage_BT is not None, "`score` comes first"
    logprob_BT = neutral(inputs.policy.logprob_BT, batch.mask_BT)
    mean_advantage, count = token_mean(batch.advantage_BT, batch.mask_BT, sum_over_ranks)
    mean_logprob, _ = token_mean(logprob_BT, batch.mask_BT, sum_over_ranks)
    covariance_BT = (batch.advantage_BT - mean_advantage) * (logprob_BT - mean_logprob)
    return neutral(covariance_BT, batch.mask_BT), count


def _share(count: Tensor, frac: float) -> Tensor:
    """The whole number of tokens in a share, at least one."""
    return (count * frac).floor().clamp(min=1.0)

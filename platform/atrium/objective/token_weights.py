"""Which tokens count, and how much: detached factors on each token's terms.

A weighting has two hooks. `prepare` chooses among all tokens of a minibatch, without gradient; `factor`
gives what multiplies a micro-batch's terms: those of the surrogate, or those of the KL penalty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from atrium.objective.batch import Batch, Needs, PolicyTokens, Sum, neutral, row_mean
from atrium.objective.ratios import Anchor
from atrium.objective.selection import largest, token_mean, uniform

_CLIP_COV = 1  # purposes of random choices; distinct choices are independent


@dataclass(frozen=True, kw_only=True)
class SelectionInputs:
    """A minibatch, what the policy says about it, and the tokens whose gradient the surrogate cuts."""

    batch: Batch
    policy: PolicyTokens
    dropped_BT: Tensor


class TokenWeight:
    """A weighting of tokens. By default every token counts the same.

    `anchor` is the policy that log-ratios are taken against, `weighs` says whose terms it scales.
    """

    needs: ClassVar[Needs] = Needs()
    anchor: ClassVar[Anchor] = "behavior"
    weighs: ClassVar[Literal["surrogate", "penalty"]] = "surrogate"

    def prepare(self, inputs: SelectionInputs, sum_over_ranks: Sum) -> Tensor | None:
        """What must be known of the whole minibatch [B, T], or None."""
        return None

    def factor(self, prepared_BT: Tensor | None, log_ratio_BT: Tensor, batch: Batch) -> Tensor | None:
        """The factor [B, T], or None for 1 everywhere; `log_ratio_BT` is log(policy / `anchor`) of tokens."""
        return prepared_BT


@dataclass(frozen=True)
class AllTokens(TokenWeight):
    """Every token counts the same."""


@dataclass(frozen=True, kw_only=True)
class TopEntropy(TokenWeight):
    """Only the share `frac` of the minibatch's tokens with the highest entropy (arXiv 2506.01939)."""

    frac: float
    needs: ClassVar[Needs] = Needs(prepare_pass=True, entropy="value")

    def prepare(self, inputs: SelectionInputs, sum_over_ranks: Sum) -> Tensor:
        """1 at chosen tokens, 0 elsewhere."""
        entropy_BT, mask_BT = inputs.policy.entropy_BT, inputs.batch.mask_BT
        assert entropy_BT is not None, "`needs` asks for entropies"
        _, count = token_mean(entropy_BT, mask_BT, sum_over_ranks)
        num_chosen = 1.0 + (self.frac * (count - 1.0)).floor()  # those at or above the (1 - frac) quantile
        chosen_BT = largest(entropy_BT, mask_BT, num_chosen, sum_over_ranks)
        return chosen_BT.to(entropy_BT.dtype)


@dataclass(frozen=True, kw_only=True)
class RandomCovarianceDrop(TokenWeight):
    """Drop a random few of the tokens with a high covariance (Clip-Cov, arXiv 2505.22617).

    The covariance of a token is (A - mean A)(log pi - mean log pi). Among tokens that the surrogate keeps
    and whose covariance lies between `lower` and `upper`, each is dropped with the probability that makes
    the expected number the share `frac` of all tokens (at least one), and all where there are not more.
    Differs: the authors draw exactly that number, from one device's tokens.
    """

    frac: float
    lower: float
    upper: float
    needs: ClassVar[Needs] = Needs(prepare_pass=True)

    def prepare(self, inputs: SelectionInputs, sum_over_ranks: Sum) -> Tensor:
        """0 at dropped tokens, 1 elsewhere."""
        batch = inputs.batch
        covariance_BT, count = _covariance(inputs, sum_over_ranks)
        inside_BT = (covariance_BT > self.lower) & (covariance_BT < self.upper)
        candidate_BT = inside_BT & ~inputs.dropped_BT & batch.mask_BT
        num_candidates = sum_over_ranks(candidate_BT.sum().double()).clamp(min=1.0)
        probability = _share(count, self.frac) / num_candidates
        drawn_BT = uniform(batch.sample_key_B, batch.mask_BT.shape[1], _CLIP_COV) < probability
        return (~(candidate_BT & drawn_BT)).to(covariance_BT.dtype)


@dataclass(frozen=True, kw_only=True)
class TopCovariancePenalty(TokenWeight):
    """The KL penalty only on the share `frac` of tokens with the highest covariance (KL-Cov, 2505.22617)."""

    frac: float
    needs: ClassVar[Needs] = Needs(prepare_pass=True)
    weighs: ClassVar[Literal["surrogate", "penalty"]] = "penalty"

    def prepare(self, inputs: SelectionInputs, sum_over_ranks: Sum) -> Tensor:
        """1 at chosen tokens, 0 elsewhere."""
        covariance_BT, count = _covariance(inputs, sum_over_ranks)
        chosen_BT = largest(covariance_BT, inputs.batch.mask_BT, _share(count, self.frac), sum_over_ranks)
        return chosen_BT.to(covariance_BT.dtype)


@dataclass(frozen=True, kw_only=True)
class OffPolicyMask(TokenWeight):
    """Drop rows with a negative advantage and a mean of log(rollout / policy) above `delta`.

    Source: DeepSeek-V3.2, arXiv 2512.02556, eq. 9, which takes the sampling probabilities that the engine
    returned. A token whose sampling probability is unknown (NaN) adds 0 to the mean.
    """

    delta: float
    anchor: ClassVar[Anchor] = "rollout"

    def factor(self, prepared_BT: Tensor | None, log_ratio_BT: Tensor, batch: Batch) -> Tensor:
        """0 at dropped rows, 1 elsewhere."""
        assert batch.advantage_BT is not None, "`score` comes first"
        known_BT = torch.where(log_ratio_BT.isnan(), 0.0, log_ratio_BT)
        far_B = row_mean(-known_BT, batch.mask_BT) > self.delta
        dropped_BT = far_B[:, None] & (batch.advantage_BT < 0.0)
        return (~dropped_BT).to(log_ratio_BT.dtype)


@dataclass(frozen=True, kw_only=True)
class FutureRatio(TokenWeight):
    """clip(exp(sum_{s >= t} 2^(-(s - t) / half_life) log w_s), lower, upper) (FIPO, arXiv 2603.19835)."""

    half_life: float
    lower: float
    upper: float

    def factor(self, prepared_BT: Tensor | None, log_ratio_BT: Tensor, batch: Batch) -> Tensor:
        """The bounded exponential of the discounted log-ratios still to come."""
        position_T = torch.arange(log_ratio_BT.shape[1], device=log_ratio_BT.device)
        steps_TT = (position_T[:, None] - position_T).to(log_ratio_BT.dtype)  # [s, t] = s - t
        discount_TT = torch.where(steps_TT >= 0.0, torch.exp2(-steps_TT / self.half_life), 0.0)
        return (neutral(log_ratio_BT, batch.mask_BT) @ discount_TT).exp().clamp(self.lower, self.upper)


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


TOKEN_WEIGHTS: dict[str, Callable[..., TokenWeight]] = {
    "all": AllTokens,
    "top_entropy": TopEntropy,
    "clip_cov": RandomCovarianceDrop,
    "kl_cov": TopCovariancePenalty,
    "off_policy_mask": OffPolicyMask,
    "future_ratio": FutureRatio,
}

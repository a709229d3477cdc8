"""Token weights: detached factors on each token's terms.

A `TokenWeight` has two methods. `select` chooses among all tokens of a minibatch, without gradient. `weigh`
returns the factor of a micro-batch's surrogate terms or KL penalty terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from atrium.base.section import AboveOne, Number, Positive, PositiveFrac
from atrium.method.batch import Batch, PolicyTokens, Sum, neutral, row_mean
from atrium.method.needs import Anchor, Needs, Part

if TYPE_CHECKING:
    from torch import Tensor

_CLIP_COV, _KL_COV = 1, 2  # purposes of random choices; distinct choices are independent


@dataclass(frozen=True, kw_only=True)
class SelectionInputs:
    """A minibatch, the policy's values on it, and the tokens whose gradient the surrogate clips."""

    batch: Batch
    policy: PolicyTokens
    dropped_BT: Tensor


class TokenWeight(Part, axis=True):
    """A rule that multiplies each token's terms of the loss by a factor.

    `anchor` is the policy in the denominator of log-ratios; `weighs` names the terms that are scaled, either
    the surrogate's or the KL penalty's.
    """

    anchor: ClassVar[Anchor] = "behavior"
    weighs: ClassVar[Literal["surrogate", "penalty"]] = "surrogate"

    def select(self, x: SelectionInputs, sum_over_ranks: Sum) -> Tensor | None:
        """Return the selection [B, T] among a minibatch's tokens, or None if no selection is needed.

        The selection is 1 at selected tokens and 0 elsewhere.
        """
        return None

    def weigh(self, prepared_BT: Tensor | None, log_ratio_BT: Tensor, batch: Batch) -> Tensor | None:
        """Return the factor [B, T], by default the selection, or None for 1 everywhere.

        `prepared_BT` is the result of `select`, `log_ratio_BT` the log(policy / anchor) of each token.
        """
        return prepared_BT


class AllTokens(TokenWeight):
    """Equal weights for all tokens."""

    kind: Literal["all"] = "all"


class TopEntropy(TokenWeight):
    """A selection of the share `frac` of a minibatch's tokens with the highest entropy (arXiv 2506.01939)."""

    kind: Literal["top_entropy"] = "top_entropy"
    frac: PositiveFrac
    """Share of tokens that are trained on."""

    needs: ClassVar = Needs(prepare_pass=True, entropy="value")
    """A pass that ranks the minibatch's tokens by their entropy."""

    def select(self, x: SelectionInputs, sum_over_ranks: Sum) -> Tensor:
        """Return 1 at the tokens at or above the (1 - frac) quantile of the entropy, 0 elsewhere."""
        from atrium.method.selection import largest, token_mean

        entropy_BT, mask_BT = x.policy.entropy_BT, x.batch.mask_BT
        assert entropy_BT is not None, "`needs` asks for entropies"
        _, count = token_mean(entropy_BT, mask_BT, sum_over_ranks)
        num_chosen = 1.0 + (self.frac * (count - 1.0)).floor()
        return largest(entropy_BT, mask_BT, num_chosen, sum_over_ranks).to(entropy_BT.dtype)


class RandomCovarianceDrop(TokenWeight):
    """Clip-Cov, which drops a few random tokens with a high covariance (arXiv 2505.22617).

    The covariance of a token is (A - mean A)(log pi - mean log pi). Candidates are the tokens that the
    surrogate keeps and whose covariance lies between `lower` and `upper`. All candidates are dropped with the
    same probability, chosen so that the expected number of dropped tokens is the share `frac` of all tokens
    (at least one). If there are fewer candidates than that, all are dropped. The authors' code instead draws
    exactly that number of tokens, from the tokens of one device.
    """

    kind: Literal["clip_cov"] = "clip_cov"
    frac: PositiveFrac
    """Share of all tokens that are dropped."""
    lower: Number
    """Minimum covariance of a token that can be drawn."""
    upper: Number
    """Maximum covariance of a token that can be drawn."""

    needs: ClassVar = Needs(prepare_pass=True, sample_keys=True)
    """A pass that computes the minibatch's covariances, and keys for random draws."""

    def select(self, x: SelectionInputs, sum_over_ranks: Sum) -> Tensor:
        """Return 0 at dropped tokens, 1 elsewhere."""
        from atrium.method.selection import uniform

        covariance_BT, count = _covariance(x, sum_over_ranks)
        inside_BT = (covariance_BT > self.lower) & (covariance_BT < self.upper)
        candidate_BT = inside_BT & ~x.dropped_BT & x.batch.mask_BT
        num_candidates = sum_over_ranks(candidate_BT.sum().double()).clamp(min=1.0)
        probability = _share(count, self.frac) / num_candidates
        drawn_BT = uniform(x.batch.sample_key_B, x.batch.mask_BT.shape[1], _CLIP_COV) < probability
        return (~(candidate_BT & drawn_BT)).to(covariance_BT.dtype)


class TopCovariancePenalty(TokenWeight):
    """KL-Cov, which applies the KL penalty only to tokens with the highest covariance (arXiv 2505.22617).

    The number of penalized tokens is exactly the share `frac` of all tokens, rounded down, but at least one.
    Ties are broken at random; if all advantages are equal, all covariances are 0 and therefore tied.
    """

    kind: Literal["kl_cov"] = "kl_cov"
    frac: PositiveFrac
    """Share of tokens that are penalized."""
    weighs: ClassVar[Literal["surrogate", "penalty"]] = "penalty"

    needs: ClassVar = Needs(prepare_pass=True, sample_keys=True)
    """A pass that computes the minibatch's covariances, and keys for random draws."""

    def select(self, x: SelectionInputs, sum_over_ranks: Sum) -> Tensor:
        """Return 1 at the tokens whose penalty applies, 0 elsewhere."""
        from atrium.method.selection import exactly_largest, uniform

        covariance_BT, count = _covariance(x, sum_over_ranks)
        mask_BT, num_chosen = x.batch.mask_BT, _share(count, self.frac)
        draw_BT = uniform(x.batch.sample_key_B, mask_BT.shape[1], _KL_COV)
        chosen_BT = exactly_largest(covariance_BT, mask_BT, num_chosen, draw_BT, sum_over_ranks)
        return chosen_BT.to(covariance_BT.dtype)


class OffPolicyMask(TokenWeight):
    """A mask that drops completions with A < 0 and a mean log(rollout / policy) above `delta`.

    Source: DeepSeek-V3.2, arXiv 2512.02556, eq. 9, which uses the sampling probabilities that the engine
    returned. A token whose sampling probability is unknown (NaN) adds 0 to the mean.
    """

    kind: Literal["off_policy_mask"] = "off_policy_mask"
    delta: Positive
    """Bound on the completion's mean log(rollout / policy), by the engine's log-probabilities."""
    anchor: ClassVar[Anchor] = "rollout"

    needs: ClassVar = Needs(rollout_logprobs=True)
    """The engine's log-probabilities."""

    def weigh(self, prepared_BT: Tensor | None, log_ratio_BT: Tensor, batch: Batch) -> Tensor:
        """Return 0 in dropped completions, 1 elsewhere."""
        assert batch.advantage_BT is not None, "`with_advantages` comes first"
        known_BT = log_ratio_BT.masked_fill(log_ratio_BT.isnan(), 0.0)
        far_B = row_mean(-known_BT, batch.mask_BT) > self.delta
        dropped_BT = far_B[:, None] & (batch.advantage_BT < 0.0)
        return (~dropped_BT).to(log_ratio_BT.dtype)


class FutureRatio(TokenWeight):
    """FIPO's weights, computed from discounted log-ratios of a token and all later ones (arXiv 2603.19835).

    f_t = clip(exp(sum_{s >= t} 2^(-(s - t) / half_life) M_s log w_s), lower, upper), and at most 1 where A_t
    < 0 and w_t > `safe_ratio`; M_s is 0 where w_s > `max_ratio`, else 1. The formula is that of ms-swift.
    """

    kind: Literal["future_ratio"] = "future_ratio"
    half_life: Positive
    """Number of tokens after which a log-ratio counts half."""
    lower: Annotated[float, Field(ge=0.0, le=1.0)]
    """Minimum weight of a token."""
    upper: Annotated[float, Field(ge=1.0, le=1e6)]
    """Maximum weight of a token."""
    safe_ratio: AboveOne | None = None
    """Ratio above which a token with a negative advantage gets no weight above 1; null for none."""
    max_ratio: AboveOne | None = None
    """Ratio above which a token is left out of the sums, like the dual clip's cap; null for none."""

    def weigh(self, prepared_BT: Tensor | None, log_ratio_BT: Tensor, batch: Batch) -> Tensor:
        """Return the factor f_t of every token."""
        own_BT = neutral(log_ratio_BT, batch.mask_BT)
        if self.max_ratio is not None:
            own_BT = own_BT.masked_fill(own_BT > math.log(self.max_ratio), 0.0)
        factor_BT = _discounted_sums(own_BT, self.half_life).exp().clamp(self.lower, self.upper)
        if self.safe_ratio is None:
            return factor_BT
        assert batch.advantage_BT is not None, "`with_advantages` comes first"
        unsafe_BT = (batch.advantage_BT < 0.0) & (log_ratio_BT > math.log(self.safe_ratio))
        return factor_BT.clamp(max=1.0).where(unsafe_BT, factor_BT)


def _discounted_sums(value_BT: Tensor, half_life: float) -> Tensor:
    """Return the sums [B, T] over each token and all later ones; weights halve every `half_life` tokens."""
    from torch.nn.functional import pad

    reach, sum_BT = 1, value_BT
    while reach < value_BT.shape[1]:  # sums over 1, 2, 4, ... tokens: no matrix of T x T, few launches
        later_BT = pad(sum_BT[:, reach:], (0, reach))
        sum_BT = sum_BT + 2.0 ** (-reach / half_life) * later_BT
        reach *= 2
    return sum_BT


def _covariance(x: SelectionInputs, sum_over_ranks: Sum) -> tuple[Tensor, Tensor]:
    """Return (A - mean A)(log pi - mean log pi) [B, T], and the number of tokens on all ranks."""
    from atrium.method.selection import token_mean

    batch = x.batch
    assert batch.advantage_BT is not None, "`with_advantages` comes first"
    logprob_BT = neutral(x.policy.logprob_BT, batch.mask_BT)
    mean_advantage, count = token_mean(batch.advantage_BT, batch.mask_BT, sum_over_ranks)
    mean_logprob, _ = token_mean(logprob_BT, batch.mask_BT, sum_over_ranks)
    covariance_BT = (batch.advantage_BT - mean_advantage) * (logprob_BT - mean_logprob)
    return neutral(covariance_BT, batch.mask_BT), count


def _share(count: Tensor, frac: float) -> Tensor:
    """Return the share `frac` of `count` tokens as a number of tokens, rounded down but at least 1."""
    return (count * frac).floor().clamp(min=1.0)

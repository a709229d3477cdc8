"""Which tokens count, and how much: detached factors on each token's terms."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from atrium.base.section import AboveOne, Axis, Number, Positive, PositiveFrac
from atrium.method.needs import NOTHING, Anchor, Needs


class TokenWeight(Axis, axis=True):
    """Which tokens count, and how much.

    `anchor` is the policy that log-ratios are taken against; `weighs` says whose terms are scaled: those of
    the surrogate, or those of the KL penalty.
    """

    anchor: ClassVar[Anchor] = "behavior"
    weighs: ClassVar[Literal["surrogate", "penalty"]] = "surrogate"

    @property
    def needs(self) -> Needs:
        """The needs of the weighting; none unless it says so."""
        return NOTHING


class AllTokens(TokenWeight):
    """Every token counts the same."""

    kind: Literal["all"] = "all"


class TopEntropy(TokenWeight):
    """Only the share `frac` of the minibatch's tokens with the highest entropy (arXiv 2506.01939)."""

    kind: Literal["top_entropy"] = "top_entropy"
    frac: PositiveFrac
    """The share of tokens that are trained on."""

    @property
    def needs(self) -> Needs:
        """A pass that ranks the minibatch's tokens by their entropy."""
        return Needs(prepare_pass=True, entropy="value")


class RandomCovarianceDrop(TokenWeight):
    """Clip-Cov: a random few of the tokens with a high covariance are dropped (arXiv 2505.22617).

    The covariance of a token is (A - mean A)(log pi - mean log pi). Among tokens that the surrogate keeps and
    whose covariance lies between `lower` and `upper`, each is dropped with the probability that makes the
    expected number the share `frac` of all tokens (at least one), and all where there are not more.
    Differs: the authors draw exactly that number, from one device's tokens.
    """

    kind: Literal["clip_cov"] = "clip_cov"
    frac: PositiveFrac
    """The share of all tokens that is dropped."""
    lower: Number
    """The smallest covariance at which a token can be drawn."""
    upper: Number
    """The largest covariance at which a token can be drawn."""

    @property
    def needs(self) -> Needs:
        """A pass that finds the minibatch's covariances, and keys for what is drawn."""
        return Needs(prepare_pass=True, sample_keys=True)


class TopCovariancePenalty(TokenWeight):
    """KL-Cov: the KL penalty applies to the tokens with the highest covariance only (arXiv 2505.22617).

    Exactly the share `frac` of all tokens, at least one. Where covariances are equal, as all are with equal
    advantages, the penalised ones are drawn at random.
    """

    kind: Literal["kl_cov"] = "kl_cov"
    frac: PositiveFrac
    """The share of tokens that is penalised."""
    weighs: ClassVar[Literal["surrogate", "penalty"]] = "penalty"

    @property
    def needs(self) -> Needs:
        """A pass that finds the minibatch's covariances, and keys for what is drawn."""
        return Needs(prepare_pass=True, sample_keys=True)


class OffPolicyMask(TokenWeight):
    """Completions with a negative advantage and a mean of log(rollout / policy) above `delta` are dropped.

    Source: DeepSeek-V3.2, arXiv 2512.02556, eq. 9, which takes the sampling probabilities that the engine
    returned. A token whose sampling probability is unknown (NaN) adds 0 to the mean.
    """

    kind: Literal["off_policy_mask"] = "off_policy_mask"
    delta: Positive
    """The bound on the completion's mean log(rollout / policy), by the engine's log-probabilities."""
    anchor: ClassVar[Anchor] = "rollout"

    @property
    def needs(self) -> Needs:
        """The engine's numbers."""
        return Needs(rollout_logprobs=True)


class FutureRatio(TokenWeight):
    """FIPO: tokens are weighted by the discounted log-ratios of what follows them (arXiv 2603.19835).

    f_t = clip(exp(sum_{s >= t} 2^(-(s - t) / half_life) M_s log w_s), lower, upper), and at most 1 where
    A < 0 and w > `safe_ratio`; M_s is 0 where w > `max_ratio`, else 1. As in swift's implementation.
    """

    kind: Literal["future_ratio"] = "future_ratio"
    half_life: Positive
    """Tokens after which a log-ratio counts half."""
    lower: Annotated[float, Field(ge=0.0, le=1.0)]
    """The smallest weight of a token."""
    upper: Annotated[float, Field(ge=1.0, le=1e6)]
    """The largest weight of a token."""
    safe_ratio: AboveOne | None = None
    """The ratio above which a token with a negative advantage gets no weight above 1; null for none."""
    max_ratio: AboveOne | None = None
    """The ratio above which a token is left out of the sums, as the dual clip's cap is; null for none."""

"""The configuration of the objective's axes: one frozen model per kind, with its settings and ranges.

Which formula a kind stands for is said in `atrium.objective`; which choices go together, in
`atrium.config.objective_checks`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atrium.config.base import Section
from atrium.config.objective_divergences import DivergenceConfig
from atrium.config.objective_surrogates import SurrogateConfig

__all__ = ["AlgorithmConfig", "DivergenceConfig", "KLConfig", "RegularizerConfig"]

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class AdvantageConfig(Section):
    """How good was a completion: (return - baseline - offset) / (scale + epsilon)."""

    baseline: Literal["none", "group_mean", "leave_one_out", "batch_mean"]
    """What is subtracted from the return."""
    offset: Finite = 0.0
    """A constant added to the baseline."""
    scale: Literal["none", "group_std", "batch_std", "token_std"] = "none"
    """What the difference is divided by."""
    ddof: Literal[0, 1] = 1
    """1 divides variances by n - 1, 0 by n."""
    epsilon: NonNegative = 1e-6
    """Added to the deviation; for token_std to the variance."""
    returns: Literal["sequence", "token"] = "sequence"
    """One return per completion, or a discounted one per token."""
    discount: Share = 1.0
    """The discount of token returns."""


class RatioConfig(Section):
    """Whose probabilities are compared, at which level."""

    level: Literal["token", "sequence_mean", "sequence", "none"] = "token"
    """One token, the geometric mean of the sequence, its product, or no ratio at all."""
    anchor: Literal["behavior", "rollout"] = "behavior"
    """Below the line: the trainer's numbers at the start of the step, or the engine's."""


class WeightRatioConfig(RatioConfig):
    """The ratio that multiplies the advantage."""

    cap: Positive | None = None
    """The largest weight, or null for none."""
    order: Literal["mean_then_clip", "clip_then_mean"] = "mean_then_clip"
    """Whether a sequence's mean is clipped, or its tokens before the mean is taken (GMPO)."""


class RatiosConfig(Section):
    """The ratio that the trust region looks at, and the one that multiplies the advantage."""

    gate: RatioConfig = RatioConfig()
    weight: WeightRatioConfig = WeightRatioConfig()


class AllTokensConfig(Section):
    """Every token counts the same."""

    kind: Literal["all"]


class TopEntropyConfig(Section):
    """Only the tokens with the highest entropy."""

    kind: Literal["top_entropy"]
    frac: Share
    """The share of tokens that are trained on."""


class ClipCovConfig(Section):
    """Clip-Cov: a random few of the tokens with a high covariance are dropped."""

    kind: Literal["clip_cov"]
    frac: Share
    """The share of all tokens that is dropped."""
    lower: Finite
    upper: Finite
    """Bounds of the covariance between which tokens are drawn."""


class KLCovConfig(Section):
    """KL-Cov: the KL penalty applies to the tokens with the highest covariance only."""

    kind: Literal["kl_cov"]
    frac: Share
    """The share of tokens that is penalised."""


class OffPolicyMaskConfig(Section):
    """DeepSeek-V3.2: completions with a negative advantage that have moved too far are dropped."""

    kind: Literal["off_policy_mask"]
    delta: Positive
    """The bound on the completion's mean log(rollout / policy), by the engine's log-probabilities."""


class FutureRatioConfig(Section):
    """FIPO: tokens are weighted by the discounted log-ratios of what follows them."""

    kind: Literal["future_ratio"]
    half_life: Positive
    """Tokens after which a log-ratio counts half."""
    lower: Annotated[float, Field(ge=0.0, le=1.0)]
    upper: Annotated[float, Field(ge=1.0)]
    """Bounds of the weight."""


TokenWeightConfig = Annotated[
    AllTokensConfig
    | TopEntropyConfig
    | ClipCovConfig
    | KLCovConfig
    | OffPolicyMaskConfig
    | FutureRatioConfig,
    Field(discriminator="kind"),
]


class NoCorrectionConfig(Section):
    """The engine's distribution is taken to be the trainer's."""

    kind: Literal["none"]


class TruncatedImportanceConfig(Section):
    """TIS: the mismatch ratio, capped."""

    kind: Literal["truncated_importance"]
    cap: Positive
    level: Literal["token", "sequence"] = "token"


class MaskedImportanceConfig(Section):
    """IcePop and MIS: the mismatch ratio, zero outside its bounds."""

    kind: Literal["masked_importance"]
    lower: NonNegative
    upper: Positive
    level: Literal["token", "sequence", "sequence_mean"] = "token"
    keep_weight: bool = True
    """False rejects without reweighting what stays."""


class SequenceRejectionConfig(Section):
    """Drop completions whose mean mismatch exceeds a bound."""

    kind: Literal["sequence_rejection"]
    estimator: Literal["k1", "k2", "k3"]
    bound: Positive


CorrectionConfig = Annotated[
    NoCorrectionConfig | TruncatedImportanceConfig | MaskedImportanceConfig | SequenceRejectionConfig,
    Field(discriminator="kind"),
]


class TokenMeanConfig(Section):
    """The mean over the minibatch's tokens."""

    kind: Literal["token_mean"]


class SequenceMeanTokenMeanConfig(Section):
    """The mean over completions of their mean over tokens."""

    kind: Literal["sequence_mean_token_mean"]


class SequenceMeanTokenSumConfig(Section):
    """The mean over completions of their sum over tokens, divided by a constant."""

    kind: Literal["sequence_mean_token_sum"]
    constant: Positive = 1.0


class GroupUnbiasedTokenSumConfig(Section):
    """The mean over groups of token sums divided by the group size less one."""

    kind: Literal["group_unbiased_token_sum"]


ReductionConfig = Annotated[
    TokenMeanConfig | SequenceMeanTokenMeanConfig | SequenceMeanTokenSumConfig | GroupUnbiasedTokenSumConfig,
    Field(discriminator="kind"),
]


class GroupFilterConfig(Section):
    """Which groups train."""

    kind: Literal["keep", "skip", "drop", "resample"] = "keep"
    """What happens to groups whose completions are all equal in what is judged: they are trained on, not
    computed but counted, left out, or replaced by other prompts' groups."""
    max_num_rounds: Annotated[int, Field(ge=1)] = 1
    """For resample: the most prompts sampled per step, in multiples of rollout.num_prompts."""
    judge: Literal["reward", "correctness"] = "reward"
    """What has to differ within a group: its rewards, penalties included, or whether answers are correct."""


class NoReferenceConfig(Section):
    """No regularizer has a reference policy."""

    kind: Literal["none"]


class FrozenReferenceConfig(Section):
    """The policy that training began with."""

    kind: Literal["frozen"]


class PeriodicReferenceConfig(Section):
    """The policy as it was after the last multiple of so many steps."""

    kind: Literal["every_num_steps"]
    num_steps: Annotated[int, Field(ge=1)]
    """Steps after which the reference becomes the policy."""


class AveragedReferenceConfig(Section):
    """An exponential moving average of the policy's weights."""

    kind: Literal["moving_average"]
    decay: Annotated[float, Field(ge=0.0, lt=1.0)]
    """The share of itself that the reference keeps at each step."""


class BoundedReferenceConfig(Section):
    """The policy as it was when the KL per token from the reference last passed a bound."""

    kind: Literal["token_kl"]
    bound: Positive
    """Nats per token above which the reference becomes the policy."""
    smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """The share that the running mean of the KL keeps at each step; 0 looks at single steps."""


ReferenceConfig = Annotated[
    NoReferenceConfig
    | FrozenReferenceConfig
    | PeriodicReferenceConfig
    | AveragedReferenceConfig
    | BoundedReferenceConfig,
    Field(discriminator="kind"),
]


class OnPolicyConfig(Section):
    """What the gradient is when the policy is the behavior policy, compared with A grad log pi."""

    law: Literal["exact", "expectation", "scaled", "differs"]
    """Equal; equal in expectation; equal up to `scale`; or something else, for `reason`."""
    scale: Positive | None = None
    reason: str | None = None


class AlgorithmConfig(Section):
    """One method: a choice on every axis but divergence and regularizer, which are groups of their own."""

    name: str
    advantage: AdvantageConfig
    ratio: RatiosConfig = RatiosConfig()
    surrogate: SurrogateConfig
    token_weight: TokenWeightConfig = AllTokensConfig(kind="all")
    correction: CorrectionConfig = NoCorrectionConfig(kind="none")
    reduction: ReductionConfig
    group_filter: GroupFilterConfig = GroupFilterConfig()
    reference: ReferenceConfig = NoReferenceConfig(kind="none")
    log_ratio_limit: Positive | None = 20.0
    """Bound on log-ratios that are exponentiated, or null for none."""
    on_policy: OnPolicyConfig


class KLConfig(Section):
    """A KL penalty."""

    estimator: Literal["k1", "k1_absolute", "k2", "k3", "k3_straight_through", "fkl", "rkl", "ufkl", "urkl"]
    coefficient: Positive
    anchor: Literal["reference", "behavior", "rollout"]
    placement: Literal["reward", "weight", "loss"]
    correction: Literal["none", "weight", "detached_weight"] = "none"
    level: Literal["token", "sequence"] = "token"
    log_ratio_limit: Positive | None = None


class EntropyConfig(Section):
    """An entropy bonus, fixed or adaptive."""

    coefficient: NonNegative
    target: Positive | None = None
    """The entropy below which the bonus applies and grows; null keeps the coefficient fixed."""
    step: NonNegative = 0.0
    """What the coefficient changes by after each step."""


class RegularizerConfig(Section):
    """What else pulls on the policy."""

    kl: KLConfig | None = None
    entropy: EntropyConfig | None = None

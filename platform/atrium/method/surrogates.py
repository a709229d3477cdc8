"""What happens at the boundary of the trust region.

A surrogate maps a token's weight w, its advantage A and the trust region [l, u] to the coefficient that its
log-probability has in the gradient. Here stands what each of them looks at and demands. Those that ship have
closed forms in `objective/surrogates.py`; one that declares a formula, `value(self, x)`, needs no other code.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from atrium.base.section import AboveOne, Axis, NonNegative, Positive
from atrium.method.needs import NOTHING, Needs
from atrium.method.ratios import Level

_MEANING = Field(
    description="How the surrogate reaches the policy: through w (pathwise), or as a detached weight (score)."
)
Gradient = Literal["pathwise", "score"]
GradientForm = Annotated[Gradient, _MEANING]
OnlyPathwise = Annotated[Literal["pathwise"], _MEANING]
OnlyScore = Annotated[Literal["score"], _MEANING]


class Surrogate(Axis, axis=True):
    """What happens at the boundary of the trust region.

    A class of one's own is a formula, and is differentiated:

        class ExponentialGate(Surrogate):
            kind: Literal["exponential_gate"] = "exponential_gate"
            tau: Positive
            reads: ClassVar = "nothing"

            def value(self, x):
                return self.tau * (1.0 - ((1.0 - x.weight_BT) / self.tau).exp()) * x.advantage_BT

    `gradient` says how the surrogate reaches the policy: `pathwise` through w, or `score` as a detached
    weight times the log-probability. The coefficients agree wherever a surrogate has both forms; beyond
    `log_ratio_limit`, where the bounded ratio is constant, a pathwise gradient is 0 and a score one is not.

    Attributes
    ----------
    reads
        What it looks at of the trust region: nothing, which tokens are feasible, or the bounds themselves.
    exponentiates
        False where it looks at log-ratios only, which no limit then bounds.
    shapes_weight
        Whether it is a function of the weight alone, and so has no effect on a weight of 1.
    weight_level
        The level of the weight that it demands, or None.
    regresses
        Whether it compares the policy with itself at the start of the step, and has a gradient of its own
        where every advantage is 0.
    """

    reads: ClassVar[Literal["nothing", "feasible", "bounds"]] = "feasible"
    exponentiates: ClassVar[bool] = True
    shapes_weight: ClassVar[bool] = False
    weight_level: ClassVar[Level | None] = None
    regresses: ClassVar[bool] = False

    @property
    def needs(self) -> Needs:
        """The needs of the surrogate; none unless it says so."""
        return NOTHING

    def value(self, x: Any) -> Any:  # noqa: ANN401 - tensors have no place in this room
        """The objective [B, T] at each token, from `x`, an `atrium.objective.surrogates.SurrogateInputs`.

        Written with the tensors' own methods and differentiable in `x.weight_BT`, `x.log_weight_BT` and
        `x.logprob_BT`; everything else in `x` is a constant.
        """
        raise NotImplementedError(f"{type(self).__name__} has no formula")

    def coefficient(self, x: Any) -> Any:  # noqa: ANN401 - tensors have no place in this room
        """The derivative of `value` by log w [B, T] in closed form, or None: it is then differentiated."""
        return None

    @property
    def form(self) -> Gradient:
        """How it reaches the policy: its setting `gradient`, or pathwise where it has none."""
        form: Gradient = getattr(self, "gradient", "pathwise")
        return form


class Clip(Surrogate):
    """min(w A, clip(w, l, u) A), PPO's surrogate over any trust region (arXiv 1707.06347, eq. 7)."""

    kind: Literal["clip"] = "clip"
    gradient: GradientForm = "pathwise"


class DualClip(Surrogate):
    """The clip surrogate, bounded below by cap x A for negative advantages (arXiv 1912.09729, eq. 5)."""

    kind: Literal["dual_clip"] = "dual_clip"
    gradient: GradientForm = "pathwise"
    cap: AboveOne
    """The ratio above which a token with a negative advantage has no gradient."""


class TwoSidedClip(Surrogate):
    """min(min(w, cap) A, clip(w, l, u) A): ratios are capped for both signs (INTELLECT-2, 2505.07291).

    With cap >= u it is the dual clip with the same cap; below u it caps positive advantages too.
    """

    kind: Literal["two_sided_clip"] = "two_sided_clip"
    gradient: GradientForm = "pathwise"
    cap: AboveOne
    """The ratio above which no token has a gradient."""


class Mask(Surrogate):
    """w A where feasible and nothing elsewhere, whatever the sign of A (as IcePop does, 2510.18855)."""

    kind: Literal["mask"] = "mask"
    gradient: GradientForm = "pathwise"


class WeightClip(Surrogate):
    """sg(clip(w, l, u)) A log pi: the weight is clipped, no gradient is cut (CISPO, arXiv 2506.13585)."""

    kind: Literal["weight_clip"] = "weight_clip"
    gradient: OnlyScore = "score"
    reads: ClassVar = "bounds"
    shapes_weight: ClassVar[bool] = True


class SignedWeightClip(Surrogate):
    """A log pi where the reward is positive, sg(clip(w, lower, upper)) A log pi where not (TOPR).

    The sign is the reward's, not the advantage's. Source: arXiv 2503.14286.
    """

    kind: Literal["signed_weight_clip"] = "signed_weight_clip"
    gradient: OnlyScore = "score"
    lower: NonNegative
    """The smallest importance weight; smaller ones are clipped to it."""
    upper: Positive
    """The largest importance weight; larger ones are clipped to it."""
    reads: ClassVar = "nothing"
    shapes_weight: ClassVar[bool] = True

    @property
    def needs(self) -> Needs:
        """Rewards, whose sign decides."""
        return Needs(rewards=True)


class GradientPreservingClip(Surrogate):
    """Clip whose cut tokens keep a bounded gradient: scale x bound x A (CE-GPPO, arXiv 2509.20712).

    For A < 0 and w < l the coefficient is `scale_low` l A, for A > 0 and w > u it is `scale_high` u A;
    A < 0 and w >= `cap` has none, as in the dual clip.
    """

    kind: Literal["gradient_preserving_clip"] = "gradient_preserving_clip"
    gradient: OnlyPathwise = "pathwise"
    scale_low: NonNegative
    """Scale of the gradient below the window, where A < 0."""
    scale_high: NonNegative
    """Scale of the gradient above the window, where A > 0."""
    cap: AboveOne
    """The ratio above which a token with a negative advantage has no gradient."""
    reads: ClassVar = "bounds"


class SoftGate(Surrogate):
    """(4 / tau) sigmoid(tau (w - 1)) A, with tau by the sign of A (SAPO, arXiv 2511.20347).

    Its coefficient is w A at w = 1 and falls off smoothly on both sides.
    """

    kind: Literal["soft_gate"] = "soft_gate"
    gradient: GradientForm = "pathwise"
    tau_positive: Positive
    """The gate's temperature for positive advantages."""
    tau_negative: Positive
    """The gate's temperature for negative advantages."""
    reads: ClassVar = "nothing"


class Quadratic(Surrogate):
    """w A - |A| (w - 1)^2 / (2 e), with e the window's width on w's side of 1 (SPO, arXiv 2401.16025).

    Its coefficient w (A - |A| (w - 1) / e) is 0 at the bound and pulls back beyond it. With a symmetric
    window it is SPO; an asymmetric one gives each side its own curvature.
    """

    kind: Literal["quadratic"] = "quadratic"
    gradient: GradientForm = "pathwise"
    reads: ClassVar = "bounds"


class GammaWeight(Surrogate):
    """sg(w^k exp(c (1 - w))) A log pi, with (k, c) by the sign of A (VESPO, arXiv 2602.10693).

    The weight is 1 at w = 1, falls to 0 on both sides, and is largest at w = k / c.
    """

    kind: Literal["gamma_weight"] = "gamma_weight"
    gradient: OnlyScore = "score"
    power_positive: Annotated[float, Field(ge=0.0, le=100.0)]
    """The power k of the weight for positive advantages."""
    decay_positive: Annotated[float, Field(ge=0.0, le=100.0)]
    """The decay c of the weight for positive advantages."""
    power_negative: Annotated[float, Field(ge=0.0, le=100.0)]
    """The power k of the weight for negative advantages."""
    decay_negative: Annotated[float, Field(ge=0.0, le=100.0)]
    """The decay c of the weight for negative advantages."""
    reads: ClassVar = "nothing"
    shapes_weight: ClassVar[bool] = True


class ImplicitRewardRegression(Surrogate):
    """-(1/2) e^2 for the residual e between implicit and given reward (GVPO, arXiv 2504.19599, eq. 9).

    e = beta (log W - group mean of log W) - (A - group mean of A), where W is the sequence ratio and A the
    advantage; the coefficient on each of the row's tokens is -beta e. Both means run over the group's rows
    with trained tokens, so the residuals of a group sum to 0; the residual of a single such row is 0. The
    reduction chooses between the paper's 1/(k - 1) and a plain mean.

    The loss is A's term plus beta^2 / 2 times the variance of log pi less beta^2 times its covariance
    with log pi_behavior. `without` leaves one of the two out, as the paper's ablations do: log pi or log
    pi_behavior then disappears from log W.
    """

    kind: Literal["implicit_reward_regression"] = "implicit_reward_regression"
    gradient: OnlyPathwise = "pathwise"
    beta: Positive
    """The KL coefficient of the implicit reward."""
    without: Literal["nothing", "variance", "covariance"] = "nothing"
    """The regularizing part of the loss that an ablation leaves out."""
    reads: ClassVar = "nothing"
    exponentiates: ClassVar[bool] = False
    weight_level: ClassVar[Level | None] = "sequence"
    regresses: ClassVar[bool] = True

    @property
    def needs(self) -> Needs:
        """The group's mean at the current parameters."""
        return Needs(prepare_pass=True, whole_groups=True)


class NoSurrogate(Surrogate):
    """w A: importance sampling alone."""

    kind: Literal["none"] = "none"
    gradient: GradientForm = "pathwise"
    reads: ClassVar = "nothing"

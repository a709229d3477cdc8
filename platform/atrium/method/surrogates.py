"""Surrogates: per-token objectives, including their behavior at the boundary of the trust region.

A surrogate maps a token's weight w, its advantage A and the trust region [l, u] to a coefficient c. By
definition, c is the gradient of the objective (which is maximized) with respect to the token's
log-probability, and `Objective.loss` builds the loss from it. Pathwise surrogates also return the value whose
derivative with respect to log w is c, and a test checks every such c against autograd. Score surrogates are
stop-gradient weights times the log-probability: their value is c log pi.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from atrium.base.section import AboveOne, NonNegative, Positive
from atrium.method.batch import Batch
from atrium.method.needs import Needs, Part
from atrium.method.ratios import Level
from atrium.method.terms import SurrogateInputs, SurrogateOutput, choose

if TYPE_CHECKING:
    from torch import Tensor

_MEANING = Field(description="Path of the gradient: through w (pathwise), or as a detached weight (score).")
Gradient = Literal["pathwise", "score"]
GradientForm = Annotated[Gradient, _MEANING]
OnlyPathwise = Annotated[Literal["pathwise"], _MEANING]
OnlyScore = Annotated[Literal["score"], _MEANING]


class Surrogate(Part, axis=True):
    """A per-token objective of ratio and advantage, including its behavior outside the trust region.

    A subclass defines either `value`, a formula to differentiate, or `terms`, which returns coefficients,
    values and clipped tokens.

    `gradient` is the path of the gradient: `pathwise` through w, or `score` as a detached weight times the
    log-probability. If a surrogate has both forms, their coefficients agree for log-ratios up to
    `log_ratio_limit`. Beyond that limit the bounded ratio is constant, so the pathwise gradient is 0, but the
    score gradient is not.

    Attributes
    ----------
    reads
        The part of the trust region that the surrogate reads: nothing, the feasible tokens, or the bounds.
    exponentiates
        Whether the surrogate reads ratios, which are exponentials of bounded log-ratios. False if it reads
        log-ratios only.
    reads_widths
        Whether the surrogate divides by the widths of the trust region; see `Region.widths`.
    shapes_weight
        Whether the surrogate changes only the weight, and leaves a weight of 1 unchanged.
    weight_level
        The level that the weight ratio must have, or None if any level is allowed.
    regresses
        Whether the surrogate fits the policy's change since the start of the step to the rewards. Such a
        surrogate has a gradient even if every advantage is 0.
    """

    reads: ClassVar[Literal["nothing", "feasible", "bounds"]] = "feasible"
    exponentiates: ClassVar[bool] = True
    reads_widths: ClassVar[bool] = False
    shapes_weight: ClassVar[bool] = False
    weight_level: ClassVar[Level | None] = None
    regresses: ClassVar[bool] = False

    def value(self, x: SurrogateInputs) -> Tensor:
        """Return the objective [B, T] at each token.

        The formula may use only arithmetic and methods of the tensors, and must be differentiable in
        `x.weight_BT`, `x.log_weight_BT` and `x.logprob_BT`; everything else in `x` is a constant.
        """
        raise NotImplementedError(f"{type(self).__name__} must define value or terms")

    def coefficient(self, x: SurrogateInputs) -> Tensor | None:
        """Return d value / d log w [B, T] in closed form, or None to use autograd."""
        return None

    def terms(self, x: SurrogateInputs) -> SurrogateOutput:
        """Return coefficients, values and clipped tokens, by default computed from the formula `value`.

        The coefficient is the closed form if there is one, else the derivative from autograd. A token counts
        as clipped (`dropped_BT`) if its coefficient is 0 and its advantage is not. Raises
        `NotImplementedError` for a class that defines neither `value` nor `terms`, and `TypeError` for a
        formula that does not depend on the policy.
        """
        coefficient_BT = self.coefficient(x)
        value_BT = self.value(x) if coefficient_BT is not None else None
        if coefficient_BT is None:
            coefficient_BT, value_BT = self.differentiated(x)
        dropped_BT = (coefficient_BT == 0.0) & (x.advantage_BT != 0.0)
        return SurrogateOutput(coefficient_BT=coefficient_BT, value_BT=value_BT, dropped_BT=dropped_BT)

    def differentiated(self, x: SurrogateInputs) -> tuple[Tensor, Tensor]:
        """Return the derivative of the formula with respect to log w, and its value, both [B, T]."""
        import torch

        with torch.enable_grad():
            # The factor e^0 = 1 leaves the weight bitwise unchanged, also if it was clamped.
            step_BT = torch.zeros_like(x.weight_BT).requires_grad_()
            moved = replace(
                x,
                weight_BT=x.weight_BT * step_BT.exp(),
                log_weight_BT=x.log_weight_BT + step_BT,
                logprob_BT=x.logprob_BT + step_BT,
            )
            value_BT = self.value(moved)
            if not value_BT.requires_grad:
                raise TypeError(
                    f"{type(self).__name__}.value must depend on the policy; compute it from the "
                    "log-probabilities"
                )
            (coefficient_BT,) = torch.autograd.grad(value_BT.sum(), step_BT)
        return coefficient_BT, value_BT.detach()

    def row_constant(self, log_weight_BT: Tensor, logprob_BT: Tensor, minibatch: Batch) -> Tensor | None:
        """Return a constant for each row [B] of the minibatch, or None if the surrogate uses none.

        `log_weight_BT` and `logprob_BT` come from the minibatch's gradient-free pass at the current
        parameters.
        """
        return None

    @property
    def form(self) -> Gradient:
        """The path of the gradient: the setting `gradient`, or `pathwise` without this setting."""
        form: Gradient = getattr(self, "gradient", "pathwise")
        return form


class Clip(Surrogate):
    """min(w A, clip(w, l, u) A), PPO's surrogate over any trust region (arXiv 1707.06347, eq. 7)."""

    kind: Literal["clip"] = "clip"
    gradient: GradientForm = "pathwise"

    def terms(self, x: SurrogateInputs) -> SurrogateOutput:
        """Return w A, clipped where an ascent step would move the ratio further out of the region."""
        return x.cut_where(x.away_BT)


class DualClip(Surrogate):
    """The clip surrogate, bounded below by cap x A for negative advantages (arXiv 1912.09729, eq. 5)."""

    kind: Literal["dual_clip"] = "dual_clip"
    gradient: GradientForm = "pathwise"
    cap: AboveOne
    """Ratio above which a token with a negative advantage has no gradient."""

    def terms(self, x: SurrogateInputs) -> SurrogateOutput:
        """Return w A, clipped as by `Clip` and, for A < 0, also at ratios of at least `cap`."""
        runaway_BT = x.runaway_BT(self.cap)
        return x.cut_where(x.away_BT | runaway_BT, x.clipped_ratio_BT.masked_fill(runaway_BT, self.cap))


class TwoSidedClip(Surrogate):
    """min(min(w, cap) A, clip(w, l, u) A): w is capped for both signs of A (INTELLECT-2, arXiv 2505.07291).

    If cap >= u, this is the dual clip with the same cap. A cap below u also limits w for positive advantages.
    """

    kind: Literal["two_sided_clip"] = "two_sided_clip"
    gradient: GradientForm = "pathwise"
    cap: AboveOne
    """Ratio above which tokens have no gradient, except feasible tokens with a negative advantage."""

    def terms(self, x: SurrogateInputs) -> SurrogateOutput:
        """Return w A, clipped as by `Clip` and also at ratios of at least `cap`.

        For A <= 0, the cap clips only infeasible tokens.
        """
        raises_BT = x.advantage_BT > 0.0
        runaway_BT = (x.gate_BT >= self.cap) & (raises_BT | ~x.region.feasible_BT)
        clipped_BT = x.clipped_ratio_BT
        lowers_BT = clipped_BT.clamp(min=self.cap).where(runaway_BT, clipped_BT)
        return x.cut_where(x.away_BT | runaway_BT, clipped_BT.clamp(max=self.cap).where(raises_BT, lowers_BT))


class Mask(Surrogate):
    """w A if feasible and 0 otherwise, for both signs of A (as in IcePop, arXiv 2510.18855)."""

    kind: Literal["mask"] = "mask"
    gradient: GradientForm = "pathwise"

    def terms(self, x: SurrogateInputs) -> SurrogateOutput:
        """Return w A at feasible tokens, and 0 without gradient at all others."""
        return x.cut_where(~x.region.feasible_BT, 0.0)


class WeightClip(Surrogate):
    """sg(clip(w, l, u)) A log pi: only the weight is clipped, not the gradient (CISPO, arXiv 2506.13585)."""

    kind: Literal["weight_clip"] = "weight_clip"
    gradient: OnlyScore = "score"
    reads: ClassVar = "bounds"
    shapes_weight: ClassVar[bool] = True

    def terms(self, x: SurrogateInputs) -> SurrogateOutput:
        """Return the coefficient: the clipped weight times A."""
        lower, upper = x.region.bounds_like(x.weight_BT)
        return x.uncut(x.weight_BT.clamp(lower, upper) * x.advantage_BT)


class SignedWeightClip(Surrogate):
    """A log pi if the reward is positive, else sg(clip(w, lower, upper)) A log pi (TOPR).

    The sign of the reward decides, not that of the advantage. Source: arXiv 2503.14286.
    """

    kind: Literal["signed_weight_clip"] = "signed_weight_clip"
    gradient: OnlyScore = "score"
    lower: NonNegative
    """Minimum importance weight; smaller ones are clipped to it."""
    upper: Positive
    """Maximum importance weight; larger ones are clipped to it."""
    reads: ClassVar = "nothing"
    shapes_weight: ClassVar[bool] = True

    needs: ClassVar = Needs(rewards=True)
    """Rewards, whose sign decides whether the weight is used."""

    def terms(self, x: SurrogateInputs) -> SurrogateOutput:
        """Return the coefficient: A if the reward is positive, else the clipped weight times A."""
        bounded_BT = x.weight_BT.clamp(self.lower, self.upper)
        return x.uncut(bounded_BT.masked_fill(x.rewarded_BT, 1.0) * x.advantage_BT)


class Reinforce(Surrogate):
    """The REINFORCE surrogate, `A * log(pi)`: no importance weight and no trust region."""

    kind: Literal["reinforce"] = "reinforce"
    gradient: OnlyScore = "score"
    reads: ClassVar = "nothing"

    def terms(self, x: SurrogateInputs) -> SurrogateOutput:
        """Return the coefficient A at every token, without clipping."""
        return x.uncut(x.advantage_BT)


class GradientPreservingClip(Surrogate):
    """A clip whose clipped tokens keep a bounded gradient: scale x bound x A (CE-GPPO, arXiv 2509.20712).

    The coefficient is `scale_low` l A for A < 0 and w < l, and `scale_high` u A for A > 0 and w > u. Tokens
    with A < 0 and w >= `cap` have no gradient, as in the dual clip.
    """

    kind: Literal["gradient_preserving_clip"] = "gradient_preserving_clip"
    gradient: OnlyPathwise = "pathwise"
    scale_low: NonNegative
    """Scale of the gradient below the window, where A < 0."""
    scale_high: NonNegative
    """Scale of the gradient above the window, where A > 0."""
    cap: AboveOne
    """Ratio above which a token with a negative advantage has no gradient."""
    reads: ClassVar = "bounds"

    def terms(self, x: SurrogateInputs) -> SurrogateOutput:
        """Return w A, or the scaled bound times A where `Clip` would drop the gradient.

        Tokens with A < 0 and a ratio of at least `cap` have no gradient.
        """
        scale_BT = choose(x.gate_BT > 1.0, self.scale_high, self.scale_low, x.gate_BT)
        preserved_BT = scale_BT * x.region.crossed_bound(x.gate_BT) * x.advantage_BT
        runaway_BT = x.runaway_BT(self.cap)
        value_BT = preserved_BT.where(x.away_BT, x.weight_BT * x.advantage_BT)
        return SurrogateOutput(
            coefficient_BT=value_BT.masked_fill(runaway_BT, 0.0),
            value_BT=(self.cap * x.advantage_BT).where(runaway_BT, value_BT),
            dropped_BT=runaway_BT,
        )


class SoftGate(Surrogate):
    """(4 / tau) sigmoid(tau (w - 1)) A, where tau depends on the sign of A (SAPO, arXiv 2511.20347).

    Its derivative with respect to w is A at w = 1 and falls off smoothly on both sides. The coefficient is w
    times this derivative, so it is largest at a ratio above 1.
    """

    kind: Literal["soft_gate"] = "soft_gate"
    gradient: GradientForm = "pathwise"
    tau_positive: Positive
    """Temperature of the gate for positive advantages."""
    tau_negative: Positive
    """Temperature of the gate for negative advantages."""
    reads: ClassVar = "nothing"

    def terms(self, x: SurrogateInputs) -> SurrogateOutput:
        """Return the surrogate's value, and the value's derivative with respect to log w."""
        tau_BT = x.by_sign(self.tau_positive, self.tau_negative)
        argument_BT = tau_BT * (x.weight_BT - 1.0)
        gate_BT = argument_BT.sigmoid()
        # sigmoid(-x) rather than 1 - sigmoid(x), which rounds to 0 too early.
        slope_BT = 4.0 * gate_BT * (-argument_BT).sigmoid() * x.weight_BT
        return x.uncut(slope_BT * x.advantage_BT, 4.0 / tau_BT * gate_BT * x.advantage_BT)


class Quadratic(Surrogate):
    """w A - |A| (w - 1)^2 / (2 e), where e is the window's width on w's side of 1 (SPO, arXiv 2401.16025).

    The coefficient w (A - |A| (w - 1) / e) is 0 at the bound toward which A moves the ratio. Beyond this
    bound its sign changes, which pulls the ratio back. A symmetric window gives SPO; with an asymmetric
    one, each side has its own curvature. With a budget delta for the change of a token's probability,
    e = delta / q for the anchor's probability q, which gives w A - |A| q (w - 1)^2 / (2 delta) (DRPO, arXiv
    2606.09821). Bounds at distance e may lie beyond ratio 0 or probability 1; see `Region.widths`.
    """

    kind: Literal["quadratic"] = "quadratic"
    gradient: GradientForm = "pathwise"
    reads: ClassVar = "bounds"
    reads_widths: ClassVar[bool] = True

    def terms(self, x: SurrogateInputs) -> SurrogateOutput:
        """Return the value, w A minus the parabola, and the value's derivative with respect to log w."""
        import torch

        distance_BT = x.weight_BT - 1.0
        width_low, width_high = x.region.widths_like(distance_BT)
        width_BT = width_high.where(distance_BT > 0.0, width_low)
        width_BT = width_BT.clamp(min=torch.finfo(width_BT.dtype).eps)  # a bound may round to 1
        pull_BT = x.advantage_BT.abs() * distance_BT / width_BT
        value_BT = x.weight_BT * x.advantage_BT - 0.5 * pull_BT * distance_BT
        return x.uncut(x.weight_BT * (x.advantage_BT - pull_BT), value_BT)


class GammaWeight(Surrogate):
    """sg(w^k exp(c (1 - w))) A log pi, where k and c depend on the sign of A (VESPO, arXiv 2602.10693).

    The weight is 1 at w = 1 and, for positive k and c, largest at w = k / c; it falls to 0 on both sides.
    """

    kind: Literal["gamma_weight"] = "gamma_weight"
    gradient: OnlyScore = "score"
    power_positive: Annotated[float, Field(ge=0.0, le=100.0)]
    """Power k of the weight for positive advantages."""
    decay_positive: Annotated[float, Field(ge=0.0, le=100.0)]
    """Decay c of the weight for positive advantages."""
    power_negative: Annotated[float, Field(ge=0.0, le=100.0)]
    """Power k of the weight for negative advantages."""
    decay_negative: Annotated[float, Field(ge=0.0, le=100.0)]
    """Decay c of the weight for negative advantages."""
    reads: ClassVar = "nothing"
    shapes_weight: ClassVar[bool] = True

    def terms(self, x: SurrogateInputs) -> SurrogateOutput:
        """Return the coefficient: the weight, computed in log space to avoid overflow, times A."""
        power_BT = x.by_sign(self.power_positive, self.power_negative)
        decay_BT = x.by_sign(self.decay_positive, self.decay_negative)
        log_BT = power_BT * x.weight_BT.log() + decay_BT * (1.0 - x.weight_BT)
        return x.uncut(log_BT.exp() * x.advantage_BT)


class NoSurrogate(Surrogate):
    """w A: importance sampling alone."""

    kind: Literal["none"] = "none"
    gradient: GradientForm = "pathwise"
    reads: ClassVar = "nothing"

    def terms(self, x: SurrogateInputs) -> SurrogateOutput:
        """Return w A at every token, as coefficient and value, without clipping."""
        value_BT = x.weight_BT * x.advantage_BT
        return x.uncut(value_BT, value_BT)

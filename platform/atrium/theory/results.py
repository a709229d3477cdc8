"""Results of this package's experiments, as plain numbers that can be plotted without torch."""

from __future__ import annotations

from dataclasses import dataclass

from atrium.method.method import Method
from atrium.method.windows import Window

Numbers = tuple[float, ...]
_PROBABILITIES = tuple(10.0 ** (-2.0 + 0.05 * step) for step in range(40))


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodWindow:
    """A method's window: for all tokens, or by the token's behavior probability, where it has one."""

    name: str
    constant: Window | None
    probabilities: Numbers
    by_probability: tuple[Window, ...]

    @classmethod
    def of(cls, method: Method) -> MethodWindow:
        """Return the window of the method's divergence."""
        divergence = method.divergence
        by_probability = [divergence.window_at(q) for q in _PROBABILITIES]
        found = tuple(window for window in by_probability if window is not None)
        return cls(
            name=method.algorithm.name,
            constant=divergence.window(),
            probabilities=_PROBABILITIES if found else (),
            by_probability=found if divergence.has_token_windows else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CoefficientCurves:
    """The coefficient on a token's log-probability at each ratio, for an advantage of 1 and of -1."""

    name: str
    ratio: Numbers
    raised: Numbers
    lowered: Numbers
    at_one: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """Theorems 4.1 and 4.2 on random tokens; `is_clip` where nothing else shapes the method's gradient.

    `general_error` is the largest difference between the method's coefficient and the gradient of
    min(w A, clip_C(w) A) with a constant inside the region where C fails; `window_error` that from the
    gradient of the ratio clip at the same [l, u], None without one; `wrong_constant_frac` the share of
    tokens whose gradient changes when that constant is 0; `num_disagreeing` the tokens at which D(w) <=
    delta and l <= w <= u differ, None where D is not a function of the ratio.
    """

    name: str
    is_clip: bool
    num_tokens: int
    dropped_frac: float
    general_error: float
    wrong_constant_frac: float
    window_error: float | None
    num_disagreeing: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateCourse:
    """The effect of a batch's updates on the policy, after each of them; means over seeds, without the start.

    Entropy and reward are changes from the behavior policy's; `kl` is KL(behavior || policy) of whole
    completions, `reverse_kl` the other direction. `mass_change` is the probability that moved into each
    bin of behavior probabilities, `rewarded_mass_change` that of completions with a reward.
    `final_entropy_S` holds each seed's last entropy change, `final_mass_S` the probability that moved into
    the bin of the most likely completions.
    """

    name: str
    entropy_change: Numbers
    reward_change: Numbers
    kl: Numbers
    reverse_kl: Numbers
    total_variation: Numbers
    dropped_frac: Numbers
    mass_change: Numbers
    rewarded_mass_change: Numbers
    final_entropy_S: Numbers
    final_mass_S: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorBias:
    """Relative errors of a KL penalty's expected gradient, at token and at sequence level."""

    name: str
    target: str
    num_tokens: int
    is_on_policy: bool
    token_error: float
    sequence_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Faithfulness:
    """How well a method's expected gradient points along the true gradient of the reward, by distance."""

    name: str
    distance_kl: Numbers
    cosine: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """Where an objective leads under a sampler: the distance of its optimum from pi' exp(R / beta) / Z."""

    objective: str
    sampler: str
    max_difference: float
    probability_B: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionSteps:
    """Theorem 3: after n optimal steps, the reward and the KL from the first policy, and how exact it is.

    `frontier_kl` and `frontier_reward` trace the best reward at each KL.
    """

    kl: Numbers
    reward: Numbers
    max_difference: Numbers
    frontier_kl: Numbers
    frontier_reward: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceOptima:
    """Largest errors of a probability after minimizing DPO's or GVPO's loss, by initial policy.

    `masses` are the probabilities of the third answer under the initial policies. The data hold two of three
    answers, or all three; the target is pi' exp(R / beta) / Z.
    """

    masses: Numbers
    dpo_on_two: Numbers
    gvpo_on_two: Numbers
    dpo_on_three: Numbers
    gvpo_on_three: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class FormGradient:
    """A form of RPG: the relative error of its expected gradient, and the variance of one sample's."""

    name: str
    error: float
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionFindings:
    """Theorems 1 to 3 of GVPO."""

    start_errors: Numbers
    optimum_B: Numbers
    optima: tuple[Optimum, ...]
    steps: RegressionSteps

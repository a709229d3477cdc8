"""Results of the experiments of `atrium theory` as plain numbers, which can be plotted without torch."""

from __future__ import annotations

from dataclasses import dataclass

from atrium.method.method import Method
from atrium.method.windows import Window

Numbers = tuple[float, ...]
_PROBABILITIES = tuple(10.0 ** (-2.0 + 0.05 * step) for step in range(40))


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodWindow:
    """A method's window: one constant window, or one window for each of several behavior probabilities."""

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
    """The coefficient of a token's log-probability at each ratio.

    `raised` is for an advantage of 1, `lowered` for -1; `at_one` contains both values at ratio 1.
    """

    name: str
    ratio: Numbers
    raised: Numbers
    lowered: Numbers
    at_one: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """Check of Theorems 4.1 and 4.2 of arXiv 2602.05494 on random tokens.

    Attributes
    ----------
    is_clip
        Whether the clip surrogate alone determines the method's gradient; if not, the errors have no meaning.
    dropped_frac
        Share of clipped tokens.
    general_error
        Largest difference between the method's coefficient and the gradient of min(w A, clip_C(w) A), where
        clip_C(w) is w if the constraint C is satisfied, else a constant inside the trust region.
    wrong_constant_frac
        Share of tokens whose gradient changes if the constant in clip_C is replaced by 0.
    window_error
        Largest difference between the method's coefficient and the gradient of the ratio clip with the same
        [l, u]. None without a window.
    num_disagreeing
        Number of tokens at which D(w) <= delta and l <= w <= u disagree. None if D is not a function of the
        ratio.
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
    """The state of the policy after each update on one batch (means over seeds).

    Entropy (nats) and reward are changes from the behavior policy. `dropped_frac` is the share of tokens
    clipped in each update. `kl` is KL(behavior || policy) of whole completions in nats, and `reverse_kl` is
    KL(policy || behavior). `mass_change` is the final change of probability in each bin of behavior
    probability, and `rewarded_mass_change` the part of this change that is due to rewarded completions.
    `final_entropy_S` has each seed's final entropy change, and `final_mass_S` each seed's final change of
    probability in the bin of the most likely completions.
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
    """Relative errors of a KL penalty's expected gradient, compared with the gradient of `target`.

    `token_error` is for sums over tokens, `sequence_error` for the penalty at sequence level.
    """

    name: str
    target: str
    num_tokens: int
    is_on_policy: bool
    token_error: float
    sequence_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Faithfulness:
    """Cosine between a method's expected gradient and that of the expected reward, by distance in KL."""

    name: str
    distance_kl: Numbers
    cosine: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The optimum of an objective under a sampler.

    `max_difference` is the largest difference of a completion's probability from GVPO's theoretical optimum
    pi' exp(R / beta) / Z, where pi' is the anchor policy and R the reward.
    """

    objective: str
    sampler: str
    max_difference: float
    probability_B: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionSteps:
    """Check of GVPO's Theorem 3: KL from the first policy, expected reward and error after each optimal step.

    The error `max_difference` is the largest difference between a completion's probability and the one that
    the theorem predicts. `frontier_kl` and `frontier_reward` trace the best reward at each KL.
    """

    kl: Numbers
    reward: Numbers
    max_difference: Numbers
    frontier_kl: Numbers
    frontier_reward: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceOptima:
    """Largest error of an answer's probability after minimizing DPO's or GVPO's loss, by initial policy.

    `masses` are the probabilities of the third answer under the initial policies. The data contain two of
    three answers (`on_two`) or all three (`on_three`). Errors are differences from the target pi' exp(R /
    beta) / Z, where pi' is the anchor policy and R the reward.
    """

    masses: Numbers
    dpo_on_two: Numbers
    gvpo_on_two: Numbers
    dpo_on_three: Numbers
    gvpo_on_three: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class FormGradient:
    """A loss form of RPG: relative error of its expected gradient, and variance over single samples."""

    name: str
    error: float
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionFindings:
    """Checks of GVPO's Theorems 1 (`start_errors`), 2 (`optima`) and 3 (`steps`)."""

    start_errors: Numbers
    optimum_B: Numbers
    optima: tuple[Optimum, ...]
    steps: RegressionSteps

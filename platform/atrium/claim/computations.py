"""Computations that check claims about formulas, for example theorems.

The papers are ATR (arXiv 2602.05494), GVPO (arXiv 2504.19599) and RPG (arXiv 2505.17508).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import lambertw

from atrium.catalog.window_figures import windows_picture
from atrium.config.presets import read_preset
from atrium.document.document import Picture
from atrium.method.windows import DIVERGENCES
from atrium.stats.seeds import mean_over_seeds
from atrium.theory.figures import (
    bias_picture,
    entropy_picture,
    gradient_picture,
    moved_mass_picture,
    regression_picture,
    window_picture,
)
from atrium.theory.findings import Findings, find
from atrium.theory.implicit_reward import regression_findings
from atrium.theory.preferences import preference_optima
from atrium.theory.regularized_forms import BETA as FORM_BETA
from atrium.theory.regularized_forms import form_gradients
from atrium.theory.results import MethodWindow

METHODS = ("grpo", "clip_higher", "atr")
_KL3 = DIVERGENCES["kl3"]
_BUDGETS = {"u = 1.2": _KL3.value(1.2), "l = 0.8": _KL3.value(0.8), "u = 1.28": _KL3.value(1.28)}
_SEEDS = 8
_TRUE = "true rewards"
_BATCHES = f"means of {_SEEDS} batches of a tabular policy with 95 % t intervals, {_TRUE}"
_FORMS = [f"rpg_{way}{kl}" for kl in ("fkl", "rkl", "ufkl", "urkl") for way in ("", "reinforce_")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """The result of a computation.

    `error` is the largest error, or None if the claim has no expected bound. `words` describes the data
    and the results. `figure` is None if the computation has no figure.
    """

    error: float | None
    words: str
    figure: Picture | None


def gradient_of_the_clip() -> Computed:
    """Check Theorem 4.1 of ATR on random tokens.

    `error` is the largest difference in a token's gradient between a method and the general clipped
    surrogate, or between a method with a constant window and PPO's ratio clip at the same window.
    """
    found = _theory("gradients")
    errors = [max(one.general_error, one.window_error or 0.0) for one in found.equivalences]
    num_tokens = found.equivalences[0].num_tokens
    return Computed(
        error=max(errors),
        words=f"{', '.join(METHODS)} on {num_tokens} random tokens each",
        figure=gradient_picture(found.curves),
    )


def window_of_kl3() -> Computed:
    """Check Theorem 4.2 of ATR: compare the numerical bounds l and u with those from Lambert's W.

    `error` is the largest difference over all budgets. It is infinite unless u - 1 > 1 - l for every budget.
    """
    deltas = np.geomspace(1e-4, 1.0, 200)
    errors = []
    for delta in deltas:
        found, at = _KL3.window(float(delta)), -np.exp(-(1.0 + delta))
        lower, upper = -lambertw(at, 0).real, -lambertw(at, -1).real
        is_wider_above = found.upper - 1.0 > 1.0 - found.lower
        errors.append(max(abs(found.lower - lower), abs(found.upper - upper)) if is_wider_above else np.inf)
    windows = [MethodWindow.of(read_preset(name).method) for name in METHODS]
    return Computed(
        error=float(max(errors)),
        words=f"{len(deltas)} budgets from {deltas[0]:g} to {deltas[-1]:g}, all windows wider above 1",
        figure=window_picture(windows),
    )


def constraint_of_kl3() -> Computed:
    """Check that KL3 <= delta and l <= w <= u allow the same ratios w (Figure 1 of ATR).

    `error` is the share of grid points (a ratio and a budget) at which only one of the conditions is true.
    """
    ratios = np.linspace(0.3, 2.5, 22_001)
    wrong = [
        (_KL3.value(float(ratio)) <= delta) != (window.lower <= ratio <= window.upper)
        for delta in _BUDGETS.values()
        for window in [_KL3.window(delta)]
        for ratio in ratios
    ]
    return Computed(
        error=float(np.mean(wrong)),
        words=f"{len(ratios)} ratios for each of {len(_BUDGETS)} budgets",
        figure=windows_picture({f"KL3, {name}": (_KL3, delta) for name, delta in _BUDGETS.items()}),
    )


def mass_moved_by_updates() -> Computed:
    """Compute how much probability each method moves to likely completions (cf. Theorem 5.1 of ATR).

    Likely completions are those in the highest bin of behavior probabilities.
    """
    found = _theory("updates")
    moved = [f"{one.name} {_mean(one.final_mass_S, 100.0, 2)}" for one in found.courses[_TRUE]]
    words = f"points of probability moved to completions above {found.bin_edges[-2]:.0%}: {', '.join(moved)}"
    drawn = moved_mass_picture(found.courses, found.bin_edges)
    return Computed(error=None, words=f"{_BATCHES}; {words}", figure=drawn)


def entropy_moved_by_updates() -> Computed:
    """Compute how several updates on one batch change the policy's entropy (cf. Theorem 5.2 of ATR).

    The changes are in nats per completion, one for each method.
    """
    found = _theory("updates")
    moved = [f"{one.name} {_mean(one.final_entropy_S, 1.0, 4)}" for one in found.courses[_TRUE]]
    words = f"change of entropy, nats per completion: {', '.join(moved)}"
    return Computed(error=None, words=f"{_BATCHES}; {words}", figure=entropy_picture(found.courses))


def optimum_from_any_start() -> Computed:
    """Check Theorem 1 of GVPO: minimize the loss from several starts.

    `error` is the largest difference of a completion's probability from the optimum
    pi' exp(R / beta) / Z, where pi' is the anchor policy and R the reward.
    """
    found = regression_findings()
    return Computed(
        error=max(found.start_errors),
        words=f"{len(found.start_errors)} random starts of a tabular policy; error in probability",
        figure=regression_picture(found),
    )


def optimum_under_any_sampler() -> Computed:
    """Check Theorem 2 of GVPO: minimize the loss under several samplers.

    `error` is the largest difference of a completion's probability from the optimum
    pi' exp(R / beta) / Z, where pi' is the anchor policy and R the reward. `words` also gives this
    difference for the importance-weighted reward with a KL penalty.
    """
    found = regression_findings()
    ours = [one.max_difference for one in found.optima if one.objective == "GVPO"]
    theirs = max(one.max_difference for one in found.optima if one.objective != "GVPO")
    return Computed(
        error=max(ours),
        words=f"{len(ours)} samplers; up to {theirs:.2g} for importance-weighted reward with a KL penalty",
        figure=regression_picture(found),
    )


def optima_of_preferences() -> Computed:
    """Compare the minimizers of the DPO and GVPO losses on data that contain two of three answers, or all.

    With all three answers, both minimizers should equal the optimum pi' exp(R / beta) / Z, where pi' is the
    anchor policy and R the reward. With two answers, both should differ from the optimum by the same amount.
    `error` is the largest deviation from these expectations.
    """
    found = preference_optima()
    apart = [abs(dpo - gvpo) for dpo, gvpo in zip(found.dpo_on_two, found.gvpo_on_two, strict=True)]
    masses = ", ".join(f"{mass:.0%}" for mass in found.masses)
    missed = ", ".join(f"{error:.3f}" for error in found.gvpo_on_two)
    return Computed(
        error=max(*found.dpo_on_three, *found.gvpo_on_three, *apart),
        words=f"with two of three answers in the data, both methods miss the optimum by {missed} for initial "
        f"probabilities of the third answer of {masses}; with all three, both find it",
        figure=None,
    )


def optimum_after_steps() -> Computed:
    """Check Theorem 3 of GVPO: take several optimal steps, each anchored at the previous policy.

    `error` is the largest difference of a completion's probability after n steps from
    pi' exp(n R / beta) / Z, over all n. Here pi' is the first policy and R the reward.
    """
    found = regression_findings()
    distances = ", ".join(f"{kl:.3f}" for kl in found.steps.kl)
    return Computed(
        error=max(found.steps.max_difference),
        words=f"{len(found.steps.kl)} steps; KL from the first policy: {distances} nats",
        figure=regression_picture(found),
    )


def gradient_of_forms() -> Computed:
    """Compare the gradients of RPG's loss forms with that of E[R] - beta KL, for completions of one token.

    `error` is the largest relative error over all forms and random seeds.
    """
    methods = [read_preset(f"{form}_unclipped").method for form in _FORMS]
    found = form_gradients(methods)
    variances = ", ".join(f"{one.name.removesuffix('_unclipped')} {one.variance:.4f}" for one in found)
    return Computed(
        error=max(one.error for one in found),
        words=f"{len(found)} forms, beta {FORM_BETA:g}; variance of a single-sample gradient: {variances}",
        figure=None,
    )


def correction_of_the_kl() -> Computed:
    """Check RPG's correction of the KL penalty, which multiplies k3 by the importance weight.

    `error` is the largest relative error of the penalty's expected gradient at sequence level.
    """
    found = _theory("bias", ("grpo_kl", "grpo_kl_corrected"))
    exact = [one.sequence_error for one in found.biases if one.name == "w k3"]
    without = max(one.sequence_error for one in found.biases if one.name == "k3")
    by_token = max(one.token_error for one in found.biases if one.name == "w k3")
    return Computed(
        error=max(exact),
        words=f"errors up to {without:.0%} without the weight, up to {by_token:.0%} with sums over tokens",
        figure=bias_picture(found.biases, found.faithfulness),
    )


def _theory(part: str, methods: Sequence[str] = METHODS) -> Findings:
    return find([read_preset(name).method for name in methods], [part], num_seeds=_SEEDS)


def _mean(values: Sequence[float], scale: float, digits: int) -> str:
    """Format the mean over batches with its 95 % t interval, such as `-1.91 [-2.80, -1.02]`.

    The values are multiplied by `scale` and shown with `digits` decimal places.
    """
    mean = mean_over_seeds([scale * value for value in values])
    low, high = mean.interval() or (mean.value, mean.value)
    return f"{mean.value:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


COMPUTATIONS: Mapping[str, Callable[[], Computed]] = {
    function.__name__: function
    for function in (
        gradient_of_the_clip,
        window_of_kl3,
        constraint_of_kl3,
        mass_moved_by_updates,
        entropy_moved_by_updates,
        optimum_from_any_start,
        optimum_under_any_sampler,
        optimum_after_steps,
        optima_of_preferences,
        gradient_of_forms,
        correction_of_the_kl,
    )
}
"""The computations, by their names in claim files."""

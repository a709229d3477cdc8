"""Checks that the choices on a method's axes are compatible, and that each choice has an effect.

Every error message is one line that names the two conflicting settings and a value to choose instead.
"""

from __future__ import annotations

from atrium.base.errors import ConfigError
from atrium.method.advantages import Advantage
from atrium.method.algorithm import Algorithm
from atrium.method.corrections import MaskedImportance
from atrium.method.divergences import Divergence, ExplicitWindow
from atrium.method.minibatch_windows import BalancedWindow
from atrium.method.needs import Use
from atrium.method.regularizers import KLPenalty, Regularizer
from atrium.method.surrogates import Quadratic
from atrium.method.token_weights import RandomCovarianceDrop
from atrium.method.token_windows import BinaryTotalVariation


def check_parts(algorithm: Algorithm, divergence: Divergence, regularizer: Regularizer, use: Use) -> None:
    """Raise `ConfigError` if choices are incompatible, or if a choice has no effect."""
    _check_groups(algorithm, use.group_size)
    _check_advantage(algorithm.advantage)
    _check_weight(algorithm)
    _check_order(algorithm)
    _check_gate(algorithm, divergence)
    _check_window(algorithm, divergence)
    _check_budget(algorithm, divergence)
    _check_regularizer(algorithm, regularizer, use)
    _check_token_weight(algorithm, regularizer)
    _check_correction(algorithm, use)
    _check_filter(algorithm, regularizer)


def check_anchors(algorithm: Algorithm, use: Use) -> None:
    """Check the policies that ratios and corrections compare.

    Raises `ConfigError` if the run lacks one, the surrogate requires others, or a comparison has no effect.
    """
    surrogate, weight = algorithm.surrogate, algorithm.ratio.weight
    if surrogate.regresses and use.is_stale and weight.anchor != "proximal":
        raise ConfigError(
            f"with stored rollouts or rollout.lag greater than 0, algorithm.surrogate.kind={surrogate.kind} "
            f"requires algorithm.ratio.weight.anchor=proximal, got {weight.anchor}; choose proximal"
        )
    compared = compares_numerics(algorithm, use)
    if compared is None:
        return
    part, remedy = compared
    if use.reads_stored:
        raise ConfigError(
            f"{part} requires the trainer's log-probabilities under the weights that sampled, but these "
            f"are unknown for stored rollouts (rollout.engine=bank); choose {remedy}, or another "
            "rollout.engine"
        )
    if use.behavior_logprobs == "engine":
        raise ConfigError(
            f"{part} has no effect, since compute.behavior_logprobs=engine replaces the trainer's "
            f"log-probabilities with the engine's; choose compute.behavior_logprobs=auto, or {remedy}"
        )


def compares_numerics(algorithm: Algorithm, use: Use) -> tuple[str, str] | None:
    """Find the setting that compares engine and trainer log-probabilities under the same weights.

    Returns this setting and a replacement for it, both as `name=value` text. Returns None if no correction
    or ratio makes this comparison.
    """
    gate, weight = algorithm.ratio.gate, algorithm.ratio.weight
    numerics = {"behavior", "rollout"}
    for step in algorithm.correction.steps:
        if {use.names(one) for one in step.compares or () if one != "current"} == numerics:
            return f"algorithm.correction.kind={step.kind}", "algorithm.correction.kind=none"
    are_compared = {use.names(gate.anchor), use.names(weight.anchor)} == numerics
    if are_compared and "none" not in (gate.level, weight.level):
        return (
            f"algorithm.ratio.gate.anchor={gate.anchor} with algorithm.ratio.weight.anchor={weight.anchor}",
            f"algorithm.ratio.gate.anchor={weight.anchor}",
        )
    return None


def _check_weight(algorithm: Algorithm) -> None:
    surrogate, weight = algorithm.surrogate, algorithm.ratio.weight
    if surrogate.weight_level is not None and weight.level != surrogate.weight_level:
        raise ConfigError(
            f"algorithm.surrogate.kind={surrogate.kind} requires a weight per sequence, got "
            f"algorithm.ratio.weight.level={weight.level}; choose "
            f"algorithm.ratio.weight.level={surrogate.weight_level}"
        )
    advantage = algorithm.advantage
    if surrogate.regresses and (advantage.offset != 0.0 or advantage.baseline in ("none", "batch_mean")):
        raise ConfigError(
            f"algorithm.advantage.baseline={advantage.baseline} with offset={advantage.offset:g} has no "
            f"effect with algorithm.surrogate.kind={surrogate.kind}, which subtracts the group mean of the "
            "advantages; choose baseline=group_mean and offset=0.0"
        )
    if weight.level == "none" and surrogate.form == "pathwise":
        raise ConfigError(
            "algorithm.ratio.weight.level=none leaves no ratio for the gradient to differentiate; choose "
            "algorithm.surrogate.gradient=score"
        )
    if weight.cap is not None and surrogate.form == "pathwise":
        raise ConfigError(
            f"algorithm.ratio.weight.cap={weight.cap} makes the weight a constant, which has no "
            "gradient; choose algorithm.surrogate.gradient=score"
        )
    if weight.level == "none" and surrogate.shapes_weight:
        raise ConfigError(
            f"algorithm.surrogate.kind={surrogate.kind} changes a weight, but "
            "algorithm.ratio.weight.level=none removes it; choose algorithm.surrogate.kind=none"
        )


def _check_order(algorithm: Algorithm) -> None:
    ratio, kind = algorithm.ratio, algorithm.surrogate.kind
    if ratio.weight.order == "mean_then_clip":
        return
    wanted = ""
    if (ratio.gate.level, ratio.weight.level) != ("token", "sequence_mean"):
        wanted = "gate.level=token and weight.level=sequence_mean"
        wanted += f", got gate.level={ratio.gate.level} and weight.level={ratio.weight.level}"
    elif kind != "clip":
        wanted = f"algorithm.surrogate.kind=clip, got {kind}"
    elif ratio.gate.anchor != ratio.weight.anchor:
        wanted = f"equal anchors, got {ratio.gate.anchor} and {ratio.weight.anchor}"
    if wanted:
        raise ConfigError(
            f"algorithm.ratio.weight.order=clip_then_mean requires {wanted}; change this, or choose "
            "order=mean_then_clip"
        )


def _check_gate(algorithm: Algorithm, divergence: Divergence) -> None:
    surrogate, level = algorithm.surrogate, algorithm.ratio.gate.level
    if level == "none" and divergence.kind != "none":
        raise ConfigError(
            f"divergence.kind={divergence.kind} has no effect with algorithm.ratio.gate.level=none; "
            "choose divergence=none or algorithm.ratio.gate.level=token"
        )
    if level == "none" and surrogate.reads != "nothing":
        raise ConfigError(
            f"algorithm.surrogate.kind={surrogate.kind} has no effect with algorithm.ratio.gate.level=none; "
            "choose algorithm.surrogate.kind=none or algorithm.ratio.gate.level=token"
        )
    if level != "token" and divergence.of_single_tokens:
        raise ConfigError(
            f"divergence.kind={divergence.kind} compares single tokens, so it cannot be used with "
            f"algorithm.ratio.gate.level={level}; choose algorithm.ratio.gate.level=token or "
            "divergence=kl3"
        )


def _check_window(algorithm: Algorithm, divergence: Divergence) -> None:
    surrogate = algorithm.surrogate
    if surrogate.reads == "nothing" and divergence.kind != "none":
        raise ConfigError(
            f"divergence.kind={divergence.kind} has no effect with "
            f"algorithm.surrogate.kind={surrogate.kind}, which uses no trust region; choose "
            "divergence=none or algorithm.surrogate.kind=clip"
        )
    if surrogate.reads == "bounds" and not divergence.has_window:
        raise ConfigError(
            f"algorithm.surrogate.kind={surrogate.kind} requires bounds on the ratio, got "
            f"divergence.kind={divergence.kind}; choose divergence=kl3 or algorithm.surrogate.kind=clip"
        )
    if surrogate.kind == "quadratic" and divergence.kind == "none":
        raise ConfigError(
            "algorithm.surrogate.kind=quadratic requires a trust region for its curvature, got "
            "divergence=none; choose divergence=ratio or algorithm.surrogate.kind=none"
        )


def _check_budget(algorithm: Algorithm, divergence: Divergence) -> None:
    window = divergence if isinstance(divergence, ExplicitWindow) else None
    if isinstance(algorithm.surrogate, Quadratic) and window and 1.0 in (window.lower, window.upper):
        raise ConfigError(
            "algorithm.surrogate.kind=quadratic requires bounds on both sides of 1, got "
            f"divergence.lower={window.lower:g} and divergence.upper={window.upper:g}; choose a lower "
            "bound less than 1 and an upper bound greater than 1"
        )
    if isinstance(divergence, BinaryTotalVariation) and not algorithm.surrogate.reads_widths:
        for name in ("delta_low", "delta_high"):
            if (budget := getattr(divergence, name)) > 1.0:
                raise ConfigError(
                    f"divergence.{name}={budget:g} clips nothing with "
                    f"algorithm.surrogate.kind={algorithm.surrogate.kind}, since a probability changes "
                    f"by at most 1; choose {name}=0.2 or algorithm.surrogate.kind=quadratic"
                )
    if isinstance(divergence, BalancedWindow) and (
        divergence.lower > divergence.lower_max or divergence.upper > divergence.upper_max
    ):
        raise ConfigError(
            f"divergence.lower_max={divergence.lower_max:g} must be at least "
            f"divergence.lower={divergence.lower:g}, and divergence.upper_max={divergence.upper_max:g} "
            f"at least divergence.upper={divergence.upper:g}; choose larger maxima"
        )


def _check_groups(algorithm: Algorithm, group_size: int) -> None:
    if group_size == 1 and (algorithm.advantage.is_grouped or algorithm.surrogate.regresses):
        raise ConfigError(
            "rollout.group_size=1 makes every advantage 0; choose a larger rollout.group_size, or "
            "algorithm.advantage.baseline=batch_mean"
        )
    if group_size == 1 and algorithm.group_filter.kind != "keep":
        raise ConfigError(
            f"algorithm.group_filter.kind={algorithm.group_filter.kind} would drop every group with "
            "rollout.group_size=1; choose algorithm.group_filter.kind=keep"
        )


def _check_advantage(advantage: Advantage) -> None:
    """Raise `ConfigError` if one of the advantage's settings has no effect because of the others."""
    with_deviation = ("group_std", "batch_std")
    for name, setting, read_by in (
        ("discount", "returns", ("token",)),
        ("ddof", "scale", with_deviation),
        ("epsilon", "scale", (*with_deviation, "group_mean")),
        ("whiten_epsilon", "whiten", ("tokens", "rows")),
    ):
        value, default = getattr(advantage, name), Advantage.model_fields[name].default
        chosen = getattr(advantage, setting)
        if chosen not in read_by and value != default:
            raise ConfigError(
                f"algorithm.advantage.{name}={value:g} has no effect with "
                f"algorithm.advantage.{setting}={chosen}; choose {name}={default:g} or {setting}={read_by[0]}"
            )
    is_shift = advantage.scale not in ("group_std", "group_mean")  # the scaled offset is equal in all rows
    if advantage.whiten != "none" and is_shift and advantage.offset != 0.0:
        raise ConfigError(
            f"algorithm.advantage.offset={advantage.offset:g} has no effect with "
            f"algorithm.advantage.whiten={advantage.whiten}, which subtracts the mean of all "
            f"{advantage.whiten}; choose offset=0.0 or whiten=none"
        )


def _check_regularizer(algorithm: Algorithm, regularizer: Regularizer, use: Use) -> None:
    penalties, reference = regularizer.penalties, algorithm.reference
    uses_reference = any(kl.anchor == "reference" for kl in penalties)
    if uses_reference and reference.kind == "none":
        raise ConfigError(
            "regularizer.kl.anchor=reference requires a reference policy, but "
            "algorithm.reference.kind=none; choose algorithm.reference.kind=frozen or "
            "regularizer.kl.anchor=behavior"
        )
    if reference.kind != "none" and not uses_reference:
        raise ConfigError(
            f"algorithm.reference.kind={reference.kind} has no effect without "
            "regularizer.kl.anchor=reference; choose algorithm.reference.kind=none"
        )
    for kl in penalties:
        _check_kl(kl, algorithm, use)
    entropy = regularizer.entropy
    if entropy is not None and entropy.coefficient == 0.0 and (entropy.target is None or entropy.step == 0.0):
        raise ConfigError(
            "regularizer.entropy.coefficient=0 has no effect without a target and a step, which adapt "
            "it; choose a coefficient greater than 0, a target and a step, or regularizer.entropy=null"
        )
    if entropy is not None and entropy.target is None and entropy.step:
        raise ConfigError(
            f"regularizer.entropy.step={entropy.step} has no effect without "
            "regularizer.entropy.target; give a target in nats or choose step=0"
        )


def _check_kl(kl: KLPenalty, algorithm: Algorithm, use: Use) -> None:
    if kl.correction != "none" and not kl.estimator.startswith("k"):
        raise ConfigError(
            f"regularizer.kl.correction={kl.correction} cannot be used with "
            f"regularizer.kl.estimator={kl.estimator}, since it would weight the estimator a second "
            "time; choose correction=none"
        )
    if kl.correction_level != "token" and (kl.correction == "none" or kl.level != "token"):
        other, value = ("level", kl.level) if kl.correction != "none" else ("correction", kl.correction)
        raise ConfigError(
            f"regularizer.kl.correction_level={kl.correction_level} has no effect with "
            f"regularizer.kl.{other}={value}; choose correction_level=token"
        )
    if kl.gradient == "k2" and (not kl.estimator.startswith("k") or kl.estimator == "k2"):
        raise ConfigError(
            "regularizer.kl.gradient=k2 requires regularizer.kl.estimator to be k1, k1_absolute or k3, "
            f"got {kl.estimator}; choose gradient=own"
        )
    if kl.correction != "none" and kl.placement == "reward":
        raise ConfigError(
            f"regularizer.kl.correction={kl.correction} has no effect with "
            "regularizer.kl.placement=reward, since its samples come from the policy itself; choose "
            "correction=none or placement=loss"
        )
    _check_kl_placement(kl, algorithm)
    vanishes = kl.estimator not in ("fkl", "rkl", "k1")
    if kl.anchor != "reference" and use.stays_at(kl.anchor) and vanishes:
        raise ConfigError(
            f"regularizer.kl.estimator={kl.estimator} with regularizer.kl.anchor={kl.anchor} has no "
            "gradient with one update per batch; choose optimizer.num_minibatches or num_epochs greater "
            "than 1, or anchor=reference"
        )


def _check_kl_placement(kl: KLPenalty, algorithm: Algorithm) -> None:
    if kl.placement == "reward" and kl.anchor != "reference":
        raise ConfigError(
            f"regularizer.kl.placement=reward has no effect with regularizer.kl.anchor={kl.anchor}, "
            "since that policy sampled the completions; choose anchor=reference"
        )
    if kl.placement == "reward" and algorithm.advantage.per_reward:
        raise ConfigError(
            "regularizer.kl.placement=reward requires a single reward, but "
            "algorithm.advantage.per_reward=true uses several; choose placement=loss or per_reward=false"
        )
    if kl.placement == "weight" and algorithm.surrogate.regresses:
        raise ConfigError(
            "regularizer.kl.placement=weight requires a surrogate with a weight, got "
            f"algorithm.surrogate.kind={algorithm.surrogate.kind}; choose placement=loss"
        )
    if kl.placement == "weight" and algorithm.ratio.weight.order == "clip_then_mean":
        raise ConfigError(
            "regularizer.kl.placement=weight cannot be combined with "
            "algorithm.ratio.weight.order=clip_then_mean, since it can change the sign that decides the "
            "clipping; choose placement=loss"
        )


def _check_token_weight(algorithm: Algorithm, regularizer: Regularizer) -> None:
    weight, penalties = algorithm.token_weight, regularizer.penalties
    if weight.kind == "kl_cov" and all(kl.placement != "loss" for kl in penalties):
        raise ConfigError(
            "algorithm.token_weight.kind=kl_cov requires a KL penalty with "
            "regularizer.kl.placement=loss; choose regularizer=paper/k1_absolute_behavior"
        )
    if isinstance(weight, RandomCovarianceDrop) and weight.lower >= weight.upper:
        raise ConfigError(
            f"algorithm.token_weight.lower={weight.lower:g} must be less than "
            f"algorithm.token_weight.upper={weight.upper:g}; choose a smaller value for lower"
        )


def _check_correction(algorithm: Algorithm, use: Use) -> None:
    steps = algorithm.correction.steps
    for step in steps:
        if isinstance(step, MaskedImportance) and step.lower >= step.upper:
            raise ConfigError(
                f"algorithm.correction.lower={step.lower:g} must be less than "
                f"algorithm.correction.upper={step.upper:g}; choose a smaller value for lower"
            )
        compared = step.compares
        if compared is not None and compared[0] == "current" and use.stays_at(compared[1]):
            raise ConfigError(
                f"algorithm.correction.policy=current with algorithm.correction.anchor={compared[1]} has "
                "no effect with one update per batch, where every ratio is 1; choose anchor=rollout, or "
                "optimizer.num_minibatches or num_epochs greater than 1"
            )
    if algorithm.reduction.counts == "kept" and not any(step.rejects for step in steps):
        raise ConfigError(
            "algorithm.reduction.counts=kept has no effect, since algorithm.correction rejects no token; "
            "choose counts=all, or algorithm.correction.kind=masked_importance or sequence_rejection"
        )


def _check_filter(algorithm: Algorithm, regularizer: Regularizer) -> None:
    filters = algorithm.group_filter
    trained_by = _trains_on_equal_rewards(algorithm, regularizer) if filters.kind == "skip" else None
    if trained_by is not None:
        raise ConfigError(
            f"algorithm.group_filter.kind=skip cannot be combined with {trained_by}, which gives groups with "
            "equal rewards a gradient; choose kind=keep, or kind=drop to exclude them from the means too"
        )
    if filters.judge != "reward" and filters.kind in ("keep", "skip"):
        why = "judges no group" if filters.kind == "keep" else "leaves out only groups without a gradient"
        raise ConfigError(
            f"algorithm.group_filter.judge={filters.judge} cannot be used with "
            f"algorithm.group_filter.kind={filters.kind}, which {why}; choose judge=reward or "
            "kind=resample"
        )
    if filters.max_num_rounds > 1 and filters.kind != "resample":
        raise ConfigError(
            f"algorithm.group_filter.max_num_rounds={filters.max_num_rounds} has no effect with "
            f"algorithm.group_filter.kind={filters.kind}; choose kind=resample"
        )


def _trains_on_equal_rewards(algorithm: Algorithm, regularizer: Regularizer) -> str | None:
    """Return which part gives groups with equal rewards a gradient, or None if no part does.

    The part is returned as text for an error message, such as `algorithm.advantage.whiten=tokens`.
    """
    advantage = algorithm.advantage
    if regularizer != Regularizer():
        return "the regularizer"
    if algorithm.surrogate.regresses:
        return f"algorithm.surrogate.kind={algorithm.surrogate.kind}"
    if advantage.baseline in ("none", "batch_mean"):
        return f"algorithm.advantage.baseline={advantage.baseline}"
    if advantage.offset != 0.0:
        return f"algorithm.advantage.offset={advantage.offset:g}"
    if advantage.whiten != "none":
        return f"algorithm.advantage.whiten={advantage.whiten}"
    return None

"""Compatibility of choices on the objective's axes, and detection of those without effect.

Every rule is one line that names the two conflicting settings and a value to choose instead.
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
    """Raise `ConfigError` for incompatible axes, and for one without effect."""
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
    """Raise `ConfigError` if a part needs the log-probabilities of an unavailable policy."""
    surrogate, weight = algorithm.surrogate, algorithm.ratio.weight
    if surrogate.regresses and use.is_stale and weight.anchor != "proximal":
        raise ConfigError(
            f"algorithm.surrogate.kind={surrogate.kind} compares the policy with itself at the start of the "
            f"step, which algorithm.ratio.weight.anchor={weight.anchor} is not with rollout.lag or stored "
            "rollouts; choose algorithm.ratio.weight.anchor=proximal"
        )
    compared = compares_numerics(algorithm, use)
    if compared is None:
        return
    part, remedy = compared
    if use.reads_stored:
        raise ConfigError(
            f"{part} compares the trainer's log-probabilities with the engine's under the weights that "
            f"sampled, which are unknown for stored rollouts (rollout.engine=bank); choose {remedy}, or "
            "rollouts of this run"
        )
    if use.behavior_logprobs == "engine":
        raise ConfigError(
            "compute.behavior_logprobs=engine uses the engine's log-probabilities as the trainer's, so "
            f"{part}, which compares the two, has no effect; choose compute.behavior_logprobs=auto, or "
            f"{remedy}"
        )


def compares_numerics(algorithm: Algorithm, use: Use) -> tuple[str, str] | None:
    """Return the setting that compares behavior and rollout policy, and a replacement; None if none does."""
    gate, weight = algorithm.ratio.gate, algorithm.ratio.weight
    numerics = {"behavior", "rollout"}
    for step in algorithm.correction.steps:
        if {use.names(one) for one in step.compares or () if one != "current"} == numerics:
            return f"algorithm.correction.kind={step.kind}", "algorithm.correction.kind=none"
    are_compared = {use.names(gate.anchor), use.names(weight.anchor)} == numerics
    if are_compared and "none" not in (gate.level, weight.level):
        return (
            f"algorithm.ratio.gate.anchor={gate.anchor} beside algorithm.ratio.weight.anchor={weight.anchor}",
            f"algorithm.ratio.gate.anchor={weight.anchor}",
        )
    return None


def _check_weight(algorithm: Algorithm) -> None:
    surrogate, weight = algorithm.surrogate, algorithm.ratio.weight
    if surrogate.weight_level is not None and weight.level != surrogate.weight_level:
        raise ConfigError(
            f"algorithm.surrogate.kind={surrogate.kind} regresses on whole sequences and cannot use "
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
            "algorithm.ratio.weight.level=none leaves no ratio to differentiate; "
            "choose algorithm.surrogate.gradient=score"
        )
    if weight.cap is not None and surrogate.form == "pathwise":
        raise ConfigError(
            f"algorithm.ratio.weight.cap={weight.cap} makes the weight a constant; "
            "choose algorithm.surrogate.gradient=score"
        )
    if weight.level == "none" and surrogate.shapes_weight:
        raise ConfigError(
            f"algorithm.surrogate.kind={surrogate.kind} shapes a weight that "
            "algorithm.ratio.weight.level=none leaves out; choose algorithm.surrogate.kind=none"
        )


def _check_order(algorithm: Algorithm) -> None:
    ratio = algorithm.ratio
    if ratio.weight.order == "mean_then_clip":
        return
    if (ratio.gate.level, ratio.weight.level) != ("token", "sequence_mean"):
        raise ConfigError(
            "algorithm.ratio.weight.order=clip_then_mean clips tokens and then takes their mean, which "
            f"algorithm.ratio.gate.level={ratio.gate.level} and "
            f"algorithm.ratio.weight.level={ratio.weight.level} do not; choose token and sequence_mean"
        )
    if algorithm.surrogate.kind != "clip" or ratio.gate.anchor != ratio.weight.anchor:
        raise ConfigError(
            "algorithm.ratio.weight.order=clip_then_mean needs algorithm.surrogate.kind=clip and equal "
            f"anchors, not {algorithm.surrogate.kind}, {ratio.gate.anchor} and {ratio.weight.anchor}; "
            "choose these or order=mean_then_clip"
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
            f"divergence.kind={divergence.kind} judges the probabilities of single tokens and cannot use "
            f"algorithm.ratio.gate.level={level}; choose algorithm.ratio.gate.level=token or divergence=kl3"
        )


def _check_window(algorithm: Algorithm, divergence: Divergence) -> None:
    surrogate = algorithm.surrogate
    if surrogate.reads == "nothing" and divergence.kind != "none":
        raise ConfigError(
            f"divergence.kind={divergence.kind} has no effect: algorithm.surrogate.kind={surrogate.kind} "
            "does not use a trust region; choose divergence=none or algorithm.surrogate.kind=clip"
        )
    if surrogate.reads == "bounds" and not divergence.has_window:
        raise ConfigError(
            f"algorithm.surrogate.kind={surrogate.kind} computes with bounds on the ratio, which "
            f"divergence.kind={divergence.kind} does not have; choose divergence=kl3 or "
            "algorithm.surrogate.kind=clip"
        )
    if surrogate.kind == "quadratic" and divergence.kind == "none":
        raise ConfigError(
            "algorithm.surrogate.kind=quadratic takes its curvature from a window, which divergence=none "
            "does not have; choose divergence=ratio or algorithm.surrogate.kind=none"
        )


def _check_budget(algorithm: Algorithm, divergence: Divergence) -> None:
    window = divergence if isinstance(divergence, ExplicitWindow) else None
    if isinstance(algorithm.surrogate, Quadratic) and window and 1.0 in (window.lower, window.upper):
        raise ConfigError(
            f"divergence.lower={window.lower:g} and divergence.upper={window.upper:g} leave "
            "algorithm.surrogate.kind=quadratic no width on one side; choose a lower below 1 and an "
            "upper above"
        )
    if isinstance(divergence, BinaryTotalVariation) and not algorithm.surrogate.reads_widths:
        for name in ("delta_low", "delta_high"):
            if (budget := getattr(divergence, name)) > 1.0:
                raise ConfigError(
                    f"divergence.{name}={budget:g} clips nothing with "
                    f"algorithm.surrogate.kind={algorithm.surrogate.kind}: a probability changes by at "
                    f"most 1; choose {name}=0.2 or algorithm.surrogate.kind=quadratic"
                )
    if isinstance(divergence, BalancedWindow) and (
        divergence.lower > divergence.lower_max or divergence.upper > divergence.upper_max
    ):
        raise ConfigError(
            f"divergence.lower={divergence.lower:g} to divergence.lower_max={divergence.lower_max:g} and "
            f"divergence.upper={divergence.upper:g} to divergence.upper_max={divergence.upper_max:g} must "
            "rise; choose larger maxima"
        )


def _check_groups(algorithm: Algorithm, group_size: int) -> None:
    if group_size == 1 and (algorithm.advantage.is_grouped or algorithm.surrogate.regresses):
        raise ConfigError(
            "rollout.group_size=1 gives every group advantage 0; choose rollout.group_size >= 2, "
            "or algorithm.advantage.baseline=batch_mean"
        )
    if group_size == 1 and algorithm.group_filter.kind != "keep":
        raise ConfigError(
            f"algorithm.group_filter.kind={algorithm.group_filter.kind} drops every group of "
            "rollout.group_size=1; choose algorithm.group_filter.kind=keep"
        )


def _check_advantage(advantage: Advantage) -> None:
    """Raise `ConfigError` for a setting of the advantage that has no effect with the others."""
    if advantage.returns == "sequence" and advantage.discount != 1.0:
        raise ConfigError(
            f"algorithm.advantage.discount={advantage.discount:g} has no effect with "
            "algorithm.advantage.returns=sequence; choose discount=1.0 or returns=token"
        )
    with_deviation = ("group_std", "batch_std")
    for name, setting, read_by in (
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
    is_shift = advantage.scale not in ("group_std", "group_mean")  # equal for all completions of the batch
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
            "regularizer.kl.anchor=reference needs a reference policy; "
            "choose algorithm.reference.kind=frozen or regularizer.kl.anchor=behavior"
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
            "regularizer.entropy.coefficient=0 has no effect if it does not adapt; choose a coefficient "
            "greater than 0, a target and a step, or regularizer.entropy=null"
        )
    if entropy is not None and entropy.target is None and entropy.step:
        raise ConfigError(
            f"regularizer.entropy.step={entropy.step} has no effect without "
            "regularizer.entropy.target; give a target in nats or choose step=0"
        )


def _check_kl(kl: KLPenalty, algorithm: Algorithm, use: Use) -> None:
    if kl.correction != "none" and not kl.estimator.startswith("k"):
        raise ConfigError(
            f"regularizer.kl.correction={kl.correction} would weight regularizer.kl.estimator={kl.estimator} "
            "twice; choose correction=none"
        )
    if kl.correction_level != "token" and (kl.correction == "none" or kl.level != "token"):
        other, value = ("level", kl.level) if kl.correction != "none" else ("correction", kl.correction)
        raise ConfigError(
            f"regularizer.kl.correction_level={kl.correction_level} has no effect with "
            f"regularizer.kl.{other}={value}; choose correction_level=token"
        )
    if kl.gradient == "k2" and (not kl.estimator.startswith("k") or kl.estimator == "k2"):
        raise ConfigError(
            f"regularizer.kl.gradient=k2 needs the estimator k1, k1_absolute or k3, not "
            f"regularizer.kl.estimator={kl.estimator}; choose gradient=own"
        )
    if kl.correction != "none" and kl.placement == "reward":
        raise ConfigError(
            f"regularizer.kl.correction={kl.correction} has no effect with regularizer.kl.placement=reward, "
            "where the samples are the policy's own; choose correction=none or placement=loss"
        )
    _check_kl_placement(kl, algorithm)
    vanishes = kl.estimator not in ("fkl", "rkl", "k1")
    if kl.anchor != "reference" and use.stays_at(kl.anchor) and vanishes:
        raise ConfigError(
            f"regularizer.kl.estimator={kl.estimator} against the {kl.anchor} policy has no gradient with "
            "one update per batch; choose optimizer.num_minibatches or num_epochs > 1, or anchor=reference"
        )


def _check_kl_placement(kl: KLPenalty, algorithm: Algorithm) -> None:
    if kl.placement == "reward" and kl.anchor != "reference":
        raise ConfigError(
            f"regularizer.kl.placement=reward has no effect against regularizer.kl.anchor={kl.anchor}, "
            "which sampled the completions; choose anchor=reference"
        )
    if kl.placement == "reward" and algorithm.advantage.per_reward:
        raise ConfigError(
            "regularizer.kl.placement=reward subtracts the penalty from one reward, but "
            "algorithm.advantage.per_reward=true has several; choose placement=loss or per_reward=false"
        )
    if kl.placement == "weight" and algorithm.surrogate.regresses:
        raise ConfigError(
            "regularizer.kl.placement=weight needs a surrogate with a weight, not "
            f"algorithm.surrogate.kind={algorithm.surrogate.kind}; choose placement=loss"
        )
    if kl.placement == "weight" and algorithm.ratio.weight.order == "clip_then_mean":
        raise ConfigError(
            "regularizer.kl.placement=weight changes the sign that algorithm.ratio.weight.order="
            "clip_then_mean has already clipped by; choose placement=loss"
        )


def _check_token_weight(algorithm: Algorithm, regularizer: Regularizer) -> None:
    weight, penalties = algorithm.token_weight, regularizer.penalties
    if weight.kind == "kl_cov" and all(kl.placement != "loss" for kl in penalties):
        raise ConfigError(
            "algorithm.token_weight.kind=kl_cov chooses the tokens of a penalty and needs "
            "regularizer.kl.placement=loss; choose regularizer=paper/k1_absolute_behavior"
        )
    if isinstance(weight, RandomCovarianceDrop) and weight.lower >= weight.upper:
        raise ConfigError(
            f"algorithm.token_weight.lower={weight.lower:g} leaves no covariance below "
            f"algorithm.token_weight.upper={weight.upper:g}; choose a smaller lower"
        )


def _check_correction(algorithm: Algorithm, use: Use) -> None:
    steps = algorithm.correction.steps
    for step in steps:
        if isinstance(step, MaskedImportance) and step.lower >= step.upper:
            raise ConfigError(
                f"algorithm.correction.lower={step.lower:g} leaves no ratio below "
                f"algorithm.correction.upper={step.upper:g}; choose a smaller lower"
            )
        compared = step.compares
        if compared is not None and compared[0] == "current" and use.stays_at(compared[1]):
            raise ConfigError(
                f"algorithm.correction.policy=current with algorithm.correction.anchor={compared[1]} is a "
                "ratio of 1 with one update per batch; choose anchor=rollout, or optimizer.num_minibatches "
                "or num_epochs > 1"
            )
    if algorithm.reduction.counts == "kept" and not any(step.rejects for step in steps):
        raise ConfigError(
            "algorithm.reduction.counts=kept has no effect if algorithm.correction rejects no token; "
            "choose counts=all, or algorithm.correction.kind=masked_importance or sequence_rejection"
        )


def _check_filter(algorithm: Algorithm, regularizer: Regularizer) -> None:
    filters = algorithm.group_filter
    trained_by = _trains_on_equal_rewards(algorithm, regularizer) if filters.kind == "skip" else None
    if trained_by is not None:
        raise ConfigError(
            f"algorithm.group_filter.kind=skip leaves out groups that {trained_by} would train on; "
            "choose kind=keep, or kind=drop to leave them out of the means too"
        )
    if filters.judge != "reward" and filters.kind in ("keep", "skip"):
        why = "reads no group" if filters.kind == "keep" else "leaves out only groups without a gradient"
        raise ConfigError(
            f"algorithm.group_filter.judge={filters.judge} cannot be used with "
            f"algorithm.group_filter.kind={filters.kind}, which {why}; choose judge=reward, or "
            "kind=resample"
        )
    if filters.max_num_rounds > 1 and filters.kind != "resample":
        raise ConfigError(
            f"algorithm.group_filter.max_num_rounds={filters.max_num_rounds} has no effect with "
            f"algorithm.group_filter.kind={filters.kind}; choose kind=resample"
        )


def _trains_on_equal_rewards(algorithm: Algorithm, regularizer: Regularizer) -> str | None:
    """Return the part that gives a group with equal rewards a gradient; None if there is none."""
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
        return f"algorithm.advantage.whiten={advantage.whiten}, which shifts every advantage by their mean,"
    return None

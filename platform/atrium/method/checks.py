"""Which choices on the objective's axes go together, and which of them would have no effect.

Every rule is one line that names the two settings that clash and a value to choose instead.
"""

from __future__ import annotations

from atrium.errors import ConfigError
from atrium.method.algorithm import Algorithm
from atrium.method.boundary_checks import check_boundary
from atrium.method.corrections import MaskedImportance
from atrium.method.divergences import Divergence
from atrium.method.needs import Use
from atrium.method.regularizers import KLPenalty, Regularizer
from atrium.method.token_weights import RandomCovarianceDrop


def check_parts(
    algorithm: Algorithm,
    divergence: Divergence,
    regularizer: Regularizer,
    *,
    group_size: int,
    stays_at_behavior: bool,
) -> None:
    """Raise `ConfigError` for axes that cannot go together, or of which one has no effect.

    `stays_at_behavior` says that every ratio to the behavior policy is 1, since a batch gets one update.
    """
    _check_groups(algorithm, group_size)
    check_boundary(algorithm, divergence)
    _check_regularizer(algorithm, regularizer, stays_at_behavior=stays_at_behavior)
    _check_token_weight(algorithm, regularizer)
    _check_filter(algorithm, regularizer)


def check_behavior(algorithm: Algorithm, use: Use) -> None:
    """Raise `ConfigError` where a part compares behavior and rollout policy by numbers that are not there."""
    compared = compared_policies(algorithm)
    if compared is None:
        return
    part, remedy = compared
    if use.sampled_elsewhere is not None:
        raise ConfigError(
            f"{part} compares the trainer's log-probabilities with the engine's by the weights that sampled, "
            f"which the trainer does not have with {use.sampled_elsewhere}; choose {remedy}, or "
            "rollout.lag=0 without stored rollouts"
        )
    if use.behavior_logprobs == "engine":
        raise ConfigError(
            "compute.behavior_logprobs=engine takes the engine's log-probabilities for the trainer's, and "
            f"{part}, which compares the two, has no effect; choose compute.behavior_logprobs=auto, "
            f"or {remedy}"
        )


def compared_policies(algorithm: Algorithm) -> tuple[str, str] | None:
    """The setting that compares behavior and rollout policy and what to choose instead; None if none does."""
    gate, weight = algorithm.ratio.gate, algorithm.ratio.weight
    if algorithm.correction.kind != "none":
        return f"algorithm.correction.kind={algorithm.correction.kind}", "algorithm.correction.kind=none"
    if gate.anchor != weight.anchor and "none" not in (gate.level, weight.level):
        return (
            f"algorithm.ratio.gate.anchor={gate.anchor} beside algorithm.ratio.weight.anchor={weight.anchor}",
            f"algorithm.ratio.gate.anchor={weight.anchor}",
        )
    return None


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


def _check_regularizer(algorithm: Algorithm, regularizer: Regularizer, *, stays_at_behavior: bool) -> None:
    kl, reference = regularizer.kl, algorithm.reference
    if kl is not None and kl.anchor == "reference" and reference.kind == "none":
        raise ConfigError(
            "regularizer.kl.anchor=reference needs a reference policy; "
            "choose algorithm.reference.kind=frozen or regularizer.kl.anchor=behavior"
        )
    if reference.kind != "none" and (kl is None or kl.anchor != "reference"):
        raise ConfigError(
            f"algorithm.reference.kind={reference.kind} has no effect without "
            "regularizer.kl.anchor=reference; choose algorithm.reference.kind=none"
        )
    if kl is not None:
        _check_kl(kl, algorithm, stays_at_behavior=stays_at_behavior)
    if regularizer.entropy is not None and regularizer.entropy.target is None and regularizer.entropy.step:
        raise ConfigError(
            f"regularizer.entropy.step={regularizer.entropy.step} has no effect without "
            "regularizer.entropy.target; give a target in nats or choose step=0"
        )


def _check_kl(kl: KLPenalty, algorithm: Algorithm, *, stays_at_behavior: bool) -> None:
    if kl.correction != "none" and not kl.estimator.startswith("k"):
        raise ConfigError(
            f"regularizer.kl.correction={kl.correction} would weight regularizer.kl.estimator={kl.estimator} "
            "twice; choose correction=none"
        )
    if kl.placement == "reward" and kl.anchor != "reference":
        raise ConfigError(
            f"regularizer.kl.placement=reward has no effect against regularizer.kl.anchor={kl.anchor}, "
            "from which the samples come; choose anchor=reference"
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
    vanishes = kl.estimator not in ("fkl", "rkl", "k1")
    if kl.anchor == "behavior" and stays_at_behavior and vanishes:
        raise ConfigError(
            f"regularizer.kl.estimator={kl.estimator} against the behavior policy has no gradient with one "
            "update per batch; choose optimizer.num_minibatches or num_epochs > 1, or anchor=reference"
        )


def _check_token_weight(algorithm: Algorithm, regularizer: Regularizer) -> None:
    weight, kl, correction = algorithm.token_weight, regularizer.kl, algorithm.correction
    if weight.kind == "kl_cov" and (kl is None or kl.placement != "loss"):
        raise ConfigError(
            "algorithm.token_weight.kind=kl_cov chooses the tokens of a penalty and needs "
            "regularizer.kl.placement=loss; choose regularizer=paper/k1_absolute_behavior"
        )
    if isinstance(weight, RandomCovarianceDrop) and weight.lower >= weight.upper:
        raise ConfigError(
            f"algorithm.token_weight.lower={weight.lower:g} leaves no covariance below "
            f"algorithm.token_weight.upper={weight.upper:g}; choose a smaller lower"
        )
    if isinstance(correction, MaskedImportance) and correction.lower >= correction.upper:
        raise ConfigError(
            f"algorithm.correction.lower={correction.lower:g} leaves no ratio below "
            f"algorithm.correction.upper={correction.upper:g}; choose a smaller lower"
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
        why = "looks at no group" if filters.kind == "keep" else "leaves out groups without a gradient only"
        raise ConfigError(
            f"algorithm.group_filter.judge={filters.judge} does not go with "
            f"algorithm.group_filter.kind={filters.kind}, which {why}; choose judge=reward, or kind=resample"
        )
    if filters.max_num_rounds > 1 and filters.kind != "resample":
        raise ConfigError(
            f"algorithm.group_filter.max_num_rounds={filters.max_num_rounds} has no effect with "
            f"algorithm.group_filter.kind={filters.kind}; choose kind=resample"
        )


def _trains_on_equal_rewards(algorithm: Algorithm, regularizer: Regularizer) -> str | None:
    """What gives a group whose rewards are all equal a gradient; None where nothing does."""
    advantage = algorithm.advantage
    if regularizer != Regularizer():
        return "the regularizer"
    if algorithm.surrogate.regresses:
        return f"algorithm.surrogate.kind={algorithm.surrogate.kind}"
    if advantage.baseline not in ("group_mean", "leave_one_out"):
        return f"algorithm.advantage.baseline={advantage.baseline}"
    if advantage.offset != 0.0:
        return f"algorithm.advantage.offset={advantage.offset:g}"
    if advantage.scale == "token_std":
        return "algorithm.advantage.scale=token_std, which shifts every advantage by their mean,"
    return None

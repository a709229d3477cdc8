"""Which surrogates, ratios and divergences go together: the rules of the trust region's boundary.

Every rule is one line that names the two settings that clash and a value to choose instead.
"""

from __future__ import annotations

from atrium.errors import ConfigError
from atrium.method.algorithm import Algorithm
from atrium.method.divergences import BalancedWindow, Divergence, ExplicitWindow
from atrium.method.surrogates import Quadratic


def check_boundary(algorithm: Algorithm, divergence: Divergence) -> None:
    """Raise `ConfigError` for a surrogate, ratios and a divergence that cannot work together."""
    _check_weight(algorithm)
    _check_order(algorithm)
    _check_gate(algorithm, divergence)
    _check_window(algorithm, divergence)
    _check_budget(algorithm, divergence)


def _check_weight(algorithm: Algorithm) -> None:
    surrogate, weight = algorithm.surrogate, algorithm.ratio.weight
    if surrogate.weight_level is not None and weight.level != surrogate.weight_level:
        raise ConfigError(
            f"algorithm.surrogate.kind={surrogate.kind} regresses on whole sequences and cannot use "
            f"algorithm.ratio.weight.level={weight.level}; choose "
            f"algorithm.ratio.weight.level={surrogate.weight_level}"
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
    if divergence.kind == "sequence_mean" and level == "token" and surrogate.kind != "mask":
        raise ConfigError(
            "divergence.kind=sequence_mean judges whole completions and algorithm.ratio.gate.level=token "
            "single tokens; choose algorithm.ratio.gate.level=sequence_mean or algorithm.surrogate.kind=mask"
        )


def _check_window(algorithm: Algorithm, divergence: Divergence) -> None:
    surrogate = algorithm.surrogate
    if surrogate.reads == "nothing" and divergence.kind != "none":
        raise ConfigError(
            f"divergence.kind={divergence.kind} has no effect: algorithm.surrogate.kind={surrogate.kind} "
            "never looks at a trust region; choose divergence=none or algorithm.surrogate.kind=clip"
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
    if isinstance(divergence, BalancedWindow) and (
        divergence.lower > divergence.lower_max or divergence.upper > divergence.upper_max
    ):
        raise ConfigError(
            f"divergence.lower={divergence.lower:g} to divergence.lower_max={divergence.lower_max:g} and "
            f"divergence.upper={divergence.upper:g} to divergence.upper_max={divergence.upper_max:g} must "
            "rise; choose larger maxima"
        )

"""A method's choices in words: a short text per axis, and every setting by the key that changes it.

Pure text from configuration; what the words mean is said in the modules of `atrium.objective`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from pydantic import BaseModel

from atrium.config.presets import PartFile, Preset
from atrium.method.divergences import Divergence
from atrium.method.regularizers import EntropyBonus, KLPenalty
from atrium.windows import Window

_BASELINES = {
    "none": "R",
    "group_mean": "R - group mean",
    "leave_one_out": "R - mean of the others",
    "batch_mean": "R - batch mean",
}
_SCALES = {
    "none": "",
    "group_std": " / group std",
    "batch_std": " / batch std",
    "token_std": " / std over tokens",
}


def axes(preset: Preset) -> dict[str, str]:
    """The choice on every axis; empty where it is the one that changes nothing."""
    return {title: describe(preset) for title, describe in AXES.items()}


def settings(preset: Preset) -> dict[str, object]:
    """Every setting of a method by its key on the command line; defaults of the sections included."""
    sections: Mapping[str, BaseModel] = {
        "algorithm": preset.algorithm,
        "divergence": preset.divergence,
        "regularizer": preset.regularizer,
    }
    found: dict[str, object] = {}
    for name, section in sections.items():
        found |= _flattened(section.model_dump(mode="json"), f"{name}.")
    for key, source in preset.references.items():
        found[f"algorithm.{key}"] = source
    del found["algorithm.name"]
    return found | {group: part.name for group, part in _other_parts(preset).items()}


def window_text(divergence: Divergence) -> str:
    """The window of a divergence, or why there is no single one."""
    window = divergence.window()
    if window is None:
        return "by token" if divergence.of_single_tokens else "none"
    if window.is_unbounded:
        return "(0, ∞)"
    text = interval(window)
    return f"{text} or wider" if divergence.kind == "balanced_window" else text


def interval(window: Window, digits: int = 4) -> str:
    """A window such as `[0.8002, 1.2306]`; a side that never binds is open."""
    low = "(0" if window.lower == 0.0 else f"[{window.lower:.{digits}f}"
    high = "∞)" if math.isinf(window.upper) else f"{window.upper:.{digits}f}]"
    return f"{low}, {high}"


def divergence_text(divergence: Divergence) -> str:
    """A divergence with its budget or range, such as `kl3 delta=0.0231`."""
    return kind_text(divergence)


def kind_text(section: BaseModel, *without: str) -> str:
    """A choice by its kind, followed by its settings."""
    chosen = section.model_dump(exclude={"kind", *without})
    words = [f"{key}={_value(value)}" for key, value in chosen.items()]
    return " ".join([str(getattr(section, "kind", "")), *words]).strip()


def _advantage(preset: Preset) -> str:
    advantage = preset.algorithm.advantage
    offset = ""
    if advantage.offset:
        offset = f" {'-' if advantage.offset > 0 else '+'} {abs(advantage.offset):g}"
    text = f"{_BASELINES[advantage.baseline]}{offset}"
    if _SCALES[advantage.scale]:
        text = (f"({text})" if " " in text else text) + _SCALES[advantage.scale]
    return text + (", per token" if advantage.returns == "token" else "")


def _ratio(preset: Preset) -> str:
    gate, weight = preset.algorithm.ratio.gate, preset.algorithm.ratio.weight
    above = f", at most {weight.cap:g}" if weight.cap is not None else ""
    order = ", clipped before the mean" if weight.order == "clip_then_mean" else ""
    texts = [
        side.level + (" / engine's" if side.anchor == "rollout" and side.level != "none" else "")
        for side in (gate, weight)
    ]
    if texts[0] == texts[1]:
        return texts[0] + above + order
    return f"gate {texts[0]}, weight {texts[1]}{above}{order}"


def _surrogate(preset: Preset) -> str:
    surrogate = preset.algorithm.surrogate
    text = kind_text(surrogate, "gradient")
    return text + (", score gradient" if surrogate.gradient == "score" else "")


def _token_weight(preset: Preset) -> str:
    weight = preset.algorithm.token_weight
    return "" if weight.kind == "all" else kind_text(weight)


def _regularizer(preset: Preset) -> str:
    kl, entropy = preset.regularizer.kl, preset.regularizer.entropy
    texts = [_kl(kl)] if kl is not None else []
    return "; ".join([*texts, *([_entropy(entropy)] if entropy is not None else [])])


def _kl(kl: KLPenalty) -> str:
    corrected = "" if kl.correction == "none" else f", {kl.correction}"
    level = ", by sequence" if kl.level == "sequence" else ""
    return f"{kl.coefficient:g} {kl.estimator}({kl.anchor}) in the {kl.placement}{corrected}{level}"


def _entropy(entropy: EntropyBonus) -> str:
    adaptive = f" up to {entropy.target:g} nats" if entropy.target is not None else ""
    return f"entropy bonus {entropy.coefficient:g}{adaptive}"


def _correction(preset: Preset) -> str:
    correction = preset.algorithm.correction
    return "" if correction.kind == "none" else kind_text(correction)


def _reduction(preset: Preset) -> str:
    reduction = preset.algorithm.reduction
    source = preset.references.get("reduction.constant")
    if source is not None:
        return f"{reduction.kind} / {source}"
    return kind_text(reduction)


def _groups(preset: Preset) -> str:
    groups = preset.algorithm.group_filter
    if groups.kind == "keep":
        return ""
    rounds = f", {groups.max_num_rounds} rounds" if groups.max_num_rounds > 1 else ""
    which = "without signal" if groups.judge == "reward" else "all right or all wrong"
    return f"{groups.kind} groups {which}{rounds}"


def _reference(preset: Preset) -> str:
    reference = preset.algorithm.reference
    return "" if reference.kind == "none" else kind_text(reference)


def _rollouts(preset: Preset) -> str:
    return ", ".join(f"{group}={part.name}" for group, part in _other_parts(preset).items())


def _other_parts(preset: Preset) -> dict[str, PartFile]:
    """The files outside the objective that a method chooses, such as where completions come from."""
    return {group: part for group, part in preset.parts.items() if group not in ("divergence", "regularizer")}


def _on_policy(preset: Preset) -> str:
    law = preset.algorithm.on_policy
    scale = f" {law.scale:g}" if law.scale is not None else ""
    return f"{law.law}{scale}" + (f": {law.reason}" if law.reason else "")


def _flattened(values: Mapping[str, object], prefix: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= _flattened(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


AXES: Mapping[str, Callable[[Preset], str]] = {
    "advantage": _advantage,
    "ratio": _ratio,
    "divergence": lambda preset: divergence_text(preset.divergence),
    "window [l, u]": lambda preset: window_text(preset.divergence),
    "surrogate": _surrogate,
    "token weight": _token_weight,
    "regularizer": _regularizer,
    "reference": _reference,
    "correction": _correction,
    "reduction": _reduction,
    "groups": _groups,
    "rollouts": _rollouts,
    "on policy": _on_policy,
}
"""The axes of an objective, in the order in which a method is read."""

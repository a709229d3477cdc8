"""Descriptions of a method: a short text per axis, such as `kl3 delta=0.0231`."""

from __future__ import annotations

import math

from pydantic import BaseModel

from atrium.base.section import Choice
from atrium.method.algorithm import Algorithm
from atrium.method.divergences import Divergence
from atrium.method.minibatch_windows import BalancedWindow
from atrium.method.needs import Anchor
from atrium.method.regularizers import EntropyBonus, KLPenalty, Regularizer
from atrium.method.windows import Window

_BASELINES = {
    "none": "R",
    "group_mean": "R - group mean",
    "leave_one_out": "R - mean of the others",
    "batch_mean": "R - batch mean",
    "length_weighted": "R - length-weighted group mean",
    "runner_up": "best R - second best R",
}
_BELOW: dict[Anchor, str] = {"behavior": "", "rollout": " / engine's", "proximal": " / start of step"}
_WHITENED = {"none": "", "tokens": " / std over tokens", "rows": " / std over completions"}
_COUNTED = {"all": "", "kept": " of kept tokens"}
_SCALES = {
    "none": "",
    "group_std": " / group std",
    "batch_std": " / batch std",
    "group_mean": " / group mean",
    "nonzero_frac": " / fraction of rewards other than 0",
}


def describe(algorithm: Algorithm, divergence: Divergence, regularizer: Regularizer) -> dict[str, str]:
    """Return a description of each axis's choice, in reading order.

    The description of a neutral choice is empty.
    """
    return {
        "advantage": _advantage(algorithm),
        "ratio": _ratio(algorithm),
        "divergence": kind_text(divergence),
        "window [l, u]": window_text(divergence),
        "surrogate": _surrogate(algorithm),
        "token weight": _unless_idle(algorithm.token_weight),
        "regularizer": _regularizer(regularizer),
        "reference": _unless_idle(algorithm.reference),
        "correction": ", ".join(filter(None, map(_unless_idle, algorithm.correction.steps))),
        "reduction": kind_text(algorithm.reduction, "counts") + _COUNTED[algorithm.reduction.counts],
        "groups": _groups(algorithm),
        "on policy": _on_policy(algorithm),
    }


def window_text(divergence: Divergence) -> str:
    """Describe the window that all tokens share, or say that there is none.

    Without such a window, the text is `by minibatch` or `by token` if each minibatch or token has its own
    window, and `none` otherwise. For BAPO, the text has the first and the last window of the search.
    """
    window = divergence.window()
    if window is None:
        if divergence.has_window and divergence.needs.prepare_pass:
            return "by minibatch"
        return "by token" if divergence.has_token_windows else "none"
    if window.is_unbounded:
        return "(0, ∞)"
    if isinstance(divergence, BalancedWindow):
        return f"{interval(window)} to {interval(Window(*divergence.candidates[-1]))}"
    return interval(window)


def interval(window: Window, digits: int = 4) -> str:
    """Format a window in the form `[0.8002, 1.2306]`; a side that never binds is open: `(0` or `∞)`."""
    low = "(0" if window.lower == 0.0 else f"[{window.lower:.{digits}f}"
    high = "∞)" if math.isinf(window.upper) else f"{window.upper:.{digits}f}]"
    return f"{low}, {high}"


def kind_text(section: BaseModel, *without: str) -> str:
    """Describe a choice by its kind and its settings, except the settings named in `without`."""
    names = [name for name in type(section).model_fields if name not in ("kind", *without)]
    words = [f"{name}={_value(getattr(section, name))}" for name in names]
    return " ".join([str(getattr(section, "kind", "")), *words]).strip()


def _advantage(algorithm: Algorithm) -> str:
    advantage = algorithm.advantage
    offset = ""
    if advantage.offset:
        offset = f" {'-' if advantage.offset > 0 else '+'} {abs(advantage.offset):g}"
    text = f"{_BASELINES[advantage.baseline]}{offset}"
    whitened = _WHITENED[advantage.whiten]
    if advantage.per_reward:
        whitened = f", per reward{', then' * bool(whitened)}{whitened}"
    for divisor in (_SCALES[advantage.scale], whitened):
        if divisor:
            text = (f"({text})" if " " in text else text) + divisor
    return text + (", per token" if advantage.returns == "token" else "")


def _ratio(algorithm: Algorithm) -> str:
    gate, weight = algorithm.ratio.gate, algorithm.ratio.weight
    above = f", at most {weight.cap:g}" if weight.cap is not None else ""
    order = ", clipped before the mean" if weight.order == "clip_then_mean" else ""
    texts = [side.level + (_BELOW[side.anchor] if side.level != "none" else "") for side in (gate, weight)]
    if texts[0] == texts[1]:
        return texts[0] + above + order
    return f"gate {texts[0]}, weight {texts[1]}{above}{order}"


def _surrogate(algorithm: Algorithm) -> str:
    surrogate = algorithm.surrogate
    text = kind_text(surrogate, "gradient")
    return text + (", score gradient" if surrogate.form == "score" else "")


def _unless_idle(part: Choice) -> str:
    return "" if part.kind in ("all", "none") else kind_text(part)


def _regularizer(regularizer: Regularizer) -> str:
    entropy, nll = regularizer.entropy, regularizer.nll
    texts = [_kl(kl) for kl in regularizer.penalties]
    texts += [_entropy(entropy)] if entropy else []
    texts += [f"{nll.coefficient:g} -log p of completions with a reward above 0"] if nll else []
    return "; ".join(texts)


def _kl(kl: KLPenalty) -> str:
    corrected = "" if kl.correction == "none" else f", {kl.correction}"
    if kl.correction_level != "token":
        corrected += f" of the {kl.correction_level}"
    level = ", by sequence" if kl.level == "sequence" else ""
    gradient = ", gradient of k2" if kl.gradient == "k2" else ""
    limit = f", at most {kl.value_limit:g}" if kl.value_limit is not None else ""
    text = f"{kl.coefficient:g} {kl.estimator}({kl.anchor}) in the {kl.placement}"
    return text + gradient + limit + corrected + level


def _entropy(entropy: EntropyBonus) -> str:
    adaptive = f" up to {entropy.target:g} nats" if entropy.target is not None else ""
    mean = ", mean per token" if entropy.reduction == "token_mean" else ""
    return f"entropy bonus {entropy.coefficient:g}{adaptive}{mean}"


def _groups(algorithm: Algorithm) -> str:
    groups = algorithm.group_filter
    if groups.kind == "keep":
        return ""
    rounds = f", {groups.max_num_rounds} rounds" if groups.max_num_rounds > 1 else ""
    which = "without signal" if groups.judge == "reward" else "all right or all wrong"
    return f"{groups.kind} groups {which}{rounds}"


def _on_policy(algorithm: Algorithm) -> str:
    law = algorithm.on_policy
    scale = f" {law.scale:g}" if law.scale is not None else ""
    return f"{law.law}{scale}" + (f": {law.reason}" if law.reason else "")


def _value(value: object) -> str:
    if isinstance(value, BaseModel):
        text = kind_text(value, "gradient")
        return f"({text})" if " " in text else text
    return f"{value:g}" if isinstance(value, float) else str(value)

"""The names of Atrium's training metrics in TRL and verl, for quantities with the same definition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from atrium.base import metrics
from atrium.base.metrics import Quantity

MetricNames = Literal["atrium", "trl", "verl"]
TRL: Mapping[str, Quantity] = {
    "reward": metrics.REWARD,
    "completions/mean_length": metrics.LENGTH_MEAN,
    "completions/max_length": metrics.LENGTH_MAX,
    "completions/clipped_ratio": metrics.TRUNCATED_FRAC,
    "frac_reward_zero_std": metrics.NO_SIGNAL_FRAC,
    "clip_ratio/high_mean": metrics.CLIP_HIGH_FRAC,
    "clip_ratio/low_mean": metrics.CLIP_LOW_FRAC,
    "entropy": metrics.ENTROPY,
    "kl": metrics.REFERENCE_KL,
    "grad_norm": metrics.GRAD_NORM,
    "learning_rate": metrics.LEARNING_RATE,
    "step_time": metrics.STEP_S,
}
VERL: Mapping[str, Quantity] = {
    "critic/score/mean": metrics.REWARD,
    "response_length/mean": metrics.LENGTH_MEAN,
    "response_length/max": metrics.LENGTH_MAX,
    "response_length/clip_ratio": metrics.TRUNCATED_FRAC,
    "actor/pg_clipfrac_lower": metrics.CLIP_RUNAWAY_FRAC,
    "actor/entropy": metrics.ENTROPY,
    "actor/kl_loss": metrics.REFERENCE_KL,
    "actor/grad_norm": metrics.GRAD_NORM,
    "actor/lr": metrics.LEARNING_RATE,
    "timing_s/step": metrics.STEP_S,
    "timing_s/gen": metrics.ROLLOUT_S,
}
PG_CLIPFRAC = "actor/pg_clipfrac"
"""verl's name for the share of clipped tokens, the sum of Atrium's `clip_high_frac` and `clip_low_frac`."""
CLIP_FRAC = "objective/clip_frac"
"""Atrium's name for the share of clipped tokens in imported curves."""
CLIP_FRAC_NAMES = {"trl": "clip_ratio/region_mean", "verl": PG_CLIPFRAC}
_ALL = {
    **{name: quantity.name for name, quantity in (*TRL.items(), *VERL.items())},
    **dict.fromkeys(CLIP_FRAC_NAMES.values(), CLIP_FRAC),
}
_BESIDE = ("train/", "train_", "")
"""Prefixes of metric names in trackers, which may precede the names of TRL and verl."""


def mapped(values: Mapping[str, object]) -> dict[str, float]:
    """Return the finite metrics of one step, keyed by Atrium's names.

    Names of TRL and verl are translated, with or without the prefix `train/` or `train_`. Other names are
    kept. `step` and `time` are left out, and so are values that are not finite numbers.
    """
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            continue
        plain = next(
            (_ALL[name[len(p) :]] for p in _BESIDE if name.startswith(p) and name[len(p) :] in _ALL), name
        )
        if plain not in ("step", "time"):
            found.setdefault(plain, float(value))
    return found


def renamed(values: Mapping[str, float], names: str) -> dict[str, float]:
    """Rename the metrics of one step; `names` selects the naming scheme "atrium", "trl" or "verl".

    Metrics without a counterpart keep their names. If `names` is neither "trl" nor "verl", all metrics keep
    their names. For TRL and verl, the sum of Atrium's `clip_high_frac` and `clip_low_frac`, if both are
    present, is added under the library's name for the share of clipped tokens.
    """
    if names not in CLIP_FRAC_NAMES:
        return dict(values)
    theirs = {quantity.name: name for name, quantity in (TRL if names == "trl" else VERL).items()}
    found = {theirs.get(name, name): value for name, value in values.items()}
    sides = [values.get(one.name) for one in (metrics.CLIP_HIGH_FRAC, metrics.CLIP_LOW_FRAC)]
    if None not in sides:
        found[CLIP_FRAC_NAMES[names]] = sum(side for side in sides if side is not None)
    return found


def known_words(names: list[str]) -> str:
    """Describe how many of another library's metric names have a counterpart in Atrium."""
    num = sum(any(name == f"{p}{one}" for p in _BESIDE for one in _ALL) for name in names)
    return f"{num} of {len(names)} metrics map to Atrium's names"

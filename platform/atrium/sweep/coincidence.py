"""Which settings are the same method: equal in everything but the name that their trust region goes by.

By Theorem 4.2 of arXiv 2602.05494, a divergence that is a function of the ratio alone is a window
[l, u]; two settings with equal windows, and equal in the rest, give equal runs seed by seed.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from atrium.config.schema import RunConfig
from atrium.method.checks import objective_notes
from atrium.method.divergences import BalancedWindow, Divergence
from atrium.tracking.method_settings import method_of
from atrium.windows import Window

_DIGITS = 10


def window_of(divergence: Divergence) -> Window | None:
    """The constant window of a divergence, or None where it has none."""
    return None if isinstance(divergence, BalancedWindow) else divergence.window()


def as_pair(window: Window | None) -> list[float | None] | None:
    """A window for JSON: [l, u], with null for an upper bound that never binds."""
    if window is None:
        return None
    return [window.lower, None if math.isinf(window.upper) else window.upper]


def trust_region_is_idle(config: RunConfig) -> bool:
    """Whether every ratio is 1, so that no trust region cuts anything."""
    return bool(
        objective_notes(
            config.algorithm,
            config.divergence,
            num_updates_per_batch=config.num_updates_per_batch,
            anchors_to_stored=config.anchors_to_stored,
        )
    )


def method_key(config: RunConfig) -> str:
    """16 hex digits that two configurations share exactly where they describe the same method.

    Lengths tell methods apart, since a sweep compares runs at their last step.
    """
    data: dict[str, Any] = method_of(config.model_dump(mode="json"), at_last_step=True)
    algorithm: dict[str, Any] = data["algorithm"]
    del algorithm["name"], algorithm["on_policy"]
    bounds = window_of(config.divergence)
    if trust_region_is_idle(config):
        data["divergence"] = "idle"
    elif bounds is not None:
        data["divergence"] = [f"{bounds.lower:.{_DIGITS}g}", f"{bounds.upper:.{_DIGITS}g}"]
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]

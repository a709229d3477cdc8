"""The settings that define a run's method, as opposed to the run's location, length and seed.

Sweeps use this distinction to merge equal methods. Comparisons use it to group runs into arms, and trackers
use it to group runs that differ only in their seeds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from atrium.base.nested import mapping_at
from atrium.engines.declaration import PLACE_SETTINGS, REMOVED_PLACE_SETTINGS
from atrium.engines.settings import EngineSettings
from atrium.method.method import Method
from atrium.method.needs import Use

_NOT_THE_METHOD = {
    "seed",
    "label",
    "planned_seeds",
    "looks",
    "experiment_name",
    "runs_dir",
    "resume",
    "tracking",
    "checkpoint",
    "compute",
}
_CHANGES_NUMBERS = {"compute.dtype", "compute.behavior_logprobs"}
"""Settings of excluded sections that still belong to the method: they change results beyond rounding."""
_PLACES = {"branch.run", "model.date"} | {
    f"rollout.{name}" for name in (*PLACE_SETTINGS, *REMOVED_PLACE_SETTINGS, "unit_samples", "overlap")
}
"""Settings of other sections, some from earlier versions, that determine only where and when work is done."""
LENGTH = "num_steps"


def tells_methods_apart(key: str, *, at_last_step: bool = False) -> bool:
    """Return whether runs that differ in the setting `key` (a dotted name) have different methods.

    If `at_last_step` is set, runs are compared at their last steps, so `num_steps` is part of the method.
    """
    if key == LENGTH:
        return at_last_step
    if key in _PLACES:
        return False
    return key in _CHANGES_NUMBERS or key.partition(".")[0] not in _NOT_THE_METHOD


def method_of(config: Mapping[str, object], *, at_last_step: bool = False) -> dict[str, object]:
    """Return the settings of a recorded configuration that define the method, nested as recorded.

    `at_last_step` has the same meaning as in `tells_methods_apart`.
    """
    method: dict[str, object] = {}
    for section, value in config.items():
        if tells_methods_apart(section, at_last_step=at_last_step) and isinstance(value, Mapping):
            method[section] = {name: one for name, one in value.items() if f"{section}.{name}" not in _PLACES}
        elif tells_methods_apart(section, at_last_step=at_last_step):
            method[section] = value
        elif isinstance(value, Mapping):
            kept = {name: one for name, one in value.items() if f"{section}.{name}" in _CHANGES_NUMBERS}
            method |= {section: kept} if kept else {}
    return method


def use_of(config: Mapping[str, object]) -> Use | None:
    """Return how a recorded run uses its method: updates per batch, group size, lag, and so on.

    Returns None if a setting is missing or invalid.
    """
    rollout, optimizer, compute = (mapping_at(config, name) for name in ("rollout", "optimizer", "compute"))
    try:
        return Use(
            num_updates_per_batch=int(optimizer["num_minibatches"]) * int(optimizer["num_epochs"]),
            group_size=int(rollout["group_size"]),
            behavior_logprobs=str(compute["behavior_logprobs"]),
            lag=int(rollout.get("lag", 0)),
            reads_stored=EngineSettings.named(str(rollout["engine"])).reads_stored,
            dtype=str(compute.get("dtype", "float32")),
            max_length=int(rollout.get("max_new_tokens", 1)),
        )
    except (KeyError, TypeError, ValueError):
        return None


def method_key(config: Mapping[str, object], *, at_last_step: bool = False) -> str:
    """Return a hash (16 hex digits) that is equal for configurations that describe the same method.

    If this process cannot read the method, for example because a plugin is not loaded, the hashes are equal
    only if the recorded settings of the method are equal. `at_last_step` has the same meaning as in
    `tells_methods_apart`.
    """
    settings = method_of(config, at_last_step=at_last_step)
    if method := Method.read(config):
        settings |= method.key(use_of(config))
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]

"""The division of a run's settings into its method, and its location, length and seed.

This is the only such list: sweeps merge equal methods by it, comparisons group runs into arms, and trackers
group runs that differ only in their seeds.
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
"""Settings of these sections that change results by more than the order of sums."""
_PLACES = {"branch.run", "model.date"} | {
    f"rollout.{name}" for name in (*PLACE_SETTINGS, *REMOVED_PLACE_SETTINGS, "unit_samples", "overlap")
}
"""Settings of other sections for where and when work is done, including those of earlier versions."""
LENGTH = "num_steps"


def tells_methods_apart(key: str, *, at_last_step: bool = False) -> bool:
    """Return whether runs that differ in the setting with this dotted name have different methods.

    `at_last_step` says that runs are compared at their ends, so different lengths are different methods.
    """
    if key == LENGTH:
        return at_last_step
    if key in _PLACES:
        return False
    return key in _CHANGES_NUMBERS or key.partition(".")[0] not in _NOT_THE_METHOD


def method_of(config: Mapping[str, object], *, at_last_step: bool = False) -> dict[str, object]:
    """Return the settings of a recorded configuration that form the method, nested as recorded."""
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
    """Return a recorded run's use of its method; None if its settings do not determine it."""
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
    """Return 16 hex digits that are equal exactly if two configurations describe the same method.

    A method with a part that is unknown here is identified by its text.
    """
    settings = method_of(config, at_last_step=at_last_step)
    if method := Method.read(config):
        settings |= method.key(use_of(config))
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]

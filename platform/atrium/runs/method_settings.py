"""Which of a run's settings are its method, and which say where, how long or for which seed it ran.

The one list of its kind: sweeps merge equal methods by it, comparisons group runs into arms, and trackers
group runs that differ in their seeds alone.
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
"""Settings of these sections that change what is computed by more than the order of sums."""
_PLACES = {"branch.run", "model.date"} | {
    f"rollout.{name}" for name in (*PLACE_SETTINGS, *REMOVED_PLACE_SETTINGS, "unit_samples", "overlap")
}
"""Settings of other sections that say where and when work is done, also those of earlier versions."""
LENGTH = "num_steps"


def tells_methods_apart(key: str, *, at_last_step: bool = False) -> bool:
    """Whether runs that differ in the setting of this dotted name are other methods.

    `at_last_step` says that runs are compared where each ended, so that their lengths tell them apart, too.
    """
    if key == LENGTH:
        return at_last_step
    if key in _PLACES:
        return False
    return key in _CHANGES_NUMBERS or key.partition(".")[0] not in _NOT_THE_METHOD


def method_of(config: Mapping[str, object], *, at_last_step: bool = False) -> dict[str, object]:
    """The settings of a recorded configuration that make the method, nested as they were recorded."""
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
    """The use that a recorded run made of its method; None where its settings do not say."""
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
    """16 hex digits that two recorded configurations share exactly where they describe the same method.

    A method with a part that is unknown here goes by its text.
    """
    settings = method_of(config, at_last_step=at_last_step)
    if method := Method.read(config):
        settings |= method.key(use_of(config))
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]

"""Conversion of settings that earlier versions recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atrium.base.nested import mapping_at, setting
from atrium.engines.declaration import REMOVED_PLACE_SETTINGS, SERVER_SETTINGS, EngineSettings

_REMOVED_PLACEMENTS = ("beside", "cluster")


def upgraded(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded configuration in which obsolete settings of `rollout` are replaced or removed.

    Engines in separate processes or on a cluster become vLLM servers. If the engine cannot run as a server,
    or if the prompt has stop strings, the engine runs inside the trainer's process instead. The obsolete
    `rollout.overlap=true` is kept, so that validation rejects it.
    """
    recorded = mapping_at(data, "rollout")
    if not recorded:
        return dict(data)
    rollout = {name: value for name, value in recorded.items() if name not in REMOVED_PLACE_SETTINGS}
    if rollout.get("overlap") is False:  # the earlier form of placement=inside, which is the default
        del rollout["overlap"]
    if (placement := _placement_now(data)) is not None:
        rollout = {name: value for name, value in rollout.items() if name not in SERVER_SETTINGS}
        rollout["placement"] = placement
    if placement == "server":
        rollout["num_servers"] = recorded.get("num_engines", 1)
        rollout["devices"] = recorded.get("devices")
        rollout["sleep_level"] = None  # servers keep their devices during updates
    return {**data, "rollout": rollout}


def placement_note(data: Mapping[str, Any]) -> str | None:
    """Return a line on the replacement of a recorded `rollout.placement`, or None if it is not obsolete."""
    placement = _placement_now(data)
    if placement is None:
        return None
    now = "rollout.placement=inside"
    if placement == "server":
        num_servers = setting(upgraded(data), "rollout.num_servers")
        now = f"rollout.placement=server rollout.num_servers={num_servers}"
    return f"rollout.placement={setting(data, 'rollout.placement')} was removed; this run uses {now}"


def _placement_now(data: Mapping[str, Any]) -> str | None:
    """Return the replacement of an obsolete `rollout.placement`, or None if the recorded value is current."""
    if setting(data, "rollout.placement") not in _REMOVED_PLACEMENTS:
        return None
    engine = str(setting(data, "rollout.engine"))
    if setting(data, "model.prompt.stop"):  # servers have no tokenizer, so they cannot find stop strings
        return "inside"
    has_server = engine in EngineSettings.kinds and EngineSettings.named(engine).runs_as_server
    return "server" if has_server else "inside"

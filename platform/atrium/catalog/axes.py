"""Descriptions of the choices of a shipped method on each axis, and its settings by key."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from atrium.base.nested import flattened
from atrium.config.presets import PartFile, Preset


def axes(preset: Preset) -> dict[str, str]:
    """Return short descriptions of a method's choices, keyed by axis.

    The description of a choice without effect, such as no correction, is empty. The entry `rollouts` lists
    the configuration files that the method selects, except for the divergence and the regularizer. The entry
    `on policy` says how the method's gradient on an on-policy batch relates to that of REINFORCE.
    """
    words = preset.method.words()
    if source := preset.references.get("reduction.constant"):
        words["reduction"] = f"{preset.algorithm.reduction.kind} / {source}"
    law = words.pop("on policy")
    rollouts = ", ".join(f"{group}={part.name}" for group, part in _other_parts(preset).items())
    return {**words, "rollouts": rollouts, "on policy": law}


def settings(preset: Preset) -> dict[str, object]:
    """Return all settings of a method, including defaults, keyed by their names on the command line."""
    sections: Mapping[str, BaseModel] = {
        "algorithm": preset.algorithm,
        "divergence": preset.divergence,
        "regularizer": preset.regularizer,
    }
    found: dict[str, object] = {}
    for name, section in sections.items():
        found |= flattened(section.model_dump(mode="json"), f"{name}.")
    for key, source in preset.references.items():
        found[f"algorithm.{key}"] = source
    del found["algorithm.name"]
    return found | {group: part.name for group, part in _other_parts(preset).items()}


def _other_parts(preset: Preset) -> dict[str, PartFile]:
    """Return the configuration files that a method selects, except for divergence and regularizer.

    The keys of the result are config groups.
    """
    return {group: part for group, part in preset.parts.items() if group not in ("divergence", "regularizer")}

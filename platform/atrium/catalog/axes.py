"""Descriptions of the choices of a shipped method on each axis, and its settings by key."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from atrium.base.nested import flattened
from atrium.config.presets import PartFile, Preset


def axes(preset: Preset) -> dict[str, str]:
    """Return short descriptions of a method's choices by axis, with an empty text for neutral choices.

    The key `rollouts` lists the method's files outside the objective, and `on policy` compares its gradient
    with that of REINFORCE while the policy is still the one that sampled.
    """
    words = preset.method.words()
    if source := preset.references.get("reduction.constant"):
        words["reduction"] = f"{preset.algorithm.reduction.kind} / {source}"
    law = words.pop("on policy")
    rollouts = ", ".join(f"{group}={part.name}" for group, part in _other_parts(preset).items())
    return {**words, "rollouts": rollouts, "on policy": law}


def settings(preset: Preset) -> dict[str, object]:
    """Return all settings of a method, including defaults, by their keys on the command line."""
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
    """Return the configuration files that a method selects outside the objective, such as its rollouts."""
    return {group: part for group, part in preset.parts.items() if group not in ("divergence", "regularizer")}

"""A shipped method in words, and every setting by the key that changes it."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from atrium.base.nested import flattened
from atrium.config.presets import PartFile, Preset


def axes(preset: Preset) -> dict[str, str]:
    """The choice on every axis, and the files outside the objective; empty where it changes nothing."""
    words = preset.method.words()
    if source := preset.references.get("reduction.constant"):
        words["reduction"] = f"{preset.algorithm.reduction.kind} / {source}"
    law = words.pop("on policy")
    rollouts = ", ".join(f"{group}={part.name}" for group, part in _other_parts(preset).items())
    return {**words, "rollouts": rollouts, "on policy": law}


def settings(preset: Preset) -> dict[str, object]:
    """Every setting of a method by its key on the command line; defaults of the sections included."""
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
    """The files outside the objective that a method chooses, such as where completions come from."""
    return {group: part for group, part in preset.parts.items() if group not in ("divergence", "regularizer")}

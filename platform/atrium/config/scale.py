"""The scale of a model: the recipe for a Hub source, and checks for settings unsuitable for its size.

`conf/recipe` has a file for every model of `conf/model`. A source that one of those describes is that model;
any other gets the generic recipe for its size. Nothing here contacts the Hub or loads torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hydra.core.override_parser.types import Override

from atrium.base.errors import ConfigError
from atrium.base.plain_files import read_plain
from atrium.config.files import parse_yaml
from atrium.config.schema import RunConfig
from atrium.models.settings import HubModelSettings
from atrium.models.shape import read_shape

LARGE_MODEL = 500_000_000
"""Number of parameters from which a model is fine-tuned at about 1e-6."""
SMALL_MODEL = 10_000_000
"""Number of parameters below which a model is a toy, like the built-in one."""
DESTRUCTIVE_RATE = 1e-4
"""Learning rate from which full fine-tuning destroys a large model."""
FEWEST_THINKING_TOKENS = 1024
"""Number of tokens below which a reasoning model ends only by being cut off."""

_RATE = "optimizer.learning_rate"
_ROLLOUT_TOKENS, _EVALUATION_TOKENS = "rollout.max_new_tokens", "evaluation.max_new_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceChoice:
    """The meaning of `model=hub` with a typed source: options by group, and a reason for the user."""

    options: Mapping[str, str]
    note: str


def choose_by_source(overrides: Sequence[Override], conf: Path) -> SourceChoice | None:
    """Return the model file that describes a typed `model.source`, or the generic recipe for its size.

    None if there is no such choice: another model or several, a custom architecture, or a typed recipe.
    """
    typed = {override.key_or_group: override for override in overrides}
    model, source = typed.get("model"), typed.get("model.source")
    if model is None or source is None or model.is_sweep_override() or source.is_sweep_override():
        return None
    name = source.value()
    if model.value() != "hub" or "model.architecture" in typed or not isinstance(name, str):
        return None
    described = _describing_file(name, conf)
    if described is not None:
        return SourceChoice(
            options={"model": described},
            note=f"model.source={name} is described by conf/model/{described}.yaml, so model={described} is "
            "used, with its prompt and recipe",
        )
    if "recipe" in typed:
        return None
    size = _num_parameters(_read_architecture(name))
    if size is None:
        return SourceChoice(
            options={},
            note=f"model.source={name}: no file of conf/model describes it and its size is unknown, so "
            "recipe=hub is used, which suits 500M parameters and more; choose another with recipe=NAME",
        )
    recipe = generic_recipe(size)
    return SourceChoice(
        options={"recipe": recipe},
        note=f"model.source={name}: no file of conf/model describes it; recipe={recipe} is used for "
        f"{size:,} parameters",
    )


def generic_recipe(num_parameters: int) -> str:
    """Return the recipe for a model of this size that no file describes."""
    if num_parameters < SMALL_MODEL:
        return "hub_below_10m"
    return "hub_below_500m" if num_parameters < LARGE_MODEL else "hub"


def known_architecture(model: HubModelSettings) -> Mapping[str, object] | None:
    """Return the keys of the model's config.json, if its file or a local folder has them."""
    return _read_architecture(model.source) if model.architecture is None else model.architecture


def check_scale(config: RunConfig, overrides: Sequence[Override]) -> None:
    """Raise `ConfigError` for a scale that is unsuitable for pretrained weights, unless it was typed."""
    for doubt in _doubts(config, overrides):
        if not doubt.is_typed:
            raise ConfigError(
                f"{doubt.setting} {doubt.effect}; use {doubt.allowed}, or type {doubt.setting} to confirm it"
            )


def scale_notes(config: RunConfig, overrides: Sequence[Override], conf: Path) -> list[str]:
    """Return notes for the user about the scale: how it was chosen, and unusual values that were typed."""
    choice = choose_by_source(overrides, conf)
    doubts = [doubt for doubt in _doubts(config, overrides) if doubt.is_typed]
    notes = [f"{doubt.setting} {doubt.effect}; it is used because it was typed" for doubt in doubts]
    return notes if choice is None else [choice.note, *notes]


class _Doubt(NamedTuple):
    """A setting that destroys pretrained weights or hides their ability, and values that do not."""

    setting: str
    effect: str
    allowed: str
    is_typed: bool


def _doubts(config: RunConfig, overrides: Sequence[Override]) -> list[_Doubt]:
    model = config.model
    is_debugged = any(
        override.key_or_group == "debug" and override.value() is not None for override in overrides
    )
    if not isinstance(model, HubModelSettings) or model.weights == "random" or is_debugged:
        return []
    # The settings of a user's experiment file are among the overrides, too.
    typed = {override.key_or_group for override in overrides}
    doubts = []
    size, rate = _num_parameters(known_architecture(model)), config.optimizer.learning_rate
    if model.lora is None and size is not None and size >= LARGE_MODEL and rate >= DESTRUCTIVE_RATE:
        effect = f"destroys a fully trained pretrained model of {size / 1e9:.1f} billion parameters"
        remedy = f"less than {DESTRUCTIVE_RATE:g}, such as 1e-6, adapters (model.lora)"
        doubts.append(_Doubt(f"{_RATE}={rate:g}", effect, remedy, _RATE in typed))
    lengths = {_ROLLOUT_TOKENS: config.rollout.max_new_tokens}
    lengths[_EVALUATION_TOKENS] = config.evaluation.max_new_tokens
    for key, length in lengths.items():
        if model.thinking and length < FEWEST_THINKING_TOKENS:
            follows = key == _EVALUATION_TOKENS and length == lengths[_ROLLOUT_TOKENS]
            is_typed = key in typed or (follows and _ROLLOUT_TOKENS in typed)
            effect = "cuts off a reasoning model (model.thinking=true) before it answers"
            doubts.append(_Doubt(f"{key}={length:g}", effect, f"at least {FEWEST_THINKING_TOKENS}", is_typed))
    return doubts


def _num_parameters(architecture: Mapping[str, object] | None) -> int | None:
    shape = read_shape(architecture)
    return None if shape is None else shape.num_parameters


def _describing_file(source: str, conf: Path) -> str | None:
    for path in sorted((conf / "model").glob("*.yaml")):
        settings = parse_yaml(path.read_text(encoding="utf-8"))
        described = settings.get("source") if isinstance(settings, Mapping) else None
        if isinstance(described, str) and described.casefold() == source.casefold():
            return path.stem
    return None


def _read_architecture(source: str) -> Mapping[str, object] | None:
    """Read a local folder's config.json; None if there is none that can be read."""
    try:
        data = json.loads(read_plain(Path(source).expanduser() / "config.json"))
    except (OSError, ValueError, RuntimeError):
        return None
    return data if isinstance(data, Mapping) else None

"""The options that follow from a model, such as its recipe, and checks for settings that do not suit it.

Every model in `conf/model` has a recipe in `conf/recipe`. If a file in `conf/model` describes the repository
or folder in `model.source`, that file is selected. Any other source gets a generic recipe for its size. A
thinking model gets a default task. This module neither contacts the Hub nor imports torch.
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
"""Number of parameters from which models need a learning rate of about 1e-6."""
SMALL_MODEL = 10_000_000
"""Number of parameters below which a model counts as a toy, like the built-in model."""
DESTRUCTIVE_RATE = 1e-4
"""Learning rate from which full fine-tuning destroys a large model."""
FEWEST_THINKING_TOKENS = 1024
"""Number of tokens below which a reasoning model is cut off before it answers."""

THINKING_TASK = {"dataset": "deepscaler", "benchmark": "aime_all"}
"""Default training and test problems of a thinking model, as options by group."""

_RATE = "optimizer.learning_rate"
_ROLLOUT_TOKENS, _EVALUATION_TOKENS = "rollout.max_new_tokens", "evaluation.max_new_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceChoice:
    """Configuration options that follow from the model in the overrides, and a note with the reason.

    `options` maps groups to options.
    """

    options: Mapping[str, str]
    note: str


def choose_by_model(overrides: Sequence[Override], conf: Path) -> list[SourceChoice]:
    """Return the choices that follow from the model in `overrides`.

    There are at most two: the result of `choose_by_source`, and the default task of a thinking model. `conf`
    is the folder of the YAML files.
    """
    by_source = choose_by_source(overrides, conf)
    options = {} if by_source is None else by_source.options
    task = _choose_task(overrides, options, conf)
    return [choice for choice in (by_source, task) if choice is not None]


def _choose_task(
    overrides: Sequence[Override], options: Mapping[str, str], conf: Path
) -> SourceChoice | None:
    """Return the default task if `overrides` select a pretrained thinking model, or None.

    `options` contains the options that follow from `model.source`, and `conf` is the folder of the YAML
    files. Also returns None if the overrides set `model.weights`, set `model.thinking` to another value than
    true, or select a dataset, an experiment, a recipe, or a debug option.
    """
    typed = {override.key_or_group: override for override in overrides}
    model = typed.get("model")
    if model is None or model.is_sweep_override() or "model.weights" in typed:
        return None
    if any(name in typed for name in ("dataset", "experiment", "recipe", "debug")):
        return None
    if "model.thinking" in typed and typed["model.thinking"].value() is not True:
        return None
    name = options.get("model", model.value())
    file = conf / "model" / f"{name}.yaml"
    settings = parse_yaml(file.read_text(encoding="utf-8")) if file.is_file() else None
    if not isinstance(settings, Mapping) or settings.get("thinking") is not True:
        return None
    task = {group: option for group, option in THINKING_TASK.items() if group not in typed}
    return SourceChoice(
        options=task,
        note=f"model={name} thinks before it answers and solves most problems of MATH, so the run uses "
        + " ".join(f"{group}={option}" for group, option in task.items())
        + "; choose others with dataset=NAME and benchmark=NAME",
    )


def choose_by_source(overrides: Sequence[Override], conf: Path) -> SourceChoice | None:
    """Return the options that follow from `model.source`: a file in `conf/model`, or a generic recipe.

    The file is the one that describes the source. If no file does and the size is unknown, there are no
    options, only a note. Returns None unless the overrides contain `model=hub` with one source and no
    architecture. Also returns None if no file describes the source and the overrides select a recipe.
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
    """Return the name of the generic recipe for a model with `num_parameters` parameters.

    It is used for models without a file in `conf/model`.
    """
    if num_parameters < SMALL_MODEL:
        return "hub_below_10m"
    return "hub_below_500m" if num_parameters < LARGE_MODEL else "hub"


def known_architecture(model: HubModelSettings) -> Mapping[str, object] | None:
    """Return the content of the model's `config.json`, or None if it is unknown.

    The content is `model.architecture` or, if that is null, is read from the local folder `model.source`.
    """
    return _read_architecture(model.source) if model.architecture is None else model.architecture


def check_scale(config: RunConfig, overrides: Sequence[Override]) -> None:
    """Raise `ConfigError` for a value that does not suit pretrained weights.

    A value in `overrides` counts as confirmed by the user and raises no error.
    """
    for doubt in _doubts(config, overrides):
        if not doubt.is_typed:
            raise ConfigError(
                f"{doubt.setting} {doubt.effect}; use {doubt.allowed}, or type {doubt.setting} on the "
                "command line to confirm it"
            )


def scale_notes(config: RunConfig, overrides: Sequence[Override], conf: Path) -> list[str]:
    """Return notes for the user on options that follow from the model, and on unsuitable overrides."""
    chosen = [choice.note for choice in choose_by_model(overrides, conf)]
    doubts = [doubt for doubt in _doubts(config, overrides) if doubt.is_typed]
    notes = [f"{doubt.setting} {doubt.effect}; it is used because it was typed" for doubt in doubts]
    return [*chosen, *notes]


class _Doubt(NamedTuple):
    """A value that does not suit pretrained weights, its effect, and suitable values.

    `is_typed` says whether the user typed the value and thereby confirmed it.
    """

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
    """Return the content of `config.json` in a local folder, or None if it cannot be read."""
    try:
        data = json.loads(read_plain(Path(source).expanduser() / "config.json"))
    except (OSError, ValueError, RuntimeError):
        return None
    return data if isinstance(data, Mapping) else None

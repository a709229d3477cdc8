"""The shipped methods and divergences as their files define them, read quickly and without Hydra.

Hydra's composition defines the meaning of a preset. This reader implements the few rules that the files of
`conf/algorithm` use (a parent, `override` of another group, `_self_`, references to one other key), and a
test checks it against Hydra for every preset. Runs are never composed here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from atrium.base.errors import ConfigError
from atrium.base.nested import flattened_text
from atrium.config.files import check_method_name, conf_folder, options_of, parse_yaml
from atrium.config.messages import config_error
from atrium.config.nearest import shown, suggestion
from atrium.method.algorithm import Algorithm
from atrium.method.divergences import Divergence
from atrium.method.method import SECTIONS, Method
from atrium.method.regularizers import Regularizer

_OVERRIDE = re.compile(r"override /(\w+)@_global_\.\w+")
_REFERENCE = re.compile(r"\$\{(\w+)\.(\w+)\}")
_MAX_LISTED = 40
_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """A file of a group: its name, the text of its header comment, and its settings."""

    group: str
    name: str
    header: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A method: its file, its parents, and its three sections of settings.

    `parts` holds the other groups' files that the preset selects or leaves at their defaults, by group.
    `references` maps keys below `algorithm` to the run settings that they refer to; `algorithm` then holds
    the default value.
    """

    file: PartFile
    parent: str | None
    parts: Mapping[str, PartFile]
    algorithm: Algorithm
    divergence: Divergence
    regularizer: Regularizer
    references: Mapping[str, str]

    @property
    def method(self) -> Method:
        """Return the three sections as a method."""
        return Method(self.algorithm, self.divergence, self.regularizer)

    @property
    def name(self) -> str:
        """The name of its file and of the method."""
        return self.file.name


def names(group: str) -> tuple[str, ...]:
    """Return the files of a group; those of single papers come last."""
    return options_of(conf_folder() / group)


def read_preset(name: str) -> Preset:
    """Read the method of `conf/algorithm/NAME.yaml`. Raises `ConfigError` if it is missing or wrong."""
    file = read_part("algorithm", name)
    check_method_name(name, file.settings)
    merged = _merged("algorithm", name)
    defaults = _default_options()
    choices = {**{group: defaults[group] for group in ("divergence", "regularizer")}, **merged.choices}
    regularizer = _merged("regularizer", choices["regularizer"]).settings
    settings, references = _resolved(merged.settings, choices)
    return Preset(
        file=file,
        parent=merged.parent,
        parts={group: read_part(group, option) for group, option in choices.items()},
        algorithm=_validated(Algorithm, settings, f"algorithm={name}"),
        divergence=read_divergence(choices["divergence"]),
        regularizer=_validated(Regularizer, regularizer, f"regularizer={choices['regularizer']}"),
        references=references,
    )


def read_presets() -> tuple[Preset, ...]:
    """Read every method, in alphabetical order."""
    return tuple(read_preset(name) for name in names("algorithm"))


def read_divergence(name: str) -> Divergence:
    """Read the divergence of `conf/divergence/NAME.yaml`; `ConfigError` if it is missing or wrong."""
    return divergence_from(_merged("divergence", name).settings, f"divergence={name}")


def divergence_from(settings: Mapping[str, Any], where: str) -> Divergence:
    """Return the divergence that settings describe.

    `where` names them in the `ConfigError` if they are wrong.
    """
    return _validated(_AnyDivergence, {"divergence": settings}, where).divergence


def read_settings(group: str, name: str) -> dict[str, Any]:
    """Return the settings of a group's file merged over its parents', as a copy."""
    return deepcopy(dict(_merged(group, name).settings))


@cache
def read_part(group: str, name: str) -> PartFile:
    """Read one file of a group. Raises `ConfigError` if it is missing or not YAML."""
    known = names(group)
    if name not in known:
        listed = f": {', '.join(known)}" if len(known) <= _MAX_LISTED else "; `atrium objectives` lists them"
        near = suggestion(name, known) or f"; choose from the {len(known)} files of conf/{group}{listed}"
        raise ConfigError(f"{shown(name)}: there is no such {group}{near}")
    path = conf_folder() / group / f"{name}.yaml"
    try:
        text = path.read_text(encoding="utf-8")
        settings = parse_yaml(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{path}: contains no settings; write lines of `key: value`")
    return PartFile(group=group, name=name, header=header(text), settings=settings)


class _AnyDivergence(BaseModel):
    divergence: Divergence


@dataclass(frozen=True, slots=True)
class _Merged:
    """A file's settings merged over its parent's, the options selected in other groups, and the parent."""

    settings: Mapping[str, Any]
    choices: Mapping[str, str]
    parent: str | None


def _merged(group: str, name: str) -> _Merged:
    part = read_part(group, name)
    below = _Merged({}, {}, None)
    for entry in part.settings.get("defaults", []):
        if isinstance(entry, str) and entry != "_self_":
            above = _merged(group, entry)
            below = _Merged(_over(below.settings, above.settings), {**below.choices, **above.choices}, entry)
    own = {key: value for key, value in part.settings.items() if key != "defaults"}
    return _Merged(_over(below.settings, own), {**below.choices, **own_overrides(part)}, below.parent)


def own_overrides(part: PartFile) -> dict[str, str]:
    """Return the options of other groups that a file's own defaults list selects, by group."""
    found = {}
    for entry in part.settings.get("defaults", []):
        for key, option in entry.items() if isinstance(entry, dict) else ():
            if match := _OVERRIDE.fullmatch(str(key)):
                found[match[1]] = str(option)
    return found


@cache
def settings_outside(name: str) -> Mapping[str, str]:
    """Return the settings outside a method's own sections that its preset changes, by dotted key, as text.

    Empty for a method without a file in `conf/algorithm`.
    """
    if name not in names("algorithm"):
        return {}
    chosen = {key: value for key, value in _merged("algorithm", name).choices.items() if key not in SECTIONS}
    own = flattened_text({group: _merged(group, option).settings for group, option in chosen.items()})
    usual = flattened_text({group: _merged(group, _default_options()[group]).settings for group in chosen})
    return {key: value for key, value in own.items() if usual.get(key) != value}


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _resolved(
    settings: Mapping[str, Any], choices: Mapping[str, str], prefix: str = ""
) -> tuple[dict[str, Any], dict[str, str]]:
    """Resolve references to other groups from their files; return the settings and what they refer to."""
    resolved: dict[str, Any] = {}
    references: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            resolved[key], nested = _resolved(value, choices, f"{prefix}{key}.")
            references |= nested
        elif isinstance(value, str) and (match := _REFERENCE.fullmatch(value)):
            group, name = match.groups()
            resolved[key] = _merged(group, choices.get(group, _default_options()[group])).settings[name]
            references[f"{prefix}{key}"] = f"{group}.{name}"
        else:
            resolved[key] = value
    return resolved, references


@cache
def _default_options() -> Mapping[str, str]:
    """Return the options of the groups in the primary defaults list."""
    text = (conf_folder() / "config.yaml").read_text(encoding="utf-8")
    defaults = parse_yaml(text)["defaults"]
    return {key: str(value) for entry in defaults if isinstance(entry, dict) for key, value in entry.items()}


def _validated(model: type[_Model], data: Mapping[str, Any], where: str) -> _Model:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{where}: {config_error(error, model, data)}") from error


def header(text: str) -> str:
    """Return the comment at a file's start, line by line, without its markers."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return "\n".join(lines)

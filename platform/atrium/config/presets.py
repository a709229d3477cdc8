"""A fast reader for the shipped methods and divergences, which does not use Hydra.

It implements the few rules of Hydra's composition that files in `conf/algorithm` use: a parent, an `override`
of another group, `_self_`, and values that consist of a reference to another key. A test compares the result
with Hydra's for every method. Hydra always composes the configurations of runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml
from pydantic import BaseModel

from atrium.base.errors import ConfigError, reason_of
from atrium.base.nested import flattened_text
from atrium.config.files import check_method_name, conf_folder, options_of, parse_yaml
from atrium.config.messages import validate
from atrium.config.nearest import shown, suggestion
from atrium.method.algorithm import Algorithm
from atrium.method.divergences import Divergence
from atrium.method.method import SECTIONS, Method
from atrium.method.regularizers import Regularizer

_OVERRIDE = re.compile(r"override /(\w+)@_global_\.\w+")
_REFERENCE = re.compile(r"\$\{(\w+)\.(\w+)\}")
_MAX_LISTED = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """One file of a group. `header` is the comment at the start of the file."""

    group: str
    name: str
    header: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A method as its file defines it.

    `parent` is the name of the method that the file starts from, or None. `parts` maps groups to the other
    files that the method uses: the divergence, the regularizer, and any other selected part. `references`
    maps keys below `algorithm` to the run settings that they refer to. In `algorithm`, these keys have the
    default values of the run settings.
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
        """The method: the sections `algorithm`, `divergence` and `regularizer` together."""
        return Method(self.algorithm, self.divergence, self.regularizer)

    @property
    def name(self) -> str:
        """The name of the method, which is also the name of its file if the method ships with Atrium."""
        return self.file.name


def names(group: str) -> tuple[str, ...]:
    """Return the names of a group's files. Names of files from papers (`paper/NAME`) come last."""
    return options_of(conf_folder() / group)


def read_preset(name: str) -> Preset:
    """Read `conf/algorithm/NAME.yaml`; raise `ConfigError` for a missing or invalid file."""
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
        algorithm=validate(Algorithm, settings, f"algorithm={name}"),
        divergence=read_divergence(choices["divergence"]),
        regularizer=validate(Regularizer, regularizer, f"regularizer={choices['regularizer']}"),
        references=references,
    )


def read_presets() -> tuple[Preset, ...]:
    """Read all shipped methods, in the order of `names`."""
    return tuple(read_preset(name) for name in names("algorithm"))


def read_divergence(name: str) -> Divergence:
    """Read `conf/divergence/NAME.yaml`; raise `ConfigError` for a missing or invalid file."""
    return divergence_from(_merged("divergence", name).settings, f"divergence={name}")


def divergence_from(settings: Mapping[str, Any], where: str) -> Divergence:
    """Return the divergence with the given settings.

    Raises `ConfigError` for invalid settings. `where` names the source of the settings in the message.
    """
    return validate(_AnyDivergence, {"divergence": settings}, where).divergence


def read_settings(group: str, name: str) -> dict[str, Any]:
    """Return a copy of the settings in a group's file, including those inherited from its parents."""
    return deepcopy(dict(_merged(group, name).settings))


@cache
def read_part(group: str, name: str) -> PartFile:
    """Read one file of a group; raise `ConfigError` if the name is unknown or the file is not valid YAML."""
    known = names(group)
    if name not in known:
        listed = f": {', '.join(known)}" if len(known) <= _MAX_LISTED else "; `atrium objectives` lists them"
        near = suggestion(name, known) or f"; choose from the {len(known)} files of conf/{group}{listed}"
        raise ConfigError(f"{shown(name)}: unknown {group}{near}")
    path = conf_folder() / group / f"{name}.yaml"
    try:
        text = path.read_text(encoding="utf-8")
        settings = parse_yaml(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {reason_of(error)}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} contains no settings; write lines of `key: value`")
    return PartFile(group=group, name=name, header=header(text), settings=settings)


class _AnyDivergence(BaseModel):
    divergence: Divergence


@dataclass(frozen=True, slots=True)
class _Merged:
    """The content of a file together with the content that it inherits from its parents.

    `choices` maps other groups to the selected options. `parent` is the direct parent, or None.
    """

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
    """Return the options of other groups that a file's own `defaults` list selects, by group."""
    found = {}
    for entry in part.settings.get("defaults", []):
        for key, option in entry.items() if isinstance(entry, dict) else ():
            if match := _OVERRIDE.fullmatch(str(key)):
                found[match[1]] = str(option)
    return found


@cache
def settings_outside(name: str) -> Mapping[str, str]:
    """Return the settings that a method's file changes outside the method's own sections, by dotted key.

    Values are strings. The result is empty for a method without a file in `conf/algorithm`.
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
    """Return the settings with references to other groups resolved, and a mapping of the references.

    The mapping contains, for each setting with a reference, its dotted key (which begins with `prefix`) and
    the key that it refers to. `choices` maps groups to the selected options. Other groups have their default
    option.
    """
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
    """Return the default option of each group, from the `defaults` list of `conf/config.yaml`."""
    text = (conf_folder() / "config.yaml").read_text(encoding="utf-8")
    defaults = parse_yaml(text)["defaults"]
    return {key: str(value) for entry in defaults if isinstance(entry, dict) for key, value in entry.items()}


def header(text: str) -> str:
    """Return the comment lines at the start of a file's text, without `#`."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return "\n".join(lines)

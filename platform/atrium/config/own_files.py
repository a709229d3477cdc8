"""Users' configuration files: `GROUP=PATH.yaml` is replaced by the overrides that the file contains.

Hydra would compose such files from its search path without checks. This module instead reads a file as data,
and its settings pass the same checks as overrides on the command line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from atrium.base.errors import ConfigError
from atrium.base.nested import flattened
from atrium.config.files import read_yaml, wrong_name
from atrium.config.nearest import shown

WHOLE_RUN = frozenset({"debug", "experiment", "recipe"})
"""Groups whose files may set any setting of a run; files of other groups set only those of their section."""

_OF_RUN = {"algorithm": ("label",)}
"""Keys in a group's files that are top-level settings of the run, by group."""
_OVERRIDE = re.compile(r"override\s+/(\w+)(@_global_\.\1)?")
_PARENT = re.compile(r"[\w/-]+")
_FOLDER = ("./", "../", "/", "~/")
# Words that Hydra reads as another type are quoted.
_PLAIN_TEXT = re.compile(r"(?!(?i:null|nan|inf|true|false)\Z)[A-Za-z_][\w./-]*")
_ESCAPED = re.compile(r'(\\*)("|\Z)')


def expand_files(arguments: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the arguments with each `GROUP=PATH.yaml` (or .yml) replaced by the overrides in the file.

    The overrides of files come first, so other arguments take precedence. `model=./FOLDER` selects the
    language model in the folder. `groups` maps each group to its options. A file contains settings and a
    `defaults` list. The list names the option that the file starts from, and may select options of other
    groups (`override /GROUP: OPTION`). Raises `ConfigError` for a missing or invalid file.
    """
    of_files: list[str] = []
    typed: list[str] = []
    for argument in arguments:
        group, _, value = argument.partition("=")
        if group in groups and value.endswith((".yaml", ".yml")):
            of_files += _read(group, value, groups[group])
        elif group == "model" and value.startswith(_FOLDER) and "," not in value:
            typed += ["model=hub", f"model.source={value}"]
        else:
            typed.append(argument)
    return [*of_files, *typed]


def as_overrides(settings: Mapping[str, object], prefix: str = "") -> list[str]:
    """Return nested settings as overrides, one for each value. Each key begins with `prefix`."""
    return [f"{key}={override_text(value)}" for key, value in flattened(settings, prefix).items()]


def override_text(value: object) -> str:
    """Return a value as text in the grammar of Hydra's overrides."""
    if isinstance(value, str) and _PLAIN_TEXT.fullmatch(value):
        return value
    return _nested_text(value)


def _nested_text(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_nested_text(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_nested_text, value))}]"
    if isinstance(value, str):  # Hydra removes only backslashes before a quote; JSON escapes more
        return '"' + _ESCAPED.sub(lambda found: found[1] * 2 + (found[2] and '\\"'), value) + '"'
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _read(group: str, name: str, options: Sequence[str]) -> list[str]:
    """Return the overrides in a user's file. The options from its `defaults` list come first."""
    path, said = Path(name).expanduser(), f"{group}={name}"
    if not path.is_file():
        raise ConfigError(
            f"{said}: there is no such file; use the name of a file in conf/{group}, or the path of your "
            "own file"
        )
    content = read_yaml(path, said)
    if not isinstance(content, Mapping):
        raise ConfigError(f"{said}: the file contains no settings; write lines of `key: value`")
    settings = {str(key): value for key, value in content.items() if key != "defaults"}
    defaults = content.get("defaults", [])
    if not isinstance(defaults, list):
        raise ConfigError(f"{said}: defaults must be a list, got {shown(defaults)}")
    parents = list(_parents(group, said, defaults))
    _check(group, said, settings, parents, options)
    prefix = "" if group in WHOLE_RUN else f"{group}."
    of_run = {key: settings.pop(key) for key in _OF_RUN.get(group, ()) if key in settings}
    return [*parents, *as_overrides(of_run), *as_overrides(settings, prefix)]


def _parents(group: str, said: str, defaults: Sequence[object]) -> Iterator[str]:
    """Yield the options in a `defaults` list as overrides; raise `ConfigError` for an invalid entry."""
    for entry in defaults:
        if entry == "_self_":
            continue
        if isinstance(entry, str) and _PARENT.fullmatch(entry):
            yield f"{group}={entry}"
            continue
        if isinstance(entry, Mapping) and len(entry) == 1:
            [(key, option)] = entry.items()
            other = _OVERRIDE.fullmatch(str(key))
            if other is not None and isinstance(option, str):
                yield f"{other[1]}={option}"
                continue
        raise ConfigError(
            f"{said}: unknown entry {shown(entry)} in defaults; expected a name in conf/{group} or "
            "`override /GROUP: OPTION`"
        )


def _check(
    group: str, said: str, settings: Mapping[str, object], parents: Sequence[str], options: Sequence[str]
) -> None:
    """Raise `ConfigError` for a file with a wrong number of parents, or a method without a new name.

    The parent is the option of the file's own group from which the file starts. A file must have exactly one,
    except that files of the groups in `WHOLE_RUN` and of the group `evaluation` may have none. `said` is the
    override that names the file, `parents` contains the overrides from the file's `defaults` list, and
    `options` are the shipped options of the group.
    """
    num_parents = sum(parent.startswith(f"{group}=") for parent in parents)
    if num_parents > 1:
        raise ConfigError(
            f"{said}: defaults must name one file of conf/{group}, got {num_parents}; keep one of them"
        )
    if num_parents == 0 and group not in WHOLE_RUN | {"evaluation"}:
        raise ConfigError(
            f"{said}: the file must start from a file of conf/{group}; begin it with `defaults: [NAME]`, "
            f"where NAME is one of {', '.join(options)}"
        )
    if group == "algorithm" and settings.get("name", options[0]) in options:
        raise wrong_name(said, settings, "a name that no file of conf/algorithm has")

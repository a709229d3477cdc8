"""Users' files: `GROUP=PATH.yaml` is replaced by the overrides that the file contains.

With Hydra this would need a change of its search path, whose files are composed without checks. Here the file
is read as data, and every line passes the checks of the command line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from atrium.base.errors import ConfigError
from atrium.config.files import read_yaml, wrong_name
from atrium.config.nearest import shown

WHOLE_RUN = frozenset({"debug", "experiment", "recipe"})
"""Groups whose files set keys of the whole run; files of other groups set keys of their own section."""

_OF_RUN = {"algorithm": ("label",)}
"""Keys of a group's file that are settings of the run: the method's label in figures and tables."""
_OVERRIDE = re.compile(r"override\s+/(\w+)(@_global_\.\1)?")
_PARENT = re.compile(r"[\w/-]+")
_FOLDER = ("./", "../", "/", "~/")
_PLAIN_TEXT = re.compile(r"[A-Za-z_][\w./-]*")


def expand_files(arguments: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the arguments with each `GROUP=PATH.yaml` (or .yml) replaced by the overrides of that file.

    `model=./FOLDER` selects the language model in that folder.

    The file's overrides come first, so typed values win. `groups` are the options of each group. Raises
    `ConfigError` for a missing file, and for a file with anything but settings and a `defaults` list with an
    option of its group to start from and `override /GROUP: OPTION`.
    """
    of_files: list[str] = []
    typed: list[str] = []
    for argument in arguments:
        group, _, value = argument.partition("=")
        if group in groups and value.endswith((".yaml", ".yml")):
            of_files += _read(group, value, groups[group])
        elif group == "model" and value.startswith(_FOLDER) and "," not in value:
            typed += ["model=hub", f"model.source={value}"]  # as in MODEL=./folder
        else:
            typed.append(argument)
    return [*of_files, *typed]


def as_overrides(settings: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Yield nested settings as overrides, one per leaf."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from as_overrides({str(k): v for k, v in value.items()}, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={override_text(value)}"


def override_text(value: object) -> str:
    """Return a value in Hydra's grammar."""
    if isinstance(value, str) and _PLAIN_TEXT.fullmatch(value):
        return value
    return _nested_text(value)


def _nested_text(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_nested_text(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_nested_text, value))}]"
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _read(group: str, name: str, options: Sequence[str]) -> list[str]:
    """Return the overrides of a file, its parents first."""
    path, said = Path(name).expanduser(), f"{group}={name}"
    if not path.is_file():
        raise ConfigError(
            f"{said}: there is no such file; use the name of a file in conf/{group}, or a path to your own"
        )
    content = read_yaml(path, said)
    if not isinstance(content, Mapping):
        raise ConfigError(f"{said}: contains no settings")
    settings = {str(key): value for key, value in content.items() if key != "defaults"}
    defaults = content.get("defaults", [])
    if not isinstance(defaults, list):
        raise ConfigError(f"{said}: defaults={shown(defaults)} must be a list")
    parents = list(_parents(group, said, defaults))
    _check(group, said, settings, parents, options)
    prefix = "" if group in WHOLE_RUN else f"{group}."
    of_run = {key: settings.pop(key) for key in _OF_RUN.get(group, ()) if key in settings}
    return [*parents, *as_overrides(of_run), *as_overrides(settings, prefix)]


def _parents(group: str, said: str, defaults: Sequence[object]) -> Iterator[str]:
    """Yield the options that a `defaults` list selects, as overrides."""
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
            f"{said}: defaults contains {shown(entry)}; use names of conf/{group} and `override /GROUP: "
            "OPTION`"
        )


def _check(
    group: str, said: str, settings: Mapping[str, object], parents: Sequence[str], options: Sequence[str]
) -> None:
    """Check that a part starts from a shipped one that it names, and that a method has its own name."""
    num_parents = sum(parent.startswith(f"{group}=") for parent in parents)
    if num_parents > 1:
        raise ConfigError(f"{said}: defaults names {num_parents} files of conf/{group}; use one")
    if num_parents == 0 and group not in WHOLE_RUN | {"evaluation"}:
        raise ConfigError(
            f"{said}: does not say which file of conf/{group} it starts from; begin it with "
            f"`defaults: [NAME]`, where NAME is one of {', '.join(options)}"
        )
    if group == "algorithm" and settings.get("name", options[0]) in options:
        raise wrong_name(said, settings, "a name that no file of conf/algorithm has")

"""Experiments in files of one's own: `experiment=PATH.yaml` becomes the overrides that the file means.

Hydra would need its search path changed, which is refused because what lies there is composed without
a look. Here the file is read as data and every line of it goes through the checks of the command line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from atrium.config.nearest import shown
from atrium.errors import ConfigError

_KEY = "experiment="
_OVERRIDE = re.compile(r"override\s+/(\w+)")
_PLAIN_TEXT = re.compile(r"[A-Za-z_][\w./-]*")


def expand_experiment_files(arguments: Sequence[str]) -> list[str]:
    """The arguments, with each `experiment=PATH.yaml` (or .yml) replaced by the overrides of that file.

    What stands after it on the command line still wins. Raises `ConfigError` for a file that is
    missing or no experiment: a `defaults` list of other experiments and `override /GROUP: OPTION`, and
    settings.
    """
    expanded: list[str] = []
    for argument in arguments:
        value = argument.removeprefix(_KEY)
        if argument.startswith(_KEY) and value.endswith((".yaml", ".yml")):
            expanded += read_experiment(Path(value).expanduser())
        else:
            expanded.append(argument)
    return expanded


def read_experiment(path: Path) -> list[str]:
    """The overrides that an experiment file means, its parents first."""
    if not path.is_file():
        raise ConfigError(
            f"experiment={path}: there is no such file; allowed is a file of conf/experiment by its name, or "
            "a path to one of yours"
        )
    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException, AssertionError) as error:
        raise ConfigError(f"experiment={path}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, Mapping):
        raise ConfigError(f"experiment={path}: holds no settings")
    settings = {str(key): value for key, value in content.items() if key != "defaults"}
    defaults = content.get("defaults", [])
    if not isinstance(defaults, list):
        raise ConfigError(f"experiment={path}: defaults={shown(defaults)}; allowed is a list")
    return [*_defaults(path, defaults), *as_overrides(settings)]


def as_overrides(settings: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Nested settings as overrides, one per leaf."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from as_overrides({str(k): v for k, v in value.items()}, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={override_text(value)}"


def override_text(value: object) -> str:
    """A value as Hydra's grammar reads it back."""
    if isinstance(value, str) and _PLAIN_TEXT.fullmatch(value):
        return value
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _defaults(path: Path, defaults: Sequence[object]) -> Iterator[str]:
    for entry in defaults:
        if entry == "_self_":
            continue
        if isinstance(entry, str) and re.fullmatch(r"[\w-]+", entry):
            yield f"{_KEY}{entry}"
            continue
        if isinstance(entry, Mapping) and len(entry) == 1:
            [(key, option)] = entry.items()
            group = _OVERRIDE.fullmatch(str(key))
            if group is not None and isinstance(option, str):
                yield f"{group[1]}={option}"
                continue
        raise ConfigError(
            f"experiment={path}: defaults holds {shown(entry)}; allowed are names of experiments and "
            "`override /GROUP: OPTION`"
        )

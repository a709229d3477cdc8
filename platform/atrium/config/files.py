"""The YAML files of `conf`, and YAML files in general: locations and reading. Never Hydra."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from atrium.base.errors import ConfigError
from atrium.base.plain_files import read_plain

CONFIG_NAME = "config"
LOCAL = "local"
"""Folder of `conf` whose `default.yaml` holds a machine's own settings; not shipped, never named."""
_PACKAGE = Path(__file__).parents[1]
_MAX_YAML_BYTES, _MAX_NODES, _MAX_DEPTH = 4 << 20, 50_000, 100


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A safe YAML loader, in C if available, that reads numbers like Hydra and refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=deep)
            if not isinstance(key, Hashable):
                break  # refused below
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} appears twice", node.start_mark)
            seen.add(key)
        mapping: dict[object, object] = super().construct_mapping(node, deep=deep)
        return mapping


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
# Dates stay text, as in Hydra: no setting is a date, and JSON has none.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def conf_folder() -> Path:
    """Return the folder of the shipped YAML files, in an installed package or next to `platform/`."""
    for folder in (_PACKAGE / "conf", _PACKAGE.parents[1] / "conf"):
        if (folder / f"{CONFIG_NAME}.yaml").is_file():
            return folder
    raise ConfigError(
        f"the configuration files are missing: no conf/{CONFIG_NAME}.yaml in {_PACKAGE} or "
        f"{_PACKAGE.parents[1]}; reinstall the package"
    )


def read_groups(conf: Path) -> dict[str, tuple[str, ...]]:
    """Return the configuration groups on disk, by name, each with its options."""
    folders = [folder for folder in sorted(conf.iterdir()) if folder.is_dir() and folder.name != LOCAL]
    groups = {folder.name: options_of(folder) for folder in folders}
    return {name: options for name, options in groups.items() if options}


def options_of(folder: Path) -> tuple[str, ...]:
    """Return a group's options in alphabetical order; those of single papers (`paper/NAME`) come last."""
    own = sorted(path.stem for path in folder.glob("*.yaml"))
    return (*own, *sorted(f"paper/{path.stem}" for path in (folder / "paper").glob("*.yaml")))


def read_yaml(path: Path, said: str) -> object:
    """Read a YAML file, with interpolations as text; `said` begins the message of a `ConfigError`."""
    try:
        return parse_yaml(read_plain(path, _MAX_YAML_BYTES).decode())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{said}: cannot be read as YAML: {' '.join(str(error).split())}") from error


def parse_yaml(text: str) -> Any:  # noqa: ANN401 - whatever the text holds
    """Return the content of a YAML file's text, `{}` for none. Raises as `parse_value` does."""
    content = parse_value(text)
    return {} if content is None else content


def parse_value(text: str) -> Any:  # noqa: ANN401 - whatever the text holds
    """Return the value of YAML text. Raises `yaml.YAMLError`, or `ValueError` for odd values.

    Text with a tag, with more than 100 levels, or with more than 50,000 values after expanding its aliases is
    an error too: a kilobyte of aliases can expand to more values than fit in memory.
    """
    _check_size(text)
    return yaml.load(text, Loader=_Loader)


def _check_size(text: str) -> None:
    """Count the values that the text would create, from the parser's events and without creating them.

    A tag is refused: it could create a date, bytes or a set, which settings do not have.
    """
    sizes: dict[str | None, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, total))
        total += 1
        if (tag := getattr(event, "tag", None)) is not None:
            raise yaml.YAMLError(f"it names a type, {tag}; write the value alone")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in (anchor for anchor, _ in open_nodes):
                raise yaml.YAMLError(f"*{event.anchor} refers to a value that contains it")
            total += sizes.get(event.anchor, 0)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            sizes[anchor] = total - before
        if len(open_nodes) > _MAX_DEPTH:
            raise yaml.YAMLError(f"it has more than {_MAX_DEPTH} levels")
        if total > _MAX_NODES:
            raise yaml.YAMLError(f"it expands to more than {_MAX_NODES:,} values")


def check_method_name(method: str, own: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless a method's file sets its own name.

    Its runs would be recorded as its parent's.
    """
    if own.get("name") != method:
        raise wrong_name(f"conf/algorithm/{method}.yaml", own, f"name: {method}")


def wrong_name(said: str, own: Mapping[str, Any], allowed: str) -> ConfigError:
    """Return the error for a method's file (`said`) whose name is missing or another method's."""
    given = f"name: {own['name']}" if "name" in own else "no line `name:`"
    return ConfigError(f"{said}: {given}, so its runs would be recorded as another method's; use {allowed}")

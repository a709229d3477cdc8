"""The location of the files in `conf`, and a strict YAML reader that does not use Hydra."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from atrium.base.errors import ConfigError, reason_of
from atrium.base.plain_files import read_plain

CONFIG_NAME = "config"
DISCRIMINATORS = ("kind", "engine")
"""Keys whose value selects the kind of a section."""
LOCAL = "local"
"""Folder in `conf` for the settings of one machine, in `default.yaml`; not shipped, applied automatically."""
_PACKAGE = Path(__file__).parents[1]
_MAX_YAML_BYTES, _MAX_NODES, _MAX_DEPTH = 4 << 20, 50_000, 100


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A safe YAML loader that reads numbers as Hydra does and raises an error for duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=deep)
            if not isinstance(key, Hashable):
                break  # the base class raises the error
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} appears twice", node.start_mark
                )
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
    """Return the folder of the shipped YAML files, in an installed package or next to `platform/`.

    Raises `ConfigError` if there is no such folder.
    """
    for folder in (_PACKAGE / "conf", _PACKAGE.parents[1] / "conf"):
        if (folder / f"{CONFIG_NAME}.yaml").is_file():
            return folder
    raise ConfigError(
        f"conf/{CONFIG_NAME}.yaml is missing in {_PACKAGE} and in {_PACKAGE.parents[1]}; reinstall the "
        "package"
    )


def read_groups(conf: Path) -> dict[str, tuple[str, ...]]:
    """Return the options of each configuration group on disk, by the name of the group."""
    folders = [folder for folder in sorted(conf.iterdir()) if folder.is_dir() and folder.name != LOCAL]
    groups = {folder.name: options_of(folder) for folder in folders}
    return {name: options for name, options in groups.items() if options}


def options_of(folder: Path) -> tuple[str, ...]:
    """Return a group's options in alphabetical order. Options from papers (`paper/NAME`) come last."""
    own = sorted(path.stem for path in folder.glob("*.yaml"))
    return (*own, *sorted(f"paper/{path.stem}" for path in (folder / "paper").glob("*.yaml")))


def option_of_kind(group: str, kind: str) -> str | None:
    """Return an option of `group` whose own file selects the given kind, or None if there is none.

    A kind that the file only inherits does not count. An option with the same name as the kind is preferred.
    """
    paths = (conf_folder() / group).glob("*.yaml")
    for path in sorted(paths, key=lambda path: (path.stem != kind, path.stem)):
        content = parse_yaml(path.read_text(encoding="utf-8"))
        if kind in [content.get(key) for key in DISCRIMINATORS]:
            return path.stem
    return None


def read_yaml(path: Path, said: str) -> object:
    """Return the content of a YAML file. Interpolations remain text.

    If the file cannot be read as YAML, raises `ConfigError` with a message that begins with `said`.
    """
    try:
        return parse_yaml(read_plain(path, _MAX_YAML_BYTES).decode())
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason, mark = reason_of(error), getattr(error, "problem_mark", None)
        if isinstance(error, yaml.MarkedYAMLError) and error.problem and mark:
            reason = f"{error.problem} at line {mark.line + 1}, column {mark.column + 1}"
        raise ConfigError(f"{said}: the file cannot be read as YAML: {reason}") from error


def parse_yaml(text: str) -> Any:  # noqa: ANN401 - whatever the text holds
    """Return the content of YAML text, or `{}` if it is empty or null.

    Raises the same errors as `parse_value`.
    """
    content = parse_value(text)
    return {} if content is None else content


def parse_value(text: str) -> Any:  # noqa: ANN401 - whatever the text holds
    """Return the value of YAML text.

    Raises `yaml.YAMLError`, or `ValueError` for an invalid value. Tags, aliases that refer to a value
    containing them, and more than 100 nested levels are also errors. So are more than 50,000 keys and values
    after the expansion of aliases (a list or mapping counts as two), because a kilobyte of aliases can expand
    to more values than fit into memory.
    """
    _check_size(text)
    return yaml.load(text, Loader=_Loader)


def _check_size(text: str) -> None:
    """Raise `yaml.YAMLError` for tags, recursive aliases, and too many nested levels or values.

    Values are counted from the parser's events, before any value is created. Tags are errors because they
    could create dates, bytes or sets, which no setting uses.
    """
    sizes: dict[str | None, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, total))
        total += 1
        if (tag := getattr(event, "tag", None)) is not None:
            raise yaml.YAMLError(f"the value has the YAML tag {tag}; remove the tag")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in (anchor for anchor, _ in open_nodes):
                raise yaml.YAMLError(
                    f"the alias *{event.anchor} refers to a value that contains it; remove the alias"
                )
            total += sizes.get(event.anchor, 0)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            sizes[anchor] = total - before
        if len(open_nodes) > _MAX_DEPTH:
            raise yaml.YAMLError(f"the content has more than {_MAX_DEPTH} nested levels; reduce the nesting")
        if total > _MAX_NODES:
            raise yaml.YAMLError(f"the content expands to more than {_MAX_NODES:,} values; use fewer aliases")


def check_method_name(method: str, own: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless the file of a method sets `name` to the name of the method.

    Without its own name, the file would inherit the name of its parent, and its runs would be recorded as
    runs of the parent.
    """
    if own.get("name") != method:
        raise wrong_name(f"conf/algorithm/{method}.yaml", own, f"name: {method}")


def wrong_name(said: str, own: Mapping[str, Any], allowed: str) -> ConfigError:
    """Return the error for a method's file whose `name` is missing or is the name of another method.

    `said` names the file, `own` contains its settings, and `allowed` describes a valid name.
    """
    given = f"`name: {own['name']}`" if "name" in own else "no line `name:`"
    return ConfigError(
        f"{said}: the file has {given}, so its runs would be recorded under another method's name; use "
        f"{allowed}"
    )

"""The YAML files of `conf`, and YAML files in general: where they lie and how they are read. No Hydra."""

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
"""The folder of `conf` whose `default.yaml` holds a machine's own settings; not shipped, and never typed."""
_PACKAGE = Path(__file__).parents[1]
_MAX_YAML_BYTES, _MAX_NODES, _MAX_DEPTH = 4 << 20, 50_000, 100


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A safe loader, in C where there is one, that reads numbers as Hydra does and takes no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=deep)
            if not isinstance(key, Hashable):
                break  # which is refused below
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} stands there twice", node.start_mark
                )
            seen.add(key)
        mapping: dict[object, object] = super().construct_mapping(node, deep=deep)
        return mapping


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
# Dates stay text, as Hydra has them: nothing here takes a date, and JSON has none.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def conf_folder() -> Path:
    """The shipped YAML files: inside an installed package, or beside `platform/` in a checkout."""
    for folder in (_PACKAGE / "conf", _PACKAGE.parents[1] / "conf"):
        if (folder / f"{CONFIG_NAME}.yaml").is_file():
            return folder
    raise ConfigError(
        f"the configuration files are missing: no conf/{CONFIG_NAME}.yaml in {_PACKAGE} or "
        f"{_PACKAGE.parents[1]}; install the package again"
    )


def read_groups(conf: Path) -> dict[str, tuple[str, ...]]:
    """The configuration groups on disk, by name, each with its options."""
    folders = [folder for folder in sorted(conf.iterdir()) if folder.is_dir() and folder.name != LOCAL]
    groups = {folder.name: options_of(folder) for folder in folders}
    return {name: options for name, options in groups.items() if options}


def options_of(folder: Path) -> tuple[str, ...]:
    """The options of a group in alphabetical order; those of single papers (`paper/NAME`) come last."""
    own = sorted(path.stem for path in folder.glob("*.yaml"))
    return (*own, *sorted(f"paper/{path.stem}" for path in (folder / "paper").glob("*.yaml")))


def read_yaml(path: Path, said: str) -> object:
    """The content of a YAML file, interpolations as text; `said` begins the `ConfigError` for another."""
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

    An error too is text with a tag, or nested more than 100 deep, or that stands for more than 50,000 values
    once its aliases are written out: a kilobyte of aliases can mean more values than any memory holds.
    """
    _check_size(text)
    return yaml.load(text, Loader=_Loader)


def _check_size(text: str) -> None:
    """Go through the parser's events, which makes no values, and count what they would make.

    A tag is refused: it could make a date, bytes or a set, which settings have not.
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
                raise yaml.YAMLError(f"*{event.anchor} stands within what it names")
            total += sizes.get(event.anchor, 0)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            sizes[anchor] = total - before
        if len(open_nodes) > _MAX_DEPTH:
            raise yaml.YAMLError(f"it is nested more than {_MAX_DEPTH} deep")
        if total > _MAX_NODES:
            raise yaml.YAMLError(f"it stands for more than {_MAX_NODES:,} values")


def check_method_name(method: str, own: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless a method's file has its own name: runs would be recorded as its parent's."""
    if own.get("name") != method:
        raise wrong_name(f"conf/algorithm/{method}.yaml", own, f"name: {method}")


def wrong_name(said: str, own: Mapping[str, Any], allowed: str) -> ConfigError:
    """The error of a method's file, which `said` names, whose name is another method's or missing."""
    given = f"name: {own['name']}" if "name" in own else "no line `name:` of its own"
    return ConfigError(
        f"{said}: {given}, so that its runs would be recorded as another method's; allowed is {allowed}"
    )

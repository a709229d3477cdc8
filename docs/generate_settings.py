"""The page of all settings, docs/settings.md, read off the settings' classes and the files of `conf`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import hydra
from omegaconf import OmegaConf

from atrium.config.files import CONFIG_NAME, LOCAL, conf_folder, read_groups
from atrium.config.help import Schema, allowed, flat, kinds
from atrium.config.own_files import WHOLE_RUN
from atrium.config.presets import read_part, read_settings
from atrium.config.schema import RunConfig

_INTRODUCTION = """\
# Settings

Generated from the settings' classes and the files of `conf` by `make docs`; do not edit.
`SECTION.SETTING=VALUE` changes a setting on the command line, `atrium train --help SECTION` prints its
meaning, and `atrium train --cfg job --resolve` shows all values of a run.

Defaults are those of three recipes, which follow the model: *built-in* (`model=tiny`), *below 500M* (a
folder of 10M to 500M parameters) and *larger* (any other). Models of `conf/model` have recipes of their own.
A column *default* holds for all three. *by file*: the files of `conf/SECTION` differ. *required*: no shipped
file has a value. *auto*: the run chooses for the machine and records the value in `config.json`.

Editors that use yaml-language-server complete and check your YAML files if the first line names the schema:

```yaml
# yaml-language-server: $schema=conf/schema.json
```
"""
_COMMON = (
    "num_steps",
    "seed",
    "experiment_name",
    "label",
    "optimizer.learning_rate",
    "optimizer.num_warmup_steps",
    "optimizer.num_minibatches",
    "optimizer.num_epochs",
    "rollout.num_prompts",
    "rollout.group_size",
    "rollout.max_new_tokens",
    "rollout.temperature",
    "rollout.lag",
    "divergence.delta",
    "evaluation.every_num_steps",
    "evaluation.num_samples",
    "evaluation.temperature",
    "checkpoint.every_num_steps",
    "compute.device",
    "compute.micro_batch_tokens",
)
"""The settings that most experiments change, beside the parts themselves."""
_RECIPES = {"built-in": ("tiny", "tiny"), "below 500M": ("hub", "hub_below_500m"), "larger": ("hub", "hub")}
"""The files of `conf/model` and `conf/recipe` that each column of defaults shows."""
_MISSING = object()
_Chain = tuple[tuple[str, str | None, str | None], ...]
"""The way to a setting: each section's name, and the tag and kind that it must have, where it has kinds."""


@dataclass
class _Row:
    """A setting of one or several kinds of a section, with its default in every recipe by kind."""

    path: str
    values: str
    meaning: str
    defaults: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def cells(self) -> list[str]:
        """The default in every recipe; where kinds differ, each with its own."""
        if len(set(self.defaults.values())) == 1:
            return list(next(iter(self.defaults.values())))
        said = {kind: row for kind, row in self.defaults.items() if set(row) != {"required"}}
        return [
            ", ".join(f"{kind} {row[at]}" for kind, row in said.items() if row[at] != "–")
            for at in range(len(_RECIPES))
        ]


class SettingsPage:
    """The page: the schema, the values of the shipped files, and the places of the tables."""

    def __init__(self) -> None:
        self.schema = RunConfig.model_json_schema()
        self.recipes = _composed()
        self.changes = [read_settings("recipe", recipe) for _, recipe in _RECIPES.values()]
        self.files = dict(_read_files())
        self.rows: dict[str, _Row] = {}

    def text(self) -> str:
        """The page."""
        own, sections = [], []
        for name, node in self.schema["properties"].items():
            (sections if kinds(node, self.schema) else own).append((name, node))
        rows: dict[tuple[str, str, str], _Row] = {}
        for name, node in own:
            self._add(rows, (), "", name, node, is_required=True)
        body = ["## Settings of no section", "", *_table(list(rows.values()), 1), ""]
        self.contents = {"Settings of no section": [], **{name: [] for name, _ in sections}}
        self.places = {_titles(kinds(node, self.schema)): name for name, node in sections}
        for name, node in sections:
            body += self._section(name, node, ())
        common = ["## The twenty settings that are changed most", ""]
        common += [*_table([self._common(path) for path in _COMMON], 1), ""]
        lines = [_INTRODUCTION, "## Contents", "", *self._contents(), "", *common, *body]
        return "\n".join(lines).rstrip() + "\n"

    def _common(self, path: str) -> _Row:
        """A setting with the values of the recipes' own kinds."""
        *sections, name = path.split(".")
        chain = tuple((section, None, None) for section in sections)
        row = self.rows[path]
        cells = tuple(_shown(_value(recipe, chain, name)) for recipe in self.recipes)
        return _Row(path, row.values, row.meaning, {"": cells})

    def _contents(self) -> Iterator[str]:
        yield "- [The twenty settings that are changed most](#the-twenty-settings-that-are-changed-most)"
        for name, nested in self.contents.items():
            links = ", ".join(f"[{path}](#{path.replace('.', '')})" for path in nested)
            yield f"- [{name}](#{name.lower().replace(' ', '-')})" + (f": {links}" if links else "")

    def _section(self, path: str, node: Schema, chain: _Chain) -> Iterator[str]:
        """The heading, the kinds, one table of all their settings, and then the sections within."""
        classes = kinds(node, self.schema)
        said = _cell(node.get("description", ""))
        yield from (f"## {path}" if "." not in path else f"### `{path}`", "")
        if not (len(classes) == 1 and _cell(classes[0].get("description", "")).startswith(said)):
            yield from (said, "")
        key = _titles(classes)
        if (place := self.places.get(key, path)) != path:
            yield from (f"Settings as in [{place}](#{place.replace('.', '')}).", "")
            return
        self.places[key] = path
        rows: dict[tuple[str, str, str], _Row] = {}
        nested: dict[str, tuple[Schema, _Chain]] = {}
        names: list[str] = []
        for kind in classes:
            tag = next((one for one in ("kind", "engine") if one in kind["properties"]), None)
            own = [None] if tag is None else allowed(kind["properties"][tag], self.schema).split(", ")
            names += [one for one in own if one is not None]
            if description := _cell(kind.get("description", "")):
                label = f"- `{path}.{tag}={', '.join(map(str, own))}`: " if len(classes) > 1 else ""
                yield from (label + description, *([] if label else [""]))
            for name, setting in kind["properties"].items():
                for one in own:
                    here = (*chain, (path.rpartition(".")[2], tag, one))
                    if kinds(setting, self.schema):
                        nested.setdefault(name, (setting, here))
                    elif name != tag:
                        required = name in kind.get("required", ())
                        self._add(rows, here, path, name, setting, is_required=required)
        if len(classes) > 1:
            yield ""
        if rows:
            yield from (*_table(list(rows.values()), len(names)), "")
        for name, (setting, here) in nested.items():
            self.contents[path.partition(".")[0]].append(f"{path}.{name}")
            yield from self._section(f"{path}.{name}", setting, here)

    def _add(
        self,
        rows: dict[tuple[str, str, str], _Row],
        chain: _Chain,
        path: str,
        name: str,
        node: Schema,
        *,
        is_required: bool,
    ) -> None:
        """Add a setting of one kind to the table's rows, to one that says the same where there is one."""
        full = f"{path}.{name}".lstrip(".")
        key = (name, allowed(node, self.schema), _cell(node.get("description", "")))
        row = rows.setdefault(key, _Row(full, *map(_cell, key[1:])))
        row.defaults[chain[-1][2] or "" if chain else ""] = self._defaults(chain, name, node, is_required)
        self.rows.setdefault(full, row)

    def _defaults(self, chain: _Chain, name: str, node: Schema, is_required: bool) -> tuple[str, ...]:
        """The default in every recipe: its own value, else that of the only file or of the class."""
        of_any_kind = tuple((section, None, None) for section, _, _ in chain)
        found = [_shown(_value(recipe, chain, name)) for recipe in self.recipes]
        if any(found):
            known = [value for value in found if value]
            return tuple(value or (known[0] if len(set(known)) == 1 else "–") for value in found)
        said = [_shown(_value(changes, of_any_kind, name)) for changes in self.changes]
        by_file = {file: _shown(_value(settings, chain, name)) for file, settings in self.files.items()}
        values = {value for value in by_file.values() if value}
        if chain and (own := by_file.get((chain[0][0], chain[-1][2] or ""))):
            value = own  # conf/divergence/kl3.yaml, for divergence.kind=kl3
        elif len(values) == 1:
            [value] = values
        elif is_required:
            value = "by file" if values else "required"
        else:
            value = _shown(node.get("default", {"array": [], "object": {}}.get(node.get("type", ""))))
        return tuple(one or value for one in said)


def _titles(classes: Sequence[Schema]) -> tuple[str, ...]:
    return tuple(kind["title"] for kind in classes)


def _composed() -> list[dict[str, Any]]:
    """The settings that every recipe gives, with `auto` and `???` as the files have them."""
    composed = []
    no_local = ["~local@_global_"] if (conf_folder() / LOCAL / "default.yaml").is_file() else []
    with hydra.initialize_config_dir(str(conf_folder()), version_base="1.3"):
        for model, recipe in _RECIPES.values():
            config = hydra.compose(CONFIG_NAME, overrides=[f"model={model}", f"recipe={recipe}", *no_local])
            composed.append(OmegaConf.to_container(config, resolve=True))
    return composed


def _read_files() -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """Every file of a group over its parents, below the group's name; those of single papers are left out."""
    for group, options in read_groups(conf_folder()).items():
        for option in () if group in WHOLE_RUN | {"evaluation", "claim"} else options:
            layers = read_part(group, option).settings.get("defaults", ())
            if not option.startswith("paper/") and not any(
                isinstance(layer, str) and "@" in layer for layer in layers
            ):
                yield (group, option), {group: read_settings(group, option)}


def _value(settings: Mapping[str, Any], chain: _Chain, name: str) -> object:
    """A setting's value, `_MISSING` where the settings lack it or their sections are of other kinds."""
    node: Any = settings
    for section, tag, kind in chain:
        node = node.get(section) if isinstance(node, Mapping) else None
        if not isinstance(node, Mapping):
            return _MISSING
        if tag is not None and node.get(tag) not in (kind, "auto"):
            return _MISSING
    return node.get(name, _MISSING)


def _shown(value: object) -> str:
    """A value as YAML and the command line have it; nothing for none."""
    if value is _MISSING:
        return ""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if value == "???":
        return "required"
    if isinstance(value, str):
        return f"`{value}`" if value.startswith("${") else value if value.strip() else f"`{value!r}`"
    if isinstance(value, float):
        return re.sub(r"e([-+])0*", lambda sign: "e" + sign[1].strip("+"), f"{value:g}")
    return str(value)


def _table(rows: Sequence[_Row], num_kinds: int) -> Iterator[str]:
    """A table with one column of defaults, or one per recipe where these differ."""
    has_kinds = any(len(row.defaults) < num_kinds for row in rows)
    differs = any(len(set(row.cells())) > 1 for row in rows)
    heads = [*(["of"] if has_kinds else []), "values", *(_RECIPES if differs else ["default"]), "meaning"]
    yield from (f"| setting | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|")
    for row in rows:
        is_plain = len(set(row.defaults.values())) == 1
        of = ", ".join(row.defaults) if is_plain else f"{len(row.defaults)} kinds"
        of = "all" if len(row.defaults) == num_kinds else of
        cells = [
            *([of] if has_kinds else []),
            row.values,
            *row.cells()[: None if differs else 1],
            row.meaning,
        ]
        yield f"| `{row.path}` | {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return flat(text).replace("|", r"\|").replace("<", "&lt;")

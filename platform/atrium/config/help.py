"""`atrium train --help [SECTION ...]`: an overview of a run's parts, or the settings of some sections.

The descriptions are the docstrings of the settings' classes, taken from the JSON schema of the classes.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atrium.base.errors import ConfigError
from atrium.config.files import CONFIG_NAME, conf_folder, read_groups
from atrium.config.nearest import shown, suggestion
from atrium.config.schema import RunConfig

Schema = Mapping[str, Any]

_PART = re.compile(r"  - (\w+): .*?  # (.+)")
_MAX_WIDTH = 100
_LONGEST_NAME = 60
_USAGE = """\
atrium train: train a policy by reinforcement learning with verifiable rewards.

  atrium train algorithm=atr divergence.delta=0.02 seed=1
  atrium train experiment=stress algorithm=grpo divergence=none
  atrium train --multirun algorithm=atr,grpo seed=0,1,2 --planned-seeds 3
  atrium train --resume RUN [--from-step N] [num_steps=N]
  atrium train --resume RUN@STEP [optimizer.learning_rate=LR ...]
  atrium train --cfg job --resolve      show the settings instead of training
  atrium train --help divergence        show the settings of a part

PART=FILE selects a part (FILE.yaml with a path is one of your own), and
PART.SETTING=VALUE changes one of its settings.
"""
_FLAGS = """\
Flags: --multirun, --planned-seeds N (seeds per method at which comparisons give
their verdict) [--looks 3,N (interim verdicts)], --resume RUN, --profile (trace
step 2), --print-script (show the SLURM job), --cfg job|hydra|all [--resolve]
[--package P].
Tab completion: eval "$(atrium -sc install=bash)"
"""


def help_text(sections: Sequence[str] = ()) -> str:
    """Return the help on the settings of `sections`, or the overview if `sections` is empty.

    Raises `ConfigError` for an unknown section.
    """
    if sections:
        return "\n".join(line for section in sections for line in _section(section)) + "\n"
    return "\n".join([_USAGE, *_parts(), "", *_own_settings(), "", _FLAGS])


def _parts() -> Iterator[str]:
    """Yield lines with the meaning and files of each part of a run, in the order of `conf/config.yaml`."""
    groups = read_groups(conf_folder())
    text = (conf_folder() / f"{CONFIG_NAME}.yaml").read_text(encoding="utf-8")
    for line in text.splitlines():
        if (match := _PART.match(line)) and (name := match[1]) in groups:
            yield from textwrap.wrap(
                match[2], _width(), initial_indent=f"{name:<12} ", subsequent_indent=13 * " "
            )
            own = [option for option in groups[name] if "/" not in option]
            files = f"{len(own)} files, see `atrium objectives`" if name == "algorithm" else ", ".join(own)
            yield from _wrapped(files, indent=15)


def _own_settings() -> Iterator[str]:
    yield "Top-level settings:"
    schema = RunConfig.model_json_schema()
    for name, node in schema["properties"].items():
        if not kinds(node, schema):
            yield from _setting(name, node, schema)


def setting_names() -> Iterator[str]:
    """Yield the dotted names of all sections and settings."""
    schema = RunConfig.model_json_schema()
    queue: list[tuple[str, Schema]] = list(schema["properties"].items())
    for name, node in queue:
        yield name
        properties = [pair for kind in kinds(node, schema) for pair in kind["properties"].items()]
        if len(name) < _LONGEST_NAME:  # the limit ends the recursion of suites that contain benchmarks
            queue += [(f"{name}.{key}", below) for key, below in properties]


def _section(path: str) -> Iterator[str]:
    """Yield the help on the setting or section `path`. A section's help lists the settings of each kind."""
    schema = RunConfig.model_json_schema()
    node: Schema = schema
    for depth, name in enumerate(names := path.split(".")):
        known = {key: value for kind in kinds(node, schema) for key, value in kind["properties"].items()}
        if name not in known:
            where = ".".join(names[:depth]) or "a run"
            raise ConfigError(
                f"atrium train --help {shown(path)}: unknown setting {shown(name)} of "
                f"{where}{suggestion(name, list(known)) or ';'} choose from {', '.join(known)}"
            )
        node = known[name]
    classes = kinds(node, schema)
    if not classes:
        yield from _setting(path, node, schema)
        return
    yield f"{path}: {flat(node.get('description', ''))}"
    for kind in classes:
        yield ""
        tag = next((key for key in ("kind", "engine") if key in kind["properties"]), None)
        if tag:
            yield f"{path}.{tag}={allowed(kind['properties'][tag], schema)}"
        yield from _wrapped(kind.get("description", ""), indent=2)
        for name, setting in kind["properties"].items():
            if name != tag:
                yield from _setting(
                    f"{path}.{name}", setting, schema, is_required=name in kind.get("required", ())
                )


def _setting(path: str, node: Schema, schema: Schema, *, is_required: bool = False) -> Iterator[str]:
    """Yield lines with the allowed values, the default and the meaning of a setting."""
    values = f"`--help {path}`" if kinds(node, schema) else allowed(node, schema)
    shown = default_text(node, is_required=is_required)
    said = f"; default {shown}" if shown else ""
    yield f"  {path}  ({values}{said})"
    yield from _wrapped(node.get("description", ""), indent=6)


def default_text(node: Schema, *, is_required: bool = False) -> str:
    """Return the default of a setting as a string.

    Returns an empty string if there is no default, or if it is not a number, a boolean or a string.
    """
    default = None if is_required else node.get("default")
    if not isinstance(default, int | float | str):
        return ""
    return repr(default) if isinstance(default, str) and not default.strip() else str(default)


def kinds(node: Schema, schema: Schema) -> list[Schema]:
    """Return the schemas of the classes that a node of the schema allows.

    Returns an empty list if the node is a plain setting.
    """
    if "properties" in node:
        return [node]
    if reference := node.get("$ref"):
        return kinds(schema["$defs"][reference.rpartition("/")[2]], schema)
    branches = [*node.get("oneOf", ()), *node.get("anyOf", ())]
    return [kind for branch in branches for kind in kinds(branch, schema)]


def allowed(node: Schema, schema: Schema) -> str:
    """Describe the allowed values of a setting, such as `integer >= 1`."""
    if reference := node.get("$ref"):
        return allowed(schema["$defs"][reference.rpartition("/")[2]], schema)
    if branches := [*node.get("oneOf", ()), *node.get("anyOf", ())]:
        return ", ".join(dict.fromkeys(allowed(branch, schema) for branch in branches))
    if "const" in node:
        return str(node["const"])
    if "enum" in node:
        return ", ".join(str(value) for value in node["enum"])
    words = {"boolean": "true, false", "string": "text", "array": "a list", "object": "a section"}
    kind = str(node.get("type", "any value"))
    bounds = [
        f"{sign} {node[key]:g}"
        for key, sign in (
            ("exclusiveMinimum", ">"),
            ("minimum", ">="),
            ("exclusiveMaximum", "<"),
            ("maximum", "<="),
        )
        if key in node
    ]
    return " ".join([words.get(kind, kind), " and ".join(bounds)]).strip()


def _wrapped(text: str, *, indent: int) -> list[str]:
    margin = " " * indent
    return textwrap.wrap(
        flat(text), _width(), initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )


def _width() -> int:
    return min(shutil.get_terminal_size((80, 24)).columns, _MAX_WIDTH)


def flat(text: str) -> str:
    """Return the text on one line, with single spaces."""
    return " ".join(text.split())

"""Reading of methods, by name or from a user's file, with additional settings.

This module needs neither Hydra nor the configuration of a run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from yaml import YAMLError

from atrium.base.errors import ConfigError
from atrium.base.nested import flattened, mapping_at, put, setting
from atrium.base.section import Section
from atrium.config.files import conf_folder, parse_value, parse_yaml, read_groups, read_yaml
from atrium.config.messages import validate
from atrium.config.nearest import shown, suggestion
from atrium.config.new_kinds import stale_keys
from atrium.config.own_files import expand_files
from atrium.config.presets import (
    PartFile,
    Preset,
    header,
    read_divergence,
    read_part,
    read_preset,
    read_settings,
)
from atrium.method.algorithm import Algorithm
from atrium.method.divergences import Divergence
from atrium.method.method import SECTIONS, Method
from atrium.method.regularizers import Regularizer

_ANY_METHOD = "grpo"
_COLON = re.compile(r"""(?P<quoted>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|:(?=\S)""", re.DOTALL)
MAX_NEW_TOKENS = "rollout.max_new_tokens"
"""The key of the maximum completion length, the only setting outside a method that methods refer to."""


class _Sections(Section):
    algorithm: Algorithm
    divergence: Divergence
    regularizer: Regularizer


def read_method(source: str, settings: Sequence[str] = (), *, max_new_tokens: int | None = None) -> Method:
    """Return a method with `settings` applied. `source` is its name or the path of its YAML file.

    Settings are written as on the command line: `divergence=kl3`, `divergence.delta=0.02`,
    `algorithm.surrogate.cap=4`. `max_new_tokens` is the maximum length of a completion, which some methods
    need as a divisor. Raises a one-line `ConfigError` for any error.
    """
    groups = read_groups(conf_folder())
    lines = expand_files([f"algorithm={source}"], groups)
    of_file = [line for line in lines if line.partition("=")[0].split(".")[0] in SECTIONS]
    choices, typed = _split([*of_file, *expand_files(settings, groups)])
    preset = read_preset(choices.pop("algorithm"))
    data: dict[str, Any] = {
        "algorithm": preset.algorithm.model_dump(exclude_unset=True),
        "divergence": preset.divergence.model_dump(),
        "regularizer": preset.regularizer.model_dump(),
        **{group: read_settings(group, option) for group, option in choices.items()},
    }
    for key, named in preset.references.items():
        put(data, f"algorithm.{key}", f"${{{named}}}")
    for key in stale_keys(typed, data, _Sections):
        parent, _, last = key.rpartition(".")
        del mapping_at(data, parent)[last]  # type: ignore[attr-defined]
    for key, value in typed.items():
        put_typed(data, key, value)
    for key, value in flattened(data).items():
        if value == f"${{{MAX_NEW_TOKENS}}}":
            put(data, key, _max_new_tokens(source, key, max_new_tokens))
    sections = validate(_Sections, data)
    return Method(sections.algorithm, sections.divergence, sections.regularizer)


def put_typed(data: dict[str, Any], key: str, value: object) -> None:
    """Set the value at a dotted key; raise `ConfigError` if a parent of the key is a value, not a section."""
    try:
        put(data, key, value)
    except (AttributeError, TypeError) as error:
        parents = accumulate(key.split("."), "{}.{}".format)
        single = next(name for name in parents if not isinstance(setting(data, name), Mapping))
        raise ConfigError(
            f"{key}={shown(value)}: unknown key; {single} is a single value, not a section"
        ) from error


def resolve_preset(source: str) -> Preset:
    """Return the method that `algorithm=SOURCE` selects, with its file and parent.

    `source` is the name of a file in `conf/algorithm`, or the path of a user's file. Raises a one-line
    `ConfigError` for any error.
    """
    if not is_own_file(source):
        return read_preset(source)
    lines = expand_files([f"algorithm={source}"], read_groups(conf_folder()))
    choices = dict(line.split("=", 1) for line in lines if "." not in line.partition("=")[0])
    parent = read_preset(choices["algorithm"])
    length = setting(parent.algorithm.model_dump(), _length_key(parent))
    method = read_method(source, max_new_tokens=int(length) if isinstance(length, float | int) else None)
    text = Path(source).expanduser().read_text(encoding="utf-8")
    name, typed = method.algorithm.name, {line.partition("=")[0] for line in lines}
    groups = {group: option for group, option in choices.items() if group not in ("algorithm", "label")}
    return Preset(
        file=PartFile(group="algorithm", name=name, header=header(text), settings=parse_yaml(text)),
        parent=parent.name,
        parts={**parent.parts, **{group: read_part(group, option) for group, option in groups.items()}},
        algorithm=method.algorithm,
        divergence=method.divergence,
        regularizer=method.regularizer,
        references={key: of for key, of in parent.references.items() if f"algorithm.{key}" not in typed},
    )


def resolve_divergence(source: str) -> tuple[str, Divergence]:
    """Return the name and the divergence that `divergence=SOURCE` selects.

    `source` is the name of a file in `conf/divergence`, or the path of a user's file. A user's file contains
    a divergence or a whole method. The name is that of the file, without its suffix, or that of the method if
    the file contains one. Raises a one-line `ConfigError` for any error.
    """
    if not is_own_file(source):
        return source, read_divergence(source)
    path = Path(source).expanduser()
    content = read_yaml(path, source) if path.is_file() else {}
    if isinstance(content, dict) and "name" in content:
        preset = resolve_preset(source)
        return preset.name, preset.divergence
    return path.stem, read_method(_ANY_METHOD, [f"divergence={source}"]).divergence


def is_own_file(source: str) -> bool:
    """Return whether `source` is a path to a YAML file rather than the name of a shipped file."""
    return source.endswith((".yaml", ".yml"))


def _length_key(preset: Preset) -> str:
    return next((key for key, of in preset.references.items() if of == MAX_NEW_TOKENS), "name")


def _split(lines: Sequence[str]) -> tuple[dict[str, str], dict[str, object]]:
    """Split overrides into the selected options by group, and the values of settings by dotted key.

    Raises `ConfigError` for a setting that does not belong to a method, and for a value that is not valid
    YAML.
    """
    choices: dict[str, str] = {}
    typed: dict[str, object] = {}
    for line in lines:
        key, has_value, text = line.partition("=")
        if not has_value or key.split(".")[0] not in SECTIONS:
            near = suggestion(key, SECTIONS)
            raise ConfigError(
                f"{shown(line)}: unknown setting of a method{near or ';'} expected GROUP=OPTION or "
                f"GROUP.key=value, where GROUP is one of {', '.join(SECTIONS)}"
            )
        if key in SECTIONS:
            choices[key] = text
            continue
        try:
            typed[key] = parse_value(_spaced(text)) if text else text
        except (YAMLError, ValueError) as error:
            raise ConfigError(f"{shown(line)}: the value of {key} is not valid YAML; correct it") from error
    return choices, typed


def _spaced(text: str) -> str:
    """Convert a value from Hydra's grammar to YAML text.

    In lists, mappings and quoted values, quoted strings are converted to YAML's double-quoted form, and every
    other colon is followed by a space. Other values are returned unchanged. Without the space, YAML would
    read `{kind:clip}` as one key.
    """
    if not text.startswith(("{", "[", '"', "'")):
        return text
    return _COLON.sub(lambda found: _yaml_quoted(found["quoted"]) if found["quoted"] else ": ", text)


def _yaml_quoted(text: str) -> str:
    plain = re.sub(rf"\\*{text[0]}", lambda found: found[0][len(found[0]) // 2 :], text[1:])
    return json.dumps(plain[:-1], ensure_ascii=False)


def _max_new_tokens(source: str, key: str, given: int | None) -> float:
    if given is None:
        raise ConfigError(
            f"{source}: {key} is set to the maximum length of a completion, which is unknown here; pass "
            f"max_new_tokens, or set {key}=NUMBER"
        )
    return float(given)

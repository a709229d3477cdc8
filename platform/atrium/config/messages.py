"""Validation errors in one line: the key, the allowed values, the given value, the nearest valid name.

The messages are built from the fields of the sections, so a new setting needs no text here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from atrium.base.errors import ConfigError
from atrium.base.section import Axis
from atrium.config.machine import AUTO_KEYS
from atrium.config.nearest import MAX_LISTED, nearest_key, shown, suggestion

DISCRIMINATORS = ("kind", "engine")
"""Keys that distinguish the kinds of a section."""
_ABSENT = object()
Details = Mapping[str, Any]
"""An error in pydantic's format."""
_QUOTED = re.compile(r"'([^']*)'")

_NO_PLACEMENT = (
    "this placement was removed; choose rollout.placement=server with rollout=vllm (rollout.servers names "
    "servers on other machines), or rollout.placement=inside"
)
_GONE = {
    "rollout.overlap": "this setting was removed; rollout.placement=server with rollout=vllm samples during "
    "updates, and rollout.placement=inside, the default, before them",
    "rollout.placement=beside": _NO_PLACEMENT,
    "rollout.placement=cluster": _NO_PLACEMENT,
    "rollout.num_engines": "this setting was removed; with rollout.placement=server choose "
    "rollout.num_servers",
    "rollout.engine_timeout_s": "this setting was removed; servers have rollout.step_timeout_s",
    "rollout.cluster_address": "this setting was removed; rollout.servers names servers on other machines",
    "rollout.allow_open_cluster": "this setting was removed; rollout.servers names servers on other machines",
}
"""Replacements for removed settings and values of earlier versions."""

_ALLOWED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of at most 63 bits",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "string_too_short": "non-empty text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a section with keys",
    "model_type": "a section with keys",
    "model_attributes_type": "a section with keys",
    "none_required": "null",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "letters, digits and _ - . after a letter or digit",
}


def config_error(error: ValidationError, model: type[BaseModel], data: object) -> ConfigError:
    """Return the first wrong setting of `data`, which does not fit `model`, and the number of others."""
    by_key: dict[str, list[Details]] = {}
    for detail in error.errors(include_url=False):
        by_key.setdefault(".".join(_path(detail, data)), []).append(detail)
    key, details = next(iter(by_key.items()))
    others = f" (and {len(by_key) - 1} more)" if len(by_key) > 1 else ""
    return ConfigError(_line(key, details, model, data) + others)


def _line(key: str, details: Sequence[Details], model: type[BaseModel], data: object) -> str:
    first = details[0]
    if first["type"] == "extra_forbidden":
        gone = _GONE.get(key)
        return f"{key}={shown(_value_at(key, data))}: {gone or _unknown_in_section(first, key, model, data)}"
    if first["type"].startswith("union_tag"):
        key = f"{key}.{_discriminator(first)}"
    value = _value_at(key, data)
    if (gone := _GONE.get(f"{key}={value}")) is not None:
        return f"{key}={value}: {gone}"
    if first["type"] == "union_tag_not_found":
        return f"{key} is missing; use one of {', '.join(_tags_at(first['loc'], model))}"
    if first["type"] == "missing" or value is _ABSENT:
        meaning = _description(first["loc"], model)
        text = f"{key} is missing" + (f": {meaning}" if meaning else f"; give {key}=VALUE")
        parent, _, _ = key.rpartition(".")
        is_kind = parent and "." not in parent and len(sections_at([parent], model)) > 1
        return text + (f" ({parent}=OPTION replaces the whole part)" if is_kind else "")
    allowed = list(dict.fromkeys(_allowed(detail) for detail in details))
    if key in AUTO_KEYS and "auto" not in allowed:
        allowed.append("auto")
    names = [name for detail in details for name in _names(detail)]
    near = suggestion(value, names) if isinstance(value, str) else ""
    if first["type"] == "union_tag_invalid" and not near:
        near = "; your own kind needs --plugin FILE.py"
    return f"{key} must be {' or '.join(allowed)}, got {shown(value)}{near}"


def _allowed(detail: Details) -> str:
    context = detail.get("ctx", {})
    kind = detail["type"]
    if kind in ("literal_error", "enum", "union_tag_invalid"):
        names = _names(detail) or [str(context.get("expected"))]
        return "one of " * (len(names) > 1) + ", ".join(names)
    if kind in _ALLOWED:
        return _ALLOWED[kind].format(**{name: _plain(value) for name, value in context.items()})
    text = str(context.get("error", detail["msg"])).strip()
    return " ".join(text.split())


def _plain(value: object) -> object:
    return f"{value:g}" if isinstance(value, float) else value


def _discriminator(detail: Details) -> str:
    """Return the key that distinguishes the kinds of a section."""
    named = _QUOTED.findall(str(detail.get("ctx", {}).get("discriminator", "")))
    return named[0] if named else "kind"


def _names(detail: Details) -> list[str]:
    """Return the names that an error lists as allowed."""
    context = detail.get("ctx", {})
    return _QUOTED.findall(str(context.get("expected", context.get("expected_tags", ""))))


def _path(detail: Details, data: object) -> Iterator[str]:
    """Yield the keys of an error's location, without the tags that pydantic adds for members of a union."""
    location = detail["loc"]
    for index, part in enumerate(location):
        if _is_alone(data) and not isinstance(part, int):  # a list of one is treated as its element
            data = data[0]
            yield "0"
        # The error of a validator for a whole section is located at the section's tag, which is no key.
        is_last = index == len(location) - 1 and detail["type"] != "value_error"
        if isinstance(data, Mapping):
            if part in data:
                data = data[part]
                yield str(part)
            elif is_last and part not in [data.get(name) for name in DISCRIMINATORS]:
                yield str(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
            yield str(part)
    if _is_alone(data) and detail["type"].startswith("union_tag"):
        yield "0"


def _is_alone(data: object) -> TypeGuard[list[Any]]:
    """Return whether data is a list of one section."""
    return isinstance(data, list) and len(data) == 1 and isinstance(data[0], Mapping)


def _value_at(key: str, data: object) -> object:
    for part in key.split(".") if key else ():
        if isinstance(data, Mapping) and part in data:
            data = data[part]
        elif isinstance(data, list) and part.isdigit() and int(part) < len(data):
            data = data[int(part)]
        else:
            return _ABSENT
    return data


def _unknown_in_section(detail: Details, key: str, model: type[BaseModel], data: object) -> str:
    section, kind = _section_at(detail["loc"][:-1], model)
    parent = key.rpartition(".")[0]
    known = {f"{parent}.{name}" if parent else name for name in section.model_fields}
    elsewhere = {name for name in _dotted_names(data) if name.rpartition(".")[0] != parent}
    found = nearest_key(key, known | elsewhere)
    if found is not None and len(section.model_fields) > MAX_LISTED:
        return f"unknown key; did you mean {found}?"
    text = "unknown key; " + (f"did you mean {found}? " if found is not None else "")
    place = f"in {parent}" if parent else "at the top level"
    names = ", ".join(sorted(section.model_fields))
    text += f"the keys {place}{f' of kind {kind}' if kind else ''} are {names}"
    is_group = kind is not None and "." not in parent
    return text + (f"; {parent}=OPTION replaces the whole part" if is_group and found is None else "")


def _dotted_names(data: object, prefix: str = "") -> Iterator[str]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield f"{prefix}{key}"
            yield from _dotted_names(value, f"{prefix}{key}.")


def _description(location: Sequence[int | str], model: type[BaseModel]) -> str | None:
    section, _ = _section_at(location[:-1], model)
    field = section.model_fields.get(str(location[-1]))
    return field.description if field is not None else None


def _section_at(location: Sequence[int | str], model: type[BaseModel]) -> tuple[type[BaseModel], str | None]:
    """Return the section at a location, and the tag that selected it if it is one of several."""
    section, tag = model, None
    candidates: list[type[BaseModel]] = []
    for part in location:
        chosen = [candidate for candidate in candidates if part in _kinds(candidate)]
        if chosen:
            section, tag = chosen[0], str(part)
            candidates = []
        elif str(part) in section.model_fields:
            candidates = list(_sections(section.model_fields[str(part)].annotation))
            section, tag = (candidates[0], None) if candidates else (section, None)
            candidates = candidates if len(candidates) > 1 else []
    return section, tag


def _tags_at(location: Sequence[int | str], model: type[BaseModel]) -> list[str]:
    """Return the tags that the section at a location may have."""
    return [tag for section in sections_at(location, model) for tag in _kinds(section)]


def sections_at(location: Sequence[int | str], model: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the sections that may be at a location, one per kind; none if it is no section."""
    section, _ = _section_at(location[:-1], model)
    field = section.model_fields.get(str(location[-1]))
    return list(_sections(field.annotation)) if field is not None else []


def _sections(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, Axis) and annotation.is_axis():
        yield from annotation.values()
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Annotated, Union, UnionType, dict, list):
        for part in get_args(annotation):
            yield from _sections(part)


def _kinds(section: type[BaseModel]) -> tuple[Any, ...]:
    """Return the tags of a section: the values of its `kind`, if it has one."""
    fields = (section.model_fields.get(name) for name in DISCRIMINATORS)
    field = next((found for found in fields if found is not None), None)
    annotation = field.annotation if field is not None else None
    return get_args(annotation) if get_origin(annotation) is Literal else ()

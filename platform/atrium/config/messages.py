"""One-line messages for validation errors: key, allowed values, given value, and the nearest valid name.

The messages are built from the fields of the settings' classes, so a new setting needs no message of its
own.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, TypeGuard, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from atrium.base.errors import ConfigError
from atrium.base.section import Choice
from atrium.config.files import DISCRIMINATORS, option_of_kind
from atrium.config.machine import AUTO_KEYS
from atrium.config.nearest import MAX_LISTED, nearest_key, shown, suggestion
from atrium.config.own_files import override_text

_Model = TypeVar("_Model", bound=BaseModel)
_ABSENT = object()
Details = Mapping[str, Any]
"""The details of one error, an entry of pydantic's `ValidationError.errors()`."""
_QUOTED = re.compile(r"'([^']*)'")

_NO_PLACEMENT = (
    "this placement was removed; choose rollout.placement=server with rollout=vllm (set rollout.servers for "
    "servers on other machines), or rollout.placement=inside"
)
_NO_CLUSTER = "this setting was removed; set rollout.servers for servers on other machines"
_GONE = {
    "rollout.overlap": "this setting was removed; choose rollout.placement=server with rollout=vllm to "
    "sample during updates, or rollout.placement=inside (the default) to sample before them",
    "rollout.placement=beside": _NO_PLACEMENT,
    "rollout.placement=cluster": _NO_PLACEMENT,
    "rollout.num_engines": "this setting was removed; set rollout.num_servers, with rollout.placement=server",
    "rollout.engine_timeout_s": "this setting was removed; set rollout.step_timeout_s for servers",
    "rollout.cluster_address": _NO_CLUSTER,
    "rollout.allow_open_cluster": _NO_CLUSTER,
}
"""Messages for settings and values of earlier versions that were removed, by KEY or KEY=VALUE."""

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
    "too_short": "a list with a minimum length of {min_length}",
    "too_long": "a list with a maximum length of {max_length}",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "a letter or digit, followed only by letters, digits, _, - and .",
}


def validate(model: type[_Model], data: Mapping[str, Any], where: str = "") -> _Model:
    """Return `data` as a validated `model`; raise `ConfigError` for the first wrong setting.

    The message also says how many other settings are wrong. If `where` is given, the message begins with
    it.
    """
    try:
        # Validating JSON instead of Python objects allows lists for tuples and text for enumerations.
        return model.model_validate_json(json.dumps(data, default=str))
    except ValidationError as error:
        message = _message(error.errors(include_url=False), model, data)
        raise ConfigError(f"{where}: {message}" if where else message) from error


def _message(details: Sequence[Details], model: type[BaseModel], data: object) -> str:
    located = [(*_located(detail, data), detail) for detail in details]
    path, value, _ = located[0]
    num_others = len({tuple(other) for other, _, _ in located}) - 1
    others = f" ({num_others} more setting{'s are' if num_others > 1 else ' is'} wrong)" if num_others else ""
    return _line(path, value, [detail for other, _, detail in located if other == path], model, data) + others


def _line(
    path: Sequence[str], value: object, details: Sequence[Details], model: type[BaseModel], data: object
) -> str:
    key, first = ".".join(path), details[0]
    rules = [detail for detail in details if detail["type"] == "value_error"]
    if rules:  # the message of a validator is a sentence
        text = _allowed(rules[0])
        if not path:
            return text
        return key + text.removeprefix(path[-1]) if text.startswith(f"{path[-1]} ") else f"{key}: {text}"
    if first["type"] == "extra_forbidden":
        said = _GONE.get(key) or _unknown_in_section(first, path, value, model, data)
        return f"{key}={shown(value)}: {said}"
    if first["type"].startswith("union_tag"):
        name = _discriminator(first)
        key, value = f"{key}.{name}", value.get(name, _ABSENT) if isinstance(value, Mapping) else _ABSENT
    if (gone := _GONE.get(f"{key}={value}")) is not None:
        return f"{key}={value}: {gone}"
    if first["type"] == "union_tag_not_found":
        return f"{key} is missing; use one of {', '.join(tags_at(first['loc'], model))}"
    if first["type"] == "missing" or value is _ABSENT:
        meaning = _description(first["loc"], model)
        text = f"{key} is missing" + (f": {meaning}" if meaning else f"; give {key}=VALUE")
        is_kind = len(path) == 2 and len(sections_at(path[:1], model)) > 1
        return text + (f" ({path[0]}=OPTION replaces the whole section)" if is_kind else "")
    allowed = list(dict.fromkeys(_allowed(detail) for detail in details))
    if key in AUTO_KEYS and "auto" not in allowed:
        allowed.append("auto")
    names = [name for detail in details for name in _names(detail)]
    near = suggestion(value, names) if isinstance(value, str) else ""
    if first["type"] == "union_tag_invalid":
        near = f"{near} If not, " if near else "; "
        near += "load a kind of your own with --plugin FILE.py"
    choices = " or ".join(allowed).replace("true or false or ", "true, false or ")
    return f"{key} must be {choices}, got {shown(value)}{near}"


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
    """Return the key that selects the kind of the section in which an error occurred."""
    named = _QUOTED.findall(str(detail.get("ctx", {}).get("discriminator", "")))
    return named[0] if named else "kind"


def _names(detail: Details) -> list[str]:
    """Return the allowed values that pydantic lists for an error."""
    context = detail.get("ctx", {})
    return _QUOTED.findall(str(context.get("expected", context.get("expected_tags", ""))))


def _located(detail: Details, data: object) -> tuple[list[str], object]:
    """Return the keys that lead to an error in `data`, and the value there.

    If there is no value, `_ABSENT` is returned in its place. Pydantic adds the kinds of sections to the
    location of an error, and these are removed.
    """
    path: list[str] = []
    location = detail["loc"]
    for index, part in enumerate(location):
        if _is_alone(data) and not isinstance(part, int):  # a list of one is treated as its element
            data = data[0]
            path.append("0")
        # An error of a whole section's validator is located at the section's kind, which is not a key.
        is_last = index == len(location) - 1 and detail["type"] != "value_error"
        if isinstance(data, Mapping):
            # A key may be named like its section's kind, which precedes it in the location: (alpha, alpha).
            is_kind = part in map(data.get, DISCRIMINATORS) and location[:index][-1:] != (part,)
            if part in data and not is_kind:
                data = data[part]
                path.append(str(part))
            elif is_last and not is_kind:
                data = _ABSENT
                path.append(str(part))
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
            path.append(str(part))
    if _is_alone(data) and detail["type"].startswith("union_tag"):
        return [*path, "0"], data[0]
    return path, data


def _is_alone(data: object) -> TypeGuard[list[Any]]:
    """Return whether `data` is a list whose only element is a mapping.

    Callers treat such a list like its element.
    """
    return isinstance(data, list) and len(data) == 1 and isinstance(data[0], Mapping)


def _unknown_in_section(
    detail: Details, path: Sequence[str], value: object, model: type[BaseModel], data: object
) -> str:
    section, kind = _section_at(detail["loc"][:-1], model)
    *parents, name = path
    key, parent = ".".join(path), ".".join(parents)
    kinds = sections_at(detail["loc"][:-2], model) if kind is not None else []
    if others := [other for other in kinds if name in other.model_fields]:
        return f"unknown key in {parent} of kind {kind}; {_switch(parents, others, key, value)}"
    known = {f"{parent}.{name}" if parent else name for name in section.model_fields}
    known |= {other for other in _dotted_names(data, parent) if not f"{other}.".startswith(f"{key}.")}
    inner = [key, *_dotted_names(value, "", key)][-1]  # the setting in an unknown section
    is_known = inner.rpartition(".")[2] in {other.rpartition(".")[2] for other in known}
    found = nearest_key(inner if is_known else key, known)
    if found is not None and len(section.model_fields) > MAX_LISTED:
        return f"unknown key; did you mean {found}?"
    text = "unknown key; " + (f"did you mean {found}? " if found is not None else "")
    place = f"in {parent}" if parent else "at the top level"
    names = ", ".join(sorted(section.model_fields))
    text += f"the keys {place}{f' of kind {kind}' if kind else ''} are {names}"
    is_group = kind is not None and len(parents) == 1
    return text + (f"; {parent}=OPTION replaces the whole section" if is_group and found is None else "")


def _switch(parents: Sequence[str], classes: Sequence[type[BaseModel]], key: str, value: object) -> str:
    """Return text that lists the kinds that have the setting `key`, and says how to select the first of them.

    `key` is the dotted name of the setting, and `value` is its given value. `parents` are the keys that lead
    to its section, and `classes` are the settings classes of the kinds. In an element of a list, overrides
    cannot select a kind, so the text only lists the kinds.
    """
    kinds = [kind for one in classes for kind in _kinds(one)]
    listed = ", ".join(kinds[:MAX_LISTED])
    if len(kinds) > MAX_LISTED:
        listed += f" and {len(kinds) - MAX_LISTED} more"
    text = f"it belongs to {'kind' if len(kinds) == 1 else 'the kinds'} {listed}"
    if any(part.isdigit() for part in parents):  # overrides cannot change an element of a list
        return text
    option = option_of_kind(parents[0], kinds[0]) if len(parents) == 1 else None
    discriminator = next(name for name in DISCRIMINATORS if name in classes[0].model_fields)
    choice = f"{parents[0]}={option}" if option else f"{'.'.join(parents)}.{discriminator}={kinds[0]}"
    return f"{text}; use {choice} {shlex.quote(f'{key}={override_text(value)}')}"


def _dotted_names(data: object, section: str, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all keys in `data`, except those directly in the section `section`.

    Each name begins with `prefix`.
    """
    if isinstance(data, Mapping):
        for key, value in data.items():
            name = f"{prefix}.{key}" if prefix else str(key)
            if prefix != section:
                yield name
            yield from _dotted_names(value, section, name)


def _description(location: Sequence[int | str], model: type[BaseModel]) -> str | None:
    section, _ = _section_at(location[:-1], model)
    field = section.model_fields.get(str(location[-1]))
    return field.description if field is not None else None


def _section_at(location: Sequence[int | str], model: type[BaseModel]) -> tuple[type[BaseModel], str | None]:
    """Return the settings class at a location in `model`, and its kind.

    `location` is the location of an error as pydantic reports it, which includes the kinds of sections. The
    returned kind is None unless the section has several kinds.
    """
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


def tags_at(location: Sequence[int | str], model: type[BaseModel]) -> list[str]:
    """Return the possible kinds of the section at a location."""
    return [tag for section in sections_at(location, model) for tag in _kinds(section)]


def sections_at(location: Sequence[int | str], model: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the settings classes that are allowed at a location, one for each kind.

    Returns an empty list for a plain setting. For an element of a list, the location may end in the number
    of the element.
    """
    *above, name = [part for part in location if not isinstance(part, int)]
    section, _ = _section_at(above, model)
    field = section.model_fields.get(str(name))
    return list(_sections(field.annotation)) if field is not None else []


def _sections(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, Choice) and annotation.is_axis():
        yield from annotation.values()
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Annotated, Union, UnionType, dict, list):
        for part in get_args(annotation):
            yield from _sections(part)


def _kinds(section: type[BaseModel]) -> tuple[Any, ...]:
    """Return the values of `kind` or `engine` that a settings class declares.

    Returns an empty tuple if the class has neither field.
    """
    fields = (section.model_fields.get(name) for name in DISCRIMINATORS)
    field = next((found for found in fields if found is not None), None)
    annotation = field.annotation if field is not None else None
    return get_args(annotation) if get_origin(annotation) is Literal else ()

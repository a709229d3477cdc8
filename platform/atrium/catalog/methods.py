"""Comparison of methods: all settings side by side, and those in which the methods differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from atrium.catalog.axes import axes, settings
from atrium.config.presets import Preset
from atrium.method.method import SECTIONS
from atrium.method.words import window_text

WINDOW = "window [l, u]"
"""Key of a method's window in its axes and settings."""


def described(presets: Sequence[Preset]) -> dict[str, object]:
    """Return the content of `atrium objectives --json`.

    It contains each method's description, and the settings in which the methods differ.
    """
    methods: dict[str, object] = {}
    for preset in presets:
        window = preset.divergence.window()
        methods[preset.name] = {
            "header": preset.file.header,
            "builds_on": preset.parent,
            "files": {group: part.name for group, part in preset.parts.items()},
            "axes": axes(preset),
            "settings": settings(preset),
            "window": None if window is None else [window.lower, window.upper],
        }
    rows = side_by_side(presets)
    return {"methods": methods, "differing": [key for key, values in rows.items() if differs(values)]}


def side_by_side(presets: Sequence[Preset]) -> dict[str, list[str]]:
    """Return the methods' values of each setting as text, keyed by setting.

    The values are in the order of `presets`. A dash means that a method does not have the setting.
    """
    columns = [settings(preset) for preset in presets]
    keys = list(dict.fromkeys(key for column in columns for key in column))
    ordered = sorted(keys, key=lambda key: _place(key, keys))
    rows = {key: [_shown(column, key) for column in columns] for key in ordered}
    rows[WINDOW] = [window_text(preset.divergence) for preset in presets]
    return rows


def differs(values: Sequence[str]) -> bool:
    """Return whether `values`, the methods' values of one setting, are not all equal."""
    return len(set(values)) > 1


def _place(key: str, keys: Sequence[str]) -> tuple[int, int]:
    """Return a sort key for the setting `key` that keeps the settings of each subsection together.

    `keys` are all settings in their original order. A subsection, such as `algorithm.reduction`, is placed at
    its first setting in this order.
    """
    section = key.rpartition(".")[0]
    first = next(index for index, other in enumerate(keys) if other.rpartition(".")[0] == section)
    is_alone = section in SECTIONS
    return (keys.index(key) if is_alone else first, keys.index(key))


def _shown(settings_by_key: Mapping[str, object], key: str) -> str:
    if key not in settings_by_key:
        return "–"
    value = settings_by_key[key]
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)

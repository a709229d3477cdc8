"""Nested settings by dotted key."""

from __future__ import annotations

from atrium.base.nested import flattened, flattened_text


def test_settings_are_flattened_by_dotted_key():
    nested = {"a": {"b": 1, "c": {"d": None}}, "e": {}, "f": [1]}
    assert flattened(nested) == {"a.b": 1, "a.c.d": None, "e": {}, "f": [1]}


def test_settings_are_flat_text_as_json_writes_it():
    nested = {"a": {"b": 1, "c": 0.5, "d": None}, "e": "text", "f": True, "g": [1, "x"], "h": {}, "i": 1e-08}
    assert flattened_text(nested) == {
        "a.b": "1",
        "a.c": "0.5",
        "a.d": "null",
        "e": "text",
        "f": "true",
        "g": '[1, "x"]',
        "h": "{}",
        "i": "1e-08",
    }

"""Documents out of the JSON that pages receive."""

from __future__ import annotations

from atrium.document import document as records


def decoded(value):
    """The records of which `document.json.to_json` made this JSON."""
    if isinstance(value, list):
        return tuple(map(decoded, value))
    if not isinstance(value, dict):
        return value
    if "number" in value:
        return float(value["number"])
    parts = {name: decoded(part) for name, part in value.items() if name != "kind"}
    return getattr(records, value["kind"])(**parts)

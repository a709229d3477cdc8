"""Documents as JSON: every record is an object that names its kind."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass

from atrium.document.document import Document

VERSION = 1
"""The version of the format."""


def to_json(document: Document) -> dict[str, object]:
    """Return the document as values of standard JSON; numbers that are not finite are `{"number": "inf"}`."""
    return {"version": VERSION, "document": _encoded(document)}


def _encoded(value: object) -> object:
    if is_dataclass(value):
        parts = {field.name: _encoded(getattr(value, field.name)) for field in fields(value)}
        return {"kind": type(value).__name__, **parts}
    if isinstance(value, tuple):
        return [_encoded(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}
    return value

"""Documents as JSON, in which every record is an object with the class name of the record as `kind`."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass

from atrium.document.document import Document

VERSION = 1
"""The version of the JSON format."""


def to_json(document: Document) -> dict[str, object]:
    """Return the document in standard JSON values: a dictionary with the keys `version` and `document`.

    `version` is the version of the format. A number that is not finite becomes an object such as `{"number":
    "inf"}`.
    """
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

"""Documents as JSON, and back: every record is an object that names its kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass

from atrium.base.errors import AtriumError
from atrium.document import document as records
from atrium.document.document import Document

VERSION = 1
"""The version of the format: a reader refuses any other."""
_KINDS: Mapping[str, Callable[..., object]] = {
    name: kind for name, kind in vars(records).items() if is_dataclass(kind) and isinstance(kind, type)
}


def to_json(document: Document) -> dict[str, object]:
    """Return the document as values of standard JSON; numbers that are not finite are `{"number": "inf"}`."""
    return {"version": VERSION, "document": _encoded(document)}


def from_json(found: Mapping[str, object]) -> Document:
    """Return the document that `to_json` gave. Raises `AtriumError` for another version or record."""
    if found.get("version") != VERSION:
        raise AtriumError(f"a document of version {VERSION} is expected, got {found.get('version')!r}")
    try:
        document = _decoded(found["document"])
    except (KeyError, TypeError, ValueError) as error:
        raise AtriumError(f"this is no document: {error}") from None
    if not isinstance(document, Document):
        raise AtriumError("this is a part of a document, not a whole one")
    return document


def _encoded(value: object) -> object:
    if is_dataclass(value):
        parts = {field.name: _encoded(getattr(value, field.name)) for field in fields(value)}
        return {"kind": type(value).__name__, **parts}
    if isinstance(value, tuple):
        return [_encoded(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}
    return value


def _decoded(value: object) -> object:
    if isinstance(value, list):
        return tuple(map(_decoded, value))
    if not isinstance(value, dict):
        return value
    if "number" in value:
        return float(value["number"])
    parts = {name: _decoded(part) for name, part in value.items() if name != "kind"}
    return _KINDS[value["kind"]](**parts)

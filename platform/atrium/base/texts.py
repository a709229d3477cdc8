"""Normalized text, by which one problem is recognized in two files."""

from __future__ import annotations

import hashlib
import unicodedata

TEXT_ID = "text-"
"""The prefix of ids of problems that have none in their source; their `text_key` follows."""


def text_key(text: str) -> str:
    r"""16 hex digits that two texts share if they differ only in white space or compatible Unicode.

    >>> text_key("1 + 1 =") == text_key("  1 +\n1 = ") != text_key("1 + 2 =")
    True
    """
    normal = " ".join(unicodedata.normalize("NFKC", text).split())
    return hashlib.sha256(normal.encode("utf-8", "replace")).hexdigest()[:16]


def encodable(text: str | None) -> str | None:
    """The text with halves of surrogate pairs, which UTF-8 cannot hold, replaced by `?`."""
    return text if text is None else text.encode("utf-8", "replace").decode()

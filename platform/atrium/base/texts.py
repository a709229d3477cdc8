"""Text normalization: keys that identify the same problem in two files, and text that UTF-8 can encode."""

from __future__ import annotations

import hashlib
import unicodedata

TEXT_ID = "text-"
"""Prefix of the ids of problems that have no id in their source; the `text_key` of the problem follows."""


def text_key(text: str) -> str:
    r"""Return a hash (16 hex digits) of a text, ignoring the amount of white space and the Unicode form.

    Texts have different keys, however, if two characters are separated by white space in only one of them.

    >>> text_key("1 + 1 =") == text_key("  1 +\n1 = ") != text_key("1 + 2 =")
    True
    >>> text_key("1 + 1 =") == text_key("1+1=")
    False
    """
    normal = " ".join(unicodedata.normalize("NFKC", text).split())
    return hashlib.sha256(normal.encode("utf-8", "replace")).hexdigest()[:16]


def encodable(text: str | None) -> str | None:
    """Return the text with unpaired surrogates, which UTF-8 cannot encode, replaced by `?`."""
    return text if text is None else text.encode("utf-8", "replace").decode()

r"""Field mapping: look-up of a row's values, and extraction of its reference answer.

The format of an answer is recognized from the value, not from the dataset: text, a number, a list or object
with one element, `... #### 1,234`, or text with a box. The caller provides the function that reads a box, so
that references and completions are read by the same code. `conversations` reads questions, and `choices`
reads choices.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

MISSING = object()
"""Result of `look_up` if a row has no such field."""

BoxReader = Callable[[str], str | None]
"""A function that returns the content of a text's last box, or None."""

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_MARK = "####"
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_BOX = re.compile(r"\\(?:boxed|fbox)\b")
_SENTENCE = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}[\s,]+[A-Za-z$]")  # a word before a word or a formula
_MAX_BARE_CHARS = 100
_NOT_FOUND = frozenset(("proof", "notfound"))
"""Values that NuminaMath 1.5 uses for missing answers."""


class UnreadableValueError(ValueError):
    """Raised if no problem can be read from a row or a value; the message says why.

    If an answer has several parts, such as a list of two elements, `part` is the path of the part that may be
    the reference answer, such as `.target` or `[0]`. It is empty if no part qualifies.
    """

    def __init__(self, message: str, *, part: str = "") -> None:
        super().__init__(message)
        self.part = part


@lru_cache(maxsize=256)
def steps_of(path: str) -> tuple[str | int, ...]:
    """Return the steps of a path: `("prompt", 0, "content")` for `prompt[0].content`."""
    return tuple(name or int(index) for name, index in _STEP.findall(path))


def look_up(row: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401 - any value of a row
    """Return the value at a path, or `MISSING`; JSON text is parsed if the path continues inside it."""
    if path in row:
        return row[path]
    value: Any = row
    for step in steps_of(path):
        if isinstance(value, str):
            value = opened(value)
        is_there = step in value if isinstance(value, Mapping) else _has_index(value, step)
        if not is_there:
            return MISSING
        value = value[step]
    return value


def _has_index(value: object, step: str | int) -> bool:
    return isinstance(value, list) and isinstance(step, int) and step < len(value)


def first_of(row: Mapping[str, Any], paths: Sequence[str]) -> Any:  # noqa: ANN401 - any value of a row
    """Return the first nonempty value at these paths.

    Returns None if the row has at least one of the fields but all are empty, and `MISSING` if it has none.
    """
    found: Any = MISSING
    for path in paths:
        value = look_up(row, path)
        if value is MISSING:
            continue
        if value is not None and value != "" and value != []:
            return value
        found = None
    return found


def answer_text(value: object, read_box: BoxReader, at: str = "") -> str:
    """Return the reference answer in a field's value, without the reasoning or box around it.

    `at` is the path of the value within its field. Raises `UnreadableValueError` if the value is empty or not
    a single answer.
    """
    if isinstance(value, list | tuple):
        if len(value) != 1:
            what, part = f"expected one answer, got a list of {len(value)}", f"{at}[0]" if value else ""
            raise UnreadableValueError(what, part=part)
        return answer_text(value[0], read_box, f"{at}[0]")
    if isinstance(value, Mapping):
        if len(value) != 1:
            part = next((name for name, one in value.items() if isinstance(one, str | int | float)), "")
            what = (
                f"expected one answer, got an object with the fields {', '.join(map(str, value)) or 'none'}"
            )
            raise UnreadableValueError(what, part=f"{at}.{part}" if part else "")
        ((name, only),) = value.items()
        return answer_text(only, read_box, f"{at}.{name}")
    if isinstance(value, bool) or value is None:
        raise UnreadableValueError("the answer is missing")
    if isinstance(value, int | float):
        return _number_text(value)
    return _plain_answer(str(value), read_box, at)


def solution_answer(value: object, read_box: BoxReader) -> str:
    """Return the reference answer in a worked solution.

    It is the text after the last `####` if there is one. Otherwise, it is the content of the last box, or the
    whole text if that is a short expression rather than a sentence. If the text after `####` contains a box,
    only the content of the box is returned. Raises `UnreadableValueError` if the solution has none of these.
    """
    if isinstance(value, int | float):
        return answer_text(value, read_box)
    text = value.strip() if isinstance(value, str) else ""
    is_bare = len(text) <= _MAX_BARE_CHARS and "\n" not in text and not _SENTENCE.search(text)
    if _BOX.search(text) or _MARK in text or (text and is_bare):
        return _plain_answer(text, read_box)
    raise UnreadableValueError("the answer is missing, and the solution contains no box")


def _plain_answer(text: str, read_box: BoxReader, at: str = "") -> str:
    text = text.strip()
    value = opened(text) if text.startswith(('["', '{"')) else text
    if not isinstance(value, str):
        return answer_text(value, read_box, at)
    if _MARK in text:
        text = text.rpartition(_MARK)[2].strip()
        if _THOUSANDS.fullmatch(text):
            text = text.replace(",", "")
    if _BOX.search(text):
        text = read_box(text) or ""
    if len(text) > 2 and text[0] == text[-1] == "$" and "$" not in text[1:-1]:
        text = text[1:-1].strip()
    if not text or text.lower() in _NOT_FOUND:
        raise UnreadableValueError(f"the answer is missing ({text})" if text else "the answer is missing")
    return text


def _number_text(value: int | float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise UnreadableValueError("the answer is not a finite number")
    return str(int(value)) if value == int(value) else repr(value)


def opened(text: str) -> Any:  # noqa: ANN401 - any JSON
    """Parse text that is a JSON object or list; return any other text unchanged."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text

r"""Field mapping: the location of a row's values, and the text of its reference answer.

The formats of answers in published datasets are recognized by the value, not by the dataset: text, a number,
a list of one, an object of one, `... #### 1,234`, or text with a box. The caller provides the function that
reads a box, so that references and completions are read by the same code. Questions are read in
`conversations`, choices in `choices`.
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
    """A value without a question or a single answer; the message gives the reason.

    `part` is the path of a part that may be the answer, such as `.target` or `[0]`; empty if there is none.
    """

    def __init__(self, message: str, *, part: str = "") -> None:
        super().__init__(message)
        self.part = part


@lru_cache(maxsize=256)
def steps_of(path: str) -> tuple[str | int, ...]:
    """Return a path's steps: `prompt[0].content` as `("prompt", 0, "content")`."""
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
    """Return the first value that is not empty; else `None` if one is empty, else `MISSING`."""
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
    """Return the reference answer in a field's value, without its box and without the reasoning.

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
        raise UnreadableValueError("no answer")
    if isinstance(value, int | float):
        return _number_text(value)
    return _plain_answer(str(value), read_box, at)


def solution_answer(value: object, read_box: BoxReader) -> str:
    """Return the reference answer of a solution: its last box, the text after `####`, or a bare expression.

    Raises `UnreadableValueError` if it has none of them.
    """
    if isinstance(value, int | float):
        return answer_text(value, read_box)
    text = value.strip() if isinstance(value, str) else ""
    is_bare = len(text) <= _MAX_BARE_CHARS and "\n" not in text and not _SENTENCE.search(text)
    if _BOX.search(text) or _MARK in text or (text and is_bare):
        return _plain_answer(text, read_box)
    raise UnreadableValueError("no answer, and no box in the solution")


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
        raise UnreadableValueError(f"no answer ({text})" if text else "no answer")
    return text


def _number_text(value: int | float) -> str:
    if not math.isfinite(value):
        raise UnreadableValueError("no answer")
    return str(int(value)) if value == int(value) else repr(value)


def opened(text: str) -> Any:  # noqa: ANN401 - any JSON
    """Return the content of JSON text; other text unchanged."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text

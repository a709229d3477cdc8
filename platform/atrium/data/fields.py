r"""Field mapping: where a row holds its question and its gold answer, and what text each of them is.

The shapes in which published datasets hold the same thing are told apart by the value, not by the dataset:
an answer is text, a number, a list of one, an object of one, `... #### 1,234`, or has a box; a question is
text or a conversation. What a box holds is the caller's to say, so that golds and completions are read by
the same code.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

MISSING = object()
"""What `look_up` returns where a row has no such field."""

BoxReader = Callable[[str], str | None]
"""The content of a text's last box, or None where it has none."""

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_MARK = "####"
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_BOX = re.compile(r"\\(?:boxed|fbox)\b")


class UnreadableValueError(ValueError):
    """A value that holds no question or no single answer; the message says why."""


@lru_cache(maxsize=256)
def steps_of(path: str) -> tuple[str | int, ...]:
    """`prompt[0].content` as `("prompt", 0, "content")`."""
    return tuple(name or int(index) for name, index in _STEP.findall(path))


def look_up(row: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401 - any value of a row
    """The value at a path, or `MISSING`; text that holds JSON is opened where the path goes on in it."""
    if path in row:
        return row[path]
    value: Any = row
    for step in steps_of(path):
        if isinstance(value, str):
            value = _opened(value)
        is_there = step in value if isinstance(value, Mapping) else _has_index(value, step)
        if not is_there:
            return MISSING
        value = value[step]
    return value


def _has_index(value: object, step: str | int) -> bool:
    return isinstance(value, list) and isinstance(step, int) and step < len(value)


def first_of(row: Mapping[str, Any], paths: Sequence[str]) -> Any:  # noqa: ANN401 - any value of a row
    """The first value that is there and not empty; else `None` where one is empty, else `MISSING`."""
    found: Any = MISSING
    for path in paths:
        value = look_up(row, path)
        if value is MISSING:
            continue
        if value is not None and value != "" and value != []:
            return value
        found = None
    return found


def question_text(value: object) -> str:
    """The question of a text, or of a conversation's last turn of the user.

    Raises `UnreadableValueError` where there is none.
    """
    if isinstance(value, str) and value.strip():
        return value.strip()
    if isinstance(value, list):
        turns = [turn for turn in value if isinstance(turn, Mapping) and isinstance(turn.get("content"), str)]
        asked = [turn["content"].strip() for turn in turns if turn.get("role", "user") == "user"]
        if asked and asked[-1]:
            return str(asked[-1])
    raise UnreadableValueError("no question")


def answer_text(value: object, read_box: BoxReader) -> str:
    """The gold answer of a field's value, without a box and without the way to it.

    Raises `UnreadableValueError` where it is empty or not one answer.
    """
    if isinstance(value, list | tuple):
        if len(value) != 1:
            raise UnreadableValueError(f"a list of {len(value)} answers, not one")
        return answer_text(value[0], read_box)
    if isinstance(value, Mapping):
        if len(value) != 1:
            raise UnreadableValueError(f"an object with the fields {', '.join(value)}; map one of them")
        return answer_text(next(iter(value.values())), read_box)
    if isinstance(value, bool) or value is None:
        raise UnreadableValueError("no answer")
    if isinstance(value, int | float):
        return _number_text(value)
    return _plain_answer(str(value), read_box)


def solution_answer(value: object, read_box: BoxReader) -> str:
    """The gold answer that a worked solution ends with: its last box, or what follows `####`.

    Raises `UnreadableValueError` where it has neither.
    """
    text = value if isinstance(value, str) else ""
    if _BOX.search(text) or _MARK in text:
        return _plain_answer(text, read_box)
    raise UnreadableValueError("no answer, and no box in the solution")


def _plain_answer(text: str, read_box: BoxReader) -> str:
    text = text.strip()
    opened = _opened(text) if text.startswith(('["', '{"')) else text
    if not isinstance(opened, str):
        return answer_text(opened, read_box)
    if _MARK in text:
        text = text.rpartition(_MARK)[2].strip()
        if _THOUSANDS.fullmatch(text):
            text = text.replace(",", "")
    if _BOX.search(text):
        text = read_box(text) or ""
    if len(text) > 2 and text[0] == text[-1] == "$" and "$" not in text[1:-1]:
        text = text[1:-1].strip()
    if not text:
        raise UnreadableValueError("no answer")
    return text


def _number_text(value: int | float) -> str:
    if not math.isfinite(value):
        raise UnreadableValueError("no answer")
    return str(int(value)) if value == int(value) else repr(value)


def _opened(text: str) -> Any:  # noqa: ANN401 - any JSON
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text

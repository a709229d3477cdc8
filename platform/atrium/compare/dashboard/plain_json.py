"""Answers as standard JSON, which knows no NaN and no infinity: both become null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def encoded(answer: object) -> str:
    """The answer as JSON; the copy without what JSON cannot say is only made where it is needed."""
    try:
        return json.dumps(answer, allow_nan=False)
    except ValueError:
        return json.dumps(plain(answer), allow_nan=False)


def plain(value: Any) -> Any:  # noqa: ANN401 - any value of a file
    """The value with numbers that are not finite replaced by None, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value

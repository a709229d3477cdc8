"""JSON that a run recorded, read forgivingly: what is missing or of another type is None, or empty."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from atrium.base.plain_files import read_plain

Interval = tuple[float, float]

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""How JSON holds the numbers that it has no words for."""


def read_object(path: Path) -> tuple[Mapping[str, object], str | None]:
    """The object in a JSON file and None, or an empty one and the reason in words."""
    try:
        content = json.loads(read_plain(path))
    except FileNotFoundError:
        return {}, f"it has no {path.name}"
    except OSError as error:
        return {}, f"{path.name} cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        return {}, f"{path.name} is not valid JSON"
    if not isinstance(content, dict):
        return {}, f"{path.name} does not hold an object"
    return content, None


def as_integer(value: object) -> int | None:
    """A whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_number(value: object) -> float | None:
    """A number; `"NaN"`, `"Infinity"` and `"-Infinity"` are numbers too."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return _NOT_FINITE.get(value) if isinstance(value, str) else None


def number_or_nan(value: object) -> float:
    """A number, NaN where there is none."""
    found = as_number(value)
    return math.nan if found is None else found


def as_finite(value: object) -> float | None:
    """A finite number."""
    found = as_number(value)
    return found if found is not None and math.isfinite(found) else None


def as_interval(value: object) -> Interval | None:
    """The two ends of an interval, both finite."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    low, high = as_finite(value[0]), as_finite(value[1])
    return None if low is None or high is None else (low, high)

"""Tolerant readers of recorded JSON. A missing value or a value of the wrong type becomes None or empty."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from atrium.base.errors import reason_of
from atrium.base.plain_files import read_plain

Interval = tuple[float, float]

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Non-finite numbers as they appear in JSON text."""


def read_object(path: Path) -> tuple[Mapping[str, object], str | None]:
    """Read the object in a JSON file; return (object, None), or ({}, reason) if it cannot be read."""
    try:
        content = json.loads(read_plain(path))
    except FileNotFoundError:
        return {}, f"{path.name} is missing"
    except OSError as error:
        return {}, f"{path.name} cannot be read: {reason_of(error)}"
    except (ValueError, RecursionError):
        return {}, f"{path.name} is not valid JSON"
    if not isinstance(content, dict):
        return {}, f"{path.name} is not a JSON object"
    return content, None


def as_integer(value: object) -> int | None:
    """Return the value if it is an `int` and not a `bool`, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_number(value: object) -> float | None:
    """Return the value as a float if it is a number, `"NaN"`, `"Infinity"` or `"-Infinity"`, else None.

    The result is also None for an integer that is too large for a float.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            return float(value)
    return _NOT_FINITE.get(value) if isinstance(value, str) else None


def number_or_nan(value: object) -> float:
    """Return the value as `as_number` does, but NaN instead of None."""
    found = as_number(value)
    return math.nan if found is None else found


def as_finite(value: object) -> float | None:
    """Return the value as a float if it is a finite number, else None."""
    found = as_number(value)
    return found if found is not None and math.isfinite(found) else None


def as_interval(value: object) -> Interval | None:
    """Return `value` as (low, high) if it is a list or tuple of two finite numbers, else None."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    low, high = as_finite(value[0]), as_finite(value[1])
    return None if low is None or high is None else (low, high)

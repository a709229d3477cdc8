"""Reader of tables of rollouts with per-token log-probabilities, for computations without a model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atrium.base.errors import DataError
from atrium.base.nested import setting
from atrium.base.rows import Row
from atrium.imports.files import rows
from atrium.imports.tables import ROLES, Ranks, check_columns, chosen_columns

_ROLES: Mapping[str, Ranks] = {
    "problem": ROLES["problem"],
    "score": (("reward", "rewards"), *ROLES["score"]),
    "logprobs": (
        ("sampling_logprobs", "rollout_logprobs", "rollout_log_probs", "old_log_probs", "old_logprobs"),
        ("logprobs", "log_probs", "logps", "token_logprobs"),
    ),
    "ratio": (("ratio", "ratios", "importance_ratio", "importance_ratios"),),
    "step": ROLES["step"],
}
_REQUIRED = ("problem", "score", "logprobs")


def rows_by_step(path: Path, columns: Mapping[str, str]) -> list[list[dict[str, Any]]]:
    """Return the rollouts in a table as one list per step, in the order in which the steps first occur.

    If the table has no column of steps, the result contains a single list. Each rollout has `problem_id`,
    `reward`, `logprobs` (in nats, one per token) and `ratio` (one per token, or None). `columns` maps roles
    to columns; the columns of other roles are recognized by their names. Raises `ConfigError` for an invalid
    mapping and for a required role without a column, and `DataError` for invalid values and for a table
    without rows.
    """
    steps: dict[object, list[dict[str, Any]]] = {}
    found: dict[str, str] | None = None
    for place, row in rows(path):
        if found is None:
            found = chosen_columns(path, row, columns, _ROLES)
            check_columns(path, row, found, _REQUIRED)
        step = _value(row, found["step"]) if "step" in found else None
        steps.setdefault(step, []).append(_rollout(row, found, place))
    if not steps:
        raise DataError(f"{path} contains no rows; choose another file")
    return list(steps.values())


def _rollout(row: Row, columns: Mapping[str, str], place: str) -> dict[str, Any]:
    logprobs = _numbers(row, columns["logprobs"], place)
    if any(value > 0.0 for value in logprobs):
        raise DataError(
            f"{place}: {columns['logprobs']} must contain log-probabilities in nats, which are at most 0"
        )
    ratio = _numbers(row, columns["ratio"], place) if "ratio" in columns else []
    if ratio and len(ratio) != len(logprobs):
        raise DataError(
            f"{place}: expected {len(logprobs)} ratios, one per log-probability, got {len(ratio)}"
        )
    score = _value(row, columns["score"])
    try:
        reward = float(score)
    except (TypeError, ValueError) as error:
        raise DataError(f"{place}: {columns['score']} must be a number, got {score!r}") from error
    return {
        "problem_id": str(_value(row, columns["problem"])),
        "reward": reward,
        "logprobs": logprobs,
        "ratio": ratio or None,
    }


def _numbers(row: Row, column: str, place: str) -> list[float]:
    """Return the numbers in a row's column, whose value is a list or the JSON text of a list.

    Returns an empty list for a missing value. Raises `DataError` unless all numbers are finite.
    """
    value = _value(row, column)
    try:
        found = [float(one) for one in (json.loads(value or "[]") if isinstance(value, str) else value or [])]
    except (TypeError, ValueError) as error:
        raise DataError(f"{place}: {column} must contain a list of numbers") from error
    if not all(map(math.isfinite, found)):
        raise DataError(f"{place}: {column} must contain finite numbers")
    return found


def _value(row: Row, column: str) -> Any:  # noqa: ANN401 - any value of a file
    return row[column] if column in row else setting(row, column)

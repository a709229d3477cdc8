"""Reader of published score tables in CSV.

The columns are method, benchmark, problems, samples and score, and optionally seeds, evaluations, seed_sd and
source. Scores without a percent sign must be all percentages or all fractions. A score with a percent sign,
such as `0.8%`, is a percentage in either case.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atrium.base.errors import ConfigError, reason_of
from atrium.base.plain_files import read_plain
from atrium.config.nearest import shown, suggestion
from atrium.stats.published import StatedScore

NEEDED = ("method", "benchmark", "problems", "samples", "score")
COLUMNS = (*NEEDED, "seeds", "evaluations", "seed_sd", "source")
_MOST = {"problems": 1_000_000, "samples": 100_000, "seeds": 10_000, "evaluations": 1_000_000}
_MAX_BYTES = 1 << 20
_MAX_SD = 0.71
"""Largest possible standard deviation of fractions, rounded up: two seeds with the scores 0 and 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A method's published score on a benchmark.

    `step` is one unit in the last digit of the score, as a fraction: 0.001 for `81.2%`.
    """

    method: str
    benchmark: str
    stated: StatedScore
    step: float
    source: str


def read_published(
    path: Path, *, num_evaluations: int | None = None, seed_sd: float | None = None
) -> list[Published]:
    """Read the scores of a published table.

    `num_evaluations` replaces missing entries of the column `evaluations`, and `seed_sd` (a fraction) those
    of the column `seed_sd`. Raises `ConfigError` with a one-line message for an invalid table.
    """
    rows = _rows(path)
    unit = _unit(path, [row["score"] for _, row in rows])
    found: dict[tuple[str, str], Published] = {}
    num_problems: dict[str, int] = {}
    for number, row in rows:
        try:
            one = _published(row, unit, num_evaluations, seed_sd)
            if (one.method, one.benchmark) in found:
                raise ValueError(f"{one.method} on {one.benchmark} appears twice; remove one of the rows")
            known = num_problems.setdefault(one.benchmark, one.stated.num_problems)
            if known != one.stated.num_problems:
                raise ValueError(
                    f"{one.benchmark} must have the same number of problems in all rows, got "
                    f"{one.stated.num_problems} here and {known} above"
                )
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None
        found[one.method, one.benchmark] = one
    return list(found.values())


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Return the line number and the stripped cells (by column) of each row.

    Raises `ConfigError` if the file cannot be read, or if its columns or rows are invalid.
    """
    try:
        reader = csv.reader(io.StringIO(read_plain(path, _MAX_BYTES).decode("utf-8-sig")), strict=True)
        table = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(cells)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read as CSV: {reason_of(error)}") from error
    (_, columns), *lines = table or [(1, [])]
    for name in columns:
        if columns.count(name) > 1:
            raise ConfigError(f"{path}: column {shown(name)} appears twice; remove one of the two")
        if name not in COLUMNS:
            near = suggestion(name, COLUMNS) or ";"
            raise ConfigError(
                f"{path}: unknown column {shown(name)}{near} the columns are {', '.join(COLUMNS)}"
            )
    if missing := [name for name in NEEDED if name not in columns]:
        raise ConfigError(
            f"{path}: column {missing[0]} is missing; the required columns are {', '.join(NEEDED)}"
        )
    for number, cells in lines:
        if len(cells) != len(columns):
            raise ConfigError(f"{path}, line {number}: expected {len(columns)} cells, got {len(cells)}")
    if not lines:
        raise ConfigError(f"{path} contains no rows; add at least one")
    return [(number, dict(zip(columns, cells, strict=True))) for number, cells in lines]


def _unit(path: Path, scores: Sequence[str]) -> float:
    """Return the factor that converts scores without a percent sign to fractions.

    The factor is 1 if any of these scores is strictly between 0 and 1, and 0.01 otherwise. Raises
    `ConfigError` if some of them are strictly between 0 and 1 and others are greater than 1.
    """
    plain = {float(score): score for score in scores if _is_number(score)}
    small = [score for value, score in plain.items() if 0.0 < value < 1.0]
    if small and max(plain) > 1.0:
        raise ConfigError(
            f"{path}: scores must be all percentages or all fractions, got {plain[max(plain)]} and "
            f"{small[0]}; if {small[0]} is in percent, write {small[0]}%"
        )
    return 1.0 if small else 0.01


def _published(
    row: Mapping[str, str], unit: float, num_evaluations: int | None, seed_sd: float | None
) -> Published:
    if not row["method"] or not row["benchmark"]:
        raise ValueError("method and benchmark must not be empty")
    score, step = _share("score", row["score"], unit)
    if not 0.0 <= score <= 1.0:
        raise ValueError(f"score must be between 0 and 100 percent, got {shown(row['score'])}")
    if row.get("seed_sd"):
        seed_sd, _ = _share("seed_sd", row["seed_sd"], unit)
        if not 0.0 < seed_sd <= _MAX_SD:
            raise ValueError(
                f"seed_sd must be greater than 0 and at most 71 points, got {shown(row['seed_sd'])}"
            )
    return Published(
        method=row["method"],
        benchmark=row["benchmark"],
        stated=StatedScore(
            score=score,
            num_problems=_whole(row, "problems"),
            num_samples=_whole(row, "samples"),
            num_seeds=_whole(row, "seeds") if row.get("seeds") else None,
            num_evaluations=_whole(row, "evaluations") if row.get("evaluations") else num_evaluations,
            seed_sd=seed_sd,
        ),
        step=step,
        source=row.get("source", ""),
    )


def _whole(row: Mapping[str, str], name: str) -> int:
    text = row[name]
    if re.fullmatch(r"[0-9]{1,9}", text) is None or not 1 <= int(text) <= _MOST[name]:
        raise ValueError(f"{name} must be a whole number from 1 to {_MOST[name]:,}, got {shown(text)}")
    return int(text)


def _share(name: str, text: str, unit: float) -> tuple[float, float]:
    """Return a score or standard deviation as a fraction, and one unit in its last digit as a fraction.

    `unit` is the factor for numbers without a percent sign. Raises `ValueError` if the text is not a number.
    """
    number = text.removesuffix("%").strip()
    if not _is_number(number):
        raise ValueError(f"{name} must be a number, got {shown(text)}")
    scale = 0.01 if text.endswith("%") else unit
    return float(number) * scale, 10.0 ** -len(number.partition(".")[2]) * scale


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]+(\.[0-9]*)?", text) is not None and math.isfinite(float(text))

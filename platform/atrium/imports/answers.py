"""The records that all readers of sources return, and the command-line options of an import."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from atrium.base.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer to one problem. Fields that the source does not record keep their defaults.

    `problem` is the problem's id in the source, `sample` distinguishes answers to the same problem, and
    `place` names the file and row in messages.
    """

    method: str
    is_correct: bool
    place: str
    seed: int | None = None
    benchmark: str = "imported"
    step: int = 0
    problem: str = ""
    question: str = ""
    gold: str = ""
    sample: str | None = None
    text: str = ""
    extracted: str | None = None
    num_tokens: int | None = None
    is_truncated: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The training metrics of one run by step. Metrics that Atrium records too have Atrium's names.

    `key` distinguishes runs of the same file. `settings` has the same form as in `Source`.
    """

    method: str
    steps: Mapping[int, Mapping[str, float]]
    seed: int | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """Command-line options that supply or override the content of a source.

    `method`, `seed`, `benchmark` and `step` apply to all rows and take precedence over columns that are
    recognized by their names. For a table, stating one of these four and also mapping it to a column is an
    error. If a trainer's file records the step, `step` must be the same. `columns` maps roles, such as
    `score`, to columns (`--map`). Scores of at least `correct_at` count as correct. If `incomplete` is set,
    truncated files are accepted, and every problem of a benchmark keeps only as many samples as the problem
    with the fewest samples has.
    """

    method: str = ""
    seed: int | None = None
    benchmark: str = ""
    step: int | None = None
    correct_at: float | None = None
    incomplete: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The content of one file of a known format; `mapping` describes in words how it is read.

    `answers` reads the rows lazily. `settings` are the recorded settings by dotted key of Atrium's
    configuration. `printed` is the mean score that the source reports, by benchmark. `differences` describes
    how the source's numbers differ from Atrium's.
    """

    path: Path
    format: str
    mapping: tuple[str, ...]
    answers: Iterator[Answer] = field(default_factory=lambda: iter(()))
    curves: tuple[Curve, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    printed: Mapping[str, float] = field(default_factory=dict)
    differences: tuple[str, ...] = ()


_LARGEST = 2**31 - 1
_WORDS = {"true": 1.0, "false": 0.0}


def correctness(value: object, stated: Stated, place: str) -> bool:
    """Return whether a score counts as correct: true or 1, or at least `stated.correct_at` if this is set.

    Raises `DataError` for a score that is missing, not a number or not finite and, without `correct_at`, for
    any score other than 0 and 1.
    """
    if type(value) is int and value in (0, 1) and stated.correct_at is None:
        return value == 1
    text = str(value).strip().lower() if isinstance(value, str | bool) else value
    try:
        score = _WORDS[text] if isinstance(text, str) and text in _WORDS else float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        shown = "nothing" if value in (None, "") else repr(str(value)[:40])
        raise DataError(f"{place}: the score must be true, false or a number, got {shown}") from None
    if not math.isfinite(score):
        raise DataError(f"{place}: the score must be a finite number, got {score}")
    if stated.correct_at is not None:
        return score >= stated.correct_at
    if score not in (0.0, 1.0):
        raise DataError(
            f"{place}: the score must be 0 or 1, got {score:g}; use --correct-at X to count scores of at "
            "least X as correct"
        )
    return score == 1.0


def whole_number(value: object, name: str, place: str) -> int:
    """Return `value` as an integer from 0 to 2**31 - 1; raise `DataError` for anything else."""
    if type(value) is int and 0 <= value <= _LARGEST:
        return value
    try:
        number = float(str(value))
        if number.is_integer() and 0 <= number <= _LARGEST:
            return int(number)
    except ValueError:
        pass
    raise DataError(f"{place}: {name} must be a whole number from 0 to {_LARGEST}, got {str(value)[:40]!r}")


def real_number(value: object, place: str) -> float:
    """Return `value` as a float (NaN and infinity included); raise `DataError` for anything else."""
    try:
        return float(str(value))
    except ValueError:
        raise DataError(f"{place}: the value must be a number, got {str(value)[:40]!r}") from None

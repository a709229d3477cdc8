"""The typed rows that every reader yields, and what the user states about a source."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from atrium.base.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer to one problem. None and empty text stand for what the source does not record.

    `problem` is the problem's id in the source, `sample` tells the answers to one problem apart. `place`
    names the row in messages.
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
    """The training metrics of one run by step, under Atrium's names where the quantities are the same.

    `key` tells runs of one file apart. `settings` are as those of `Source`.
    """

    method: str
    steps: Mapping[int, Mapping[str, float]]
    seed: int | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What the command line states: constants in place of columns, and from which score an answer counts.

    With `incomplete`, problems keep as many samples as the one with the fewest, and curves end where a file
    is cut off.
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
    """One file, recognized: its format, how it is read in words, and its content.

    `answers` yields the rows as they are read. `settings` are the recorded settings by dotted key of
    Atrium's configuration. `printed` holds the mean score that the source itself gives, by benchmark, and
    `differences` says where its definition is another than Mean@K.
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
    """Whether a score means a correct answer: true or 1, or at least `correct_at`.

    Raises `DataError` for a missing score, and for one between 0 and 1 without `correct_at`.
    """
    if type(value) is int and value in (0, 1) and stated.correct_at is None:
        return value == 1
    text = str(value).strip().lower() if isinstance(value, str | bool) else value
    try:
        score = _WORDS[text] if isinstance(text, str) and text in _WORDS else float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        shown = "is missing" if value in (None, "") else f"is {str(value)[:40]!r}"
        raise DataError(f"{place}: the score {shown}; expected true, false or a number") from None
    if not math.isfinite(score):
        raise DataError(f"{place}: the score is {score}; expected a finite number")
    if stated.correct_at is not None:
        return score >= stated.correct_at
    if score not in (0.0, 1.0):
        raise DataError(
            f"{place}: the score is {score:g}, neither 0 nor 1; --correct-at X counts scores of at least X "
            "as correct"
        )
    return score == 1.0


def whole_number(value: object, name: str, place: str) -> int:
    """A whole number of a row; `DataError` for anything else."""
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
    """A number of a row; `DataError` for anything else."""
    try:
        return float(str(value))
    except ValueError:
        raise DataError(f"{place}: expected a number, got {str(value)[:40]!r}") from None

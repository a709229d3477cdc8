"""Stored answers graded again: what the grader says now, beside what was said when they were stored.

It reads samples of an evaluation, or a JSON Lines file of completions from elsewhere, and changes neither.
Verdicts look at the answer alone: whether a truncated one may count is left as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atrium.data.rows import parse_json
from atrium.errors import DataError
from atrium.grading.pool import GraderPool
from atrium.grading.verifiers import Verifier
from atrium.plain_files import MAX_LINES_BYTES, read_plain
from atrium.records import VerdictKind

_FIELDS = {
    "gold": ("gold", "answer", "target", "gts", "expected_answer"),
    "text": ("text", "completion", "output", "response", "prediction"),
}
_LABELS = ("is_correct", "correct", "score")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """A completion, the gold answer, and the verdict that it was stored with; None where there was none."""

    name: str
    gold: str
    text: str
    was_correct: bool | None
    extracted: str | None = None
    judged_by: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regraded:
    """A stored answer with what the grader says now."""

    stored: StoredAnswer
    verdict: VerdictKind
    extracted: str | None
    reason: str

    @property
    def is_correct(self) -> bool:
        """Whether it counts now."""
        return self.verdict is VerdictKind.CORRECT

    @property
    def is_changed(self) -> bool:
        """Whether another verdict was stored."""
        return self.stored.was_correct is not None and self.stored.was_correct != self.is_correct


def regrade(answers: Sequence[StoredAnswer], verifier: Verifier, *, thinking: bool) -> list[Regraded]:
    """Grade each answer with the verifier, in their order."""
    with GraderPool(verifier, thinking=thinking) as pool:
        futures = [pool.submit(answer.text, answer.gold, answer.judged_by) for answer in answers]
        verdicts = [future.result() for future in futures]
    return [
        Regraded(stored=answer, verdict=verdict.kind, extracted=verdict.extracted, reason=verdict.reason)
        for answer, verdict in zip(answers, verdicts, strict=True)
    ]


def answers_of_rows(rows: Sequence[Mapping[str, object]]) -> list[StoredAnswer]:
    """The answers of an evaluation's rows."""
    return [
        StoredAnswer(
            name=f"{row['problem_id']} #{row['sample_index']}",
            gold=str(row["gold"]),
            text=str(row["text"]),
            was_correct=row["verdict"] == VerdictKind.CORRECT.value,
            extracted=None if row["extracted"] is None else str(row["extracted"]),
            judged_by=json.loads(str(row["metadata"])) | json.loads(str(row.get("verifier") or "{}")),
        )
        for row in rows
    ]


def answers_of_file(path: Path) -> list[StoredAnswer]:
    """The answers of a JSON Lines file from elsewhere, such as verl's, with fields for gold and text.

    Raises `DataError` where the file cannot be read or a line lacks one of them.
    """
    try:
        lines = read_plain(path, MAX_LINES_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    answers = [_answer_of(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not answers:
        raise DataError(f"{path} holds no completions; give it a JSON object per line")
    return answers


def _answer_of(path: Path, number: int, line: str) -> StoredAnswer:
    place = f"{path}, line {number}"
    try:
        row = parse_json(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON: {error}") from error
    found: dict[str, str] = {}
    for wanted, names in _FIELDS.items():
        name = next((name for name in names if isinstance(row, dict) and row.get(name) is not None), None)
        if name is None:
            raise DataError(f"{place}: no field for the {wanted}; one of {', '.join(names)} is due")
        found[wanted] = str(row[name])
    label = next((row[name] for name in _LABELS if row.get(name) is not None), None)
    problem = row.get("problem_id", row.get("id", f"line {number}"))
    was_correct = None if label is None else _as_bool(label)
    return StoredAnswer(name=str(problem), gold=found["gold"], text=found["text"], was_correct=was_correct)


def _as_bool(label: object) -> bool:
    return label > 0 if isinstance(label, int | float) else str(label).lower() in ("true", "yes", "correct")

"""Stored answers graded again: what the grader says now, beside what was said when they were stored.

Nothing stored is changed; files from elsewhere are read in `stored_answers`.
Verdicts look at the answer alone: whether a truncated one may count is left as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atrium.assemble.stored_answers import StoredAnswer
from atrium.base.records import VerdictKind
from atrium.grading.pool import GraderPool
from atrium.grading.verifiers import Verifier


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
    """Grade each answer with the verifier, in their order; of several references, any may count."""
    with GraderPool(verifier, thinking=thinking) as pool:
        futures = [
            [pool.submit(answer.text, gold, answer.judged_by) for gold in (answer.gold, *answer.other_golds)]
            for answer in answers
        ]
        found = [[future.result() for future in own] for own in futures]
        verdicts = [next((one for one in own if one.is_correct), own[0]) for own in found]
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

"""Conversion of rows to problems, with counts of all dropped rows.

`where` selects the rows, the field mapping locates questions and answers, instructions are removed, and
repeated problems are dropped. It is an error if no row has a declared field, or if the number of rows or
problems differs from the declared number, so that the name of a problem set always refers to the same data.
Whether reference answers can be graded is checked elsewhere.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from atrium.base.errors import DataError
from atrium.base.records import CLUSTER, Problem
from atrium.base.rows import Row
from atrium.data.choices import COLUMNS, choice_columns
from atrium.data.fields import BoxReader, UnreadableValueError, look_up
from atrium.data.row_problems import RowProblem, RowReader
from atrium.data.settings import ProblemFiles
from atrium.data.splits import question_key

_MAX_LISTED = 5
_MAX_SHOWN_CHARS = 90
_MAX_REPEATED_FRAC = 0.9


@dataclass(slots=True)
class _Found:
    """A distinct problem, the number of its rows, and whether their answers differ."""

    problem: Problem
    num_rows: int = 1
    is_conflicting: bool = False


class Reading:
    """A reader that receives rows one by one, and keeps distinct problems and counts of dropped rows."""

    def __init__(self, wanted: ProblemFiles, read_box: BoxReader) -> None:
        self._wanted = wanted
        self._reader = RowReader(wanted, read_box)
        self.found: dict[str, _Found] = {}
        self.num_rows = self.num_chosen = self.num_repeated = self.num_instructions = 0
        self.num_conflicting = 0
        self.incomplete: Counter[str] = Counter()
        self._first_incomplete: dict[str, int] = {}
        self._raw_seen: dict[object, str] = {}
        self._instruction: str | None = None
        self._notes: Counter[str] = Counter()
        self._last_row: Row = {}

    def add(self, row: Row) -> None:
        """Count the next row, and keep its problem if `where` selects the row and the problem is new."""
        self.num_rows += 1
        self._last_row = row
        if not all(_is_among(look_up(row, path), allowed) for path, allowed in self._wanted.allowed.items()):
            return
        self.num_chosen += 1
        try:
            self._take(self._reader.read(row))
        except UnreadableValueError as error:
            self.incomplete[str(error)] += 1
            self._first_incomplete.setdefault(str(error), self.num_rows)

    def _take(self, row: RowProblem) -> None:
        problem = row.problem
        # A question may occur in 100 rows; comparing the raw text saves computing its key again.
        key = self._raw_seen.get(row.raw)
        if key is None:
            key = self._raw_seen[row.raw] = _key(problem)
            self._count(row)
            if key not in self.found:
                self.found[key] = _Found(problem)
                return
        found = self.found[key]
        found.num_rows += 1
        found.is_conflicting |= found.problem.answer != problem.answer
        self.num_repeated += 1
        self.num_conflicting += found.problem.answer != problem.answer

    def _count(self, row: RowProblem) -> None:
        if row.instruction is not None:
            self.num_instructions += 1
            self._instruction = self._instruction or row.instruction
        self._notes.update(row.notes)

    def check(self, names: Sequence[str]) -> None:
        """Raise `DataError` if the rows read so far do not match the declaration in the settings.

        `names` are the names of the files, for the error message.
        """
        wanted = self._wanted
        listed = f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''} of "
        is_one = [PurePath(wanted.source).name] == list(names)
        place = f"'{wanted.name}' ({'' if is_one else listed}{wanted.source})"
        if not self.num_rows:
            raise DataError(f"{place} has no rows; choose other data")
        _check_count(place, "rows", self.num_rows, wanted.expected_num_rows)
        if not self.num_chosen:
            raise DataError(
                f"{place}: none of {self.num_rows} rows has {_shown_where(wanted.allowed)}; correct "
                f"{wanted.section}.where"
            )
        for name in ("question", "answer", "choices", CLUSTER):
            if self._reader.num_without[name] == self.num_chosen:
                paths = ", ".join(
                    (*getattr(wanted.fields, name), *(wanted.fields.solution if name == "answer" else ()))
                )
                raise DataError(
                    f"{place}: no row has a field for the {name}, expected {paths or 'its name'}; set "
                    f"{wanted.section}.fields.{name} to the field that contains it; a row has "
                    f"{self._columns_text()}"
                )
        if not self.found:
            raise DataError(
                f"{place}: no row contains a problem ({self._incomplete_text()}); set "
                f"{wanted.section}.fields.question and {wanted.section}.fields.answer to the fields with "
                f"question and answer; a row has {self._columns_text()}"
            )
        self._check_questions(place)
        _check_count(place, "distinct problems", len(self.found), wanted.expected_num_problems)

    def _check_questions(self, place: str) -> None:
        """Raise `DataError` if the answers suggest that the question field is wrong.

        A question is conflicting if its rows have different answers. The error is raised in three cases: most
        rows share one conflicting question; most rows have an answer other than the first answer to their
        question; or most rows have a conflicting question, and the number of distinct questions is less than
        10 % of the number of rows. The first two cases require at least 3 rows. `place` names the data in the
        error message.
        """
        conflicting = [found for found in self.found.values() if found.is_conflicting]
        most = max(conflicting, key=lambda found: found.num_rows, default=None)
        if most is None:
            return
        num_shared = sum(found.num_rows for found in conflicting)
        is_few = len(self.found) < (1 - _MAX_REPEATED_FRAC) * self.num_chosen
        is_most = 2 * max(most.num_rows, self.num_conflicting) > self.num_chosen > 2
        if is_most or (is_few and 2 * num_shared > self.num_chosen):
            raise DataError(
                f"{place}: {num_shared} of {self.num_chosen} rows have the same question as rows with "
                f"another answer (such as {most.num_rows} rows with "
                f"{most.problem.question[:_MAX_SHOWN_CHARS]!r}); set "
                f"{self._wanted.section}.fields.question to the field with the question; a row has "
                f"{self._columns_text()}"
            )

    def problems(self) -> tuple[Problem, ...]:
        """Return the distinct problems.

        If any id is missing or repeated, every id is replaced by the name of the data and a hash of the
        problem's question and earlier turns.
        """
        names = [found.problem.problem_id for found in self.found.values()]
        if all(names) and len(set(names)) == len(names):
            return tuple(found.problem for found in self.found.values())
        digests = (hashlib.sha256(key.encode()).hexdigest()[:12] for key in self.found)
        return tuple(
            replace(found.problem, problem_id=f"{self._wanted.name}-{digest}")
            for digest, found in zip(digests, self.found.values(), strict=True)
        )

    def warnings(self) -> Iterator[str]:
        """Yield warnings for the user, one line each, about repeated, incomplete and other unusual rows."""
        if self.num_repeated:
            text = f"{self.num_repeated} of {self.num_chosen} rows repeat a problem, {len(self.found)} remain"
            if self.num_conflicting:
                text += f" ({self.num_conflicting} repeats have another answer; the first answer is used)"
            yield text
        if self.num_instructions:
            done = (
                "which is removed"
                if self._wanted.strips
                else "which is kept; choose a prompt without an instruction"
            )
            shown = (self._instruction or "")[:_MAX_SHOWN_CHARS]
            yield f"{self.num_instructions} questions contain an instruction ({shown!r}), {done}"
        for note, count in self._notes.items():
            yield f"{count} {note}"
        if self.incomplete:
            yield f"{sum(self.incomplete.values())} rows contain no problem: {self._incomplete_text()}"
        for name, count in self._reader.num_without.items():
            if "." in name or name == CLUSTER:
                yield f"{count} rows have no field for {name}"
        if not self._wanted.fields.choices:
            yield from self._unused_choices()

    def _unused_choices(self) -> Iterator[str]:
        """Yield a warning if the rows have columns of choices that the questions do not show."""
        whole = tuple(name for name in COLUMNS if self._last_row.get(name))[:1]
        if names := whole or choice_columns(self._last_row):
            columns = f"column {names[0]}" if whole else f"columns {', '.join(names)}"
            yield (
                f"no question shows the choices in the {columns}; set {self._wanted.section}.fields.choices="
                f"[{','.join(names)}] to show them with letters, which the grader multiple_choice compares"
            )

    def _columns_text(self) -> str:
        return ", ".join(repr(name) if "," in str(name) else str(name) for name in self._last_row)

    def _incomplete_text(self) -> str:
        return "; ".join(
            f"row {self._first_incomplete[reason]}{f' and {count - 1} more' if count > 1 else ''}: {reason}"
            for reason, count in self.incomplete.most_common(_MAX_LISTED)
        )


def _key(problem: Problem) -> str:
    """Return a key that is equal for problems with the same question and turns; system turns are ignored."""
    earlier = [text for role, text in problem.turns if role != "system"]
    return "\n".join(question_key(text) for text in (*earlier, problem.question))


def _is_among(value: object, allowed: tuple[object, ...]) -> bool:
    # In CSV, numbers are text.
    return value in allowed or str(value) in map(str, allowed)


def _check_count(place: str, what: str, found: int, expected: int | None) -> None:
    if expected is not None and found != expected:
        raise DataError(
            f"{place} must have {expected} {what}, got {found}, so the data changed since the "
            f"configuration was written; pin revision, or set expected_num_{what.split()[-1]}=null to "
            "accept them"
        )


def _shown_where(where: Mapping[str, tuple[object, ...]]) -> str:
    return " and ".join(f"{path} in {list(allowed)}" for path, allowed in where.items())

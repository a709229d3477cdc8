"""Rows to problems, with everything counted that did not become one.

Rows are chosen by `where`, questions and answers found by field mapping, instructions taken off, repeats
dropped. What differs from what is declared (a field that no row has, another number of rows or of problems)
is an error: the same name must not stand for other data. Whether golds can be graded is not known here.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from atrium.data.fields import (
    MISSING,
    BoxReader,
    UnreadableValueError,
    answer_text,
    first_of,
    look_up,
    question_text,
    solution_answer,
)
from atrium.data.instructions import without_instruction
from atrium.data.rows import Row
from atrium.data.settings import ProblemFiles
from atrium.data.splits import question_key
from atrium.errors import DataError
from atrium.records import Problem

_MAX_LISTED = 5
_MAX_SHOWN_CHARS = 90


@dataclass(slots=True)
class _Found:
    """A problem in the making."""

    question: str
    answer: str
    problem_id: str | None
    metadata: dict[str, str]


class Reading:
    """Takes rows in, one by one, and keeps the distinct problems and all counts."""

    def __init__(self, wanted: ProblemFiles, read_box: BoxReader) -> None:
        self._wanted = wanted
        self._read_box = read_box
        self.found: dict[str, _Found] = {}
        self.num_rows = self.num_chosen = self.num_repeated = self.num_instructions = 0
        self.num_conflicting = 0
        self.incomplete: Counter[str] = Counter()
        self._first_incomplete: dict[str, int] = {}
        self._num_without: Counter[str] = Counter()
        self._raw_seen: dict[object, str] = {}
        self._instruction: str | None = None
        self._last_row: Row = {}

    def add(self, row: Row) -> None:
        """Take in the next row."""
        self.num_rows += 1
        self._last_row = row
        if not all(_is_among(look_up(row, path), allowed) for path, allowed in self._wanted.allowed.items()):
            return
        self.num_chosen += 1
        try:
            raw = self._value(row, "question")
            text = question_text(raw)
            # Rows that repeat a question 100 times are many; a look at the text is enough for those.
            key = self._raw_seen.get(text)
            answer = self._answer(row)
            if key is None:
                question = self._question(text)
                key = self._raw_seen[text] = question_key(question)
                if key not in self.found:
                    self.found[key] = _Found(question, answer, self._problem_id(row), self._metadata(row))
                    return
            self.num_repeated += 1
            self.num_conflicting += self.found[key].answer != answer
        except UnreadableValueError as error:
            self.incomplete[str(error)] += 1
            self._first_incomplete.setdefault(str(error), self.num_rows)

    def _value(self, row: Row, name: str) -> object:
        value = first_of(row, getattr(self._wanted.fields, name))
        if value is MISSING:
            self._num_without[name] += 1
            raise UnreadableValueError(f"no field for the {name}")
        return value

    def _answer(self, row: Row) -> str:
        fields = self._wanted.fields
        value = first_of(row, fields.answer)
        if value is not MISSING and value is not None:
            return answer_text(value, self._read_box)
        solution = first_of(row, fields.solution)
        if solution is not MISSING:
            return solution_answer(solution, self._read_box)
        if value is MISSING:
            self._num_without["answer"] += 1
        raise UnreadableValueError("no answer")

    def _question(self, text: str) -> str:
        question, instruction = without_instruction(text)
        if instruction is None:
            return text
        self.num_instructions += 1
        self._instruction = self._instruction or instruction
        return question if self._wanted.strips else text

    def _problem_id(self, row: Row) -> str | None:
        value = first_of(row, self._wanted.fields.problem_id)
        return str(value) if isinstance(value, str | int) else None

    def _metadata(self, row: Row) -> dict[str, str]:
        values = {}
        for name, path in self._wanted.fields.metadata.items():
            value = look_up(row, path)
            if value is MISSING:
                self._num_without[f"metadata.{name}"] += 1
            elif value is not None:
                values[name] = str(value)
        return values

    def check(self, names: Sequence[str]) -> None:
        """Raise `DataError` where the data are not what is declared."""
        wanted = self._wanted
        place = (
            f"'{wanted.name}' ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''} of {wanted.source})"
        )
        if not self.num_rows:
            raise DataError(f"{place} has no rows")
        _check_count(place, "rows", self.num_rows, wanted.expected_num_rows)
        if not self.num_chosen:
            raise DataError(f"{place}: none of {self.num_rows} rows has {_shown_where(wanted.allowed)}")
        for name in ("question", "answer"):
            if self._num_without[name] == self.num_chosen:
                paths = ", ".join(
                    (*getattr(wanted.fields, name), *(wanted.fields.solution if name == "answer" else ()))
                )
                raise DataError(
                    f"{place}: no row has a field for the {name}: looked for {paths or 'nothing'}; a row has "
                    f"{', '.join(map(str, self._last_row))}; set fields.{name}=FIELD"
                )
        if not self.found:
            raise DataError(f"{place}: no row gives a problem: {self._incomplete_text()}")
        _check_count(place, "distinct problems", len(self.found), wanted.expected_num_problems)

    def problems(self) -> tuple[Problem, ...]:
        """The problems; one without a name of its own is named by its question."""
        names = [found.problem_id for found in self.found.values()]
        has_names = len(set(names)) == len(names) and None not in names
        return tuple(
            Problem(
                problem_id=found.problem_id
                if has_names and found.problem_id
                else f"{self._wanted.name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}",
                question=found.question,
                answer=found.answer,
                metadata=found.metadata,
            )
            for key, found in self.found.items()
        )

    def warnings(self) -> Iterator[str]:
        """What a person should know, one line each."""
        if self.num_repeated:
            text = (
                f"{self.num_repeated} of {self.num_chosen} rows repeat a problem, {len(self.found)} are left"
            )
            if self.num_conflicting:
                text += f" ({self.num_conflicting} repeats have another answer, the first one counts)"
            yield text
        if self.num_instructions:
            done = "taken off" if self._wanted.strips else "kept, so choose a prompt without one"
            shown = (self._instruction or "")[:_MAX_SHOWN_CHARS]
            yield f"{self.num_instructions} questions carry an instruction ({shown!r}), {done}"
        if self.incomplete:
            yield f"{sum(self.incomplete.values())} rows give no problem: {self._incomplete_text()}"
        for name, count in self._num_without.items():
            if name.startswith("metadata."):
                yield f"{count} rows have no field for {name}"

    def _incomplete_text(self) -> str:
        return "; ".join(
            f"{reason} (row {self._first_incomplete[reason]}{f' and {count - 1} more' if count > 1 else ''})"
            for reason, count in self.incomplete.most_common(_MAX_LISTED)
        )


def _is_among(value: object, allowed: tuple[object, ...]) -> bool:
    # In CSV, numbers are text.
    return value in allowed or str(value) in map(str, allowed)


def _check_count(place: str, what: str, found: int, expected: int | None) -> None:
    if expected is not None and found != expected:
        raise DataError(
            f"{place}: {found} {what}, {expected} are expected: these are other data than the configuration "
            f"was written for; pin revision, or set expected_num_{what.split()[-1]}=null to take them"
        )


def _shown_where(where: Mapping[str, tuple[object, ...]]) -> str:
    return " and ".join(f"{path} in {list(allowed)}" for path, allowed in where.items())

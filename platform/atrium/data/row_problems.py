"""Conversion of one row to one problem: its question, reference answer, choices, and verifier values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from atrium.base.records import CLUSTER, Problem
from atrium.base.rows import Row
from atrium.data.choices import Choices, choices_of
from atrium.data.conversations import Asked, asked
from atrium.data.fields import (
    MISSING,
    BoxReader,
    UnreadableValueError,
    answer_text,
    first_of,
    look_up,
    solution_answer,
)
from atrium.data.instructions import without_instruction
from atrium.data.settings import ProblemFiles

_SYSTEM = {
    "keep": "prompts have a system turn, which precedes that of model.prompt",
    "drop": "prompts have a system turn, which is dropped",
}
_EARLIER = "questions follow earlier turns, which remain before them"
_SOLUTION = "message lists end with a turn of the assistant, which is not part of the prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProblem:
    """The problem in a row; its `problem_id` is empty if the row has no id that is text or an integer.

    `raw` is equal for rows with the same question and the same earlier turns; system turns are ignored.
    `instruction` is the instruction found in the question, or None. `notes` tell the user what is unusual
    about the row's prompt. The caller counts the rows with each note; rows with equal `raw` count once.
    """

    raw: object
    problem: Problem
    instruction: str | None
    notes: tuple[str, ...]


class RowReader:
    """A reader of rows that applies a field mapping and counts the rows without a mapped field.

    `num_without` maps the name of a field in the mapping, such as `answer` or `metadata.level`, to the number
    of rows without this field.
    """

    def __init__(self, wanted: ProblemFiles, read_box: BoxReader) -> None:
        self._wanted = wanted
        self._read_box = read_box
        self.num_without: Counter[str] = Counter()
        self._without_instruction = lru_cache(maxsize=100_000)(without_instruction)

    def read(self, row: Row) -> RowProblem:
        """Return the problem in a row. Raises `UnreadableValueError` if the row contains no problem."""
        wanted = self._wanted
        prompt = self._prompt(row)
        question, instruction = self._without_instruction(prompt.question)
        shown = question if wanted.strips and instruction else prompt.question
        choices = self._choices(row)
        if choices is None:
            answer = self._answer(row, prompt)
        else:
            answer = choices.text_of(self._answer_value(row, prompt))
            choices = choices.shuffled(shown) if wanted.choice_order == "shuffled" else choices
            answer, shown = choices.letter_of(answer), f"{shown}\n\n{choices.shown()}"
        notes = (
            (_SYSTEM[wanted.system], prompt.system is not None),
            (_EARLIER, bool(prompt.earlier)),
            (_SOLUTION, prompt.solution is not None),
        )
        problem_id = first_of(row, wanted.fields.problem_id)
        problem = Problem(
            problem_id=str(problem_id) if isinstance(problem_id, str | int) else "",
            question=shown,
            answer=answer,
            turns=prompt.turns if wanted.system == "keep" else prompt.earlier,
            metadata=self._metadata(row),
            verifier=self._verifier(row),
        )
        return RowProblem(
            raw=(shown, prompt.earlier),
            problem=problem,
            instruction=instruction,
            notes=tuple(note for note, holds in notes if holds),
        )

    def _prompt(self, row: Row) -> Asked:
        prompt = asked(self._value(row, "question"))
        system = first_of(row, self._wanted.fields.system)
        if prompt.system is None and isinstance(system, str) and system.strip():
            prompt = replace(prompt, turns=(("system", system.strip()), *prompt.turns))
        return prompt

    def _value(self, row: Row, name: str) -> object:
        value = first_of(row, getattr(self._wanted.fields, name))
        if value is MISSING:
            self.num_without[name] += 1
            raise UnreadableValueError(f"the row has no field for the {name}")
        return value

    def _choices(self, row: Row) -> Choices | None:
        paths = self._wanted.fields.choices
        if not paths:
            return None
        by_path = {path: look_up(row, path) for path in paths}
        found = {path: value for path, value in by_path.items() if value is not MISSING}
        if not found:
            self.num_without["choices"] += 1
            raise UnreadableValueError("the row has no field for the choices")
        whole = [value for value in found.values() if isinstance(value, list | Mapping)]
        # A reference that is a number counts the columns from 0 (COPA); text is a label (WinoGrande).
        is_named = isinstance(first_of(row, self._wanted.fields.answer), str)
        return choices_of(whole[:1] or list(found.values()), list(found) if is_named else ())

    def _answer_value(self, row: Row, prompt: Asked) -> object:
        """Return the value of the answer field. If the row has none, return the answer in its solution.

        The solution is the value of the solution field or, without one, the trailing turn of the assistant.
        """
        fields = self._wanted.fields
        value = first_of(row, fields.answer)
        if value is not MISSING and value is not None:
            return value
        solution = first_of(row, fields.solution)
        if solution is MISSING or solution is None:
            solution = prompt.solution if prompt.solution is not None else solution
        if solution is not MISSING:
            return solution_answer(solution, self._read_box)
        if value is MISSING:
            self.num_without["answer"] += 1
        raise UnreadableValueError("the answer is missing")

    def _answer(self, row: Row, prompt: Asked) -> str:
        if not self._wanted.fields.verifier:
            value = self._answer_value(row, prompt)
            try:
                return answer_text(value, self._read_box)
            except UnreadableValueError as error:
                raise self._with_remedy(error, row, value) from error
        # The verifier interprets the reference: it may be JSON, and it may be missing.
        value = first_of(row, self._wanted.fields.answer)
        if isinstance(value, list | Mapping):
            return json.dumps(value, ensure_ascii=False)
        if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
            return value
        return "" if value is MISSING or value is None else answer_text(value, self._read_box)

    def _with_remedy(self, error: UnreadableValueError, row: Row, value: object) -> UnreadableValueError:
        """Return the error with advice on settings that can read an answer with several parts.

        The error is returned unchanged if its `part` is empty, or if `value` does not come from an answer
        field.
        """
        path = next((path for path in self._wanted.fields.answer if look_up(row, path) is value), None)
        if path is None or not error.part:
            return error
        fields = f"{self._wanted.section}.fields"
        return UnreadableValueError(
            f"{error}: set {fields}.answer={path}{error.part} to compare with one part, or "
            f"{fields}.verifier={path} to pass all of it to your own grader"
        )

    def _metadata(self, row: Row) -> dict[str, str]:
        found = self._named(row, "metadata")
        if self._wanted.fields.cluster:
            found[CLUSTER] = first_of(row, self._wanted.fields.cluster)
            if found[CLUSTER] is MISSING:
                self.num_without[CLUSTER] += 1
                del found[CLUSTER]
        return {name: str(value) for name, value in found.items() if value is not None}

    def _verifier(self, row: Row) -> dict[str, Any]:
        found = self._named(row, "verifier")
        for name, value in found.items():
            try:
                json.dumps(value)
            except (TypeError, ValueError) as error:
                kind = type(value).__name__
                raise UnreadableValueError(
                    f"verifier.{name} has the type {kind}, which JSON cannot represent"
                ) from error
        return found

    def _named(self, row: Row, group: str) -> dict[str, Any]:
        """Return the values of the fields in `group` (`metadata` or `verifier`), by name.

        Fields that the row lacks are left out of the result and counted in `num_without`.
        """
        values = {}
        for name, path in getattr(self._wanted.fields, group).items():
            value = look_up(row, path)
            if value is MISSING:
                self.num_without[f"{group}.{name}"] += 1
            else:
                values[name] = value
        return values

"""Settings of problems: the built-in task, and problem sets on the Hub or in files.

This module does not import torch. The training set and benchmarks share the names of their settings, so a
benchmark's YAML file shows how to train on similar data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from atrium.base.errors import ConfigError
from atrium.base.section import Count, FolderName, Section, Seed, Text
from atrium.data.choices import COLUMNS
from atrium.data.fields import steps_of

ProblemCount = Annotated[int, Field(ge=1, le=1_000_000)]


class ArithmeticSettings(Section):
    """The built-in task: chained sums of one-digit numbers; a problem's level is its number of operands."""

    min_operands: Annotated[int, Field(ge=2, le=1000)] = 2
    """Number of operands of the easiest problems."""
    max_operands: Annotated[int, Field(ge=2, le=1000)] = 7
    """Number of operands of the hardest problems."""
    num_train: ProblemCount = 20_000
    """Number of training problems."""
    num_validation: ProblemCount = 192
    """Number of held-out problems on which the best checkpoint is chosen."""
    num_test: ProblemCount = 192
    """Number of held-out problems on which results are reported."""
    seed: Seed = 0
    """Random seed of the problems; it does not depend on the run's seed."""

    def check(self) -> None:
        """Raise `ConfigError` if `min_operands` is greater than `max_operands`."""
        if self.min_operands > self.max_operands:
            raise ConfigError(
                f"dataset.min_operands must be at most dataset.max_operands={self.max_operands}, got "
                f"{self.min_operands}; lower it"
            )


def _as_paths(value: object) -> object:
    # Values set in code are not parsed as JSON, in which a list is accepted for a tuple.
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _as_named_paths(value: object) -> object:
    # A single path or a list of paths has no names; the name of each value is then its path.
    if isinstance(value, str):
        return {value: value}
    return {str(path): path for path in value} if isinstance(value, list) else value


FieldPaths = Annotated[tuple[Text, ...], BeforeValidator(_as_paths)]
"""Paths of a value in a row, such as `problem` or `extra_info.index`; the first one that exists is used."""
NamedPaths = Annotated[dict[str, Text], BeforeValidator(_as_named_paths)]
"""Paths by name; a path without a name, or each path of a list, is its own name."""

Scalar = str | int | float | bool


class Fields(Section):
    """The mapping from the fields of a row to their meaning.

    A field for the answer or the solution is required, unless the message lists in the question field end
    with a solution, or `verifier` names fields by which the grader judges answers.
    """

    question: Annotated[FieldPaths, Field(min_length=1)]
    """Field with the problem's text, or with a message list whose last user turn is the problem."""
    answer: FieldPaths = ()
    """Field with the reference answer: text, a number, a list with one element, or text with `####` or a
    box. Not needed with `solution`."""
    solution: FieldPaths = ()
    """Field with a worked solution. Without a value in `answer`, the reference answer is the solution's last
    box, its text after `####`, or the solution itself if it is a bare expression."""
    system: FieldPaths = ()
    """Field with the text of the system turn, if it is not part of a message list."""
    choices: FieldPaths = ()
    """Field with the choices of a multiple-choice question, or several fields with one choice each. The
    question shows them with letters, and the reference becomes a letter. Empty: choices are not shown."""
    problem_id: FieldPaths = ()
    """Field with the problem's id; without this field, ids are derived from the questions."""
    metadata: dict[str, Text] = Field(default_factory=dict)
    """Fields, by name, by which results are broken down, such as level and subject."""
    cluster: FieldPaths = ()
    """Field with the contest, source, template or paraphrase that problems share: comparisons treat the
    problems of one cluster as dependent. Do not use a subject, since subjects recur in every competition."""
    verifier: NamedPaths = Field(default_factory=dict)
    """Fields, by name, that only the grader receives, unchanged: for example a tolerance, or the tests of a
    puzzle. With such fields, a reference answer in JSON is kept as text, and may be missing."""

    @property
    def columns(self) -> frozenset[str]:
        """The columns to read: all paths, their first steps, and the usual names of columns with choices."""
        named = (
            *self.metadata.values(),
            *self.cluster,
            *self.verifier.values(),
            *self.system,
            *self.choices,
            *COLUMNS,
        )
        paths = {*self.question, *self.answer, *self.solution, *self.problem_id, *named}
        return frozenset(paths | {str(steps_of(path)[0]) for path in paths if steps_of(path)})


class ProblemFiles(Section):
    """Problems on the Hub or in a file: the files to read, and their expected content."""

    section: ClassVar[str] = "dataset"
    """Section of the configuration that error messages name."""

    name: FolderName
    """Name under which results are stored."""
    source: Text
    """A dataset's Hub id (owner/name), or the path of a local file or folder."""
    revision: Text | None = None
    """Commit, tag or branch of the Hub repository; null for its newest commit, which is recorded."""
    files: tuple[Text, ...] = ()
    """Files to read in the Hub repository or folder, in this order; ignored for a single file."""
    fields: Fields
    """Mapping from a row's fields to their meaning."""
    where: dict[str, Scalar | tuple[Scalar, ...]] = Field(default_factory=dict)
    """Filter of rows: for each field, the required value or a list of accepted values."""
    expected_num_rows: Count | None = None
    """Expected number of rows in the files; null if unknown."""
    expected_num_problems: Count | None = None
    """Expected number of problems after filtering and dropping repeats; null if unknown."""
    instruction: Literal["strip", "keep"] = "strip"
    """Whether an instruction at the start or end of a question, such as `put your answer in a box`, is
    removed or kept."""
    system: Literal["keep", "drop"] = "keep"
    """Whether a row's system turn is kept, in front of the system turn of model.prompt, or dropped."""
    choice_order: Literal["given", "shuffled"] = "given"
    """Order of choices: as given in the file, or shuffled by a hash of each question, for files in which the
    correct choice is always first."""

    @property
    def strips(self) -> bool:
        """Whether instructions are removed from the questions."""
        return self.instruction == "strip"

    @property
    def allowed(self) -> Mapping[str, tuple[Scalar, ...]]:
        """The accepted values of each field in `where`, as tuples."""
        return {
            name: values if isinstance(values, tuple) else (values,) for name, values in self.where.items()
        }

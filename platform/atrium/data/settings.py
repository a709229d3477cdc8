"""Settings of problems: the built-in task, and sets on the Hub or in a file. Never torch.

What the training set and a benchmark share has the same words in both, so that a benchmark's file shows how
to train on its like.
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
    """The built-in task: chained sums of one-digit numbers; the level is the number of operands."""

    min_operands: Annotated[int, Field(ge=2, le=1000)] = 2
    """Operands of the easiest problems."""
    max_operands: Annotated[int, Field(ge=2, le=1000)] = 7
    """Operands of the hardest problems."""
    num_train: ProblemCount = 20_000
    """Problems to train on."""
    num_validation: ProblemCount = 192
    """Held-out problems that the best checkpoint is chosen on."""
    num_test: ProblemCount = 192
    """Held-out problems that results are reported on."""
    seed: Seed = 0
    """The start of the problems themselves, so that all seeds of a run share them."""

    def check(self) -> None:
        """Raise `ConfigError` where there are no levels."""
        if self.min_operands > self.max_operands:
            raise ConfigError(
                f"dataset.min_operands={self.min_operands} is above "
                f"dataset.max_operands={self.max_operands}; allowed is 2 to {self.max_operands}"
            )


def _as_paths(value: object) -> object:
    # What is given here no longer counts as JSON, where a list would do for a tuple.
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _as_named_paths(value: object) -> object:
    # A path by itself, or a list of paths, is named by what it says.
    if isinstance(value, str):
        return {value: value}
    return {str(path): path for path in value} if isinstance(value, list) else value


FieldPaths = Annotated[tuple[Text, ...], BeforeValidator(_as_paths)]
"""Where a value stands in a row, such as `problem` or `extra_info.index`; of several the first there is."""
NamedPaths = Annotated[dict[str, Text], BeforeValidator(_as_named_paths)]
"""Paths by the name that their value has here."""

Scalar = str | int | float | bool


class Fields(Section):
    """Which fields of a row hold what. An answer or a solution is needed."""

    question: Annotated[FieldPaths, Field(min_length=1)]
    """The problem's text, or a message list whose last turn of the user it is."""
    answer: FieldPaths = ()
    """The reference answer: text, a number, a list of one, or text with `####` or a box; may be empty."""
    solution: FieldPaths = ()
    """A solution; its last box, or a bare expression, is the reference where no answer field is filled."""
    system: FieldPaths = ()
    """The text of the system turn, where it is not part of a message list."""
    choices: FieldPaths = ()
    """The choices of a multiple-choice question (or several fields with one choice each), which the question
    then shows with letters; the reference becomes a letter. Empty: choices are not shown."""
    problem_id: FieldPaths = ()
    """The problem's own name; where there is none, it is made from the question."""
    metadata: dict[str, Text] = Field(default_factory=dict)
    """What results are broken down by, such as level and subject, each with its field."""
    cluster: FieldPaths = ()
    """The contest, source, template or paraphrase that problems share: comparisons count the problems of one
    as dependent. Not a subject, which recurs in the next competition."""
    verifier: NamedPaths = Field(default_factory=dict)
    """Values that the grader alone gets, unchanged, by name: a tolerance, the tests of a puzzle. With them a
    reference that is JSON stays text, and a row may do without a reference."""

    @property
    def columns(self) -> frozenset[str]:
        """The fields at the top of a row that the paths begin with, and the paths themselves."""
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
    """Problems on the Hub or in a file: what is read, and what is expected of it."""

    section: ClassVar[str] = "dataset"
    """The section of the configuration that error messages name."""

    name: FolderName
    """The name that results are filed under."""
    source: Text
    """A dataset's Hub id (owner/name), or the path of a local file or folder."""
    revision: Text | None = None
    """Commit, tag or branch of the Hub repository; null for its newest state, which is recorded."""
    files: tuple[Text, ...] = ()
    """Files to read below the Hub repository or the folder, in this order; not used for a single file."""
    fields: Fields
    """Which fields of a row hold what."""
    where: dict[str, Scalar | tuple[Scalar, ...]] = Field(default_factory=dict)
    """Rows that are read: fields with the value, or one of the values, that they must have."""
    expected_num_rows: Count | None = None
    """Rows that the files must hold; null where it is not known."""
    expected_num_problems: Count | None = None
    """Problems that must be left once rows are chosen and repeats dropped; null where it is not known."""
    instruction: Literal["strip", "keep"] = "strip"
    """What happens to an instruction such as `put your answer in a box` that a question ends with."""
    system: Literal["keep", "drop"] = "keep"
    """What happens to a system turn of a row: it precedes that of model.prompt, or it is left out."""
    choice_order: Literal["given", "shuffled"] = "given"
    """The order of choices: as the file has them, or shuffled by a hash of each question, for files that have
    the correct one first."""

    @property
    def strips(self) -> bool:
        """Whether an instruction is taken off."""
        return self.instruction == "strip"

    @property
    def allowed(self) -> Mapping[str, tuple[Scalar, ...]]:
        """The values that a row may have, by field."""
        return {
            name: values if isinstance(values, tuple) else (values,) for name, values in self.where.items()
        }

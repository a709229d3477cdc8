"""Settings of problems: the built-in task, and sets on the Hub or in a file. Never torch.

The training set and a benchmark use the same names for shared settings, so a benchmark's file shows how to
train on similar data.
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
        """Raise `ConfigError` if there are no levels."""
        if self.min_operands > self.max_operands:
            raise ConfigError(
                f"dataset.min_operands={self.min_operands} is above "
                f"dataset.max_operands={self.max_operands}; use 2 to {self.max_operands}"
            )


def _as_paths(value: object) -> object:
    # Defaults given here do not pass through JSON, where a list may stand for a tuple.
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _as_named_paths(value: object) -> object:
    # A path alone, or a list of paths, is named by its own text.
    if isinstance(value, str):
        return {value: value}
    return {str(path): path for path in value} if isinstance(value, list) else value


FieldPaths = Annotated[tuple[Text, ...], BeforeValidator(_as_paths)]
"""Paths of a value in a row, such as `problem` or `extra_info.index`; the first one that exists is used."""
NamedPaths = Annotated[dict[str, Text], BeforeValidator(_as_named_paths)]
"""Paths, by the name of their value."""

Scalar = str | int | float | bool


class Fields(Section):
    """The mapping from a row's fields to their meaning. An answer or a solution is required."""

    question: Annotated[FieldPaths, Field(min_length=1)]
    """Field with the problem's text, or with a message list whose last user turn is the problem."""
    answer: FieldPaths = ()
    """Field with the reference answer: text, a number, a list of one, or text with `####` or a box; may be
    empty."""
    solution: FieldPaths = ()
    """Field with a solution; its last box, or a bare expression, is the reference if no answer field is
    filled."""
    system: FieldPaths = ()
    """Field with the text of the system turn, if it is not part of a message list."""
    choices: FieldPaths = ()
    """Field with the choices of a multiple-choice question, or several fields with one choice each. The
    question shows them with letters, and the reference becomes a letter. Empty: choices are not shown."""
    problem_id: FieldPaths = ()
    """Field with the problem's id; if there is none, the id is derived from the question."""
    metadata: dict[str, Text] = Field(default_factory=dict)
    """Fields by which results are broken down, such as level and subject, by name."""
    cluster: FieldPaths = ()
    """Field with the contest, source, template or paraphrase that problems share: comparisons treat the
    problems of one cluster as dependent. Not a subject, which recurs in the next competition."""
    verifier: NamedPaths = Field(default_factory=dict)
    """Fields that only the grader receives, unchanged, by name: a tolerance, the tests of a puzzle. With them
    a reference that is JSON stays text, and a row may have no reference."""

    @property
    def columns(self) -> frozenset[str]:
        """Return the top-level fields that the paths begin with, and the paths themselves."""
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
    """Filter of rows: fields with the value, or list of values, that they must have."""
    expected_num_rows: Count | None = None
    """Expected number of rows in the files; null if unknown."""
    expected_num_problems: Count | None = None
    """Expected number of problems after filtering and dropping repeats; null if unknown."""
    instruction: Literal["strip", "keep"] = "strip"
    """Whether an instruction at the end of a question, such as `put your answer in a box`, is removed or
    kept."""
    system: Literal["keep", "drop"] = "keep"
    """Whether a row's system turn is kept, before that of model.prompt, or dropped."""
    choice_order: Literal["given", "shuffled"] = "given"
    """Order of choices: as given in the file, or shuffled by a hash of each question, for files in which the
    correct choice is always first."""

    @property
    def strips(self) -> bool:
        """Whether instructions are removed."""
        return self.instruction == "strip"

    @property
    def allowed(self) -> Mapping[str, tuple[Scalar, ...]]:
        """The allowed values of a row, by field."""
        return {
            name: values if isinstance(values, tuple) else (values,) for name, values in self.where.items()
        }

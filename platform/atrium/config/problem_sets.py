"""Settings of problem sets that lie on the Hub or in a file: where they are, and how a row is read.

What the training set and a benchmark share. The same words serve both, so that a benchmark's file shows
how to train on its like.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from atrium.section import Count, FolderName, Positive, Section, Text


def _as_paths(value: object) -> object:
    # What is given here no longer counts as JSON, where a list would do for a tuple.
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


FieldPaths = Annotated[tuple[Text, ...], BeforeValidator(_as_paths)]
"""Where a value stands in a row, such as `problem` or `prompt[0].content`; of several the first there is."""

Scalar = str | int | float | bool


class FieldsConfig(Section):
    """Which fields of a row hold what."""

    question: Annotated[FieldPaths, Field(min_length=1)]
    """The problem's text."""
    answer: FieldPaths
    """The gold answer: text, a number, a list of one, or text with `####` or a box; may be empty."""
    solution: FieldPaths
    """A worked solution; its last box is the gold answer where no answer field is given or filled."""
    problem_id: FieldPaths
    """The problem's own name; where there is none, it is made from the question."""
    metadata: dict[str, Text]
    """What results are broken down by, such as level and subject, each with its field."""


class ProblemSetConfig(Section):
    """Problems from the Hub or from a file, and what is expected of them."""

    kind: Literal["problems"]
    """Which kind this is."""
    name: FolderName
    """The name that results are filed under."""
    source: Text
    """A dataset's Hub id (owner/name), or the path of a local file or folder."""
    revision: Text | None
    """Commit, tag or branch of the Hub repository; null for its newest state, which is recorded."""
    files: tuple[Text, ...]
    """Files to read below the Hub repository or the folder, in this order; not used for a single file."""
    fields: FieldsConfig
    """Which fields of a row hold what."""
    where: dict[str, Scalar | tuple[Scalar, ...]]
    """Rows that are read: fields with the value, or one of the values, that they must have."""
    expected_num_rows: Count | None
    """Rows that the files must hold; null where it is not known."""
    expected_num_problems: Count | None
    """Problems that must be left once rows are chosen and repeats dropped; null where it is not known."""
    instruction: Literal["strip", "keep"]
    """What happens to an instruction such as `put your answer in a box` that a question ends with."""
    unreadable: Literal["drop", "keep", "error"]
    """What happens to problems whose gold answer the grader does not find equal to itself."""


class MathComparisonConfig(Section):
    """Mathematical equality."""

    kind: Literal["math"]
    """Which kind of comparison this is."""


class ExactComparisonConfig(Section):
    """Equality of the texts."""

    kind: Literal["exact"]
    """Which kind of comparison this is."""


class NumericComparisonConfig(Section):
    """Equality of two numbers within a tolerance."""

    kind: Literal["numeric"]
    """Which kind of comparison this is."""
    relative_tolerance: Annotated[Positive, Field(lt=1.0)]
    """The largest difference, relative to the larger number."""


class MultipleChoiceComparisonConfig(Section):
    """Equality of the letters chosen."""

    kind: Literal["multiple_choice"]
    """Which kind of comparison this is."""


ComparisonConfig = Annotated[
    MathComparisonConfig | ExactComparisonConfig | NumericComparisonConfig | MultipleChoiceComparisonConfig,
    Field(discriminator="kind"),
]

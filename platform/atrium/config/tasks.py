"""Settings of the task: the groups `dataset`, `benchmark`, `grader` and `reward`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from atrium.base.section import Count, CountOrZero, Day, FolderName, Section, Seed
from atrium.data.contamination import Contamination
from atrium.data.settings import ArithmeticSettings, ProblemFiles, Scalar
from atrium.grading.procedural import ReasoningGymVerifier
from atrium.grading.verifiers import MultipleChoiceVerifier, Verifier


class ArithmeticDatasetConfig(ArithmeticSettings):
    """The built-in task: chained sums of one-digit numbers. A problem's level is its number of operands."""

    kind: Literal["arithmetic"]
    """Kind of dataset."""


class ProblemSetConfig(ProblemFiles):
    """A set of problems from the Hub or a file, with the expected number and format."""

    kind: Literal["problems"]
    """Kind of problem set."""
    unreadable: Literal["drop", "keep", "error"]
    """Reaction to problems whose reference answer the grader cannot read: the same answer in another notation
    would be graded as wrong."""


class ProblemsDatasetConfig(ProblemSetConfig):
    """Problems from the Hub or a file, split into disjoint parts by a keyed hash of each question."""

    num_train: Count | None
    """Number of training problems; null for all remaining problems."""
    num_validation: Count
    """Number of held-out problems on which the best checkpoint is chosen."""
    num_test: CountOrZero
    """Number of held-out problems for benchmark=held_out, or 0 if other benchmarks are used."""
    seed: Seed
    """Random seed of the split, independent of the run's seed."""
    require_stop: bool
    """Whether a held-out answer that was cut off counts as wrong even if it is correct."""
    contamination: Contamination
    """Handling of training problems that also appear in a benchmark of the run."""


class ReasoningGymDatasetConfig(Section):
    """Generated problems of the package reasoning-gym, scored by the task's own scorer."""

    kind: Literal["reasoning_gym"]
    """Kind of dataset."""
    task: FolderName
    """Name of the task in the package, such as countdown."""
    difficulty: CountOrZero | None = None
    """Level of the task's curriculum, starting at 0; null for the generator's default settings."""
    options: dict[str, Scalar | tuple[Scalar, ...]] = Field(default_factory=dict)
    """Settings of the generator, by their name in the package; they override the difficulty."""
    num_train: Count = 2_000
    """Number of training problems."""
    num_validation: Count = 100
    """Number of held-out problems on which the best checkpoint is chosen."""
    num_test: CountOrZero = 100
    """Number of held-out problems for benchmark=held_out."""
    seed: Seed = 0
    """Random seed of the problems, independent of the run's seed."""
    require_stop: bool = True
    """Whether a held-out answer that was cut off counts as wrong even if it is correct."""

    @property
    def name(self) -> str:
        """The name under which results on this dataset are stored."""
        return self.task

    @staticmethod
    def fits(grader: Verifier) -> bool:
        """Return whether the grader uses the scorers of the reasoning-gym tasks."""
        return isinstance(grader, ReasoningGymVerifier)


DatasetConfig = Annotated[
    ArithmeticDatasetConfig | ProblemsDatasetConfig | ReasoningGymDatasetConfig, Field(discriminator="kind")
]


class ArithmeticBenchmarkConfig(Section):
    """The test problems of the arithmetic dataset."""

    kind: Literal["arithmetic"]
    """Kind of benchmark."""


class HeldOutBenchmarkConfig(Section):
    """The test problems that the training dataset holds out."""

    kind: Literal["held_out"]
    """Kind of benchmark."""


class ProblemsBenchmarkConfig(ProblemSetConfig):
    """A published set of problems, or a user's file."""

    section: ClassVar[str] = "benchmark"
    published: Day | None = None
    """First day on which the problems were public, YYYY-MM-DD; shown next to the model's release date."""
    num_problems: Count | None
    """Number of problems to use, from the start of the set; null for all, as comparable results require."""
    grader: Verifier | None
    """Grader for this benchmark; null for the run's grader."""
    require_stop: bool
    """Whether an answer that was cut off at the length limit counts as wrong even if it is correct."""

    @property
    def verifier(self) -> Verifier | None:
        """The benchmark's own grader, or None to use the run's grader.

        If `grader` is null and the problems have choices, this is the grader `multiple_choice`.
        """
        if self.grader is None and self.fields.choices:
            return MultipleChoiceVerifier()
        return self.grader


class SuiteBenchmarkConfig(Section):
    """Several benchmarks, each with its own results."""

    kind: Literal["suite"]
    """Kind of benchmark."""
    name: FolderName
    """Name of the suite in results."""
    members: Annotated[dict[str, ProblemsBenchmarkConfig], Field(min_length=1)]
    """Benchmarks of the suite, each with its own settings."""


BenchmarkConfig = Annotated[
    ArithmeticBenchmarkConfig | HeldOutBenchmarkConfig | ProblemsBenchmarkConfig | SuiteBenchmarkConfig,
    Field(discriminator="kind"),
]

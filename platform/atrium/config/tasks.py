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
    """The built-in task: chained sums of one-digit numbers; the level is the number of operands."""

    kind: Literal["arithmetic"]
    """Which kind of dataset this is."""


class ProblemSetConfig(ProblemFiles):
    """Problems from the Hub or from a file, and what is expected of them."""

    kind: Literal["problems"]
    """Which kind this is."""
    unreadable: Literal["drop", "keep", "error"]
    """What happens to problems whose gold does not equal the same answer written in another way."""


class ProblemsDatasetConfig(ProblemSetConfig):
    """Problems from the Hub or a file, split into disjoint parts by a keyed hash of each question."""

    num_train: Count | None
    """Problems to train on; null for all that are left."""
    num_validation: Count
    """Held-out problems that the best checkpoint is chosen on."""
    num_test: CountOrZero
    """Held-out problems for benchmark=held_out; 0 where other benchmarks judge."""
    seed: Seed
    """The key of the split, so that all seeds of a run share it."""
    require_stop: bool
    """Whether a held-out answer that was cut off counts as wrong whatever it says."""
    contamination: Contamination
    """Which problems are not trained on because a benchmark of the run has them too."""


class ReasoningGymDatasetConfig(Section):
    """Problems that a generator of the package reasoning-gym makes, scored by the task's own scorer."""

    kind: Literal["reasoning_gym"]
    """Which kind of dataset this is."""
    task: FolderName
    """The task's name in the package, such as countdown."""
    difficulty: CountOrZero | None = None
    """A level of the task's curriculum, from 0 on; null for the generator's default settings."""
    options: dict[str, Scalar | tuple[Scalar, ...]] = Field(default_factory=dict)
    """Settings of the generator, by their name in the package; they win over the difficulty."""
    num_train: Count = 2_000
    """Problems to train on."""
    num_validation: Count = 100
    """Held-out problems for choosing the best checkpoint."""
    num_test: CountOrZero = 100
    """Held-out problems for benchmark=held_out."""
    seed: Seed = 0
    """The key of the problems; all seeds of a run share them."""
    require_stop: bool = True
    """Whether a held-out answer that was cut off counts as wrong whatever it says."""

    @property
    def name(self) -> str:
        """The name that results are filed under."""
        return self.task

    @staticmethod
    def fits(grader: Verifier) -> bool:
        """Whether a grader calls the scorers of the tasks."""
        return isinstance(grader, ReasoningGymVerifier)


DatasetConfig = Annotated[
    ArithmeticDatasetConfig | ProblemsDatasetConfig | ReasoningGymDatasetConfig, Field(discriminator="kind")
]


class ArithmeticBenchmarkConfig(Section):
    """The test problems of the arithmetic dataset."""

    kind: Literal["arithmetic"]
    """Which kind of benchmark this is."""


class HeldOutBenchmarkConfig(Section):
    """The test problems that the training set itself holds out."""

    kind: Literal["held_out"]
    """Which kind of benchmark this is."""


class ProblemsBenchmarkConfig(ProblemSetConfig):
    """A published set of problems, or a file of one's own."""

    section: ClassVar[str] = "benchmark"
    published: Day | None = None
    """The first day on which the problems were public, YYYY-MM-DD; shown beside the model's release."""
    num_problems: Count | None
    """How many of the problems, from the first on; null for all, and for results that compare."""
    grader: Verifier | None
    """How answers are compared with golds here; null for the run's grader."""
    require_stop: bool
    """Whether an answer that was cut off at the length limit counts as wrong whatever it says."""

    @property
    def verifier(self) -> Verifier | None:
        """The grader, which is multiple_choice where choices are shown; None for the run's grader."""
        if self.grader is None and self.fields.choices:
            return MultipleChoiceVerifier()
        return self.grader


class SuiteBenchmarkConfig(Section):
    """Several benchmarks, each with results of its own."""

    kind: Literal["suite"]
    """Which kind of benchmark this is."""
    name: FolderName
    """The name of the suite in results."""
    members: Annotated[dict[str, ProblemsBenchmarkConfig], Field(min_length=1)]
    """The benchmarks of the suite, each with its own settings."""


BenchmarkConfig = Annotated[
    ArithmeticBenchmarkConfig | HeldOutBenchmarkConfig | ProblemsBenchmarkConfig | SuiteBenchmarkConfig,
    Field(discriminator="kind"),
]

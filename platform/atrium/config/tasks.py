"""Settings of the task: the groups `dataset`, `benchmark`, `grader` and `reward`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atrium.data.contamination import Contamination
from atrium.data.settings import ArithmeticSettings, ProblemFiles
from atrium.grading.verifiers import MultipleChoiceVerifier, Verifier
from atrium.section import Count, CountOrZero, FolderName, Section, Seed


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


DatasetConfig = Annotated[ArithmeticDatasetConfig | ProblemsDatasetConfig, Field(discriminator="kind")]


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
    """The suite's name."""
    members: Annotated[dict[str, ProblemsBenchmarkConfig], Field(min_length=1)]
    """Its benchmarks."""


BenchmarkConfig = Annotated[
    ArithmeticBenchmarkConfig | HeldOutBenchmarkConfig | ProblemsBenchmarkConfig | SuiteBenchmarkConfig,
    Field(discriminator="kind"),
]

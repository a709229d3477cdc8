"""Settings of the task: the groups `dataset`, `benchmark`, `grader` and `reward`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atrium.config.problem_sets import ComparisonConfig, ProblemSetConfig
from atrium.section import Count, CountOrZero, FolderName, Positive, Section, Seed, Wait


class ArithmeticDatasetConfig(Section):
    """The built-in task: chained sums of one-digit numbers; the level is the number of operands."""

    kind: Literal["arithmetic"]
    """Which kind of dataset this is."""
    min_operands: Annotated[int, Field(ge=2)]
    """Operands of the easiest problems."""
    max_operands: Annotated[int, Field(ge=2)]
    """Operands of the hardest problems."""
    num_train: Count
    """Problems to train on."""
    num_validation: Count
    """Held-out problems that the best checkpoint is chosen on."""
    num_test: Count
    """Held-out problems that results are reported on."""
    seed: Seed
    """The start of the problems themselves, so that all seeds of a run share them."""


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
    grader: ComparisonConfig | None
    """How answers are compared with golds here; null for the run's grader."""
    require_stop: bool
    """Whether an answer that was cut off at the length limit counts as wrong whatever it says."""


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


class GraderPoolConfig(Section):
    """What all graders share: answers that need more than comparing text go to killable processes."""

    num_workers: Count
    """Worker processes; they start only when an answer needs more than comparing text."""
    timeout_s: Wait
    """Seconds after which a worker is killed and the verdict is that it timed out."""
    memory_limit_mb: Annotated[int, Field(ge=256)]
    """Address space of one worker, in megabytes."""


class MathGraderConfig(GraderPoolConfig):
    """The last boxed answer against the gold answer, symbolically."""

    kind: Literal["math"]
    """Which kind of grader this is."""


class ExactGraderConfig(GraderPoolConfig):
    """The last boxed answer against the gold answer, as text."""

    kind: Literal["exact"]
    """Which kind of grader this is."""


class NumericGraderConfig(GraderPoolConfig):
    """The last boxed answer against the gold answer, as numbers."""

    kind: Literal["numeric"]
    """Which kind of grader this is."""
    relative_tolerance: Annotated[Positive, Field(lt=1.0)]
    """The largest difference, relative to the larger number."""


class MultipleChoiceGraderConfig(GraderPoolConfig):
    """The letters in the last boxed answer against those of the gold answer."""

    kind: Literal["multiple_choice"]
    """Which kind of grader this is."""


GraderConfig = Annotated[
    MathGraderConfig | ExactGraderConfig | NumericGraderConfig | MultipleChoiceGraderConfig,
    Field(discriminator="kind"),
]


class OverlongConfig(Section):
    """DAPO's soft penalty on completions that come close to the length limit."""

    buffer_tokens: Count
    """Tokens before the limit over which the penalty grows; at most the limit itself."""
    factor: Positive
    """The penalty at the limit."""


class CorrectnessRewardConfig(Section):
    """A value for each verdict: correct, incorrect, no answer."""

    kind: Literal["correctness"]
    """Which kind of reward this is."""
    correct: float
    """Reward of a correct answer; above the other two."""
    incorrect: float
    """Reward of a wrong answer, and of one that could not be graded."""
    no_answer: float
    """Reward of a completion without a boxed answer."""
    require_stop: bool
    """Whether a completion that was cut off counts as incorrect whatever it says."""
    overlong: OverlongConfig | None
    """The overlong penalty; null for none."""


class FormatRewardConfig(Section):
    """A control: 1 for a boxed answer, whether or not it is correct."""

    kind: Literal["format"]
    """Which kind of reward this is."""


class RandomRewardConfig(Section):
    """A control: 1 or 0 at random, whatever a completion says."""

    kind: Literal["random"]
    """Which kind of reward this is."""
    probability: Annotated[float, Field(gt=0.0, lt=1.0)]
    """Probability of 1."""


RewardConfig = Annotated[
    CorrectnessRewardConfig | FormatRewardConfig | RandomRewardConfig, Field(discriminator="kind")
]

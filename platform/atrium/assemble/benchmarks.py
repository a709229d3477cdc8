"""Functions that load the configured benchmarks, for training and `atrium evaluate`, without torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from atrium.assemble.datasets import load_dataset
from atrium.assemble.problem_sets import load_problem_set
from atrium.assemble.references import Loading
from atrium.base.errors import ConfigError
from atrium.base.records import Problem
from atrium.config.tasks import (
    ArithmeticBenchmarkConfig,
    ArithmeticDatasetConfig,
    BenchmarkConfig,
    DatasetConfig,
    HeldOutBenchmarkConfig,
    ProblemsBenchmarkConfig,
    SuiteBenchmarkConfig,
)
from atrium.data.problem_sets import Origin
from atrium.data.problems import Dataset
from atrium.grading.verifiers import Verifier


@dataclass(frozen=True, kw_only=True)
class LoadedBenchmark:
    """The test problems of a benchmark, their origin, and the settings that determine how answers are graded.

    If `verifier` is None, the run's own grader is used. If `require_stop` is set, a truncated answer counts
    as wrong. `published` is the first day on which the problems were public (YYYY-MM-DD), or None if it is
    unknown.
    """

    dataset: Dataset
    verifier: Verifier | None
    require_stop: bool
    origin: Origin
    published: str | None = None

    @property
    def name(self) -> str:
        """The name under which results are stored."""
        return self.dataset.name

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems of the dataset."""
        return self.dataset.problems


def load_benchmarks(
    benchmark: BenchmarkConfig,
    dataset: DatasetConfig,
    *,
    verifier: Verifier,
    loading: Loading,
) -> tuple[LoadedBenchmark, ...]:
    """Load the configured benchmark, or all members of a suite in order.

    `dataset` is loaded only if the benchmark consists of the problems that `dataset` holds out. Raises
    `DataError` if data are missing or do not match their declaration, and `ConfigError` if the dataset holds
    out no test problems.
    """
    if isinstance(benchmark, ArithmeticBenchmarkConfig | HeldOutBenchmarkConfig):
        return (_held_out(benchmark, dataset, verifier=verifier, loading=loading),)
    members = benchmark.members.values() if isinstance(benchmark, SuiteBenchmarkConfig) else (benchmark,)
    return tuple(_load(member, verifier=verifier, loading=loading) for member in members)


def is_held_out(benchmark: BenchmarkConfig) -> bool:
    """Return whether the benchmark consists of the test problems that the training dataset holds out."""
    return isinstance(benchmark, ArithmeticBenchmarkConfig | HeldOutBenchmarkConfig)


def own_benchmark(part: Dataset, dataset: DatasetConfig, origin: Origin) -> LoadedBenchmark:
    """Return a benchmark of the problems in `part`, to be graded by the run's own grader.

    `part` contains problems that `dataset` holds out from training.
    """
    require_stop = isinstance(dataset, ArithmeticDatasetConfig) or dataset.require_stop
    return LoadedBenchmark(dataset=part, verifier=None, require_stop=require_stop, origin=origin)


def _held_out(
    benchmark: ArithmeticBenchmarkConfig | HeldOutBenchmarkConfig,
    dataset: DatasetConfig,
    *,
    verifier: Verifier,
    loading: Loading,
) -> LoadedBenchmark:
    splits, origin = load_dataset(dataset, verifier=verifier, loading=loading)
    if splits.test is None:
        raise ConfigError(
            f"benchmark.kind={benchmark.kind} requires test problems, but the dataset holds out none; "
            "set dataset.num_test, or choose a published benchmark"
        )
    return own_benchmark(splits.test, dataset, origin)


def _load(settings: ProblemsBenchmarkConfig, *, verifier: Verifier, loading: Loading) -> LoadedBenchmark:
    loaded = load_problem_set(
        settings,
        verifier=settings.verifier or verifier,
        loading=loading,
        record_name=settings.name,
    )
    problems, origin = loaded.problems[: settings.num_problems], loaded.origin
    if len(problems) < len(loaded.problems):
        text = f"only the first {len(problems)} of {len(loaded.problems)} problems are used"
        loading.log(f"{settings.name}: {text}")
        origin = replace(origin, num_problems=len(problems), warnings=(*origin.warnings, text))
    return LoadedBenchmark(
        dataset=Dataset(name=settings.name, problems=problems),
        verifier=settings.verifier,
        require_stop=settings.require_stop,
        origin=origin,
        published=settings.published,
    )

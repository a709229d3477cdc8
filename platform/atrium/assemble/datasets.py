"""From the group `dataset` to disjoint parts: to train on, to choose by, to report on. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from atrium.assemble.problem_sets import load_problem_set
from atrium.config.tasks import ArithmeticDatasetConfig, DatasetConfig, GraderConfig
from atrium.data.arithmetic import ArithmeticSettings, arithmetic_splits
from atrium.data.problem_sets import Origin
from atrium.data.sources import Log
from atrium.data.splits import Splits, split_problems, without_overlap
from atrium.errors import DataError
from atrium.records import Problem


@dataclass(frozen=True, kw_only=True)
class LoadedDataset:
    """The parts of a training set, and where they came from."""

    splits: Splits
    origin: Origin


def load_dataset(
    dataset: DatasetConfig,
    *,
    grader: GraderConfig,
    cache_dir: Path,
    log: Log,
    benchmarks: Mapping[str, Sequence[Problem]] | None = None,
) -> LoadedDataset:
    """The dataset's parts; problems that one of `benchmarks` has too are in none of them.

    Raises `DataError` where the data are missing, not what is declared, or too few.
    """
    if isinstance(dataset, ArithmeticDatasetConfig):
        splits = arithmetic_splits(arithmetic_settings(dataset))
        return LoadedDataset(
            splits=splits, origin=Origin(source="arithmetic", num_problems=len(splits.train))
        )
    loaded = load_problem_set(dataset, comparison=None, grader=grader, cache_dir=cache_dir, log=log)
    problems, origin = loaded.problems, loaded.origin
    for name, held in (benchmarks or {}).items():
        problems, num_dropped = without_overlap(problems, {problem.question for problem in held})
        if num_dropped:
            text = f"{num_dropped} problems are also in the benchmark {name}, dropped"
            log(f"{dataset.name}: {text}")
            origin = replace(
                origin,
                num_overlapping=origin.num_overlapping + num_dropped,
                warnings=(*origin.warnings, text),
            )
    if not problems:
        raise DataError(f"dataset '{dataset.name}': every problem is also in a benchmark of this run")
    splits = split_problems(
        dataset.name,
        problems,
        num_train=dataset.num_train,
        num_validation=dataset.num_validation,
        num_test=dataset.num_test,
        seed=dataset.seed,
    )
    return LoadedDataset(splits=splits, origin=replace(origin, num_problems=len(problems)))


def arithmetic_settings(dataset: DatasetConfig) -> ArithmeticSettings:
    """The built-in task's settings; as they are by default where a run trains on something else."""
    if isinstance(dataset, ArithmeticDatasetConfig):
        return ArithmeticSettings(**dataset.model_dump(exclude={"kind"}))
    return ArithmeticSettings()

"""Functions that load a dataset as disjoint training, validation and test problems, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from atrium.assemble.problem_sets import load_problem_set
from atrium.assemble.procedural import procedural_problems
from atrium.assemble.references import Loading, check_references
from atrium.base.errors import DataError
from atrium.base.records import Problem
from atrium.config.tasks import ArithmeticDatasetConfig, DatasetConfig, ReasoningGymDatasetConfig
from atrium.data.arithmetic import arithmetic_splits
from atrium.data.contamination import Overlap, find_overlaps
from atrium.data.problem_sets import Origin
from atrium.data.settings import ArithmeticSettings
from atrium.data.splits import Splits, split_problems
from atrium.grading.verifiers import Verifier

_MAX_SHOWN = 3
_MAX_RECORDED = 1_000


def load_dataset(
    dataset: DatasetConfig,
    *,
    verifier: Verifier,
    loading: Loading,
    benchmarks: Mapping[str, Sequence[Problem]] | None = None,
) -> tuple[Splits, Origin]:
    """Load the dataset; return its training, validation and test problems, and their origin.

    Problems that also occur in `benchmarks` (problems keyed by benchmark name) are dropped. Generated
    datasets are not compared with `benchmarks`. Raises `DataError` if the data are missing, do not match
    their declaration, or are too few, and if the grader rejects reference answers whose problems may not be
    dropped.
    """
    if isinstance(dataset, ArithmeticDatasetConfig):
        splits = arithmetic_splits(dataset)
        _require_readable(splits, verifier, loading)
        return splits, Origin(source="arithmetic", num_problems=len(splits.train))
    if isinstance(dataset, ReasoningGymDatasetConfig):
        return procedural_problems(dataset, verifier, loading)
    loaded = load_problem_set(dataset, verifier=verifier, loading=loading, record_name="dataset")
    problems, origin = loaded.problems, loaded.origin
    overlaps = find_overlaps(problems, benchmarks or {}, dataset.contamination)
    if overlaps:
        dropped = {overlap.problem_id for overlap in overlaps}
        problems = tuple(problem for problem in problems if problem.problem_id not in dropped)
        warnings = [
            _overlap_text(name, overlaps) for name in dict.fromkeys(one.benchmark for one in overlaps)
        ]
        for warning in warnings:
            loading.log(f"{dataset.name}: {warning}")
        pairs = [(one.problem_id, f"{one.benchmark}/{one.held_id}", one.shared) for one in overlaps]
        origin = replace(
            origin,
            num_overlapping=len(overlaps),
            overlaps=tuple(pairs[:_MAX_RECORDED]),
            warnings=(*origin.warnings, *warnings),
        )
    if not problems:
        raise DataError(
            f"dataset '{dataset.name}': every problem is also in a benchmark of this run, so no training "
            "problem remains; choose another dataset or benchmark"
        )
    splits = split_problems(
        dataset.name,
        problems,
        num_train=dataset.num_train,
        num_validation=dataset.num_validation,
        num_test=dataset.num_test,
        seed=dataset.seed,
    )
    return splits, replace(origin, num_problems=len(problems))


def _require_readable(splits: Splits, verifier: Verifier, loading: Loading) -> None:
    """Raise `DataError` if the grader does not accept the reference answers of the built-in task.

    The check is skipped if `loading` already lists the dataset's unreadable references, as in a resumed run.
    """
    if "dataset" in loading.unreadable:
        return
    problems = [problem for part in splits.parts for problem in part.problems]
    check = check_references(problems, verifier, loading, "arithmetic")
    if check.unreadable:
        problem, reason = check.unreadable[0]
        is_shipped = type(verifier).__module__.startswith("atrium.")
        remedy = "set grader=math" if is_shipped else "correct the plugin, or set grader=math"
        raise DataError(
            f"grader.kind={verifier.kind} rejects the reference answers of {len(check.unreadable)} of "
            f"{len(problems)} problems of dataset=arithmetic, such as {problem.answer!r} ({reason}); "
            f"{remedy}"
        )


def _overlap_text(name: str, overlaps: Sequence[Overlap]) -> str:
    own = [overlap for overlap in overlaps if overlap.benchmark == name]
    shown = "; ".join(f"{one.problem_id} ~ {one.held_id} ({one.shared})" for one in own[:_MAX_SHOWN])
    more = f" and {len(own) - _MAX_SHOWN} more" if len(own) > _MAX_SHOWN else ""
    return f"{len(own)} problems are also in the benchmark {name} and are dropped: {shown}{more}"


def arithmetic_settings(dataset: DatasetConfig) -> ArithmeticSettings:
    """Return `dataset` if it is the built-in arithmetic task, otherwise that task's default settings."""
    return dataset if isinstance(dataset, ArithmeticDatasetConfig) else ArithmeticSettings()

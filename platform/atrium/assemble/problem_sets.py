"""From the settings of a problem set to its problems, each gold graded against itself.

No torch: what a run trains on and is judged by is known, and known to be sound, before anything heavy is
loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

from atrium.config.problem_sets import ComparisonConfig, FieldsConfig, ProblemSetConfig
from atrium.config.tasks import GraderConfig
from atrium.data.problem_files import Fields, ProblemFiles
from atrium.data.problem_sets import ProblemSet, read_problem_set
from atrium.data.sources import Log
from atrium.errors import DataError
from atrium.grading.extraction import extract_answer
from atrium.grading.pool import GraderPool
from atrium.records import Problem, Verdict

_MAX_LISTED = 5


def load_problem_set(
    settings: ProblemSetConfig,
    *,
    comparison: ComparisonConfig | None,
    grader: GraderConfig,
    cache_dir: Path,
    log: Log,
) -> ProblemSet:
    """The problems of the settings' files, without those whose gold cannot be graded where so set.

    Golds are graded with `comparison`, or where it is None as `grader` does. `log` gets every warning, too.
    Raises `DataError` where the data are missing or not what is declared.
    """
    loaded = read_problem_set(
        _problem_files(settings),
        cache_dir=cache_dir,
        read_box=partial(extract_answer, thinking=False),
        log=log,
    )
    graded = _with_sound_golds(loaded, settings, pool_settings(grader, comparison))
    for warning in graded.origin.warnings:
        log(f"{settings.name}: {warning}")
    return graded


def pool_settings(grader: GraderConfig, comparison: ComparisonConfig | None) -> dict[str, object]:
    """The arguments of a `GraderPool` with the grader's processes and the comparison's judgement."""
    own = grader.model_dump()
    if comparison is None:
        return own
    shared = {key: own[key] for key in ("num_workers", "timeout_s", "memory_limit_mb")}
    return {**shared, **comparison.model_dump()}


def unreadable_golds(problems: Sequence[Problem], pool: GraderPool) -> list[tuple[Problem, Verdict]]:
    r"""The problems whose gold, given as a boxed answer, is not graded correct, each with the verdict."""
    futures: list[Future[Verdict]] = [
        pool.submit(f"\\boxed{{{problem.answer}}}", problem.answer) for problem in problems
    ]
    verdicts = [future.result() for future in futures]
    pairs = zip(problems, verdicts, strict=True)
    return [(problem, verdict) for problem, verdict in pairs if not verdict.is_correct]


def _problem_files(settings: ProblemSetConfig) -> ProblemFiles:
    fields: FieldsConfig = settings.fields
    return ProblemFiles(
        name=settings.name,
        source=settings.source,
        revision=settings.revision,
        files=settings.files,
        fields=Fields(**fields.model_dump()),
        where={
            name: allowed if isinstance(allowed, tuple) else (allowed,)
            for name, allowed in settings.where.items()
        },
        expected_num_rows=settings.expected_num_rows,
        expected_num_problems=settings.expected_num_problems,
        strips_instruction=settings.instruction == "strip",
    )


def _with_sound_golds(loaded: ProblemSet, settings: ProblemSetConfig, pool: dict[str, object]) -> ProblemSet:
    with GraderPool(**pool) as grader:  # type: ignore[arg-type]
        unreadable = unreadable_golds(loaded.problems, grader)
    if not unreadable:
        return loaded
    listed = "; ".join(
        f"{problem.problem_id} {problem.answer[:40]!r} ({verdict.reason})"
        for problem, verdict in unreadable[:_MAX_LISTED]
    )
    more = f" and {len(unreadable) - _MAX_LISTED} more" if len(unreadable) > _MAX_LISTED else ""
    text = f"{len(unreadable)} golds are not graded equal to themselves: {listed}{more}"
    if settings.unreadable == "error":
        raise DataError(f"'{settings.name}': {text}; set unreadable=drop or keep to go on with this")
    origin = loaded.origin
    dropped = {problem.problem_id for problem, _ in unreadable} if settings.unreadable == "drop" else set()
    kept = tuple(problem for problem in loaded.problems if problem.problem_id not in dropped)
    if not kept:
        raise DataError(f"'{settings.name}': {text}; none is left, so the grader does not fit these data")
    done = "dropped" if dropped else "kept, and an answer to them hardly counts"
    return replace(
        loaded,
        problems=kept,
        origin=replace(
            origin,
            num_problems=len(kept),
            num_unreadable=len(unreadable),
            warnings=(*origin.warnings, f"{text}; {done}"),
        ),
    )

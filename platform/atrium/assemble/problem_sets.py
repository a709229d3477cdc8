"""Functions that load problem sets and check that the grader can read each reference answer.

This module does not import torch, so that problems are checked before torch and the model are loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from atrium.assemble.references import Loading, check_references
from atrium.base.errors import DataError
from atrium.base.nested import mapping_at
from atrium.base.recorded import read_object
from atrium.base.records import Problem
from atrium.config.tasks import ProblemSetConfig
from atrium.data.problem_sets import ProblemSet, read_problem_set
from atrium.document.formatting import counted
from atrium.grading.extraction import extract_answer
from atrium.grading.verifiers import Verifier

_MAX_LISTED = 5


def recorded_unreadable(provenance: Path) -> dict[str, tuple[str, ...]]:
    """Return the ids of the problems whose references were recorded as unreadable, keyed by problem set.

    `provenance` is the path of `provenance.json`. The result is empty if the file is missing or damaged.
    """
    record, _ = read_object(provenance)
    origins = mapping_at(record, "origins") or record
    sets = {"dataset": origins.get("dataset"), **mapping_at(origins, "benchmarks")}
    found = {name: one.get("unreadable") for name, one in sets.items() if isinstance(one, dict)}
    return {name: tuple(map(str, ids)) for name, ids in found.items() if isinstance(ids, list)}


def load_problem_set(
    settings: ProblemSetConfig, *, verifier: Verifier, loading: Loading, record_name: str
) -> ProblemSet:
    """Load a problem set and check that the grader can read its reference answers.

    If some reference answers are unreadable, `settings.unreadable` determines whether their problems are
    dropped or kept, or `DataError` is raised. Warnings are recorded in the set's origin and logged.
    `record_name` is the set's name in the run's provenance. Also raises `DataError` if the data are missing
    or do not match their declaration.
    """
    loading.listener.phase(f"reading {settings.name}")
    loaded = read_problem_set(
        settings,
        cache_dir=loading.cache_dir,
        read_box=partial(extract_answer, thinking=False),
        log=loading.log,
    )
    for problem in loaded.problems:
        try:
            verifier.of_problem(problem.judged_by)
        except DataError as error:
            raise DataError(
                f"{settings.name}: problem {problem.problem_id} cannot be used: {error}"
            ) from error
    checked = _checked(loaded, settings, verifier, loading, loading.unreadable.get(record_name))
    for warning in checked.origin.warnings:
        loading.log(f"{settings.name}: {warning}")
    return checked


def _checked(
    loaded: ProblemSet,
    settings: ProblemSetConfig,
    verifier: Verifier,
    loading: Loading,
    recorded: Sequence[str] | None,
) -> ProblemSet:
    """Return the problem set without dropped problems, and with the result of the check in its origin.

    `recorded` are the ids of problems that an earlier check found unreadable; None means a new check.
    """
    unreadable, what, num_unchecked = _found(loaded, settings.name, verifier, loading, recorded)
    if unreadable and settings.unreadable == "error":
        raise DataError(
            f"'{settings.name}': {what}; choose a grader that can read these answers, or set "
            f"{settings.section}.unreadable=drop or keep"
        )
    is_dropping = settings.unreadable == "drop"
    dropped = {problem.problem_id for problem, _ in unreadable} if is_dropping else set()
    kept = tuple(problem for problem in loaded.problems if problem.problem_id not in dropped)
    if not kept:
        raise DataError(
            f"'{settings.name}': {what}; no problem would remain; choose a grader that can "
            f"read these answers (grader=exact for text), set {settings.section}.fields.answer to another "
            f"field, or set {settings.section}.unreadable=keep"
        )
    warnings = []
    if num_unchecked:
        warnings.append(
            f"{num_unchecked} references were not checked within {verifier.timeout_s:g} s, and their "
            "problems are kept; another run may find them unreadable, so this run cannot be repeated "
            "exactly"
        )
    if unreadable:
        done = "dropped" if dropped else "kept, although an answer to them can hardly be correct"
        warnings.append(f"{what}; {done}")
    return replace(
        loaded,
        problems=kept,
        origin=replace(
            loaded.origin,
            num_problems=len(kept),
            num_unreadable=len(unreadable),
            num_unchecked=num_unchecked,
            unreadable=tuple(problem.problem_id for problem, _ in unreadable),
            warnings=(*loaded.origin.warnings, *warnings),
        ),
    )


def _found(
    loaded: ProblemSet, name: str, verifier: Verifier, loading: Loading, recorded: Sequence[str] | None
) -> tuple[list[tuple[Problem, str]], str, int]:
    """Return the unreadable problems, a sentence about them, and the number of unchecked problems.

    Unreadable problems are those whose reference the grader cannot read. Each is paired with the reason. The
    reasons are empty if the problems were found by an earlier check (`recorded`).
    """
    if recorded is not None:
        unreadable = [(problem, "") for problem in loaded.problems if problem.problem_id in set(recorded)]
        return unreadable, f"{len(unreadable)} references could not be read when this run began", 0
    check = check_references(loaded.problems, verifier, loading, name)
    return list(check.unreadable), _unreadable_text(check.unreadable), len(check.unknown)


def _unreadable_text(unreadable: Sequence[tuple[Problem, str]]) -> str:
    listed = "; ".join(
        f"{problem.problem_id} {problem.answer[:40]!r} ({reason})"
        for problem, reason in unreadable[:_MAX_LISTED]
    )
    more = f" and {len(unreadable) - _MAX_LISTED} more" if len(unreadable) > _MAX_LISTED else ""
    return (
        f"{counted(len(unreadable), 'reference answer')} cannot be read, so equal answers in another form "
        f"would not be accepted: {listed}{more}"
    )

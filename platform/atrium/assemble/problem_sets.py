"""From the settings of a problem set to its problems, each gold graded against itself in another form.

No torch: what a run trains on and is judged by is known, and known to be sound, before anything heavy is
loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

from atrium.config.tasks import ProblemSetConfig
from atrium.data.problem_sets import ProblemSet, read_problem_set
from atrium.data.sources import Log
from atrium.errors import DataError
from atrium.grading.extraction import extract_answer
from atrium.grading.pool import GraderPool
from atrium.grading.verifiers import Verifier
from atrium.records import Problem, Verdict

_MAX_LISTED = 5
_MAX_WORKED = 500


def load_problem_set(
    settings: ProblemSetConfig, *, verifier: Verifier, cache_dir: Path, log: Log
) -> ProblemSet:
    """The problems of the settings' files, without those whose gold cannot be graded where so set.

    `log` gets every warning, too. Raises `DataError` where the data are missing or not what is declared.
    """
    loaded = read_problem_set(
        settings,
        cache_dir=cache_dir,
        read_box=partial(extract_answer, thinking=False),
        log=log,
    )
    graded = _with_sound_golds(loaded, settings, verifier)
    for warning in graded.origin.warnings:
        log(f"{settings.name}: {warning}")
    return graded


def unreadable_golds(problems: Sequence[Problem], pool: GraderPool) -> list[tuple[Problem, Verdict]]:
    """The problems for which their own gold, written otherwise, is not graded correct, each with the verdict.

    Of the golds that only worker processes can judge, the first `_MAX_WORKED` different ones are tried: in a
    large training set all of them would take longer than the start of a run should.
    """
    settled: dict[str, Verdict] = {}
    worked: dict[str, Future[Verdict]] = {}
    for gold in dict.fromkeys(problem.answer for problem in problems):
        text = pool.verifier.write(pool.verifier.restate(gold))
        verdict = pool.settle(text, gold)
        if verdict is not None:
            settled[gold] = verdict
        elif len(worked) < _MAX_WORKED:
            worked[gold] = pool.submit(text, gold)
    settled |= {gold: future.result() for gold, future in worked.items()}
    unreadable = {gold: verdict for gold, verdict in settled.items() if not verdict.is_correct}
    return [(problem, unreadable[problem.answer]) for problem in problems if problem.answer in unreadable]


def _with_sound_golds(loaded: ProblemSet, settings: ProblemSetConfig, verifier: Verifier) -> ProblemSet:
    for problem in loaded.problems:
        try:
            verifier.of_problem(problem.metadata)
        except DataError as error:
            raise DataError(f"{settings.name}: {problem.problem_id}: {error}") from error
    with GraderPool(verifier) as grader:
        unreadable = unreadable_golds(loaded.problems, grader)
    if not unreadable:
        return loaded
    listed = "; ".join(
        f"{problem.problem_id} {problem.answer[:40]!r} ({verdict.reason})"
        for problem, verdict in unreadable[:_MAX_LISTED]
    )
    more = f" and {len(unreadable) - _MAX_LISTED} more" if len(unreadable) > _MAX_LISTED else ""
    text = (
        f"{len(unreadable)} golds cannot be read, so that the same answer in another form is wrong: "
        f"{listed}{more}"
    )
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

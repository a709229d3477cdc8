"""Selection of the runs that a comparison counts, with the missing runs and the reasons for exclusion.

A run counts if it finished or was evaluated at its planned last step. A diverged run counts too, with the
score of its last policy, or as always wrong if this policy could not be evaluated (`stats.readings`). Other
runs that started but did not finish are missing. A missing run makes a verdict preliminary while the run is
active or interrupted, and incomplete after it failed or was pruned, killed or lost. Some runs are excluded
but do not count as missing: runs that failed to start, archived runs, runs that the user leaves out with a
reason, finished runs without a score, runs that cannot be read, and runs that did not record the cost at
which the comparison is made. A comparison uses the counted runs that were evaluated on the same benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from atrium.base.errors import ConfigError, RunFolderError, reason_of
from atrium.compare.default_choice import is_archived
from atrium.compare.outcomes import AT_WORDS, At, EvaluatedRun, read_evaluated_run
from atrium.document.formatting import counted
from atrium.runs.find import is_failed_start
from atrium.runs.layout import IMPORTED
from atrium.runs.reader import RunOverview, read_overview
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import DIVERGED, FORMAT_VERSION, RunState, read_status

VALIDATION = "validation"
"""The text that the names of validation benchmarks contain."""

MOST_NAMED = 5
"""The largest number of excluded runs that an error names; a comparison names all."""

_STANDS: Mapping[RunState, str] = {
    RunState.STARTING: "is still running",
    RunState.RUNNING: "is still running",
    RunState.INTERRUPTED: "was interrupted",
    RunState.PRUNED: "was pruned",
    RunState.FAILED: "failed",
    RunState.KILLED: "was killed",
    RunState.LOST: "was lost",
}
_MAY_GO_ON = (RunState.STARTING, RunState.RUNNING, RunState.INTERRUPTED)

Cause = Literal[
    "request", "archived", "failed_start", "unreadable", "no_cost", "no_score", "missing", "other_run"
]
"""Why a comparison excludes a run.

The user asked for it, or the run is archived, failed to start, cannot be read, did not record the cost of
training, lacks a score on a benchmark, has no outcome (`MissingRun`), or is an "other run" (`arm_names`).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A run that a comparison excludes, and why.

    `cause` is the category of the reason, and `reason` describes it for the user. `lacking` are the compared
    benchmarks on which a run with the cause `no_score` has no score.
    """

    name: str
    cause: Cause
    reason: str
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRun(LeftOut):
    """A run without an outcome.

    `stands` describes the run's state, such as `failed at step 40 of 80`. `kind` says whether the missing run
    makes the verdicts on its arm preliminary or incomplete.
    """

    folder: RunFolder
    stands: str
    kind: Literal["preliminary", "incomplete"]

    @property
    def words(self) -> str:
        """The description, such as `study/atr-1 is still running`."""
        return f"{self.name} {self.stands}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRuns:
    """The runs that count, the benchmarks that they are compared on, and the excluded runs.

    `missing` are the runs without an outcome, which are also in `left_out`. `num_old` is the number of runs
    recorded by a version of Atrium that did not record the causes of failures.
    """

    runs: tuple[EvaluatedRun, ...]
    benchmarks: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    missing: tuple[MissingRun, ...] = ()
    num_old: int = 0


def counted_runs(
    folders: Sequence[RunFolder],
    wanted: Sequence[str],
    at: At,
    *,
    can_compare: Callable[[Sequence[RunFolder]], bool],
) -> CountedRuns:
    """Return the runs that count and have scores on the benchmarks `wanted`, and the excluded runs.

    To be counted, runs must also have recorded the cost at which `at` compares them. Diverged runs count
    without scores and without this cost. If `wanted` is empty, benchmarks are chosen on which at least two
    arms have scores, if there are any: test benchmarks rather than validation benchmarks, and of these the
    ones with the most runs. `can_compare` returns whether runs form at least two arms.

    Raises `RunFolderError` if no run that counts was evaluated, and `ConfigError` if there is a wanted
    benchmark on which no counted run was evaluated.
    """
    overviews = [read_overview(folder) for folder in folders]
    found = [_classified(overview, at) for overview in overviews]
    runs = [run for run in found if isinstance(run, EvaluatedRun)]
    missing = [run for run in found if isinstance(run, MissingRun)]
    left_out = [run for run in found if isinstance(run, LeftOut)]
    if not any(run.evaluations for run in runs):
        reasons = left_out_words(left_out, MOST_NAMED) or "none was evaluated; choose other runs"
        raise RunFolderError(f"none of these runs can be compared; {reasons}")
    benchmarks = _benchmarks([run for run in runs if run.evaluations], wanted, can_compare)
    kept = []
    for run in runs:
        lacking = tuple(name for name in benchmarks if name not in run.evaluations)
        if lacking and not run.has_diverged:
            reason = f"has no score on {', '.join(lacking)}, only on {', '.join(run.evaluations)}"
            out = LeftOut(name=run.folder.name, cause="no_score", reason=reason, lacking=lacking)
            left_out.append(out)
        else:
            kept.append(run)
    return CountedRuns(
        runs=tuple(kept),
        benchmarks=tuple(benchmarks),
        left_out=tuple(left_out),
        missing=tuple(missing),
        num_old=sum(overview.status.format_version < FORMAT_VERSION for overview in overviews),
    )


def left_out_words(left_out: Sequence[LeftOut], most: int | None = None) -> str:
    """Return a sentence that names at most `most` (default: all) excluded runs.

    The result is empty if no run is excluded.
    """
    if not left_out:
        return ""
    named = "; ".join(f"{one.name} ({one.reason})" for one in left_out[:most])
    more = 0 if most is None else len(left_out) - most
    return f"left out: {named}{f'; and {more} more' if more > 0 else ''}"


def left_out_experiments(left_out: Sequence[LeftOut], compared: Collection[str]) -> dict[str, str]:
    """Return the experiments without any run in `compared`, with the reasons why their runs are left out."""
    kept = {name.partition("/")[0] for name in compared}
    found: dict[str, list[str]] = {}
    for one in left_out:
        experiment, slash, _ = one.name.partition("/")
        if slash and experiment not in kept:
            reason = f"no score on {', '.join(one.lacking)}" if one.lacking else one.reason
            found.setdefault(experiment, []).append(reason)
    return {experiment: "; ".join(dict.fromkeys(reasons)) for experiment, reasons in found.items()}


def old_runs_note(num_old: int) -> list[str]:
    """Return a note if an earlier version of Atrium recorded some of the runs.

    The note explains how the rules for failed runs have changed since that version. The result is empty if
    `num_old` is 0.
    """
    if not num_old:
        return []
    return [
        f"{counted(num_old, 'run')} recorded by an earlier version, which did not record the cause of a "
        "failure: a failed run now counts as diverged if it was evaluated in the step after its last one, "
        "and other runs without an outcome make a verdict preliminary or incomplete; the earlier version "
        "left all of them out"
    ]


def _benchmarks(
    runs: Sequence[EvaluatedRun],
    wanted: Sequence[str],
    can_compare: Callable[[Sequence[RunFolder]], bool],
) -> list[str]:
    """Return the wanted benchmarks, or a choice of benchmarks if `wanted` is empty.

    The choice starts with one benchmark on which runs of at least two arms were evaluated, or with any
    benchmark if there is none. Test benchmarks are preferred to validation benchmarks, and among benchmarks
    of the same kind, the one with the most runs is used. The result contains this benchmark and all others of
    its kind on which all of the same runs were evaluated. `can_compare` returns whether runs form at least
    two arms.
    """
    answered: dict[str, list[EvaluatedRun]] = {}
    for run in runs:
        for name in run.evaluations:
            answered.setdefault(name, []).append(run)
    for name in wanted:
        if name not in answered:
            known = ", ".join(answered)
            raise ConfigError(
                f"unknown benchmark {name}: no counted run was evaluated on it; use one of {known}"
            )
    if wanted:
        return list(dict.fromkeys(wanted))
    by_number = sorted(answered, key=lambda name: (VALIDATION in name, -len(answered[name])))
    enough = (name for name in by_number if can_compare([run.folder for run in answered[name]]))
    first = next(enough, by_number[0])
    runs_of = {name: {run.folder.name for run in having} for name, having in answered.items()}
    return [
        name
        for name, having in runs_of.items()
        if (VALIDATION in name) == (VALIDATION in first) and runs_of[first] <= having
    ]


def set_aside_run(folder: RunFolder, requested: Mapping[str, str]) -> LeftOut | None:
    """Return why a run is excluded (by request, archived, or failed to start), or None if it is not.

    An excluded run belongs to no arm and does not count as missing. `requested` maps run names to the user's
    reasons.
    """
    if folder.name in requested:
        return LeftOut(name=folder.name, cause="request", reason=f"by request: {requested[folder.name]}")
    if is_archived(folder):
        return LeftOut(name=folder.name, cause="archived", reason="is archived")
    if is_failed_start(folder):
        error = read_status(folder.status_file).error or "its process was killed"
        return LeftOut(name=folder.name, cause="failed_start", reason=f"failed to start: {error}")
    return None


def _classified(overview: RunOverview, at: At) -> EvaluatedRun | LeftOut:
    """Return the evaluations of a run that counts; for any other run, why it is missing or left out."""
    folder = overview.folder

    def left_out(cause: Cause, reason: str) -> LeftOut:
        return LeftOut(name=folder.name, cause=cause, reason=reason)

    if not overview.config:
        return left_out("unreadable", "; ".join(overview.problems) or "its settings are missing")
    try:
        run = read_evaluated_run(folder, overview.config)
    except OSError as error:
        return left_out("unreadable", f"its evaluations cannot be read: {reason_of(error)}")
    if (diverged := _as_diverged(overview, run, at)) is not None:
        return diverged
    if at is not At.LAST and at not in run.cost:
        return left_out("no_cost", f"did not record the values for a comparison {AT_WORDS[at]}")
    if overview.state is RunState.FINISHED:
        without = "has only curves, not scores; `atrium show` and the dashboard draw them"
        is_imported = overview.config.get("kind") == IMPORTED
        if run.evaluations:
            return run
        return left_out("no_score", without if is_imported else "has no score after training")
    planned = overview.config.get("num_steps")
    at_end = {name: points for name, points in run.evaluations.items() if points[-1].step == planned}
    if at_end:
        return replace(run, evaluations=at_end)
    if overview.state not in _STANDS:
        return left_out("unreadable", "; ".join(overview.problems) or "its state is unknown")
    kind: Literal["preliminary", "incomplete"] = (
        "preliminary" if overview.state in _MAY_GO_ON else "incomplete"
    )
    stands = _how_it_stands(overview)
    reason = stands + (f": {overview.status.error}" if overview.status.error else "")
    return MissingRun(
        name=folder.name, cause="missing", reason=reason, folder=folder, stands=stands, kind=kind
    )


def _as_diverged(overview: RunOverview, run: EvaluatedRun, at: At) -> EvaluatedRun | None:
    """Return a diverged run with the benchmarks that its last policy answered, or None if it did not diverge.

    For a comparison at equal steps, all benchmarks are kept, since an earlier evaluation may be at the common
    step. A failed run that an earlier version of Atrium recorded counts as diverged if it was evaluated in
    the step after its last completed step.
    """
    status = overview.status
    is_old = status.format_version < FORMAT_VERSION
    if overview.state is not RunState.FAILED or not (is_old or status.cause == DIVERGED):
        return None
    # The policy that a run diverged to is evaluated in the step after its last whole one.
    after = {name: points for name, points in run.evaluations.items() if points[-1].step > status.step}
    if is_old and not any(points[-1].step == status.step + 1 for points in after.values()):
        return None
    return replace(run, has_diverged=True, evaluations=run.evaluations if at is At.STEPS else after)


def _how_it_stands(overview: RunOverview) -> str:
    """Describe the state of a run without an outcome, such as `failed at step 40 of 80`."""
    status = overview.status
    unit = "problem" if overview.config.get("kind") == "evaluation" else "step"
    at = f" at {unit} {status.step} of {status.num_steps}" if status.num_steps else ""
    return f"{_STANDS[overview.state]}{at}"

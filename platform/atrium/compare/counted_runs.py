"""Which runs a comparison counts, which are missing, and why it leaves out the others.

A run counts where it finished, or was evaluated at the step that it was planned to reach. A run that diverged
counts, too: with the score of the policy that it diverged to, or as always wrong where that could not be
evaluated (`stats.readings`). Other runs that began and have no outcome are missing: they make a verdict
preliminary while they run or can resume, incomplete where they failed. Runs that failed to start, archived
runs and runs that the user leaves out with a reason are not missing. Of the runs that count, those are
compared that answered the same benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from atrium.base.errors import ConfigError, RunFolderError
from atrium.compare.default_choice import is_archived
from atrium.compare.outcomes import AT_WORDS, At, EvaluatedRun, read_evaluated_run
from atrium.document.formatting import counted
from atrium.runs.find import is_failed_start
from atrium.runs.layout import IMPORTED
from atrium.runs.reader import RunOverview, read_overview
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import DIVERGED, FORMAT_VERSION, RunState, read_status

VALIDATION = "validation"
"""What the names of validation problems hold."""

MOST_NAMED = 5
"""How many of the runs that are left out an error names; a comparison names all."""

_STANDS: Mapping[RunState, str] = {
    RunState.STARTING: "still runs",
    RunState.RUNNING: "still runs",
    RunState.INTERRUPTED: "was interrupted",
    RunState.PRUNED: "was pruned",
    RunState.FAILED: "failed",
    RunState.KILLED: "was killed",
    RunState.LOST: "was lost",
}
_MAY_GO_ON = (RunState.STARTING, RunState.RUNNING, RunState.INTERRUPTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A run that a comparison does not count, and why. `is_by_request` says that the user left it out."""

    name: str
    reason: str
    is_by_request: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRun:
    """A run of an arm without an outcome, how it stands and why, and the kind of verdict that it leaves."""

    folder: RunFolder
    stands: str
    why: str
    kind: Literal["preliminary", "incomplete"]

    @property
    def words(self) -> str:
        """The description, such as `study/atr-1 still runs`."""
        return f"{self.folder.name} {self.stands}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRuns:
    """The runs that are compared, on which benchmarks; and the runs that are left out.

    `missing` are the runs without an outcome, which are left out too. `num_old` is how many of all runs an
    Atrium recorded that wrote no causes.
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
    """The runs that count, recorded what `at` compares by, and answered the benchmarks `wanted`.

    Where none are wanted, they are those that most of the runs share.

    Raises `RunFolderError` where no run counts, `ConfigError` for a benchmark that none of them answered.
    """
    overviews = [read_overview(folder) for folder in folders]
    found = [_classified(overview, at) for overview in overviews]
    runs = [run for run in found if isinstance(run, EvaluatedRun)]
    missing = [run for run in found if isinstance(run, MissingRun)]
    left_out = [run for run in found if isinstance(run, LeftOut)]
    left_out += [LeftOut(name=run.folder.name, reason=run.stands + run.why) for run in missing]
    if not any(run.evaluations for run in runs):
        raise RunFolderError(f"none of these runs can be compared; {left_out_words(left_out, MOST_NAMED)}")
    benchmarks = _benchmarks([run for run in runs if run.evaluations], wanted, can_compare)
    kept = []
    for run in runs:
        lacking = [name for name in benchmarks if name not in run.evaluations]
        if lacking and not run.has_diverged:
            reason = f"has no score on {', '.join(lacking)}, only on {', '.join(run.evaluations)}"
            left_out.append(LeftOut(name=run.folder.name, reason=reason))
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
    """One sentence that names the runs left out, all or so many of them; empty where none is."""
    if not left_out:
        return ""
    named = "; ".join(f"{one.name} ({one.reason})" for one in left_out[:most])
    more = 0 if most is None else len(left_out) - most
    return f"left out: {named}{f'; and {more} more' if more > 0 else ''}"


def old_runs_note(num_old: int) -> list[str]:
    """What changed for runs that an earlier Atrium recorded; empty where there are none."""
    if not num_old:
        return []
    return [
        f"{counted(num_old, 'run')} recorded by an earlier Atrium, which wrote no cause of a failure: a "
        "failed run now counts as diverged where it was evaluated in the step after its last one, and other "
        "runs without an outcome leave a verdict preliminary or incomplete; before, all of them were left out"
    ]


def _benchmarks(
    runs: Sequence[EvaluatedRun],
    wanted: Sequence[str],
    can_compare: Callable[[Sequence[RunFolder]], bool],
) -> list[str]:
    """Those wanted; else the test problems that most runs answered, with what all of these runs share.

    Validation problems are taken where no test problems were answered by runs that can be compared.
    """
    answered: dict[str, list[EvaluatedRun]] = {}
    for run in runs:
        for name in run.evaluations:
            answered.setdefault(name, []).append(run)
    for name in wanted:
        if name not in answered:
            known = ", ".join(answered)
            raise ConfigError(f"benchmark {name}: no run that counts was evaluated on it; use one of {known}")
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
    """Return the reason to exclude a run (by request, archived, failed to start), or None.

    An excluded run belongs to no arm and does not count as missing. `requested` holds the user's reasons by
    run name.
    """
    if folder.name in requested:
        return LeftOut(name=folder.name, reason=f"by request: {requested[folder.name]}", is_by_request=True)
    if is_archived(folder):
        return LeftOut(name=folder.name, reason="is archived")
    if is_failed_start(folder):
        error = read_status(folder.status_file).error or "its process was killed"
        return LeftOut(name=folder.name, reason=f"failed to start: {error}")
    return None


def _classified(overview: RunOverview, at: At) -> EvaluatedRun | MissingRun | LeftOut:
    """The run where it counts; else how it is missing, or why it is left out."""
    folder = overview.folder

    def left_out(reason: str) -> LeftOut:
        return LeftOut(name=folder.name, reason=reason)

    if not overview.config:
        return left_out("; ".join(overview.problems) or "it has no settings")
    try:
        run = read_evaluated_run(folder)
    except OSError as error:
        return left_out(f"its evaluations cannot be read: {error.strerror}")
    if (diverged := _as_diverged(overview, run, at)) is not None:
        return diverged
    if at is not At.LAST and at not in run.cost:
        return left_out(f"did not record what a comparison {AT_WORDS[at]} needs")
    if overview.state is RunState.FINISHED:
        without = "has curves alone, which `atrium show` and the dashboard draw"
        is_imported = overview.config.get("kind") == IMPORTED
        return run if run.evaluations else left_out(without if is_imported else "has no score after training")
    planned = overview.config.get("num_steps")
    at_end = {name: points for name, points in run.evaluations.items() if points[-1].step == planned}
    if at_end:
        return replace(run, evaluations=at_end)
    if overview.state not in _STANDS:
        return left_out("; ".join(overview.problems) or "its state is not known")
    kind: Literal["preliminary", "incomplete"] = (
        "preliminary" if overview.state in _MAY_GO_ON else "incomplete"
    )
    why = f": {overview.status.error}" if overview.status.error else ""
    return MissingRun(folder=folder, stands=_how_it_stands(overview), why=why, kind=kind)


def _as_diverged(overview: RunOverview, run: EvaluatedRun, at: At) -> EvaluatedRun | None:
    """The run with the evaluations of the policy that it diverged to; None where it did not diverge.

    At equal steps an evaluation from before counts where all runs are compared at that step.
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
    """`failed at step 40 of 80`."""
    status = overview.status
    unit = "problem" if overview.config.get("kind") == "evaluation" else "step"
    at = f" at {unit} {status.step} of {status.num_steps}" if status.num_steps else ""
    return f"{_STANDS[overview.state]}{at}"

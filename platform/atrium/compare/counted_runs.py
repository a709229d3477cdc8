"""Which runs a comparison counts, and why it leaves out the others.

A run counts where it finished, or was evaluated at the step that it was planned to reach: what a failed,
killed or running one last scored is often the score before training. Of the runs that count, those are
compared that answered the same benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from atrium.compare.outcomes import AT_WORDS, At, EvaluatedRun, read_evaluated_run
from atrium.errors import ConfigError, RunFolderError
from atrium.tracking.reader import RunOverview, read_overview
from atrium.tracking.run_folder import RunFolder
from atrium.tracking.status import RunState

VALIDATION = "validation"
"""What the names of validation problems hold."""

MOST_NAMED = 5
"""How many of the runs that are left out an error names; a comparison names all."""

_STANDS: Mapping[RunState, str] = {
    RunState.RUNNING: "still runs",
    RunState.INTERRUPTED: "was interrupted",
    RunState.PRUNED: "was pruned",
    RunState.FAILED: "failed",
    RunState.KILLED: "was killed",
    RunState.LOST: "was lost",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A run that a comparison does not count, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRuns:
    """The runs that are compared, on which benchmarks; and the runs that are left out."""

    runs: tuple[EvaluatedRun, ...]
    benchmarks: tuple[str, ...]
    left_out: tuple[LeftOut, ...]


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
    found = {folder.name: _counted(folder, at) for folder in folders}
    runs = [run for run in found.values() if isinstance(run, EvaluatedRun)]
    left_out = [LeftOut(name=name, reason=why) for name, why in found.items() if isinstance(why, str)]
    if not runs:
        raise RunFolderError(f"none of these runs can be compared; {left_out_words(left_out, MOST_NAMED)}")
    benchmarks = _benchmarks(runs, wanted, can_compare)
    kept = []
    for run in runs:
        lacking = [name for name in benchmarks if name not in run.evaluations]
        if lacking:
            reason = f"has no score on {', '.join(lacking)}, only on {', '.join(run.evaluations)}"
            left_out.append(LeftOut(name=run.folder.name, reason=reason))
        else:
            kept.append(run)
    return CountedRuns(runs=tuple(kept), benchmarks=tuple(benchmarks), left_out=tuple(left_out))


def left_out_words(left_out: Sequence[LeftOut], most: int | None = None) -> str:
    """One sentence that names the runs left out, all or so many of them; empty where none is."""
    if not left_out:
        return ""
    named = "; ".join(f"{one.name} ({one.reason})" for one in left_out[:most])
    more = 0 if most is None else len(left_out) - most
    return f"left out: {named}{f'; and {more} more' if more > 0 else ''}"


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
            raise ConfigError(
                f"benchmark {name}: no run that counts was evaluated on it; allowed are {known}"
            )
    if wanted:
        return list(dict.fromkeys(wanted))
    by_number = sorted(answered, key=lambda name: (VALIDATION in name, -len(answered[name])))
    enough = (name for name in by_number if can_compare([run.folder for run in answered[name]]))
    first = next(enough, by_number[0])
    return [
        name
        for name, having in answered.items()
        if (VALIDATION in name) == (VALIDATION in first) and all(run in having for run in answered[first])
    ]


def _counted(folder: RunFolder, at: At) -> EvaluatedRun | str:
    """The run, or why it is left out."""
    overview = read_overview(folder)
    if not overview.config:
        return "; ".join(overview.problems) or "it has no settings"
    try:
        run = read_evaluated_run(folder)
    except OSError as error:
        return f"its evaluations cannot be read: {error.strerror}"
    if at is not At.LAST and at not in run.cost:
        return f"did not record what a comparison {AT_WORDS[at]} needs"
    if overview.state is RunState.FINISHED:
        return run if run.evaluations else "has no score after training"
    planned = overview.config.get("num_steps")
    at_end = {name: points for name, points in run.evaluations.items() if points[-1].step == planned}
    return replace(run, evaluations=at_end) if at_end else _how_it_stands(overview)


def _how_it_stands(overview: RunOverview) -> str:
    """`failed at step 40 of 80: out of memory`."""
    status, words = overview.status, _STANDS.get(overview.state)
    if words is None:
        return "; ".join(overview.problems) or "its state is not known"
    unit = "problem" if overview.config.get("kind") == "evaluation" else "step"
    at = f" at {unit} {status.step} of {status.num_steps}" if status.num_steps else ""
    return f"{words}{at}{f': {status.error}' if status.error else ''}"

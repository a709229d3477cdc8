"""Selection of the arms of a comparison: their names, their runs that count, and the baseline."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from atrium.base.errors import ConfigError
from atrium.base.recorded import read_object
from atrium.compare.arm_names import NamedArm, find_arm
from atrium.compare.arms import Arm, as_trained, group_runs, is_finished, named_arms
from atrium.compare.counted_runs import (
    MOST_NAMED,
    CountedRuns,
    LeftOut,
    MissingRun,
    counted_runs,
    left_out_words,
    set_aside_run,
)
from atrium.compare.default_choice import default_baseline
from atrium.compare.outcomes import At
from atrium.runs.run_folder import RunFolder


def compared_arms(
    folders: Sequence[RunFolder],
    by: Sequence[str],
    baseline: str | None,
    at: At,
    benchmarks: Sequence[str],
    *,
    chosen: Collection[str] = (),
    renamed: Mapping[str, str] | None = None,
    leave_out: Mapping[str, str] | None = None,
) -> tuple[CountedRuns, list[Arm], list[str], dict[str, tuple[MissingRun, ...]]]:
    """Return the runs that count, the arms (baseline first), notes, and the missing runs of each arm.

    The name of an arm depends only on the settings of the runs that count and of the missing runs. It
    therefore does not change when a missing run finishes. A run is not missing if a finished run of the same
    arm has the same seed. Raises `ConfigError` if a name in `leave_out` matches no run or several, if there
    are fewer than two arms, or if `baseline`, a benchmark, a name in `renamed` or a key in `by` is unknown,
    and `RunFolderError` if no run that counts was evaluated.
    """
    requested = _requested(folders, leave_out or {})
    set_aside = [run for folder in folders if (run := set_aside_run(folder, requested)) is not None]
    out = {run.name for run in set_aside}
    folders = [folder for folder in folders if folder.name not in out]
    at_last_step = at is At.LAST
    naming = partial(named_arms, by=by, at_last_step=at_last_step)
    chosen = {*chosen, *_runs_named(naming(folders, chosen=chosen), baseline)}
    named = naming(folders, chosen=chosen)
    others = {run: arm for arm in named if arm.is_other for run in arm.runs}
    counted = counted_runs(
        [folder for folder in folders if folder.name not in others],
        benchmarks,
        at,
        can_compare=lambda some: len(group_runs(some, named, at_last_step=at_last_step)[0]) > 1,
    )
    set_apart = [LeftOut(name=run, cause="other_run", reason=_reason(arm)) for run, arm in others.items()]
    kept = {run.folder.name for run in counted.runs} | {run.name for run in counted.missing}
    final = naming([one for one in folders if one.name in kept], chosen=kept, renamed=renamed)
    counted = replace(counted, left_out=(*set_aside, *counted.left_out, *set_apart))
    arms, notes = group_runs([run.folder for run in counted.runs], final, at_last_step=at_last_step)
    arms = _with_baseline(arms, final, baseline, counted.left_out)
    missing = {
        arm.name: tuple(
            run for run in counted.missing if run.folder.name in own and not _is_superseded(run.folder, arm)
        )
        for arm in arms
        for own in [next((one.runs for one in final if one.name == arm.name), ())]
    }
    return counted, arms, notes, missing


def _is_superseded(folder: RunFolder, arm: Arm) -> bool:
    """Return whether a finished run of the arm has the same seed as the run in `folder`."""
    seed = as_trained(read_object(folder.config_file)[0]).get("seed")
    run = arm.runs.get(seed) if isinstance(seed, int) else None
    return run is not None and is_finished(run)


def _requested(folders: Sequence[RunFolder], leave_out: Mapping[str, str]) -> dict[str, str]:
    """Return the user's reasons for leaving out runs, keyed by full run name.

    A key of `leave_out` is the end of a run's name. Raises `ConfigError` if a key matches no run or several
    runs.
    """
    found = {}
    for wanted, reason in leave_out.items():
        fitting = [folder.name for folder in folders if folder.name.endswith(wanted)]
        if len(fitting) != 1:
            raise ConfigError(
                f"--leave-out '{wanted}' matches {len(fitting) or 'none'} of the compared runs; give the "
                "full name of one run"
            )
        found[fitting[0]] = reason
    return found


def _reason(arm: NamedArm) -> str:
    return f"differs from the other runs of {arm.algorithm} by {arm.difference}; name the run to compare it"


def _runs_named(named: Sequence[NamedArm], baseline: str | None) -> list[str]:
    """Return the names of the "other runs" in `named` that `baseline` refers to.

    It refers to a run if it is the name of the run's arm or the end of the run's own name. "Other runs" are
    explained in `arm_names`. The result is empty if `baseline` is None.
    """
    return [
        run
        for arm in named
        if arm.is_other and baseline is not None
        for run in arm.runs
        if arm.name == baseline or run.endswith(baseline)
    ]


def _with_baseline(
    arms: Sequence[Arm], named: Sequence[NamedArm], baseline: str | None, left_out: Sequence[LeftOut]
) -> list[Arm]:
    """Return the arms with the baseline first.

    `named` are the results of `named_arms` for these arms. Raises `ConfigError` if there is only one arm, or
    if the baseline is unknown; the message mentions the runs in `left_out`.
    """
    others = f"; {left_out_words(left_out, MOST_NAMED)}" if left_out else ""
    if len(arms) < 2:
        names = [folder.path.name for arm in arms for folder in arm.runs.values()]
        needed = "a comparison requires two arms, but "
        if len(names) == 1:
            raise ConfigError(f"{needed}{names[0]} is a single run; add runs with other settings{others}")
        raise ConfigError(
            f"{needed}these runs differ only in the seed: {', '.join(names)}; add runs with other settings, "
            f"or group by seed to compare checkpoints{others}"
        )
    if baseline is None:
        first = default_baseline(arms)
    else:
        counted = {arm.name: arm for arm in arms}
        known = [one for one in named if one.name in counted]
        try:
            first = counted[find_arm(known, baseline, "baseline").name]
        except ConfigError as error:
            raise ConfigError(f"{error}{others}") from None
    return [first, *(arm for arm in arms if arm is not first)]

"""Selection of the evaluation that counts for each run, in particular for runs that diverged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from atrium.base.errors import RunFolderError
from atrium.compare.arms import Arm
from atrium.compare.outcomes import Answers, At, EvaluatedRun, OutcomeTable, evaluations_at, read_answers
from atrium.runs.run_folder import RunFolder

Tables = Mapping[str, Mapping[str, OutcomeTable]]
"""Outcome tables by benchmark and arm name."""


def steps_used(runs: Sequence[EvaluatedRun], benchmark: str, at: At) -> dict[str, int]:
    """Return the evaluated step that a comparison uses for each run, by run name.

    Diverged runs do not influence the steps used for other runs. In a comparison at equal steps, a diverged
    run is used at the common step of the other runs if it was evaluated at this step. In all other cases, its
    last evaluation is used. A diverged run without an evaluation has no entry and counts as always wrong.
    """
    used = evaluations_at([run for run in runs if not run.has_diverged], benchmark, at)
    shared = next(iter(used.values()), None) if at is At.STEPS else None
    for run in runs:
        if run.has_diverged and (points := run.evaluations.get(benchmark)):
            steps = [point.step for point in points]
            used[run.folder.name] = shared if shared in steps else steps[-1]
    return used


def answers_used(folders: Sequence[RunFolder], benchmark: str, used: Mapping[str, int]) -> list[Answers]:
    """Return the answers of each run at the step that `used` maps its name to.

    A run without an entry in `used` counts as always wrong. Raises `RunFolderError` if no run has an entry.
    """
    read = {run.name: read_answers(run, benchmark, used[run.name]) for run in folders if run.name in used}
    if not read:
        raise RunFolderError(
            f"no compared run was evaluated on {benchmark}; add runs that were evaluated on it"
        )
    asked = next(iter(read.values()))
    always_wrong = replace(
        asked,
        step=0,
        num_samples=min(answers.num_samples for answers in read.values()),
        num_correct=dict.fromkeys(asked.num_correct, 0),
    )
    return [read.get(run.name, always_wrong) for run in folders]


def diverged_seeds(arms: Sequence[Arm], runs: Mapping[str, EvaluatedRun]) -> dict[str, tuple[int, ...]]:
    """Return the seeds of each arm's diverged runs (empty if there are none), in ascending order."""
    return {
        arm.name: tuple(seed for seed in arm.seeds if runs[arm.runs[seed].name].has_diverged) for arm in arms
    }

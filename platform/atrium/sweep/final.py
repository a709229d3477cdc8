"""The last stage: the plan of the comparison with the baseline on fresh seeds, and its results.

Every planned seed either counts or is reported with the reason why it does not. A verdict on successful
runs only would suffer from survivorship bias.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from optuna.trial import TrialState

from atrium.sweep.definition import SweepDefinition
from atrium.sweep.plan import PlannedTrial
from atrium.sweep.results import DIVERGED, RUNNING, SeedResult
from atrium.sweep.study import Trial

WINNER, BASELINE = "winner", "baseline"


@dataclass(frozen=True, kw_only=True)
class FinalRun:
    """The run of one arm on one fresh seed.

    `role` is the role of the arm: `winner`, `baseline`, or `setting N`, where N is the number of its trial in
    the search. If `result` is None, `reason` says why, or is None if no reason is recorded. If `is_excused`
    is True, the verdict may leave the run out, because it failed before its end and the reason is recorded.
    """

    role: str
    seed: int
    result: SeedResult | None
    reason: str | None
    is_excused: bool = False

    @property
    def outcome(self) -> Mapping[str, Mapping[str, Any]]:
        """The results on test problems by benchmark. They are empty without a result."""
        return {} if self.result is None else self.result.outcome

    @property
    def has_diverged(self) -> bool:
        """Whether the run diverged, so that its outcome is the score of the diverged policy."""
        return self.result is not None and self.result.state == DIVERGED


def best_trial(trials: Sequence[Trial], direction: str) -> Trial | None:
    """Return the complete trial with the best first objective, or None if there is none.

    Trials whose results were copied from another trial are ignored. In a tie, the earliest trial is returned.
    """
    sign = 1.0 if direction == "maximize" else -1.0
    complete = [trial for trial in trials if trial.values is not None and trial.coincides_with is None]
    return max(complete, key=lambda trial: sign * (trial.values or (0.0,))[0], default=None)


def plan_final(
    definition: SweepDefinition, search: Sequence[Trial], baseline: Sequence[Trial]
) -> list[tuple[PlannedTrial, tuple[int, ...]]]:
    """Return the trials of the final stage, each with its seed: one for each arm and fresh seed.

    Candidates that are the same method as the baseline are left out. The plan is empty if no candidate is
    left, or if the winner or the baseline is missing.
    """
    direction = definition.objectives[0].direction
    winner, other = best_trial(search, direction), best_trial(baseline, direction)
    if definition.final is None or winner is None or other is None:
        return []
    arms = {WINNER: winner}
    if definition.final.settings == "all":
        complete = [one for one in search if one.values is not None and one.coincides_with is None]
        arms |= {f"setting {one.number}": one for one in complete if one is not winner}
    arms = {role: trial for role, trial in arms.items() if trial.planned.key != other.planned.key}
    return [
        (replace(trial.planned, labels=(role, *trial.planned.labels)), (seed,))
        for seed in definition.final.seeds
        for role, trial in (arms | {BASELINE: other} if arms else {}).items()
    ]


def roles_of(trials: Sequence[Trial]) -> dict[str, str]:
    """Return a distinct display name for each arm of the last stage, by role."""
    names: dict[str, str] = {}
    for trial in trials:
        role, label = trial.planned.labels[0], ", ".join(trial.planned.labels[1:])
        is_named = role not in (WINNER, BASELINE) and label not in names.values()
        names.setdefault(role, label if is_named else f"the {role} ({label})")
    return names


def final_runs(definition: SweepDefinition, trials: Sequence[Trial]) -> list[FinalRun]:
    """Return the run of each arm on each planned seed. All trials of the final stage must have ended."""
    assert definition.final is not None
    found = {(trial.planned.labels[0], seed): trial for trial in trials for seed in trial.seeds}
    return [
        _final_run(role, seed, found.get((role, seed)))
        for seed in definition.final.seeds
        for role in roles_of(trials)
    ]


def refusal(runs: Sequence[FinalRun]) -> str | None:
    """Return the reason to withhold a verdict, or None if there is none.

    A verdict is withheld if a run that must count has no outcome, if runs were evaluated on different test
    problems, or if no seed has an outcome of every arm.
    """
    for run in runs:
        if run.result is None and not run.is_excused:
            return (
                f"seed {run.seed} of the {run.role} has no outcome on test problems "
                f"({run.reason or 'no reason is recorded'}), and a verdict without it would be biased "
                "toward successful seeds; repeat the sweep under another name"
            )
    outcomes = [run.outcome for run in runs if run.result is not None]
    exams = [{name: len(one["problem_means"]) for name, one in outcome.items()} for outcome in outcomes]
    if any(exam != exams[0] for exam in exams):
        return "its runs were evaluated on different test problems; repeat the sweep under another name"
    if not paired_seeds(runs):
        return "no seed has an outcome of every arm; the list of trials shows the failures"
    return None


def paired_seeds(runs: Sequence[FinalRun]) -> list[int]:
    """Return the seeds on which every arm has an outcome, in planned order."""
    missing = {run.seed for run in runs if run.result is None}
    return [seed for seed in dict.fromkeys(run.seed for run in runs) if seed not in missing]


def _final_run(role: str, seed: int, trial: Trial | None) -> FinalRun:
    if trial is None:
        return FinalRun(role=role, seed=seed, result=None, reason="it was not planned")
    result = trial.results.get(seed)
    if trial.state is TrialState.COMPLETE and result is not None and result.outcome:
        return FinalRun(role=role, seed=seed, result=result, reason=result.reason)
    has_ended = result is not None and result.state != RUNNING
    is_excused = trial.state is TrialState.FAIL and trial.reason is not None and not has_ended
    return FinalRun(role=role, seed=seed, result=None, reason=trial.reason, is_excused=is_excused)

"""The last stage: which settings meet on fresh seeds, one trial per setting and seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from atrium.sweep.definition import SweepDefinition
from atrium.sweep.plan import PlannedTrial
from atrium.sweep.study import Trial

WINNER, BASELINE = "winner", "baseline"


def best_trial(trials: Sequence[Trial], direction: str) -> Trial | None:
    """The complete trial with the best first objective, the earliest of equals; None without any."""
    sign = 1.0 if direction == "maximize" else -1.0
    complete = [trial for trial in trials if trial.values is not None and trial.coincides_with is None]
    return max(complete, key=lambda trial: sign * (trial.values or (0.0,))[0], default=None)


def plan_final(
    definition: SweepDefinition, search: Sequence[Trial], baseline: Sequence[Trial]
) -> list[tuple[PlannedTrial, tuple[int, ...]]]:
    """Winner and baseline on each fresh seed; nothing where either is missing or they are one method."""
    direction = definition.objectives[0].direction
    winner, other = best_trial(search, direction), best_trial(baseline, direction)
    if definition.final is None or winner is None or other is None or winner.planned.key == other.planned.key:
        return []
    return [
        (replace(trial.planned, labels=(role, *trial.planned.labels)), (seed,))
        for seed in definition.final.seeds
        for role, trial in ((WINNER, winner), (BASELINE, other))
    ]

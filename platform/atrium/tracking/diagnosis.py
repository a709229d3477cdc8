"""What recorded metrics say about how training goes: pure rules over steps, in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atrium.metrics import CORRECT_FRAC, NO_SIGNAL_FRAC

Metrics = Mapping[str, float]
"""One step's metrics by name."""

COLLAPSE_STEPS = 10


def is_solved(step: Metrics) -> bool:
    """Whether every sampled answer of a step was right."""
    return step.get(CORRECT_FRAC.name, 0.0) >= 1.0


def is_stuck(step: Metrics) -> bool:
    """Whether in every group of a step all rewards were equal, and not because all answers were right."""
    return step.get(NO_SIGNAL_FRAC.name, 0.0) >= 1.0 and not is_solved(step)


def collapsed(steps: Sequence[Metrics], num_steps: int = COLLAPSE_STEPS) -> str | None:
    """Why a run counts as collapsed by its last steps: all of them stuck. None where it does not."""
    last = steps[-num_steps:]
    if len(last) < num_steps or not all(is_stuck(step) for step in last):
        return None
    return f"in its last {num_steps} steps all rewards of every group were equal, and not all answers right"

"""The default experiment and the default baseline, the same in every view, command and report."""

from __future__ import annotations

from collections.abc import Sequence

from atrium.compare.arms import Arm
from atrium.tracking.find import started

_BASELINES = ("grpo", "reinforce")
"""Algorithms that others are usually compared with, in this order."""


def default_baseline(arms: Sequence[Arm]) -> Arm:
    """The arm of a usual baseline algorithm, or else the arm whose first run started first."""

    def place(arm: Arm) -> tuple[int, float, str]:
        algorithm = arm.settings.get("algorithm.name", "")
        rank = _BASELINES.index(algorithm) if algorithm in _BASELINES else len(_BASELINES)
        first = min(arm.runs.values(), key=lambda run: (started(run), run.name))
        return rank, started(first), first.name

    return min(arms, key=place)

"""Two readings of runs that diverged, and what holds under both.

A run that diverged has an outcome: the score of the policy that it diverged to. Whoever uses the method
would throw that policy away, so a second reading counts the run as always wrong. A verdict has to hold under
both readings; otherwise it depends on the diverged runs. An exclusion is the weaker one of the two. Pure
functions.

Axes: S seeds, P problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atrium.evaluation.estimates import Interval

ReadingKind = Literal["better", "worse", "not_distinguishable", "depends_on_diverged"]


def is_diverged_outcome(evaluated_step: int, last_step: int) -> bool:
    """Whether an evaluation is of the policy that a run diverged to: in the step after its last whole one."""
    return evaluated_step > last_step


def as_always_wrong(
    values_by_benchmark: Sequence[ArrayLike], has_diverged_S: ArrayLike
) -> list[NDArray[np.float64]]:
    """The second reading of one arm: the values `[S, P]` with 0 for each seed that diverged."""
    is_kept_S1 = ~np.asarray(has_diverged_S, dtype=bool)[:, None]
    return [np.asarray(value_SP, dtype=np.float64) * is_kept_S1 for value_SP in values_by_benchmark]


def joint_kind(intervals: Sequence[Interval]) -> ReadingKind:
    """What the intervals of a difference say under every reading, each read by whether it leaves out 0."""
    kinds: set[ReadingKind] = {
        "better" if low > 0.0 else "worse" if high < 0.0 else "not_distinguishable" for low, high in intervals
    }
    return kinds.pop() if len(kinds) == 1 else "depends_on_diverged"


def joint_exclusion(intervals: Sequence[Interval]) -> float:
    """The size beyond which a difference is ruled out under every reading."""
    return max(max(-low, high) for low, high in intervals)

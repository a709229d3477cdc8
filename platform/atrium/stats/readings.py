"""Two readings of a diverged run: it counts with its score, or as always wrong.

A diverged run has an outcome: the score of its last policy. In practice, this policy would be discarded, so a
second reading counts all answers of the run as wrong. A verdict must hold under both readings
(`wording.under_both_readings`). All functions are pure.

Axes: S seeds, P problems.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from atrium.stats.arrays import Floats


def as_always_wrong(values_by_benchmark: Sequence[ArrayLike], has_diverged_S: ArrayLike) -> list[Floats]:
    """Return an arm's values [S, P] of each benchmark, with 0 in the rows of diverged seeds."""
    is_kept_S1 = ~np.asarray(has_diverged_S, dtype=bool)[:, None]
    return [np.asarray(value_SP, dtype=np.float64) * is_kept_S1 for value_SP in values_by_benchmark]

"""The two readings of diverged runs: with their scores, or as always wrong.

A run that diverged has an outcome: the score of the policy that it diverged to. In practice that policy would
be discarded, so a second reading counts the run as always wrong. A verdict must hold under both readings
(`wording.under_both_readings`). Pure functions.

Axes: S seeds, P problems.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from atrium.stats.arrays import Floats


def as_always_wrong(values_by_benchmark: Sequence[ArrayLike], has_diverged_S: ArrayLike) -> list[Floats]:
    """Return one arm's values `[S, P]` by benchmark, with 0 in the rows of diverged seeds."""
    is_kept_S1 = ~np.asarray(has_diverged_S, dtype=bool)[:, None]
    return [np.asarray(value_SP, dtype=np.float64) * is_kept_S1 for value_SP in values_by_benchmark]

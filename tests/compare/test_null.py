"""Equal methods are seldom told apart; `make bench-verdicts` draws thousands of such studies per design."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from atrium.stats.failures import exact_interval

NULL = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "null_verdicts.py"))
CELLS = {cell.name: cell for cell in NULL["cells"]()}


@pytest.mark.parametrize(
    "name",
    [
        "3 paired seeds",
        "8 against 3 seeds, 30% collapse",
        "5 two-valued seeds, 50% collapse",
        "3 arms, 3 seeds, a candidate 3 times as noisy",
        "5 seeds, 20% diverged",
        "5 seeds, 40% of one arm diverged",
        "5 seeds, 10 clusters",
        "planned looks at 3 and 5 seeds",
    ],
)
def test_false_verdicts_and_wrong_exclusions_stay_within_their_bounds(name):
    """In 200 studies the exact interval of a rate may reach the bound, and not lie above it."""
    found = NULL["measure"](CELLS[name], 200, (0.05,))
    assert exact_interval(found.num_false, 200).low <= NULL["MAX_FALSE"]
    assert exact_interval(found.num_wrong, 200).low <= NULL["MAX_WRONG"]


def test_two_seeds_are_never_judged():
    for name in ("2 paired seeds", "10 against 2 seeds, 30% collapse", "3 arms, 2 seeds"):
        values, diverged = NULL["drawn"](CELLS[name], 0.3, np.random.default_rng(0))
        assert {one.kind for one in NULL["_all"](NULL["verdicts_on"](CELLS[name], values, diverged))} == {
            "two_seeds"
        }


def test_methods_that_differ_are_told_apart_by_the_same_functions():
    """Otherwise a rate of false verdicts near 0 would say nothing."""
    cell = CELLS["5 paired seeds"]
    rng = np.random.default_rng(0)
    [[judged]] = NULL["verdicts_on"](cell, *NULL["drawn"](cell, 0.2, rng))
    assert judged.kind == "better"

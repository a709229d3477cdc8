"""Equal methods are seldom told apart; `make bench-verdicts` draws thousands of such studies."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

NULL = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "null_verdicts.py"))


@pytest.mark.parametrize(
    "design", [(3, 30, 1, 0.0), (3, 30, 3, 0.3), (5, 30, 3, 0.0), (5, 30, 1, 0.3), (10, 200, 3, 0.3)]
)
def test_runs_of_equal_methods_are_told_apart_seven_times_in_a_hundred_at_most(design):
    """By `compare` and by a sweep's last stage, with collapse and without."""
    num_studies = 150
    found = NULL["measure"](NULL["Cell"](*design), num_studies)
    allowed = 0.07 + 2 * (0.07 * 0.93 / num_studies) ** 0.5
    assert found["compare"] <= allowed
    assert found["sweep"] <= allowed


def test_methods_that_differ_are_told_apart_by_the_same_functions():
    """Else a rate of false verdicts near 0 would say nothing."""
    cell = NULL["Cell"](5, 200, 1, 0.0)
    count_ASP = NULL["drawn_arms"](cell, NULL["np"].random.default_rng(0))
    count_ASP[1] = (count_ASP[1] + 2).clip(0, NULL["NUM_SAMPLES"])
    assert NULL["compared"](count_ASP)
    assert NULL["swept"](count_ASP)

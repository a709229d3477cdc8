"""The problems behind a difference between two arms."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from atrium.compare.deciding_problems import AnswersBeside, deciding_answers, deciding_table
from atrium.compare.outcomes import OutcomeTable


def compared(**correct):
    """Two seeds with four answers to each of the problems a, b and c; the first arm is the baseline."""
    arms = [
        SimpleNamespace(
            arm=SimpleNamespace(
                name=name,
                seeds=(0, 1),
                runs={seed: SimpleNamespace(name=f"{name}-s{seed}") for seed in (0, 1)},
            )
        )
        for name in correct
    ]
    outcomes = {
        name: OutcomeTable(
            benchmark="sums",
            problem_ids=("a", "b", "c"),
            num_correct_SP=np.array(counts),
            num_samples_S=(4, 4),
        )
        for name, counts in correct.items()
    }
    steps = {f"{name}-s{seed}": 80 + seed for name in correct for seed in (0, 1)}
    return SimpleNamespace(arms=arms, outcomes={"sums": outcomes}, steps={"sums": steps})


def test_problems_are_listed_by_the_size_of_the_difference_with_the_seeds_that_solve_them():
    comparison = compared(grpo=[[0, 4, 2], [0, 3, 2]], atr=[[2, 1, 2], [4, 0, 2]])
    table = deciding_table(comparison, "atr", "sums")
    rows = [(row.cells[0], row.cells[1].value, row.cells[2].value, *row.cells[4:]) for row in table.rows]
    assert rows == [("a", 0.75, 0.0, "2 of 2", "0 of 2"), ("b", 0.125, 0.875, "1 of 2", "2 of 2")]
    assert table.note.startswith(
        "atr solves 1 problem that grpo never solves; grpo solves 0 that atr never solves."
    )


def test_answers_are_from_the_runs_that_differ_most_preferably_of_one_seed():
    comparison = compared(grpo=[[0, 4, 2], [0, 3, 2]], atr=[[2, 1, 2], [4, 0, 2]])
    first, second = deciding_answers(comparison, "atr", "sums")
    assert first == AnswersBeside(problem="a", run="atr-s1", step=81, beside="grpo-s1", beside_step=81)
    assert (second.problem, second.run, second.beside) == ("b", "atr-s1", "grpo-s0")


def test_equal_arms_have_no_problems_to_list():
    same = [[1, 2, 3], [1, 2, 3]]
    comparison = compared(grpo=same, atr=same)
    assert deciding_table(comparison, "atr", "sums").rows == ()
    assert deciding_answers(comparison, "atr", "sums") == []

"""The problems on which two arms differ most in the share of correct answers.

Because the problems are selected for their difference, no hypothesis is tested on them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atrium.base.records import Floats
from atrium.compare.arms import Arm
from atrium.compare.run_comparison import RunsComparison
from atrium.document.document import Column, Row, Table, Value
from atrium.document.formatting import counted
from atrium.runs.run_folder import RunFolder

MOST = 12
"""The largest number of problems in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswersBeside:
    """Two evaluated runs whose answers to a problem are shown side by side.

    `run` and `step` belong to the candidate, `beside` and `beside_step` to the baseline. The step of a
    diverged run without an evaluation is 0.
    """

    problem: str
    run: str
    step: int
    beside: str
    beside_step: int


def deciding_table(comparison: RunsComparison, candidate: str, benchmark: str) -> Table:
    """Return the table of problems with the largest differences from the baseline, in either direction.

    A difference is the candidate's share of correct answers minus the baseline's.
    """
    baseline = comparison.arms[0].arm.name
    tables = [comparison.outcomes[benchmark][name] for name in (candidate, baseline)]
    share_AP = [table.mean_at_k().mean(axis=0) for table in tables]
    solved_AP = [(table.num_correct_SP > 0).sum(axis=0) for table in tables]
    gained, lost = (int(((own > 0) & (other == 0)).sum()) for own, other in (solved_AP, solved_AP[::-1]))
    rows = []
    for place in _largest(share_AP[0] - share_AP[1]):
        shares = [float(share_P[place]) for share_P in share_AP]
        seeds = [
            f"{solved_P[place]} of {len(table.num_samples_S)}"
            for solved_P, table in zip(solved_AP, tables, strict=True)
        ]
        difference = Value(shares[0] - shares[1], "points", is_signed=True)
        values = [Value(share, "share") for share in shares]
        rows.append(Row((tables[0].problem_ids[place], *values, difference, *seeds)))
    titles = ("problem", f"{candidate}, %", f"{baseline}, %", "difference, points")
    return Table(
        key="deciding",
        title=f"Problems with the largest differences, {candidate} against {baseline}, {benchmark}",
        columns=(
            *map(Column, titles),
            *(Column(f"seeds of {name} that solve it", is_text=True) for name in (candidate, baseline)),
        ),
        rows=tuple(rows),
        note=(
            f"{candidate} solves {counted(gained, 'problem')} that {baseline} never solves; {baseline} "
            f"solves {lost} that {candidate} never solves. The table lists the largest differences in the "
            "share of correct answers; they are selected for their size, so no hypothesis test is made."
        ),
    )


def deciding_answers(comparison: RunsComparison, candidate: str, benchmark: str) -> list[AnswersBeside]:
    """For each row of `deciding_table`, return the two runs that differ most on the problem.

    One run is the candidate's, the other the baseline's. Their shares of correct answers differ most in the
    direction in which the arms differ. Among equally different pairs, runs of the same seed are preferred.
    """
    arms = {one.arm.name: one.arm for one in comparison.arms}
    pair = [arms[candidate], comparison.arms[0].arm]
    tables = [comparison.outcomes[benchmark][arm.name] for arm in pair]
    share_ASP = [table.mean_at_k() for table in tables]
    steps = comparison.steps[benchmark]
    found = []
    for place in _largest(share_ASP[0].mean(axis=0) - share_ASP[1].mean(axis=0)):
        sign = np.sign(share_ASP[0][:, place].mean() - share_ASP[1][:, place].mean()) or 1.0
        gaps = {
            (sign * (own[place] - other[place]), a == b): (arm_run.name, other_run.name)
            for a, own, arm_run in zip(pair[0].seeds, share_ASP[0], _runs(pair[0]), strict=True)
            for b, other, other_run in zip(pair[1].seeds, share_ASP[1], _runs(pair[1]), strict=True)
        }
        run, beside = gaps[max(gaps)]
        found.append(
            AnswersBeside(
                problem=tables[0].problem_ids[place],
                run=run,
                step=steps.get(run, 0),
                beside=beside,
                beside_step=steps.get(beside, 0),
            )
        )
    return found


def _runs(arm: Arm) -> list[RunFolder]:
    return [arm.runs[seed] for seed in arm.seeds]


def _largest(difference_P: Floats) -> list[int]:
    """Return the indices of at most 12 problems with the largest nonzero differences in either direction."""
    order = np.argsort(-np.abs(difference_P), kind="stable")[:MOST]
    return [int(place) for place in order if difference_P[place] != 0.0]

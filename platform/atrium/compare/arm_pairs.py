"""Candidates against the baseline arm: seeds paired, outcomes compared, verdicts that hold together.

Axes: A arms, S seeds, P problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atrium.compare.arms import Arm, are_same_method, pair_seeds
from atrium.compare.crossed import (
    SHARES,
    CrossedMean,
    SamplingNoise,
    Values,
    crossed_mean,
    noise_of_sum,
    sampling_noise,
)
from atrium.compare.outcomes import OutcomeTable
from atrium.compare.robust import mean_scores
from atrium.compare.simultaneous import family_of
from atrium.compare.statistics import Comparison, compare_arms, verdict
from atrium.compare.verdicts import Verdict

MACRO = "macro average"
MEAN = "mean"
PASS = "pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A candidate against the baseline by one measure on one benchmark or the macro average."""

    baseline: str
    candidate: str
    measure: str
    benchmark: str
    comparison: Comparison
    verdict: Verdict


def compare_pairs(
    arms: Sequence[Arm],
    tables: Mapping[str, Mapping[str, OutcomeTable]],
    measure: str,
    *,
    k: int,
    seed: int,
    notes: list[str],
) -> list[Pair]:
    """All candidates against the first arm: the macro average is one family, all single benchmarks another.

    `tables` holds outcomes by benchmark and arm, seeds ascending; what is noticed is added to `notes`.
    """
    baseline, candidates = arms[0], arms[1:]
    paired = {candidate.name: pair_seeds(baseline, candidate) for candidate in candidates}
    notes += [note for _, note in paired.values() if note]
    found = []
    for members_by_name in _families(list(tables)):
        for name, members in members_by_name.items():
            chosen = [tables[member] for member in members]
            scores_AS = _shared_scores(arms, chosen, [pairs for pairs, _ in paired.values()], measure, k)
            family = family_of(scores_AS, len(candidates), len(members_by_name))
            for candidate in candidates:
                comparison = compare_arms(
                    *_sides((baseline, candidate), chosen, paired[candidate.name][0], measure, k),
                    family=family,
                    seed=seed,
                )
                judged = verdict(
                    comparison,
                    baseline_name=baseline.name,
                    candidate_name=candidate.name,
                    same_method=are_same_method(baseline, candidate),
                )
                found.append(
                    Pair(
                        baseline=baseline.name,
                        candidate=candidate.name,
                        measure=measure,
                        benchmark=name,
                        comparison=comparison,
                        verdict=judged,
                    )
                )
    return found


def _sides(
    arms: tuple[Arm, Arm],
    tables: Sequence[Mapping[str, OutcomeTable]],
    pairs: Sequence[tuple[int, int]],
    measure: str,
    k: int,
) -> tuple[list[Values], list[Values], SamplingNoise | None]:
    """What both arms did on the seeds that are paired, and the sampling noise of their difference."""
    sides = [
        [_selected(by_arm[arm.name], [arm.seeds.index(pair[side]) for pair in pairs]) for by_arm in tables]
        for side, arm in enumerate(arms)
    ]
    baseline, candidate = ([values_of(table, measure, k) for table in side] for side in sides)
    return baseline, candidate, _noise_of_both(sides) if measure == MEAN else None


def score_of(tables: Sequence[OutcomeTable], measure: str, k: int) -> CrossedMean:
    """One arm's mean over benchmarks, seeds and problems; with one seed, sampling noise is this exam's."""
    noise = None
    if measure == MEAN and all(len(table.num_samples_S) == 1 for table in tables):
        noise = sampling_noise([t.num_correct_SP for t in tables], [t.num_samples_S[0] for t in tables])
    return crossed_mean([values_of(table, measure, k) for table in tables], limits=SHARES, sampling=noise)


def _shared_scores(
    arms: Sequence[Arm],
    tables: Sequence[Mapping[str, OutcomeTable]],
    paired: Sequence[Sequence[tuple[int, int]]],
    measure: str,
    k: int,
) -> NDArray[np.float64] | None:
    """The seeds' means of every arm [A, S], over benchmarks; None where seeds differ by pair."""
    if any(pairs != paired[0] for pairs in paired):
        return None
    rows = [[arm.seeds.index(pair[arm is not arms[0]]) for pair in paired[0]] for arm in arms]
    return np.stack(
        [
            mean_scores(
                [values_of(_selected(by_arm[arm.name], seeds), measure, k) for by_arm in tables]
            ).mean(axis=1)
            for arm, seeds in zip(arms, rows, strict=True)
        ]
    )


def _families(benchmarks: Sequence[str]) -> list[dict[str, tuple[str, ...]]]:
    single: dict[str, tuple[str, ...]] = {name: (name,) for name in benchmarks}
    return [{MACRO: tuple(benchmarks)}, single] if len(benchmarks) > 1 else [single]


def _noise_of_both(sides: Sequence[Sequence[OutcomeTable]]) -> SamplingNoise | None:
    """The sampling noise of a difference of Mean@K: both arms' variances add up."""
    found = [
        sampling_noise([t.num_correct_SP for t in side], [min(t.num_samples_S) for t in side])
        for side in sides
        if all(len(table.num_samples_S) == 1 for table in side)
    ]
    known = [noise for noise in found if noise is not None]
    return noise_of_sum(known) if len(known) == len(sides) else None


def _selected(table: OutcomeTable, rows: Sequence[int]) -> OutcomeTable:
    return OutcomeTable(
        benchmark=table.benchmark,
        problem_ids=table.problem_ids,
        num_correct_SP=table.num_correct_SP[list(rows)],
        num_samples_S=tuple(table.num_samples_S[row] for row in rows),
    )


def values_of(table: OutcomeTable, measure: str, k: int) -> Values:
    """Mean@K or Pass@k by run and problem [S, P]."""
    return table.mean_at_k() if measure == MEAN else table.pass_at(k)

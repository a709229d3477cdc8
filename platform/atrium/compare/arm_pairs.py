"""Candidates against the baseline arm: seeds paired, outcomes compared, p values corrected, verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atrium.compare.arms import Arm, are_same_method, pair_seeds
from atrium.compare.crossed import SamplingNoise, Values, sampling_noise
from atrium.compare.outcomes import OutcomeTable
from atrium.compare.robust import holm
from atrium.compare.statistics import Comparison, Verdict, compare_arms, verdict

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
    adjusted_p: float | None
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
    baseline, families = arms[0], _families(list(tables))
    found = []
    for family in families:
        compared: list[tuple[Arm, str, Comparison]] = []
        for candidate in arms[1:]:
            pairs, note = pair_seeds(baseline, candidate)
            if note:
                notes.append(note)
            for name, members in family.items():
                chosen = [tables[member] for member in members]
                sides = [
                    [
                        _selected(by_arm[arm.name], [arm.seeds.index(p[side]) for p in pairs])
                        for by_arm in chosen
                    ]
                    for side, arm in enumerate((baseline, candidate))
                ]
                compared.append((candidate, name, _compared(sides, measure, k, seed)))
        known = [one.difference.another_exam for _, _, one in compared]
        adjusted = holm([None if item is None else item.p_value for item in known])
        found += [
            _pair(
                baseline,
                candidate,
                measure=measure,
                benchmark=name,
                comparison=comparison,
                adjusted_p=p if len(compared) > 1 else None,
            )
            for (candidate, name, comparison), p in zip(compared, adjusted, strict=True)
        ]
    return found


def _families(benchmarks: Sequence[str]) -> list[dict[str, tuple[str, ...]]]:
    single: dict[str, tuple[str, ...]] = {name: (name,) for name in benchmarks}
    return [{MACRO: tuple(benchmarks)}, single] if len(benchmarks) > 1 else [single]


def _pair(
    baseline: Arm,
    candidate: Arm,
    *,
    measure: str,
    benchmark: str,
    comparison: Comparison,
    adjusted_p: float | None,
) -> Pair:
    judged = verdict(
        comparison,
        baseline_name=baseline.name,
        candidate_name=candidate.name,
        adjusted_p=adjusted_p,
        same_method=are_same_method(baseline, candidate),
    )
    return Pair(
        baseline=baseline.name,
        candidate=candidate.name,
        measure=measure,
        benchmark=benchmark,
        comparison=comparison,
        adjusted_p=adjusted_p,
        verdict=judged,
    )


def _compared(sides: Sequence[Sequence[OutcomeTable]], measure: str, k: int, seed: int) -> Comparison:
    values = [[values_of(table, measure, k) for table in side] for side in sides]
    return compare_arms(
        values[0], values[1], sampling=_noise_of_both(sides) if measure == MEAN else None, seed=seed
    )


def _noise_of_both(sides: Sequence[Sequence[OutcomeTable]]) -> SamplingNoise | None:
    """The sampling noise of a difference of Mean@K: both arms' variances add up."""
    found = [
        sampling_noise([t.num_correct_SP for t in side], [min(t.num_samples_S) for t in side])
        for side in sides
        if all(len(table.num_samples_S) == 1 for table in side)
    ]
    known = [noise for noise in found if noise is not None]
    if len(known) < 2:
        return None
    total = sum(noise.variance for noise in known)
    spread = sum(noise.variance**2 / noise.degrees_of_freedom for noise in known)
    return SamplingNoise(total, total**2 / spread)


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

"""Verdicts that count every run: both readings of diverged runs, and runs that are still missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from atrium.compare.arm_pairs import MEAN, PASS, Pair, best_arms, compare_pairs
from atrium.compare.arms import Arm
from atrium.compare.counted_runs import MissingRun
from atrium.compare.diverged_runs import Tables, as_wrong_tables, diverged_seeds
from atrium.compare.outcomes import EvaluatedRun
from atrium.compare.planned_seeds import PlannedArms
from atrium.compare.verdicts import before_plan, under_both_readings, unfinished


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPairs:
    """All pairs with their verdicts, the arms shown to be the best, and each arm's seeds that diverged."""

    pairs: tuple[Pair, ...]
    best: Mapping[tuple[str, str], str | None]
    diverged: Mapping[str, tuple[int, ...]]


def judge_pairs(
    planned: PlannedArms, tables: Tables, runs: Mapping[str, EvaluatedRun], *, k: int, seed: int
) -> JudgedPairs:
    """Compare all arms with the first one in both readings, by Mean@K and Pass@k.

    `tables` holds the outcomes of all planned runs; verdicts are over those of the latest look.
    """
    looked = planned.at_look()
    arms, tables = looked.arms, _tables_of(looked.arms, planned.arms, tables)
    diverged = diverged_seeds(planned.arms, runs)
    readings = (tables, as_wrong_tables(arms, tables, diverged))
    measures = (MEAN, PASS) if k > 1 else (MEAN,)
    by_score, as_wrong = (
        compare_pairs(arms, one, measures, k=k, seed=seed, num_looks=planned.num_looks) for one in readings
    )
    pairs = judged_pairs(by_score, as_wrong, diverged, looked.missing)
    if planned.plan is not None and planned.is_early:
        pairs = [_before_plan(pair, planned.num_in, planned.plan.num_seeds) for pair in pairs]
    best = best_under_readings(arms, readings, pairs, k=k, num_looks=planned.num_looks)
    return JudgedPairs(pairs=tuple(pairs), best=best, diverged=diverged)


def _tables_of(some: Sequence[Arm], arms: Sequence[Arm], tables: Tables) -> Tables:
    """The tables of `some` of the runs of these arms."""
    rows = {
        one.name: [row for row, seed in enumerate(arm.seeds) if seed in one.runs]
        for one, arm in zip(some, arms, strict=True)
    }
    return {
        benchmark: {name: table.of_rows(rows[name]) for name, table in by_arm.items()}
        for benchmark, by_arm in tables.items()
    }


def _before_plan(pair: Pair, num_in: int, num_planned: int) -> Pair:
    """The pair with its estimate alone: an interval before the planned number of seeds is a verdict."""
    if pair.verdict.kind == "same_method":
        return pair
    known = pair.comparison.difference
    estimate = replace(known, another_exam=None, this_exam=None, new_problems=None)
    return replace(
        pair,
        comparison=replace(pair.comparison, difference=estimate, permutation_p=None),
        if_wrong=None,
        verdict=before_plan(known.value, num_in, num_planned),
    )


def judged_pairs(
    by_score: Sequence[Pair],
    as_wrong: Sequence[Pair],
    diverged: Mapping[str, Sequence[int]],
    missing: Mapping[str, Sequence[MissingRun]],
) -> list[Pair]:
    """The pairs with the verdicts that hold under both readings and that missing runs leave.

    `as_wrong` are the same pairs in the second reading; `diverged` and `missing` are by arm.
    """
    found = []
    for pair, other in zip(by_score, as_wrong, strict=True):
        arms = (pair.baseline, pair.candidate)
        used = (pair.pairing.baseline, pair.pairing.candidate)
        seeds = [
            f"seed {seed} of {arm}"
            for arm, own in zip(arms, used, strict=True)
            for seed in diverged[arm]
            if seed in own
        ]
        judged = pair.verdict
        if seeds:
            pair = replace(pair, if_wrong=other.comparison)
            if judged.kind != "same_method":
                judged = under_both_readings(judged, other.verdict, seeds)
        lacking = [run for arm in arms for run in missing[arm]]
        if lacking and judged.kind != "same_method":
            kinds = {run.kind for run in lacking}
            named = [f"{run.folder.name} {run.stands}" for run in lacking]
            value = pair.comparison.difference.value
            judged = unfinished("incomplete" if "incomplete" in kinds else "preliminary", value, named)
        found.append(replace(pair, verdict=judged))
    return found


def best_under_readings(
    arms: Sequence[Arm], readings: Sequence[Tables], pairs: Sequence[Pair], *, k: int, num_looks: int = 1
) -> dict[tuple[str, str], str | None]:
    """The arm that is shown to be the best in every reading, by measure and benchmark; else None."""
    first, *others = (best_arms(arms, tables, pairs, k=k, num_looks=num_looks) for tables in readings)
    return {key: name if all(other[key] == name for other in others) else None for key, name in first.items()}

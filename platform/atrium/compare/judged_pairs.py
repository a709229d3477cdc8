"""The pairs of a comparison of runs, by measure and benchmark, and the arms that may be the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from atrium.compare.arms import Arm, are_same_method
from atrium.compare.diverged_runs import Tables
from atrium.compare.outcomes import OutcomeTable
from atrium.compare.planned_seeds import PlannedArms
from atrium.document.formatting import counted
from atrium.stats.arm_pairs import MEAN, PASS, Pair, ScoredArms
from atrium.stats.crossed import SHARES, CrossedMean, Values, crossed_mean
from atrium.stats.simultaneous import Family
from atrium.stats.wording import before_plan

MACRO = "macro average"


def judge_pairs(
    planned: PlannedArms, tables: Tables, diverged: Mapping[str, Sequence[int]], *, k: int
) -> tuple[list[Pair], dict[tuple[str, str], tuple[str, ...]]]:
    """Compare all arms with the first one, by Mean@K and Pass@k; and the leaders by measure and benchmark.

    `tables` holds the outcomes of all planned runs; verdicts are over those of the latest look. `diverged`
    are the seeds that diverged, by arm.
    """
    looked = planned.at_look()
    arms, baseline = looked.arms, looked.arms[0]
    tables = _tables_of(arms, planned.arms, tables)
    same = {arm.name for arm in arms[1:] if are_same_method(baseline, arm)}
    pairs: list[Pair] = []
    leaders = {}
    for measure in (MEAN, PASS) if k > 1 else (MEAN,):
        for scores in scored_arms(arms, tables, measure, k=k, num_looks=planned.num_looks):
            found = scores.pairs(baseline.name, diverged, missing=looked.missing, same_methods=same)
            if planned.plan is not None and planned.is_early:
                found = [_before_plan(pair, planned.num_in, planned.plan.num_seeds) for pair in found]
            is_withheld = any(pair.verdict.withheld for pair in found)
            own = () if is_withheld else _leaders(arms, scores.leaders(diverged))
            leaders[measure, scores.benchmark] = own
            pairs += found
    return pairs, leaders


def _leaders(arms: Sequence[Arm], names: tuple[str, ...]) -> tuple[str, ...]:
    """The arms of these names, and those that are one method with the first."""
    first = next(arm for arm in arms if arm.name == names[0])
    same = [arm.name for arm in arms if arm is not first and are_same_method(first, arm)]
    return tuple(dict.fromkeys((*names, *same)))


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


def left_out_of_pairs(pairs: Sequence[Pair]) -> list[str]:
    """Notes on seeds of only one arm that a paired difference does not use."""
    numbers = {(pair.candidate, pair.baseline): pair.pairing.num_left_out for pair in pairs}
    return [
        f"left out of the difference: {counted(num, 'seed')} of only one of {candidate} and {baseline}"
        for (candidate, baseline), num in numbers.items()
        if num
    ]


def scored_arms(
    arms: Sequence[Arm],
    tables: Mapping[str, Mapping[str, OutcomeTable]],
    measure: str,
    *,
    k: int,
    num_looks: int = 1,
) -> list[ScoredArms]:
    """The scores of all arms on the macro average and on every benchmark, with the family of each."""
    single: dict[str, tuple[str, ...]] = {name: (name,) for name in tables}
    families = [{MACRO: tuple(tables)}, single] if len(tables) > 1 else [single]
    return [
        ScoredArms(
            values={
                arm.name: [values_of(tables[member][arm.name], measure, k) for member in members]
                for arm in arms
            },
            seeds={arm.name: arm.seeds for arm in arms},
            clusters=[next(iter(tables[member].values())).cluster_P for member in members],
            family=Family(num_candidates=len(arms) - 1, num_benchmarks=len(family), num_looks=num_looks),
            measure=measure,
            benchmark=name,
        )
        for family in families
        for name, members in family.items()
    ]


def score_of(tables: Sequence[OutcomeTable], measure: str, k: int) -> CrossedMean:
    """One arm's mean over benchmarks, seeds and problems."""
    clusters = [table.cluster_P for table in tables]
    return crossed_mean([values_of(table, measure, k) for table in tables], clusters=clusters, limits=SHARES)


def values_of(table: OutcomeTable, measure: str, k: int) -> Values:
    """Mean@K or Pass@k by run and problem [S, P]."""
    return table.mean_at_k() if measure == MEAN else table.pass_at(k)

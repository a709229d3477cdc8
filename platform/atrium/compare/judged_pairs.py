"""The pairs of a comparison of runs, by measure and benchmark, and the arms that may be the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from atrium.base.records import Floats
from atrium.compare.arms import Arm, same_method_groups
from atrium.compare.diverged_runs import Tables
from atrium.compare.outcomes import OutcomeTable
from atrium.compare.planned_seeds import PlannedArms
from atrium.document.formatting import counted
from atrium.stats.arm_pairs import MEAN, PASS, Pair, ScoredArms
from atrium.stats.crossed import SHARES, CrossedMean, crossed_mean
from atrium.stats.simultaneous import Family
from atrium.stats.wording import before_plan

MACRO = "macro average"


def judge_pairs(
    planned: PlannedArms, tables: Tables, diverged: Mapping[str, Sequence[int]], *, k: int
) -> tuple[list[Pair], dict[tuple[str, str], tuple[str, ...]], Pair | None]:
    """Compare all arms with the first, and the highest arm with the next highest of another method.

    Returns `(pairs, leaders, lead)`. `pairs` compare every other arm with the first. `leaders` maps each
    (measure, benchmark) to the arms that may be the best, highest first, followed by the remaining arms of
    the same method as the highest. An entry is empty if a verdict on a pair is withheld. `lead` is a pair for
    Mean@K on the headline benchmark. Its baseline is the highest arm. Its candidate is the next leader of
    another method, or, if there is none, the next highest arm of another method. `lead` is None if all arms
    are one method.

    The measures are Mean@K and, if `k` is above 1, Pass@k. `tables` contains the outcomes of all planned
    runs; verdicts use the runs of the latest look. `diverged` contains the seeds that diverged, by arm.
    """
    looked = planned.at_look()
    arms, baseline = looked.arms, looked.arms[0]
    tables = _tables_of(arms, planned.arms, tables)
    same_methods = same_method_groups(arms)

    def same_as(name: str) -> tuple[str, ...]:
        return next((group for group in same_methods if name in group), (name,))

    def against(name: str, scores: ScoredArms) -> list[Pair]:
        found = scores.pairs(name, diverged, missing=looked.missing, same_methods=same_as(name))
        if planned.plan is None or not planned.is_early:
            return found
        return [_before_plan(pair, planned.num_in, planned.plan.num_seeds) for pair in found]

    pairs: list[Pair] = []
    leaders: dict[tuple[str, str], tuple[str, ...]] = {}
    lead = None
    for measure in (MEAN, PASS) if k > 1 else (MEAN,):
        for scores in scored_arms(arms, tables, measure, k=k, num_looks=planned.num_looks):
            found = against(baseline.name, scores)
            pairs += found
            names = scores.leaders(diverged)
            same = same_as(names[0])
            is_withheld = any(pair.verdict.withheld for pair in found)
            leaders[measure, scores.benchmark] = () if is_withheld else tuple(dict.fromkeys((*names, *same)))
            others = [one for one in (*names, *scores.ranked()) if one not in same]
            if len(leaders) == 1 and others:  # the headline measure and benchmark are the first
                lead = next(pair for pair in against(names[0], scores) if pair.candidate == others[0])
    return pairs, leaders, lead


def _tables_of(some: Sequence[Arm], arms: Sequence[Arm], tables: Tables) -> Tables:
    """Return the tables restricted to the runs in `some`.

    `some` contains the same arms as `arms`, in the same order, but possibly fewer runs of each. `tables`
    contains all runs of `arms`.
    """
    rows = {
        one.name: [row for row, seed in enumerate(arm.seeds) if seed in one.runs]
        for one, arm in zip(some, arms, strict=True)
    }
    return {
        benchmark: {name: table.of_rows(rows[name]) for name, table in by_arm.items()}
        for benchmark, by_arm in tables.items()
    }


def _before_plan(pair: Pair, num_in: int, num_planned: int) -> Pair:
    """Return the pair with its estimate only, as it is shown before the first planned look.

    The intervals of the difference and the p values are removed, since they would amount to a verdict. A pair
    of equal methods is returned unchanged. `num_in` is the number of finished seeds per arm, and
    `num_planned` the planned number.
    """
    if pair.verdict.kind == "same_method":
        return pair
    known = pair.comparison.difference
    estimate = replace(known, new_seeds_and_problems=None, new_seeds=None, new_problems=None)
    return replace(
        pair,
        comparison=replace(pair.comparison, difference=estimate, permutation_p=None),
        if_wrong=None,
        verdict=before_plan(known.value, num_in, num_planned),
    )


def left_out_of_pairs(pairs: Sequence[Pair]) -> list[str]:
    """Return notes on seeds that a paired difference does not use because only one arm has them."""
    candidates: dict[tuple[str, int], list[str]] = {}
    for pair in pairs:
        candidates.setdefault((pair.baseline, pair.pairing.num_left_out), []).append(pair.candidate)
    return [
        f"left out of the difference to {baseline}: {counted(num, 'seed')} that only one of the two arms has "
        f"({', '.join(dict.fromkeys(names))})"
        for (baseline, num), names in candidates.items()
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
    """Return the scores of all arms on each benchmark, and, if there are several, on their macro average.

    The macro average comes first. `measure` is `MEAN` or `PASS`; `k` is the k of Pass@k, and `num_looks` the
    number of planned looks.
    """
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
    """Return one arm's mean of Mean@K or Pass@k over benchmarks, seeds and problems.

    `tables` contains the arm's outcomes on each benchmark.
    """
    clusters = [table.cluster_P for table in tables]
    return crossed_mean([values_of(table, measure, k) for table in tables], clusters=clusters, limits=SHARES)


def values_of(table: OutcomeTable, measure: str, k: int) -> Floats:
    """Return Mean@K or Pass@k by run and problem [S, P]."""
    return table.mean_at_k() if measure == MEAN else table.pass_at(k)

"""The comparison on fresh seeds: every candidate against the baseline, including diverged runs.

A diverged run is counted in two ways: with the score of the diverged policy, and as always wrong. A verdict
either holds in both cases or says that it depends on the diverged runs.

Axes: A arms (the baseline first), S seeds, P problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atrium.stats.arm_pairs import Pair, ScoredArms
from atrium.stats.crossed import CrossedMean
from atrium.stats.failures import FailureRate
from atrium.stats.robust import interquartile_of
from atrium.stats.simultaneous import Family
from atrium.sweep.final import BASELINE, FinalRun, final_runs, paired_seeds, refusal, roles_of
from atrium.sweep.plan import Stage
from atrium.sweep.study import SweepStudies


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshArm:
    """An arm's mean over the compared seeds, and its failure rates over all runs with an outcome.

    `iqm` is the interquartile mean over seeds. `collapsed` is None if collapse was not recorded. `reasons`
    says, by seed, why runs diverged or collapsed.
    """

    name: str
    mean_at_k: float
    iqm: float | None
    num_seeds: int
    diverged: FailureRate
    collapsed: FailureRate | None
    reasons: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshVerdict:
    """The verdicts on all candidates against the baseline.

    `together` describes the family of simultaneous intervals, and `sources` the clusters of problems; both
    may be empty. `left_out` describes the seeds that are left out, because an arm has no outcome on them.
    """

    benchmarks: tuple[str, ...]
    seeds: list[int]
    together: str
    sources: str
    pairs: tuple[Pair, ...]
    arms: tuple[FreshArm, ...]
    left_out: tuple[str, ...]


def fresh_verdict(studies: SweepStudies) -> FreshVerdict | str | None:
    """Return the verdict, or the reason why there is none.

    Returns None if the sweep has no final stage.
    """
    if Stage.FINAL not in studies.stages:
        return None
    if not studies.has_ended(Stage.FINAL):
        return "the comparison on fresh seeds is not finished"
    if not (trials := studies.trials(Stage.FINAL)):
        return "winner and baseline are the same method, or the search of one of them completed no trial"
    runs = final_runs(studies.definition, trials)
    return refusal(runs) or _verdict(runs, roles_of(trials))


def _verdict(runs: Sequence[FinalRun], names: Mapping[str, str]) -> FreshVerdict:
    """Compare each candidate with the baseline.

    `runs` are the runs of all arms, and `names` maps roles to display names.
    """
    seeds = paired_seeds(runs)
    counted = {role: [run for run in runs if run.role == role and run.seed in seeds] for role in names}
    outcome = counted[BASELINE][0].outcome
    benchmarks = sorted(outcome)
    scores = ScoredArms(
        values={
            names[role]: [
                np.array([run.outcome[name]["problem_means"] for run in own]) for name in benchmarks
            ]
            for role, own in counted.items()
        },
        seeds=dict.fromkeys(names.values(), seeds),
        family=Family(num_candidates=len(names) - 1),
        clusters=[outcome[name].get("clusters") for name in benchmarks],
        is_paired=True,
        benchmark=" and ".join(benchmarks),
    )
    diverged = {names[role]: [run.seed for run in own if run.has_diverged] for role, own in counted.items()}
    pairs = scores.pairs(names[BASELINE], diverged)
    means = {pair.candidate: pair.comparison.candidate for pair in pairs}
    means[names[BASELINE]] = pairs[0].comparison.baseline
    return FreshVerdict(
        benchmarks=tuple(benchmarks),
        seeds=seeds,
        together=scores.family.words,
        sources=scores.sources,
        pairs=tuple(pairs),
        arms=tuple(
            _arm(name, [run for run in runs if names[run.role] == name], mean) for name, mean in means.items()
        ),
        left_out=tuple(
            f"seed {run.seed} of every arm, because {names[run.role]} failed on it: {run.reason}"
            for run in runs
            if run.result is None
        ),
    )


def _arm(name: str, runs: Sequence[FinalRun], mean: CrossedMean) -> FreshArm:
    results = [run.result for run in runs if run.result is not None]
    collapsed = tuple(result.seed for result in results if result.collapse)
    diverged = tuple(run.seed for run in runs if run.has_diverged)
    is_known = all(result.collapse is not None for result in results)
    return FreshArm(
        name=name,
        mean_at_k=mean.value,
        iqm=interquartile_of(mean.value_S),
        num_seeds=mean.num_seeds,
        diverged=FailureRate(seeds=diverged, num_runs=len(results)),
        collapsed=FailureRate(seeds=collapsed, num_runs=len(results)) if is_known else None,
        reasons={str(result.seed): why for result in results if (why := result.reason or result.collapse)},
    )

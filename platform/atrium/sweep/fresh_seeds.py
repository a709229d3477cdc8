"""The comparison on fresh seeds: every candidate against the baseline, whatever became of the runs.

A run that diverged is counted twice: by the score of the policy that it diverged to, and as a policy that is
always wrong. A verdict holds under both, or says that it depends on these runs.

Axes: A arms (the baseline first), S seeds, P problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atrium.compare.statistics import Comparison, compare_arms
from atrium.compare.statistics import verdict as verdict_on
from atrium.compare.verdicts import Verdict, VerdictKind, under_both_readings
from atrium.stats.clusters import sources_words
from atrium.stats.crossed import CrossedMean
from atrium.stats.estimates import Interval
from atrium.stats.failures import FailureRate
from atrium.stats.robust import interquartile_of, mean_scores
from atrium.stats.simultaneous import Family, moderated_spreads
from atrium.sweep.final import BASELINE, FinalRun, final_runs, paired_seeds, refusal, roles_of
from atrium.sweep.plan import Stage
from atrium.sweep.results import always_wrong
from atrium.sweep.study import SweepStudies


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshContrast:
    """The verdict on one candidate; `comparison_if_wrong` counts diverged runs as always wrong, if any."""

    name: str
    kind: VerdictKind
    words: str
    comparison: Comparison
    comparison_if_wrong: Comparison | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How many of an arm's runs failed: their seeds, the rate and its exact 95 % interval."""

    seeds: tuple[int, ...]
    num_runs: int
    rate: float
    interval: Interval
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshArm:
    """An arm's mean over the seeds that are compared, and rates over all its runs that have an outcome.

    `collapsed` is None where collapse was not recorded; `reasons` holds those of failed runs by seed.
    """

    name: str
    mean_at_k: float
    iqm: float | None
    num_seeds: int
    diverged: Rate
    collapsed: Rate | None
    reasons: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshVerdict:
    """All candidates against the baseline. `together` and `sources` word the family and the clusters."""

    benchmarks: tuple[str, ...]
    seeds: list[int]
    together: str
    sources: str
    contrasts: tuple[FreshContrast, ...]
    arms: tuple[FreshArm, ...]
    left_out: tuple[str, ...]


def fresh_verdict(studies: SweepStudies) -> FreshVerdict | str | None:
    """The verdict, or the reason why there is none; None where no comparison was asked for."""
    if Stage.FINAL not in studies.stages:
        return None
    trials = studies.trials(Stage.FINAL)
    if studies.num_planned(Stage.FINAL) is None or not all(trial.has_ended for trial in trials):
        return "settings and baseline have not met on all fresh seeds yet, so nothing is decided"
    if not trials:
        return "winner and baseline are the same method, or no setting of one of them was completed"
    runs = final_runs(studies.definition, trials)
    return refusal(runs) or _verdict(runs, roles_of(trials))


def _verdict(runs: Sequence[FinalRun], names: Mapping[str, str]) -> FreshVerdict:
    """Every candidate against the baseline, from the runs of all arms; `names` by role."""
    seeds = paired_seeds(runs)
    counted = [run for run in runs if run.seed in seeds]
    diverged = [run for run in counted if run.has_diverged]
    by_runs = _compared(counted)
    as_wrong = _compared(counted, diverged_are_wrong=True) if diverged else by_runs
    first = next(iter(by_runs.values()))
    means = {role: one.candidate for role, one in by_runs.items()} | {BASELINE: first.baseline}
    return FreshVerdict(
        benchmarks=tuple(_benchmarks(counted)),
        seeds=seeds,
        together=first.family.words,
        sources=sources_words(_clusters(counted)),
        contrasts=tuple(_contrast(names, role, by_runs[role], as_wrong[role], diverged) for role in by_runs),
        arms=tuple(
            _arm(names[role], [run for run in runs if run.role == role], mean) for role, mean in means.items()
        ),
        left_out=tuple(
            f"seed {run.seed} of every arm, since that of {names[run.role]} failed: {run.reason}"
            for run in runs
            if run.result is None
        ),
    )


def _contrast(
    names: Mapping[str, str],
    role: str,
    comparison: Comparison,
    as_wrong: Comparison,
    diverged: Sequence[FinalRun],
) -> FreshContrast:
    """One candidate against the baseline; of diverged seeds, those of these two arms alone are named."""

    def said(compared: Comparison) -> Verdict:
        return verdict_on(compared, baseline_name=names[BASELINE], candidate_name=names[role])

    involved = [f"seed {run.seed} of {names[run.role]}" for run in diverged if run.role in (role, BASELINE)]
    found = under_both_readings(said(comparison), said(as_wrong), involved)
    return FreshContrast(
        name=names[role],
        kind=found.kind,
        words=found.words,
        comparison=comparison,
        comparison_if_wrong=as_wrong if involved else None,
    )


def _compared(runs: Sequence[FinalRun], *, diverged_are_wrong: bool = False) -> dict[str, Comparison]:
    """Every candidate with the baseline, by role, on the seeds that all share; runs in the order of seeds."""

    def shares(run: FinalRun, benchmark: str) -> Sequence[float]:
        assert run.result is not None
        scores = run.result.outcome[benchmark]
        is_wrong = diverged_are_wrong and run.has_diverged
        shares_P: Sequence[float] = (always_wrong(scores) if is_wrong else scores)["problem_means"]
        return shares_P

    roles = sorted(dict.fromkeys(run.role for run in runs), key=lambda role: role != BASELINE)
    arms = {
        role: [
            np.array([shares(run, name) for run in runs if run.role == role]) for name in _benchmarks(runs)
        ]
        for role in roles
    }
    score_AS = np.stack([mean_scores(arm).mean(axis=1) for arm in arms.values()])
    family, clusters = Family(num_candidates=len(roles) - 1), _clusters(runs)
    found = moderated_spreads(score_AS)
    spreads = [None] * family.num_candidates if found is None else found
    baseline = arms.pop(BASELINE)
    return {
        role: compare_arms(baseline, arm, clusters=clusters, family=family, spread=spread)
        for (role, arm), spread in zip(arms.items(), spreads, strict=True)
    }


def _benchmarks(runs: Sequence[FinalRun]) -> list[str]:
    return sorted(next(run.result for run in runs if run.result is not None).outcome)


def _clusters(runs: Sequence[FinalRun]) -> list[list[int] | None]:
    """The number of each problem's cluster by benchmark; None where problems come in none."""
    outcome = next(run.result for run in runs if run.result is not None).outcome
    return [outcome[name].get("clusters") for name in _benchmarks(runs)]


def _arm(name: str, runs: Sequence[FinalRun], mean: CrossedMean) -> FreshArm:
    results = [run.result for run in runs if run.result is not None]
    collapsed = [result.seed for result in results if result.collapse]
    is_known = all(result.collapse is not None for result in results)
    return FreshArm(
        name=name,
        mean_at_k=mean.value,
        iqm=interquartile_of(mean.value_S),
        num_seeds=mean.num_seeds,
        diverged=_rate([run.seed for run in runs if run.has_diverged], len(results)),
        collapsed=_rate(collapsed, len(results)) if is_known else None,
        reasons={str(result.seed): why for result in results if (why := result.reason or result.collapse)},
    )


def _rate(seeds: Sequence[int], num_runs: int) -> Rate:
    rate = FailureRate(seeds=tuple(seeds), num_runs=num_runs)
    return Rate(
        seeds=rate.seeds,
        num_runs=num_runs,
        rate=len(seeds) / num_runs,
        interval=rate.interval,
        words=rate.words,
    )

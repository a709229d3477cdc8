"""The verdict of a sweep: winner against baseline on fresh seeds, whatever became of the runs.

A run that diverged is counted twice: by the score of the policy that it diverged to, and as a policy that
is always wrong. What is said holds under both, or says that it depends on these runs.

Axes: S seeds, P problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from atrium.sweep.final import BASELINE, ROLES, WINNER, FinalRun, final_runs, paired_seeds, refusal
from atrium.sweep.plan import Stage
from atrium.sweep.results import always_wrong
from atrium.sweep.study import SweepStudies

if TYPE_CHECKING:
    from atrium.compare.crossed import CrossedMean
    from atrium.compare.statistics import Comparison

Answer = dict[str, Any]


def verdict_of(studies: SweepStudies) -> tuple[Answer | None, str | None]:
    """The verdict and None, or None and why there is none; both None where no comparison was asked for."""
    if Stage.FINAL not in studies.stages:
        return None, None
    trials = studies.trials(Stage.FINAL)
    if studies.num_planned(Stage.FINAL) is None or not all(trial.has_ended for trial in trials):
        return None, "winner and baseline have not met on all fresh seeds yet, so nothing is decided"
    if not trials:
        return None, "winner and baseline are the same method, or no setting of one of them was completed"
    runs = final_runs(studies.definition, trials)
    if (why_not := refusal(runs)) is not None:
        return None, why_not
    labels = {trial.planned.labels[0]: ", ".join(trial.planned.labels[1:]) for trial in trials}
    return _verdict(runs, {role: f"the {role} ({labels[role]})" for role in ROLES}), None


def arm_sentence(arm: Mapping[str, Any]) -> str:
    """An arm's mean, and how many of its runs diverged and collapsed."""
    mean = f"{arm['name']} scores {100 * arm['mean_at_k']:.1f} % on average over {arm['num_seeds']} seeds"
    return f"{mean}; {_rate_words('diverged', arm['diverged'])}; {_rate_words('collapsed', arm['collapsed'])}"


def _verdict(runs: Sequence[FinalRun], names: Mapping[str, str]) -> Answer:
    from atrium.compare.statistics import verdict

    seeds = paired_seeds(runs)
    counted = [run for run in runs if run.seed in seeds]
    diverged = [run for run in counted if run.has_diverged]
    comparison = _compared(counted)
    said = verdict(comparison, baseline_name=names[BASELINE], candidate_name=names[WINNER])
    kind, words, as_wrong = str(said.kind), said.words, None
    if diverged:
        as_wrong = _compared(counted, diverged_are_wrong=True)
        other = verdict(as_wrong, baseline_name=names[BASELINE], candidate_name=names[WINNER])
        listed = ", ".join(f"{run.seed} of the {run.role}" for run in diverged)
        if other.kind == said.kind:
            words += f"; so it is if the seeds that diverged ({listed}) count as always wrong: {other.words}"
        else:
            kind = "depends_on_diverged"
            words = (
                f"it depends on the seeds that diverged ({listed}): by the policies that they diverged to, "
                f"{words}; if these count as always wrong, {other.words}"
            )
    return {
        "benchmarks": _benchmarks(counted),
        "seeds": seeds,
        "kind": kind,
        "words": words,
        "arms": [
            _arm(names[role], [run for run in runs if run.role == role], mean)
            for role, mean in ((WINNER, comparison.candidate), (BASELINE, comparison.baseline))
        ],
        "left_out": [
            f"seed {run.seed} of both, since that of the {run.role} failed: {run.reason}"
            for run in runs
            if run.result is None
        ],
        "comparison": _plain(asdict(comparison)),
        "comparison_if_wrong": None if as_wrong is None else _plain(asdict(as_wrong)),
    }


def _compared(runs: Sequence[FinalRun], *, diverged_are_wrong: bool = False) -> Comparison:
    """Both arms on the seeds that they share; the runs are in the order of seeds."""
    from atrium.compare.statistics import compare_arms

    def shares(run: FinalRun, benchmark: str) -> Sequence[float]:
        assert run.result is not None
        scores = run.result.outcome[benchmark]
        is_wrong = diverged_are_wrong and run.has_diverged
        shares_P: Sequence[float] = (always_wrong(scores) if is_wrong else scores)["problem_means"]
        return shares_P

    baseline, winner = (
        [[shares(run, name) for run in runs if run.role == role] for name in _benchmarks(runs)]
        for role in (BASELINE, WINNER)
    )
    return compare_arms(baseline, winner)


def _benchmarks(runs: Sequence[FinalRun]) -> list[str]:
    return sorted(next(run.result for run in runs if run.result is not None).outcome)


def _arm(name: str, runs: Sequence[FinalRun], mean: CrossedMean) -> Answer:
    """The mean over the seeds that are compared, and rates over all runs that have an outcome."""
    results = [run.result for run in runs if run.result is not None]
    collapsed = None
    if all(result.collapse is not None for result in results):
        collapsed = _rate([result.seed for result in results if result.collapse], len(results))
    return {
        "name": name,
        "mean_at_k": mean.value,
        "num_seeds": mean.num_seeds,
        "diverged": _rate([run.seed for run in runs if run.has_diverged], len(results)),
        "collapsed": collapsed,
        "reasons": {str(result.seed): why for result in results if (why := result.reason or result.collapse)},
    }


def _rate(seeds: Sequence[int], num_runs: int) -> Answer:
    from atrium.compare.failures import exact_interval

    return {
        "seeds": list(seeds),
        "num_runs": num_runs,
        "rate": len(seeds) / num_runs,
        "interval": list(exact_interval(len(seeds), num_runs)),
    }


def _rate_words(what: str, rate: Mapping[str, Any] | None) -> str:
    if rate is None:
        return f"how many {what} was not recorded"
    low, high = rate["interval"]
    named = f", seeds {', '.join(str(seed) for seed in rate['seeds'])}" if rate["seeds"] else ""
    return f"{len(rate['seeds'])} of {rate['num_runs']} {what} ({100 * low:.1f} to {100 * high:.1f} %{named})"


def _plain(value: object) -> object:
    """Numbers and texts, whatever types the statistics use."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    return value

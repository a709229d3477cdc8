"""Queries about a comparison: scores, verdicts, curves over k, windows, and who solves what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from atrium.base.errors import ConfigError, RunFolderError
from atrium.compare.arm_pairs import Pair
from atrium.compare.confounds import confound_lines, environment_lines, shared_lines
from atrium.compare.dashboard.watcher import Watcher
from atrium.compare.document import best_line, plan_line
from atrium.compare.outcomes import At, OutcomeTable
from atrium.compare.run_comparison import ArmScores, RunsComparison, compare_runs
from atrium.compare.wording import headline
from atrium.stats.crossed import SHARES, CrossedMean, crossed_mean, interval_of
from atrium.stats.estimates import Interval
from atrium.stats.power import Plan

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRequest:
    """A comparison to make: runs by name, grouped by settings (by method where there are none)."""

    runs: tuple[str, ...]
    by: tuple[str, ...] = ()
    baseline: str | None = None
    at: str = At.LAST
    benchmarks: tuple[str, ...] = ()
    effect: float = 0.02
    is_chosen: bool = False
    """Whether the user named the runs one by one, so that none of them is one of the other runs."""


def compare_answer(watcher: Watcher, request: ComparisonRequest) -> Answer:
    """A whole comparison, kept until one of its runs changes.

    Runs that do not count are left out, each with the reason. Raises `AtriumError` where the others cannot be
    compared.
    """
    entries = [watcher.scan.entry(name) for name in dict.fromkeys(request.runs)]
    state = tuple((entry.signature, entry.overview.state, watcher.indexed(entry)) for entry in entries)
    return _answered(watcher, request, state)


def compared_runs(watcher: Watcher, request: ComparisonRequest) -> tuple[RunsComparison, dict[str, str]]:
    """The comparison, and the runs whose settings cannot be read with the reason."""
    entries = {name: watcher.scan.entry(name) for name in dict.fromkeys(request.runs)}
    unread = {name: "; ".join(entry.problems) for name, entry in entries.items() if not entry.settings}
    if len(unread) == len(entries):
        raise RunFolderError("the settings of these runs cannot be read, so there is nothing to compare")
    compared = compare_runs(
        [entry.folder for name, entry in entries.items() if name not in unread],
        by=request.by,
        baseline=request.baseline,
        at=_point(request.at),
        benchmarks=request.benchmarks,
        effect=request.effect,
        chosen=request.runs if request.is_chosen else (),
    )
    return compared, unread


@lru_cache(maxsize=64)
def _answered(watcher: Watcher, request: ComparisonRequest, _state: tuple[object, ...]) -> Answer:
    compared, unread = compared_runs(watcher, request)
    return {
        **_about(compared),
        "left_out": [
            *({"name": name, "reason": reason} for name, reason in unread.items()),
            *({"name": one.name, "reason": one.reason} for one in compared.left_out),
        ],
        "arms": [{**_arm(one), "place": compared.places[one.arm.name]} for one in compared.arms],
        "pairs": [_pair(pair) for pair in compared.pairs],
        "over_k": {name: _over_k(by_arm, compared.k) for name, by_arm in compared.outcomes.items()},
        "grid": {name: _grid(by_arm) for name, by_arm in compared.outcomes.items()},
    }


def _point(name: str) -> At:
    try:
        return At(name)
    except ValueError:
        raise ConfigError(f"runs are compared at one of {', '.join(At)}, not at {name[:40]!r}") from None


def _about(compared: RunsComparison) -> Answer:
    return {
        "benchmarks": list(compared.benchmarks),
        "headline": compared.headline,
        "titles": {measure: compared.title(measure) for measure in ("mean", "pass")},
        "k": compared.k,
        "at": str(compared.at),
        "num_problems": dict(compared.num_problems),
        "plan": None if (plan := compared.plan) is None else _plan(plan),
        "confounds": confound_lines(compared.confounds),
        "environment": [*environment_lines(compared.environment), *shared_lines(compared.environment)],
        "notes": list(compared.notes),
        "best": best_line(compared),
        "planned": plan_line(compared),
        "same_methods": [list(names) for names in compared.same_methods],
    }


def _arm(one: ArmScores) -> Answer:
    window = one.arm.window
    return {
        "name": one.arm.name,
        "runs": [folder.name for folder in one.arm.runs.values()],
        "seeds": list(one.arm.seeds),
        "window": None if window is None else [window.lower, window.upper],
        "rates": one.rates,
        "collapsed": one.collapsed.words if one.collapsed and one.collapsed.seeds else None,
        "scores": {
            measure: {name: _mean(mean) for name, mean in by_benchmark.items()}
            for measure, by_benchmark in one.scores.items()
        },
        "steps": list(one.steps),
        "num_tokens": None if one.num_tokens is None else list(one.num_tokens),
        "wall_s": None if one.wall_s is None else list(one.wall_s),
    }


def _plan(plan: Plan) -> Answer:
    seeds = {exam: plan.seeds_words(exam) for exam in plan.num_seeds}
    return {"effect": plan.effect, "detectable": plan.detectable, "seeds": seeds}


def _pair(pair: Pair) -> Answer:
    comparison = pair.comparison
    return {
        "baseline": pair.baseline,
        "candidate": pair.candidate,
        "measure": pair.measure,
        "benchmark": pair.benchmark,
        "difference": _mean(comparison.difference) | _intervals(pair.another_exam, pair.this_exam),
        "together": comparison.family.words,
        "verdict": _verdict(pair),
        "seeds": {"words": pair.design, "analysis": pair.pairing.analysis},
        "rho": {"another": comparison.rho_another_exam, "this": comparison.rho_this_exam},
        "improvement": comparison.improvement,
        "improvement_interval": comparison.improvement_interval,
        "iqm": [comparison.iqm_baseline, comparison.iqm_candidate],
        "iqm_interval": comparison.iqm_difference_interval,
        "permutation_p": comparison.permutation_p,
    }


def _verdict(pair: Pair) -> Answer:
    verdict, difference = pair.verdict, pair.comparison.difference
    interval = pair.another_exam
    lead = headline(verdict, difference.value, names=(pair.baseline, pair.candidate), interval=interval)
    return {
        "kind": verdict.kind,
        "words": verdict.words,
        "lead": lead,
        "sign": verdict.sign,
        "label": verdict.label,
    }


def _mean(mean: CrossedMean) -> Answer:
    return {
        "value": mean.value,
        "by_seed": list(mean.value_S),
        **_intervals(interval_of(mean.another_exam), interval_of(mean.this_exam)),
    }


def _intervals(another_exam: Interval | None, this_exam: Interval | None) -> Answer:
    known = {"another": another_exam, "this": this_exam}
    return {
        exam: None if interval is None else {"interval": list(interval)} for exam, interval in known.items()
    }


def _over_k(tables: Mapping[str, OutcomeTable], k: int) -> list[Answer]:
    """Pass@j for j up to k with its interval for another exam, and Mean@k, which does not depend on j."""
    curves = []
    for name, table in tables.items():
        pass_SPk = table.pass_up_to(k)
        means = [
            crossed_mean([pass_SPk[..., j]], clusters=[table.cluster_P], limits=SHARES) for j in range(k)
        ]
        spans = [(m.value, m.value) if m.another_exam is None else m.another_exam.interval for m in means]
        curves.append(
            {
                "arm": name,
                "pass": [mean.value for mean in means],
                "low": [low for low, _ in spans],
                "high": [high for _, high in spans],
                "mean": float(table.mean_at_k().mean()),
            }
        )
    return curves


def _grid(tables: Mapping[str, OutcomeTable]) -> Answer:
    """The share of correct answers by arm and problem, over all seeds, the easiest problem first."""
    share_AP = np.stack([table.mean_at_k().mean(axis=0) for table in tables.values()])
    order = np.argsort(-share_AP.mean(axis=0), kind="stable")
    problem_ids: Sequence[str] = next(iter(tables.values())).problem_ids
    return {
        "arms": list(tables),
        "problems": [problem_ids[place] for place in order],
        "shares": share_AP[:, order].round(4).tolist(),
    }

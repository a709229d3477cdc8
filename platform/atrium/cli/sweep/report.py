"""`atrium sweep report` and `atrium sweep list`: what a sweep says, on screen and in its folder.

The verdict compares settings with the baseline on fresh seeds, whatever became of the runs. A run that
diverged is counted twice: by the score of the policy that it diverged to, and as a policy that is always
wrong. What is said holds under both, or says that it depends on these runs.

Axes: A arms (the baseline first), S seeds, P problems.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atrium.base.atomic import explained, write_json, write_text
from atrium.base.recorded import read_object
from atrium.cli.sweep.contrasts import contrast_sentences, contrast_tables, planned_contrasts
from atrium.cli.sweep.families import compared_families, family_sentences, family_table
from atrium.cli.sweep.table import trials_table
from atrium.sweep.claims import Claims, this_worker
from atrium.sweep.definition import SweepDefinition
from atrium.sweep.final import (
    BASELINE,
    FinalRun,
    best_trial,
    final_runs,
    paired_seeds,
    refusal,
    roles_of,
)
from atrium.sweep.plan import Stage
from atrium.sweep.report import analysis, curves_csv, trials_csv, winner_yaml
from atrium.sweep.results import always_wrong
from atrium.sweep.setup import join, known_storage, open_studies, report_folder, sweep_names
from atrium.sweep.snapshot import STATE_FILE, snapshot, sweep_folder, write_state
from atrium.sweep.storage import SweepStorage
from atrium.sweep.study import SweepStudies
from atrium.views.terminal import standard_output, tell

if TYPE_CHECKING:
    from rich.console import Console

    from atrium.compare.statistics import Comparison
    from atrium.compare.verdicts import Verdict
    from atrium.stats.crossed import CrossedMean

Answer = dict[str, Any]


def report(runs_dir: str, name: str, url: str | None = None) -> int:
    """Write a sweep's report, and say the main things."""
    storage = SweepStorage(url or known_storage(runs_dir, name))
    definition, created = join(storage, name, runs_dir)
    folder = report_folder(runs_dir, name)
    with storage.explained():
        studies = open_studies(storage, definition)
        state = snapshot(studies, Claims(storage, name, this_worker()), created)
        content = analysis(studies, state)
        content["verdict"], content["no_verdict"] = verdict_of(studies)
        content["contrasts"] = planned_contrasts(studies)
        content["families"] = compared_families(studies)
    content["sentences"] = sentences(definition, content)
    with explained("write the report of sweep", folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_state(folder.parent, state)
        written = _write(folder, studies, content)
    _show(standard_output(), content, written)
    return 0


def list_sweeps(runs_dir: str) -> int:
    """Say which sweeps there are and how they stand."""
    names = sweep_names(runs_dir)
    if not names:
        sys.stdout.write(f"there are no sweeps in {runs_dir}; `atrium sweep --help` says how to make one\n")
    for name in names:
        state, _ = read_object(sweep_folder(runs_dir, name) / STATE_FILE)
        stages = state.get("stages")
        counts = ", ".join(
            f"{stage['name']} {stage['num_ended']} of {stage['num_trials'] or '?'}"
            for stage in (stages if isinstance(stages, list) else [])
        )
        sys.stdout.write(f"{name}  {state.get('state', 'unknown')}  {counts}\n")
    return 0


def sentences(definition: SweepDefinition, content: Mapping[str, Any]) -> list[str]:
    """The conclusions that the sweep allows, and those that it does not, in words."""
    said = []
    best, contrasts = content["best"], content["contrasts"]
    if best is not None and contrasts is None:
        said.append(best_sentence(best, content["ranking"]))
    merged = [one for one in content["ranking"] if len(one["labels"]) > 1]
    said += [f"{' and '.join(one['labels'])} are the same method and were run once" for one in merged]
    verdict = content["verdict"]
    if verdict is not None:
        tuned = "tuned with as many settings" if content["baseline_is_tuned"] else "which was not tuned"
        seeds = ", ".join(str(seed) for seed in verdict["seeds"])
        together = f"; intervals hold together over {verdict['together']}" if verdict["together"] else ""
        together += f"; {verdict['sources']}" if verdict["sources"] else ""
        said += [
            f"on test problems, with {len(verdict['seeds'])} fresh seeds, {one['name']} against the baseline "
            f"({tuned}): {one['words']} (seeds {seeds}{together})"
            for one in verdict["contrasts"]
        ]
        said += [arm_sentence(arm) for arm in verdict["arms"]]
        said += [f"left out: {one}" for one in verdict["left_out"]]
    elif content["no_verdict"] is not None:
        said.append(f"no verdict: {content['no_verdict']}")
    elif definition.final is not None:
        said.append("settings and baseline have not met on fresh seeds yet, so nothing is decided")
    elif contrasts is not None:
        said += contrast_sentences(contrasts)
    else:
        said.append("no comparison on fresh seeds was asked for, so differences here decide nothing")
    if content["families"]:
        said += family_sentences(content["families"])
    if content["importances"]:
        shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in content["importances"].items())
        said.append(f"share of the differences that each parameter explains: {shares}")
    if content["pareto"]:
        said.append(f"no other trial is better in every objective than: {content['pareto']}")
    return said


def best_sentence(best: Mapping[str, Any], ranking: Sequence[Mapping[str, Any]]) -> str:
    """The setting that scored highest on validation problems, and how to read that."""
    name = " = ".join(best["labels"])
    if len(ranking) > 1 and len({one["mean_at_k"]["value"] for one in ranking}) == 1:
        return (
            f"all {len(ranking)} settings score alike on validation, {_score(best)}, so none of them is the "
            f"best; {name} stands for them"
        )
    return (
        f"best on validation: {name} at {_score(best)}, from {len(ranking)} settings; chosen as the highest, "
        "so its own number flatters it"
    )


def _score(one: Mapping[str, Any]) -> str:
    mean = one["mean_at_k"]
    text = f"Mean@{one['k']} {100 * mean['value']:.1f} %"
    if mean["interval"] is None:
        seeds = "one seed" if one["num_seeds"] == 1 else f"on each of {one['num_seeds']} seeds"
        return f"{text} ({seeds})"
    low, high = mean["interval"]
    return f"{text} [{100 * max(low, 0):.1f}, {100 * min(high, 1):.1f}] over {one['num_seeds']} seeds"


def _write(folder: Path, studies: SweepStudies, content: dict[str, Any]) -> list[Path]:
    """Write figures, tables and the winner; the paths of what a person would open."""
    from atrium.compare.figures.sweeps import draw_sweep_figures

    figures = draw_sweep_figures(content, folder, folder.parents[2] / ".cache")
    content["figures"] = [f"report/{path.name}" for path in figures]
    write_text(folder / "trials.csv", trials_csv(content["ranking"]))
    written = [*figures, folder / "trials.csv"]
    if content["curves"]:
        write_text(folder / "curve.csv", curves_csv(content["curves"]))
        written.append(folder / "curve.csv")
    definition = studies.definition
    winner = best_trial(studies.trials(Stage.SEARCH), definition.objectives[0].direction)
    if winner is not None and len(definition.objectives) == 1 and not definition.contrasts:
        write_text(folder / "winner.yaml", winner_yaml(definition, winner))
        written.append(folder / "winner.yaml")
    write_json(folder / "report.json", content)
    return written


def _show(console: Console, content: Mapping[str, Any], written: Sequence[Path]) -> None:
    state = content["state"]
    order = {one["number"]: place for place, one in enumerate(content["ranking"])}
    trials = [one for one in state["trials"] if one["stage"] != "final"]
    trials.sort(key=lambda one: (one["stage"] != "search", order.get(one["number"], 0)))
    console.print(f"sweep {state['name']}  {state['state']}")
    console.print(trials_table(state, trials))
    for table in contrast_tables(content["contrasts"]) if content["contrasts"] else []:
        console.print(table)
    if content["families"]:
        console.print(family_table(content["families"]))
    for sentence in content["sentences"]:
        tell(console, sentence, indent=2)
    console.print()
    for path in written:
        console.print(f"  {path}", soft_wrap=True)
    winner = [path for path in written if path.name == "winner.yaml"]
    if winner:
        console.print(f"  atrium train experiment={winner[0]}", soft_wrap=True)


def verdict_of(studies: SweepStudies) -> tuple[Answer | None, str | None]:
    """The verdict and None, or None and why there is none; both None where no comparison was asked for."""
    if Stage.FINAL not in studies.stages:
        return None, None
    trials = studies.trials(Stage.FINAL)
    if studies.num_planned(Stage.FINAL) is None or not all(trial.has_ended for trial in trials):
        return None, "settings and baseline have not met on all fresh seeds yet, so nothing is decided"
    if not trials:
        return None, "winner and baseline are the same method, or no setting of one of them was completed"
    runs = final_runs(studies.definition, trials)
    if (why_not := refusal(runs)) is not None:
        return None, why_not
    return verdict_on(runs, roles_of(trials)), None


def arm_sentence(arm: Mapping[str, Any]) -> str:
    """An arm's mean, and how many of its runs diverged and collapsed."""
    mean = f"{arm['name']} scores {100 * arm['mean_at_k']:.1f} % on average over {arm['num_seeds']} seeds"
    if arm["iqm"] is not None and any(rate and rate["seeds"] for rate in (arm["diverged"], arm["collapsed"])):
        mean += f" (interquartile mean {100 * arm['iqm']:.1f} %)"
    return f"{mean}; {_rate_words('diverged', arm['diverged'])}; {_rate_words('collapsed', arm['collapsed'])}"


def verdict_on(runs: Sequence[FinalRun], names: Mapping[str, str]) -> Answer:
    """Every candidate against the baseline, from the runs of all arms; `names` by role."""
    from atrium.stats.clusters import sources_words

    seeds = paired_seeds(runs)
    counted = [run for run in runs if run.seed in seeds]
    diverged = [run for run in counted if run.has_diverged]
    by_runs = _compared(counted)
    as_wrong = _compared(counted, diverged_are_wrong=True) if diverged else by_runs
    means = {role: one.candidate for role, one in by_runs.items()}
    means[BASELINE] = next(iter(by_runs.values())).baseline
    return {
        "benchmarks": _benchmarks(counted),
        "seeds": seeds,
        "together": next(iter(by_runs.values())).family.words,
        "sources": sources_words(_clusters(counted)),
        "contrasts": [_contrast(names, role, by_runs[role], as_wrong[role], diverged) for role in by_runs],
        "arms": [
            _arm(names[role], [run for run in runs if run.role == role], mean) for role, mean in means.items()
        ],
        "left_out": [
            f"seed {run.seed} of every arm, since that of {names[run.role]} failed: {run.reason}"
            for run in runs
            if run.result is None
        ],
    }


def _contrast(
    names: Mapping[str, str],
    role: str,
    comparison: Comparison,
    as_wrong: Comparison,
    diverged: Sequence[FinalRun],
) -> Answer:
    """One candidate against the baseline; what is said of seeds that diverged is about these two arms."""
    from atrium.compare.statistics import verdict
    from atrium.compare.verdicts import under_both_readings

    def said(compared: Comparison) -> Verdict:
        return verdict(compared, baseline_name=names[BASELINE], candidate_name=names[role])

    involved = [run for run in diverged if run.role in (role, BASELINE)]
    found = under_both_readings(
        said(comparison), said(as_wrong), [f"seed {run.seed} of {names[run.role]}" for run in involved]
    )
    return {
        "name": names[role],
        "kind": found.kind,
        "words": found.words,
        "comparison": asdict(comparison),
        "comparison_if_wrong": asdict(as_wrong) if involved else None,
    }


def _compared(runs: Sequence[FinalRun], *, diverged_are_wrong: bool = False) -> dict[str, Comparison]:
    """Every candidate with the baseline, by role, on the seeds that all share; runs in the order of seeds."""
    import numpy as np

    from atrium.compare.statistics import compare_arms
    from atrium.stats.robust import mean_scores
    from atrium.stats.simultaneous import Family, moderated_spreads

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
    spreads = found if found is not None else [None] * family.num_candidates
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


def _arm(name: str, runs: Sequence[FinalRun], mean: CrossedMean) -> Answer:
    """The mean over the seeds that are compared, and rates over all runs that have an outcome."""
    from atrium.stats.robust import interquartile_of

    results = [run.result for run in runs if run.result is not None]
    collapsed = None
    if all(result.collapse is not None for result in results):
        collapsed = _rate([result.seed for result in results if result.collapse], len(results))
    return {
        "name": name,
        "mean_at_k": mean.value,
        "iqm": interquartile_of(mean.value_S),
        "num_seeds": mean.num_seeds,
        "diverged": _rate([run.seed for run in runs if run.has_diverged], len(results)),
        "collapsed": collapsed,
        "reasons": {str(result.seed): why for result in results if (why := result.reason or result.collapse)},
    }


def _rate(seeds: Sequence[int], num_runs: int) -> Answer:
    from atrium.stats.failures import FailureRate

    rate = FailureRate(seeds=tuple(seeds), num_runs=num_runs)
    return {
        "seeds": list(seeds),
        "num_runs": num_runs,
        "rate": len(seeds) / num_runs,
        "interval": list(rate.interval),
        "words": rate.words,
    }


def _rate_words(what: str, rate: Mapping[str, Any] | None) -> str:
    return f"how many {what} was not recorded" if rate is None else f"{what}: {rate['words']}"

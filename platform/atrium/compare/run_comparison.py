"""Comparison of run directories (`compare_runs`): scores by arm, paired differences, verdicts, notes.

Every other arm is compared with one baseline arm: the arm that the user names, or a default
(`default_choice`). Scores are Mean@K and Pass@k by benchmark, and their macro average, in which all
benchmarks have equal weight. Verdicts use the macro average of Mean@K; its intervals hold simultaneously over
the compared arms. The intervals of single benchmarks and of Pass@k form separate simultaneous families.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from atrium.compare.arms import Arm, same_method_groups
from atrium.compare.collapse import collapses_of
from atrium.compare.compared_arms import compared_arms
from atrium.compare.confounds import Recorded, read_confounds, unknown_settings
from atrium.compare.counted_runs import VALIDATION, LeftOut, old_runs_note
from atrium.compare.diverged_runs import answers_used, diverged_seeds, steps_used
from atrium.compare.draws import read_draws
from atrium.compare.judged_pairs import MACRO, judge_pairs, left_out_of_pairs, score_of
from atrium.compare.outcomes import (
    At,
    EvaluatedRun,
    OutcomeTable,
    matched_by_text,
    outcome_table,
    read_answers,
)
from atrium.compare.planned_seeds import PlannedArms, planned_arms
from atrium.document.formatting import counted
from atrium.document.palette import places
from atrium.runs.find import started
from atrium.runs.layout import IMPORTED, TRAINING
from atrium.runs.reader import read_overview
from atrium.runs.run_folder import RunFolder
from atrium.stats.arm_pairs import MEAN, PASS, Pair
from atrium.stats.clusters import MIN_CLUSTERS, clusters_words, num_clusters
from atrium.stats.crossed import CrossedMean
from atrium.stats.failures import FailureRate
from atrium.stats.pairing import ranges_text
from atrium.stats.power import Plan, plan

MEASURES = (MEAN, PASS)
_UNEQUAL = 0.1
"""The largest relative difference in cost between runs compared at equal cost that needs no note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmScores:
    """The results of one arm in a comparison.

    `scores` are by measure and then by benchmark, including the macro average. `steps`, `num_tokens` and
    `wall_s` (seconds) are the minimum and maximum over runs at the evaluations used on the first benchmark.
    If they are not recorded, `steps` is (0, 0) and the others are None. `diverged` counts the runs that
    diverged. `collapses` maps each seed to the findings that make its run count as collapsed (see
    `collapse`). A seed is left out if it is unknown whether its run collapsed. `unknown` names the settings
    that imported runs do not record.
    """

    arm: Arm
    scores: Mapping[str, Mapping[str, CrossedMean]]
    diverged: FailureRate
    collapses: Mapping[int, Collection[str]]
    steps: tuple[float, float]
    num_tokens: tuple[float, float] | None
    wall_s: tuple[float, float] | None
    unknown: tuple[str, ...]

    @property
    def is_imported(self) -> bool:
        """Whether some of the runs are imported, so that it is unknown whether they diverged."""
        return any(settings.get("kind") == IMPORTED for settings in self.arm.all_settings)

    @property
    def collapsed(self) -> FailureRate | None:
        """How many runs collapsed, or None if this is unknown for some run."""
        if len(self.collapses) < len(self.arm.runs):
            return None
        seeds = tuple(seed for seed, findings in self.collapses.items() if findings)
        return FailureRate(seeds=seeds, num_runs=len(self.arm.runs))

    @property
    def rates(self) -> dict[str, str]:
        """The numbers of `diverged` and `collapsed` runs as texts: with an exact interval, or `not known`."""
        collapsed = "not known" if self.collapsed is None else self.collapsed.short
        diverged = "not known" if self.is_imported else self.diverged.short
        return {"diverged": diverged, "collapsed": collapsed}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsComparison:
    """The results of a comparison; the first arm is the baseline, and each pair compares another arm with it.

    `k` is the k of Pass@k: the smallest number of samples per problem of any run. `benchmarks` excludes the
    macro average, which exists only for two or more benchmarks. `outcomes` are by benchmark and arm, on the
    problems that all runs answered, with seeds in ascending order. `steps` are the evaluated steps by
    benchmark and run. `leaders` and `lead` are explained in `judge_pairs`. `shared_draws` names the arms
    whose seeds share the random draws of evaluations. `confounds` are differences between arms other than the
    method, `environment` lists versions and hardware, `left_out` the excluded runs, and `planned` the planned
    seeds. `plan` says what new runs would detect.
    """

    arms: tuple[ArmScores, ...]
    benchmarks: tuple[str, ...]
    pairs: tuple[Pair, ...]
    leaders: Mapping[tuple[str, str], tuple[str, ...]]
    lead: Pair | None
    shared_draws: tuple[str, ...]
    at: At
    k: int
    outcomes: Mapping[str, Mapping[str, OutcomeTable]]
    steps: Mapping[str, Mapping[str, int]]
    plan: Plan | None
    confounds: tuple[Recorded, ...]
    environment: tuple[Recorded, ...]
    left_out: tuple[LeftOut, ...]
    planned: PlannedArms
    notes: tuple[str, ...]

    @property
    def num_problems(self) -> dict[str, int]:
        """The number of problems of each benchmark."""
        return {name: len(next(iter(tables.values())).problem_ids) for name, tables in self.outcomes.items()}

    @property
    def mean_k(self) -> int | None:
        """The K of Mean@K, or None if runs differ in K."""
        tables = [table for by_arm in self.outcomes.values() for table in by_arm.values()]
        sizes = {num for table in tables for num in table.num_samples_S}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def same_methods(self) -> tuple[tuple[str, ...], ...]:
        """The names of arms that use the same method, in groups of two or more."""
        return same_method_groups([one.arm for one in self.arms])

    @property
    def run_names(self) -> list[str]:
        """The names of the compared runs, in the order of the arms."""
        return [run.name for one in self.arms for run in one.arm.runs.values()]

    @property
    def unknown(self) -> dict[str, tuple[str, ...]]:
        """The settings that imported runs do not record, by arm name."""
        return {one.arm.name: one.unknown for one in self.arms if one.unknown}

    @property
    def best(self) -> dict[tuple[str, str], str | None]:
        """The arm shown to be the best, or None, by measure and benchmark.

        It is None if several arms may be the best, or if verdicts are withheld.
        """
        return {key: names[0] if len(names) == 1 else None for key, names in self.leaders.items()}

    @property
    def headline(self) -> str:
        """The benchmark that verdicts use: the macro average, or the only benchmark."""
        return MACRO if len(self.benchmarks) > 1 else self.benchmarks[0]

    @property
    def headline_pairs(self) -> list[Pair]:
        """The pairs for verdicts: each candidate and the first arm, by Mean@K on the headline benchmark."""
        return [self.pair(arm.arm.name, MEAN, self.headline) for arm in self.arms[1:]]

    @property
    def has_intervals(self) -> bool:
        """Whether any score has an interval for new seeds, which needs at least two seeds of an arm."""
        scores = (score for arm in self.arms for one in arm.scores.values() for score in one.values())
        return any(score.new_seeds_and_problems is not None for score in scores)

    @property
    def places(self) -> dict[str, int]:
        """The index of each arm's color in `document.palette`, by arm name.

        Colors are assigned in the order in which the arms started.
        """
        began = {one.arm.name: min(map(started, one.arm.runs.values())) for one in self.arms}
        arms = sorted((one.arm for one in self.arms), key=lambda arm: (began[arm.name], arm.name))
        return places({arm.name: arm.settings.get("algorithm.name", arm.name) for arm in arms})

    def title(self, measure: str) -> str:
        """Return the name of a measure with its K, such as `Mean@8` or `Pass@8`."""
        if measure == PASS:
            return f"Pass@{self.k}"
        return f"Mean@{'K' if self.mean_k is None else self.mean_k}"

    def pair(self, candidate: str, measure: str, benchmark: str) -> Pair:
        """Return the pair of a candidate and the baseline; raises `KeyError` if there is none."""
        for pair in self.pairs:
            if (pair.candidate, pair.measure, pair.benchmark) == (candidate, measure, benchmark):
                return pair
        raise KeyError((candidate, measure, benchmark))


def compare_runs(
    folders: Sequence[RunFolder],
    *,
    by: Sequence[str] = (),
    baseline: str | None = None,
    at: At = At.LAST,
    benchmarks: Sequence[str] = (),
    effect: float = 0.02,
    chosen: Collection[str] = (),
    renamed: Mapping[str, str] | None = None,
    leave_out: Mapping[str, str] | None = None,
) -> RunsComparison:
    """Compare the scores of runs, grouped into arms by the settings `by`, by default by method.

    Runs without a counted outcome (`counted_runs`) or without the common benchmarks are left out, and so are
    "other runs" (see `arm_names`) that are not in `chosen`. `effect` is the difference that new runs should
    detect, as a share in [0, 1]. `renamed` maps names of arms to display names, and `leave_out` maps names of
    runs to the reasons for leaving them out.

    Raises `ConfigError` if there are fewer than two arms or a name is unknown, `RunFolderError` if runs lack
    data that the comparison needs.
    """
    found, arms, notes, missing = compared_arms(
        folders, by, baseline, at, benchmarks, chosen=chosen, renamed=renamed, leave_out=leave_out
    )
    names = found.benchmarks
    planned = planned_arms(arms, missing)
    used = {folder.name for arm in planned.arms for folder in arm.runs.values()}
    runs = {run.folder.name: run for run in found.runs if run.folder.name in used}
    steps = {name: steps_used(list(runs.values()), name, at) for name in names}
    tables = {name: _tables(planned.arms, steps[name], name, notes) for name in names}
    k, *more_k = sorted({num for one in tables.values() for arm in one.values() for num in arm.num_samples_S})
    pairs, leaders, lead = judge_pairs(planned, tables, diverged_seeds(planned.arms, runs), k=k)
    notes += [*_problem_notes(names, {k, *more_k}), *_cost_notes(list(runs.values()), steps, at)]
    shared_draws, draws_notes = read_draws(planned.arms, runs, steps)
    notes += [*draws_notes, *left_out_of_pairs(pairs), *_beyond_notes(planned, found.runs, names)]
    confounds, environment = read_confounds(planned.arms, by)
    return RunsComparison(
        arms=tuple(_arm_scores(arm, tables, k, runs, steps) for arm in planned.arms),
        benchmarks=names,
        pairs=tuple(pairs),
        leaders=leaders,
        lead=lead,
        shared_draws=shared_draws,
        at=at,
        k=k,
        outcomes=tables,
        steps=steps,
        plan=_plan(pairs, effect),
        confounds=confounds,
        environment=environment,
        left_out=found.left_out,
        planned=planned,
        notes=tuple(dict.fromkeys([*notes, *old_runs_note(found.num_old)])),
    )


def _tables(
    arms: Sequence[Arm], steps: Mapping[str, int], benchmark: str, notes: list[str]
) -> dict[str, OutcomeTable]:
    """Return the outcomes on a benchmark by arm name, on the problems that all runs answered.

    Seeds are ascending. Notes on the problems are appended to `notes`.
    """
    order = [(arm.name, arm.runs[seed]) for arm in arms for seed in arm.seeds]
    answers = answers_used([run for _, run in order], benchmark, steps)
    matched = matched_by_text(answers)
    whole = outcome_table(matched)
    if matched is not answers:
        notes.append(f"{benchmark}: problems are matched by their text because their ids differ")
    most = max(len(one.num_correct) for one in answers)
    if len(whole.problem_ids) < most:
        notes.append(f"{benchmark}: {len(whole.problem_ids)} of {most} problems were answered by all runs")
    notes += _clusters_notes(benchmark, whole)
    return {
        arm.name: whole.of_rows([row for row, (name, _) in enumerate(order) if name == arm.name])
        for arm in arms
    }


def _beyond_notes(
    planned: PlannedArms, evaluated: Sequence[EvaluatedRun], benchmarks: Sequence[str]
) -> list[str]:
    """Return notes on runs beyond the planned number of seeds, with their mean score."""
    runs = {run.folder.name: run for run in evaluated}
    notes = []
    for name, folders in planned.beyond.items():
        seeds, means = [], []
        for run in (runs[folder.name] for folder in folders):
            seeds.append(int(str(run.config.get("seed", 0))))
            points = {one: run.evaluations.get(one) for one in benchmarks}
            answers = [read_answers(run.folder, one, p[-1].step) for one, p in points.items() if p]
            means.append(sum(outcome_table([one]).mean_at_k().mean() for one in answers) / len(benchmarks))
        if seeds and planned.plan is not None:
            notes.append(
                f"beyond the {planned.plan.num_seeds} planned seeds of {name}, in no score or verdict: "
                f"seeds {ranges_text(sorted(seeds))}, {100.0 * np.mean(means):.1f} % correct on average"
            )
    return notes


def _arm_scores(
    arm: Arm,
    tables: Mapping[str, Mapping[str, OutcomeTable]],
    k: int,
    runs: Mapping[str, EvaluatedRun],
    steps: Mapping[str, Mapping[str, int]],
) -> ArmScores:
    own = {name: by_arm[arm.name] for name, by_arm in tables.items()}
    families = {name: [table] for name, table in own.items()}
    if len(own) > 1:
        families[MACRO] = list(own.values())
    scores = {
        measure: {name: score_of(chosen, measure, k) for name, chosen in families.items()}
        for measure in MEASURES
    }
    spans = {
        at: _span(
            [
                runs[run.name].cost.get(at, {}).get(used[run.name])
                for run in arm.runs.values()
                if run.name in used
            ]
        )
        for at in (At.STEPS, At.TOKENS, At.WALL_CLOCK)
        for used in [steps[next(iter(steps))]]
    }
    collapses = {seed: collapses_of(read_overview(arm.runs[seed])) for seed in arm.seeds}
    return ArmScores(
        arm=arm,
        scores=scores,
        diverged=FailureRate(seeds=diverged_seeds([arm], runs)[arm.name], num_runs=len(arm.runs)),
        collapses={seed: found for seed, found in collapses.items() if found is not None},
        steps=spans[At.STEPS] or (0.0, 0.0),
        num_tokens=spans[At.TOKENS],
        wall_s=spans[At.WALL_CLOCK],
        unknown=unknown_settings(arm),
    )


def _plan(pairs: Sequence[Pair], effect: float) -> Plan | None:
    """Plan new runs that detect `effect`, from the variance components of the headline differences.

    Returns None if there are no variance components, which require two seeds per arm, or if the runs do not
    vary.
    """
    headline = MACRO if any(pair.benchmark == MACRO for pair in pairs) else pairs[0].benchmark
    found = [
        pair.comparison.difference.components
        for pair in pairs
        if pair.measure == MEAN and pair.benchmark == headline
    ]
    return plan([components for components in found if components is not None], effect)


def _span(values: Sequence[float | None]) -> tuple[float, float] | None:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known and len(known) == len(values) else None


def _problem_notes(benchmarks: Sequence[str], all_k: Set[int]) -> list[str]:
    """Return notes on benchmarks of validation or training problems, and on different numbers of samples.

    `all_k` contains the numbers of samples per problem with which runs were evaluated.
    """
    trained = f"{TRAINING}: training rewards on batches that differ by step, not an evaluation"
    notes = [trained] if TRAINING in benchmarks else []
    if any(VALIDATION in name for name in benchmarks):
        notes.append("validation problems select checkpoints and sweep settings; verdicts need test problems")
    if len(all_k) > 1:
        notes.append(f"runs were evaluated with {min(all_k)} to {max(all_k)} samples per problem")
    return notes


def _clusters_notes(benchmark: str, table: OutcomeTable) -> list[str]:
    """Return a note on the scope of the intervals. The result is empty if the problems have no clusters."""
    if table.cluster_P is None:
        return []
    num = num_clusters(table.cluster_P)
    about = clusters_words(num) if num < MIN_CLUSTERS else f"new clusters ({num} here)"
    why = f", since intervals for new sources need at least {MIN_CLUSTERS}" if num < MIN_CLUSTERS else ""
    problems = counted(len(table.problem_ids), "problem")
    return [f"{benchmark}: {problems} in {counted(num, 'cluster')}; intervals are for {about}{why}"]


def _cost_notes(runs: Sequence[EvaluatedRun], steps: Mapping[str, Mapping[str, int]], at: At) -> list[str]:
    """Return notes on runs that are compared at different steps or costs."""
    notes = []
    cost = At.STEPS if at is At.LAST else at
    for benchmark, used in steps.items():
        costs = [run.cost[cost][used[run.folder.name]] for run in runs if not run.has_diverged]
        low, high = min(costs, default=0.0), max(costs, default=0.0)
        if at is At.LAST and low != high:
            notes.append(
                f"{benchmark}: runs are compared at their last evaluations, at steps {low:.0f} to "
                f"{high:.0f}; use `--at steps` to compare them at equal steps"
            )
        elif at is not At.LAST and high > (1.0 + _UNEQUAL) * low:
            notes.append(
                f"{benchmark}: the nearest evaluations differ in {at.value.replace('_', '-')} "
                f"({low:,.0f} to {high:,.0f}); evaluate more often, or compare on validation problems"
            )
    return notes

"""`compare_runs`: run folders in, a whole comparison out: scores by arm, paired differences, verdicts, notes.

One arm is the baseline of all pairs: the one named, or the default (`default_choice`). Scores are Mean@K and
Pass@k by benchmark and their macro average, in which every benchmark counts the same. Verdicts rest on the
macro average of Mean@K, whose intervals hold together over the arms compared; single benchmarks and Pass@k
are shown with intervals that hold together in families of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from atrium.compare.arms import Arm, are_same_method
from atrium.compare.compared_arms import compared_arms
from atrium.compare.confounds import Recorded, read_confounds, unknown_settings
from atrium.compare.counted_runs import VALIDATION, LeftOut, old_runs_note
from atrium.compare.diverged_runs import answers_used, diverged_seeds, steps_used
from atrium.compare.draws import draws_notes
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
from atrium.runs.run_folder import RunFolder
from atrium.stats.arm_pairs import MEAN, PASS, Pair
from atrium.stats.clusters import MIN_CLUSTERS, clusters_words, num_clusters
from atrium.stats.crossed import CrossedMean
from atrium.stats.failures import FailureRate, fell_below_start
from atrium.stats.pairing import ranges_text
from atrium.stats.power import Plan, plan

MEASURES = (MEAN, PASS)
_UNEQUAL = 0.1
"""By what share costs may differ between runs that are compared at an equal cost without a note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmScores:
    """What one arm reached. `scores` by measure and then by benchmark, the macro average among them.

    `pass_at` is Pass@k for k = 1 to the comparison's k, over seeds, on the benchmark that verdicts rest on.
    `steps`, `num_tokens` and `wall_s` are the least and most over the runs, at the evaluations used; None
    where that was not recorded. `diverged` are the runs that diverged, `collapsed` those that end below their
    own start; None where the score before training is not known. `unknown` is what imported runs do not
    record.
    """

    arm: Arm
    scores: Mapping[str, Mapping[str, CrossedMean]]
    pass_at: tuple[float, ...]
    diverged: FailureRate
    collapsed: FailureRate | None
    steps: tuple[float, float]
    num_tokens: tuple[float, float] | None
    wall_s: tuple[float, float] | None
    unknown: tuple[str, ...]

    @property
    def is_imported(self) -> bool:
        """Whether another program made the runs, so that nobody knows which diverged."""
        return any(settings.get("kind") == IMPORTED for settings in self.arm.all_settings)

    @property
    def rates(self) -> dict[str, str]:
        """How many runs diverged and collapsed, in words, with exact intervals."""
        collapsed = "not known" if self.collapsed is None else self.collapsed.short
        diverged = "not known" if self.is_imported else self.diverged.short
        return {"diverged": diverged, "collapsed": collapsed}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsComparison:
    """Everything that `atrium compare` shows. `k` is that of Pass@k; `mean_k` None where runs differ in K.

    `benchmarks` lists those compared, without the macro average, which exists for two or more. `outcomes` by
    benchmark and arm are on the problems that all runs answered, seeds ascending; `steps` are the evaluated
    steps by benchmark and run. `leaders` are
    by measure and benchmark the arms that may be the best, the highest first; none where verdicts are
    withheld. `confounds` are what else differs between arms, `environment` versions and machines; `left_out`
    are the runs that do not count; `planned` says at how many
    planned seeds the verdicts are given.
    """

    arms: tuple[ArmScores, ...]
    benchmarks: tuple[str, ...]
    pairs: tuple[Pair, ...]
    leaders: Mapping[tuple[str, str], tuple[str, ...]]
    same_methods: tuple[tuple[str, ...], ...]
    at: At
    k: int
    mean_k: int | None
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
        """How many problems each benchmark has."""
        return {name: len(next(iter(tables.values())).problem_ids) for name, tables in self.outcomes.items()}

    @property
    def unknown(self) -> dict[str, tuple[str, ...]]:
        """What imported runs do not record, by the names of their arms."""
        return {one.arm.name: one.unknown for one in self.arms if one.unknown}

    @property
    def best(self) -> dict[tuple[str, str], str | None]:
        """The arm that is shown to be the best, by measure and benchmark; None where several may be."""
        return {key: names[0] if len(names) == 1 else None for key, names in self.leaders.items()}

    @property
    def headline(self) -> str:
        """The benchmark that verdicts rest on: the macro average, or the only one."""
        return MACRO if len(self.benchmarks) > 1 else self.benchmarks[0]

    @property
    def headline_pairs(self) -> list[Pair]:
        """The pairs that verdicts rest on: each candidate by Mean@K on the headline benchmark."""
        return [self.pair(arm.arm.name, MEAN, self.headline) for arm in self.arms[1:]]

    @property
    def has_intervals(self) -> bool:
        """Whether any score has an interval for new seeds; one seed has none."""
        scores = (score for arm in self.arms for one in arm.scores.values() for score in one.values())
        return any(score.another_exam is not None for score in scores)

    @property
    def places(self) -> dict[str, int]:
        """The place of each arm's color, by name (`document.palette`); the earliest choose first."""
        began = {one.arm.name: min(map(started, one.arm.runs.values())) for one in self.arms}
        arms = sorted((one.arm for one in self.arms), key=lambda arm: (began[arm.name], arm.name))
        return places({arm.name: arm.settings.get("algorithm.name", arm.name) for arm in arms})

    def title(self, measure: str) -> str:
        """`Mean@8`, `Pass@8`."""
        if measure == PASS:
            return f"Pass@{self.k}"
        return f"Mean@{'K' if self.mean_k is None else self.mean_k}"

    def pair(self, candidate: str, measure: str, benchmark: str) -> Pair:
        """One pair; `KeyError` where there is none."""
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
    """Compare runs, grouped into arms; those that do not count or lack the common benchmark are left out.

    Other runs (`arm_names`) are left out too, except those that are `chosen` by name. `renamed` maps names of
    arms to the names that the user wants. `leave_out` gives the reasons why runs are not to count, by name.

    Raises `ConfigError` where there are fewer than two arms or a name fits nothing, `RunFolderError` where
    runs lack what a comparison needs.
    """
    found, arms, notes, missing = compared_arms(
        folders, by, baseline, at, benchmarks, chosen=chosen, renamed=renamed, leave_out=leave_out
    )
    names = found.benchmarks
    planned = planned_arms(arms, missing)
    used = {folder.name for arm in planned.arms for folder in arm.runs.values()}
    runs = {run.folder.name: run for run in found.runs if run.folder.name in used}
    notes += _beyond_notes(planned, found.runs, names)
    steps = {name: steps_used(list(runs.values()), name, at) for name in names}
    tables = {name: _tables(planned.arms, steps[name], name, notes) for name in names}
    k, *more_k = _numbers_of_samples(tables)
    pairs, leaders = judge_pairs(planned, tables, diverged_seeds(planned.arms, runs), k=k)
    notes += [*_problem_notes(names, {k, *more_k}), *_cost_notes(list(runs.values()), steps, at)]
    notes += [*draws_notes(planned.arms, runs, steps), *left_out_of_pairs(pairs)]
    confounds, environment = read_confounds(planned.arms, by)
    return RunsComparison(
        arms=tuple(_arm_scores(arm, tables, k, runs, steps) for arm in planned.arms),
        benchmarks=names,
        pairs=tuple(pairs),
        leaders=leaders,
        same_methods=_same_methods(planned.arms),
        at=at,
        k=k,
        mean_k=None if more_k else k,
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
    """The outcomes of every arm, all on the same problems, seeds ascending."""
    order = [(arm.name, arm.runs[seed]) for arm in arms for seed in arm.seeds]
    answers = answers_used([run for _, run in order], benchmark, steps)
    matched = matched_by_text(answers)
    whole = outcome_table(matched)
    if matched is not answers:
        notes.append(f"{benchmark}: problems are matched by their text, since their ids differ")
    most = max(len(one.num_correct) for one in answers)
    if len(whole.problem_ids) < most:
        notes.append(f"{benchmark}: {len(whole.problem_ids)} of {most} problems were answered by all runs")
    notes += _clusters_notes(benchmark, whole)
    return {
        arm.name: whole.of_rows([row for row, (name, _) in enumerate(order) if name == arm.name])
        for arm in arms
    }


def _numbers_of_samples(tables: Mapping[str, Mapping[str, OutcomeTable]]) -> list[int]:
    """The numbers of samples per problem that any run has, ascending."""
    return sorted({num for by_arm in tables.values() for one in by_arm.values() for num in one.num_samples_S})


def _beyond_notes(
    planned: PlannedArms, evaluated: Sequence[EvaluatedRun], benchmarks: Sequence[str]
) -> list[str]:
    """The runs beyond the planned number of seeds, with their own mean; no verdict counts them."""
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
    return ArmScores(
        arm=arm,
        scores=scores,
        pass_at=tuple(
            np.mean([table.pass_up_to(k).mean(axis=(0, 1)) for table in own.values()], axis=0).tolist()
        ),
        diverged=FailureRate(seeds=diverged_seeds([arm], runs)[arm.name], num_runs=len(arm.runs)),
        collapsed=_collapsed(arm, steps),
        steps=spans[At.STEPS] or (0.0, 0.0),
        num_tokens=spans[At.TOKENS],
        wall_s=spans[At.WALL_CLOCK],
        unknown=unknown_settings(arm),
    )


def _collapsed(arm: Arm, steps: Mapping[str, Mapping[str, int]]) -> FailureRate | None:
    """Return how many runs end significantly below their start; None if one has no score from its start."""
    fallen = []
    for seed, folder in sorted(arm.runs.items()):
        before, after = [], []
        for benchmark, used in steps.items():
            step = used.get(folder.name)
            if step == 0 or not folder.evaluation_path(benchmark, 0).exists():
                return None
            start = read_answers(folder, benchmark, 0)
            end = replace(start, num_correct=dict.fromkeys(start.num_correct, 0))  # where nothing was right
            if step is not None:
                end = read_answers(folder, benchmark, step)
            if list(start.num_correct) != list(end.num_correct):
                return None
            before.append(outcome_table([start]).mean_at_k()[0])
            after.append(outcome_table([end]).mean_at_k()[0])
        if fell_below_start(before, after):
            fallen.append(seed)
    return FailureRate(seeds=tuple(fallen), num_runs=len(arm.runs))


def _plan(pairs: Sequence[Pair], effect: float) -> Plan | None:
    """From the differences that verdicts rest on."""
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
    """Notes on problems that are not those that verdicts need, or were answered unequally often."""
    trained = f"{TRAINING}: rewards in training on batches that differ by step, not an evaluation"
    notes = [trained] if TRAINING in benchmarks else []
    if any(VALIDATION in name for name in benchmarks):
        notes.append(
            "validation problems: best checkpoints and sweeps are chosen on them, verdicts need test ones"
        )
    if len(all_k) > 1:
        notes.append(f"runs were evaluated with {min(all_k)} to {max(all_k)} samples per problem")
    return notes


def _clusters_notes(benchmark: str, table: OutcomeTable) -> list[str]:
    """What intervals say of new problems, where problems come in clusters."""
    if table.cluster_P is None:
        return []
    num = num_clusters(table.cluster_P)
    about = clusters_words(num) if num < MIN_CLUSTERS else f"new clusters ({num} here)"
    why = f", since fewer than {MIN_CLUSTERS} say nothing about new sources" if num < MIN_CLUSTERS else ""
    problems = counted(len(table.problem_ids), "problem")
    return [f"{benchmark}: {problems} in {counted(num, 'cluster')}; intervals are for {about}{why}"]


def _cost_notes(runs: Sequence[EvaluatedRun], steps: Mapping[str, Mapping[str, int]], at: At) -> list[str]:
    """Notes on runs that are compared at unequal points, by more than they have to be."""
    notes = []
    for benchmark, used in steps.items():
        if at is At.LAST:
            span = _span([float(used[run.folder.name]) for run in runs if not run.has_diverged])
            if span and span[0] != span[1]:
                notes.append(
                    f"{benchmark}: runs are compared at steps {span[0]:.0f} to {span[1]:.0f}, each at its "
                    "last; a comparison at equal steps avoids that"
                )
            continue
        span = _span([run.cost[at][used[run.folder.name]] for run in runs if not run.has_diverged])
        if span and span[1] > (1.0 + _UNEQUAL) * span[0]:
            notes.append(
                f"{benchmark}: the nearest evaluations differ in {at.value.replace('_', '-')} "
                f"({span[0]:,.0f} to {span[1]:,.0f}); evaluate more often, or compare on validation problems"
            )
    return notes


def _same_methods(arms: Sequence[Arm]) -> tuple[tuple[str, ...], ...]:
    """Groups of arms that are one method under several names."""
    found: list[list[Arm]] = []
    for arm in arms:
        for group in found:
            if are_same_method(group[0], arm):
                group.append(arm)
                break
        else:
            found.append([arm])
    return tuple(tuple(arm.name for arm in group) for group in found if len(group) > 1)

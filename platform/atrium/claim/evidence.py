"""Evidence for a claim: the difference between two arms, from runs or from tables of answers.

Axes: S seeds, P problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atrium.base.errors import ConfigError
from atrium.base.recorded import read_object
from atrium.claim.definition import Claim, CurveScore, Scale, ScoreOutcome
from atrium.claim.files import design_of, sweep_of
from atrium.claim.judgement import Evidence, Judgement, judge
from atrium.claim.table import read_table
from atrium.compare.curve_contrasts import curve_contrast, curve_value
from atrium.compare.judged_pairs import values_of
from atrium.compare.outcomes import Answers, outcome_table, read_answers, read_evaluated_run
from atrium.runs.find import list_runs
from atrium.runs.method_settings import method_key
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, read_status
from atrium.stats.comparison import TwoArms
from atrium.sweep.definition import SweepDefinition
from atrium.sweep.plan import Stage, plan_stage, trial_config

Runs = Mapping[str, Mapping[int, RunFolder]]
"""Finished runs by arm and seed."""
ArmAnswers = Mapping[str, Mapping[int, Sequence[Answers]]]
"""Answers by arm and seed; each sequence has one element per benchmark."""
_VALIDATION = "-validation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A claim's design at one scale: the sweep, and the number of samples per problem.

    The data of a claim must match its design.
    """

    claim: Claim
    scale: Scale
    sweep: SweepDefinition
    num_samples: int

    def judge(self, evidence: Evidence) -> Judgement:
        """Return the verdict on the claim, given the evidence and the power of this design."""
        is_powered = design_of(self.claim, self.scale).is_powered(len(self.sweep.seeds))
        return judge(self.claim.expected, evidence, scale=self.scale, is_powered=is_powered)


def design(claim: Claim, scale: Scale) -> Design:
    """Return the design of a claim at a scale; `num_samples` comes from the sweep's base configuration."""
    sweep = sweep_of(claim, scale)
    num_samples = trial_config(sweep, sweep.base).evaluation.num_samples
    return Design(claim=claim, scale=scale, sweep=sweep, num_samples=num_samples)


def evidence_of(wanted: Design, data: Sequence[Path]) -> Evidence:
    """Return the difference between the arms, computed from run directories or from table files.

    Raises `ConfigError` for a path that does not exist, for runs together with tables, and for data that do
    not match the design.
    """
    if missing := [path for path in data if not path.exists()]:
        raise ConfigError(f"{missing[0]}: there is no such file or folder; correct the path")
    tables = [path for path in data if path.is_file()]
    if tables and len(tables) < len(data):
        raise ConfigError(
            "atrium claim check: runs and tables cannot be combined; give either runs or tables"
        )
    if tables:
        if not isinstance(wanted.claim.outcome, ScoreOutcome):
            raise ConfigError(
                f"claim {wanted.claim.title} requires {wanted.claim.outcome.words}, which a table of "
                "answers does not contain; give runs instead"
            )
        seeds, num_samples = wanted.sweep.seeds, wanted.num_samples
        return _score(wanted, read_table(tables, arms=_arms(wanted), seeds=seeds, num_samples=num_samples))
    return evidence_of_runs(wanted, arm_runs(wanted.sweep, _folders(data)))


def evidence_of_runs(wanted: Design, runs: Runs) -> Evidence:
    """Return the difference between the arms over all seeds; raise `ConfigError` if a run is missing."""
    for arm in _arms(wanted):
        if missing := set(wanted.sweep.seeds) - set(runs.get(arm, {})):
            raise ConfigError(
                f"claim {wanted.claim.title}: there is no finished run of {arm} with seed "
                f"{min(missing)}; the design requires the seeds {', '.join(map(str, wanted.sweep.seeds))}"
            )
    outcome, arms = wanted.claim.outcome, _arms(wanted)
    if isinstance(outcome, CurveScore):
        sides = ([_known(runs[arm][seed], outcome) for seed in wanted.sweep.seeds] for arm in arms)
        found = curve_contrast(*sides)
        return Evidence(
            difference=found.difference,
            difference_S=found.difference_S,
            interval=found.interval,
            is_share=False,
        )
    return _score(wanted, {arm: {seed: last_answers(run) for seed, run in runs[arm].items()} for arm in arms})


def arm_runs(sweep: SweepDefinition, folders: Sequence[RunFolder]) -> Runs:
    """Return the finished runs among `folders`, by arm and seed.

    Raises `ConfigError` if a run's settings match no arm of the sweep, or if its seed is not in the sweep. If
    several finished runs have the same arm and seed, the last of them in `folders` is used.
    """
    labels = {trial.key: trial.labels for trial in plan_stage(sweep, Stage.SEARCH)}
    found: dict[str, dict[int, RunFolder]] = {arm: {} for arm in sweep.arms}
    for folder in folders:
        if read_status(folder.status_file).state != RunState.FINISHED:
            continue
        config, problem = read_object(folder.config_file)
        key = method_key(config, at_last_step=True)
        seed = config.get("seed")
        if problem or key not in labels:
            raise ConfigError(
                f"{folder.name} cannot be used: "
                f"{problem or f'its settings match no arm of sweep {sweep.name}'}; choose runs of the arms "
                f"{', '.join(sweep.arms)}"
            )
        if seed not in sweep.seeds:
            raise ConfigError(
                f"{folder.name}: unknown seed {seed}; the design has the seeds "
                f"{', '.join(map(str, sweep.seeds))}"
            )
        for arm in labels[key]:
            found[arm][seed] = folder
    return found


def last_answers(run: RunFolder) -> list[Answers]:
    """Return a run's answers to its test problems after the last step, with one entry for each benchmark."""
    evaluated = read_evaluated_run(run).evaluations
    return [
        read_answers(run, name, points[-1].step)
        for name, points in sorted(evaluated.items())
        if not name.endswith(_VALIDATION)
    ]


def _score(wanted: Design, answers: ArmAnswers) -> Evidence:
    """Return the difference in score between the arms.

    The interval of the difference is for new seeds and new problems of the same kind. Raises `ConfigError` if
    a claim about Pass@k needs more samples per problem than the design has.
    """
    outcome, seeds = wanted.claim.outcome, wanted.sweep.seeds
    assert isinstance(outcome, ScoreOutcome)
    if outcome.measure == "pass" and outcome.k > wanted.num_samples:
        raise ConfigError(
            f"claim {wanted.claim.title}: {outcome.words} requires {outcome.k} samples per problem, but "
            f"sweep {wanted.sweep.name} has {wanted.num_samples}; raise evaluation.num_samples"
        )
    sides = []
    for arm in _arms(wanted):
        by_benchmark = zip(*(answers[arm][seed] for seed in seeds), strict=True)
        tables = [outcome_table(list(of_seeds)) for of_seeds in by_benchmark]
        sides.append([values_of(table, outcome.measure, outcome.k) for table in tables])
    found = TwoArms(sides[1], sides[0]).difference()
    interval = None if found.new_seeds_and_problems is None else found.new_seeds_and_problems.interval
    return Evidence(difference=found.value, difference_S=found.value_S, interval=interval, is_share=True)


def _known(run: RunFolder, outcome: CurveScore) -> float:
    value = curve_value(run, outcome.curve)
    if value is None:
        raise ConfigError(
            f"{run.name}: {outcome.words} cannot be computed from its curves; leave out the run"
        )
    return value


def _arms(wanted: Design) -> tuple[str, str]:
    """Return the names of the candidate and the baseline."""
    assert wanted.claim.candidate is not None
    assert wanted.claim.baseline is not None
    return wanted.claim.candidate, wanted.claim.baseline


def _folders(data: Sequence[Path]) -> list[RunFolder]:
    """Return the runs at the paths in `data`, each of which is a run directory or a folder of runs.

    Raises `ConfigError` if a path contains no runs.
    """
    found = []
    for path in data:
        runs = [RunFolder(path)] if RunFolder(path).looks_like_run() else list_runs(path)
        if not runs:
            raise ConfigError(f"{path} contains no runs; choose another folder")
        found += runs
    return found

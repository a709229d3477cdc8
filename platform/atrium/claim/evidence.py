"""From runs, or a table of answers, to the difference that a claim is about; the rest is refused.

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
"""Answers by arm and seed, one per benchmark."""
_VALIDATION = "-validation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What rows and runs are held to: the sweep of a claim at a scale, and the samples of a problem."""

    claim: Claim
    scale: Scale
    sweep: SweepDefinition
    num_samples: int

    def judge(self, evidence: Evidence) -> Judgement:
        """Return the word for the evidence, given the power of this design."""
        is_powered = design_of(self.claim, self.scale).is_powered(len(self.sweep.seeds))
        return judge(self.claim.expected, evidence, scale=self.scale, is_powered=is_powered)


def design(claim: Claim, scale: Scale) -> Design:
    """The design of a claim at a scale, its base composed."""
    sweep = sweep_of(claim, scale)
    config = trial_config(sweep.base, name=sweep.name, runs_dir=sweep.runs_dir, seed=sweep.seeds[0])
    return Design(claim=claim, scale=scale, sweep=sweep, num_samples=config.evaluation.num_samples)


def evidence_of(wanted: Design, data: Sequence[Path]) -> Evidence:
    """Return the difference that runs or tables show; raise `ConfigError` for data outside the design."""
    tables = [path for path in data if path.is_file()]
    if tables and len(tables) < len(data):
        raise ConfigError("claim check: give runs or tables, not both")
    if tables:
        if not isinstance(wanted.claim.outcome, ScoreOutcome):
            raise ConfigError(
                f"claim {wanted.claim.title} is about {wanted.claim.outcome.words}, which a table of "
                "answers does not hold; give runs"
            )
        seeds, num_samples = wanted.sweep.seeds, wanted.num_samples
        return _score(wanted, read_table(tables, arms=_arms(wanted), seeds=seeds, num_samples=num_samples))
    return evidence_of_runs(wanted, arm_runs(wanted.sweep, _folders(data)))


def evidence_of_runs(wanted: Design, runs: Runs) -> Evidence:
    """The difference of two arms' runs, on all seeds of the design."""
    for arm in _arms(wanted):
        if missing := set(wanted.sweep.seeds) - set(runs.get(arm, {})):
            raise ConfigError(
                f"claim {wanted.claim.title}: no finished run of {arm} with seed {min(missing)}; its design "
                f"has seeds {', '.join(map(str, wanted.sweep.seeds))}"
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
    """Finished runs by arm and seed; `ConfigError` for one of no arm, or of a seed not in the design."""
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
                f"{folder.name}: {problem or f'its settings are those of no arm of sweep {sweep.name}'}; "
                f"arms are {', '.join(sweep.arms)}"
            )
        if seed not in sweep.seeds:
            raise ConfigError(
                f"{folder.name}: seed {seed} is not in the design; its seeds are "
                f"{', '.join(map(str, sweep.seeds))}"
            )
        for arm in labels[key]:
            found[arm][seed] = folder
    return found


def last_answers(run: RunFolder) -> list[Answers]:
    """A run's answers to its test problems after the last step, by benchmark."""
    evaluated = read_evaluated_run(run).evaluations
    return [
        read_answers(run, name, points[-1].step)
        for name, points in sorted(evaluated.items())
        if not name.endswith(_VALIDATION)
    ]


def _score(wanted: Design, answers: ArmAnswers) -> Evidence:
    """The difference of two arms' scores, for new problems of the same kind, and new seeds."""
    outcome, seeds = wanted.claim.outcome, wanted.sweep.seeds
    assert isinstance(outcome, ScoreOutcome)
    if outcome.measure == "pass" and outcome.k > wanted.num_samples:
        raise ConfigError(
            f"claim {wanted.claim.title}: {outcome.words} needs {outcome.k} samples a problem, and sweep "
            f"{wanted.sweep.name} takes {wanted.num_samples}"
        )
    sides = []
    for arm in _arms(wanted):
        by_benchmark = zip(*(answers[arm][seed] for seed in seeds), strict=True)
        tables = [outcome_table(list(of_seeds)) for of_seeds in by_benchmark]
        sides.append([values_of(table, outcome.measure, outcome.k) for table in tables])
    found = TwoArms(sides[1], sides[0]).difference()
    interval = None if found.another_exam is None else found.another_exam.interval
    return Evidence(difference=found.value, difference_S=found.value_S, interval=interval, is_share=True)


def _known(run: RunFolder, outcome: CurveScore) -> float:
    value = curve_value(run, outcome.curve)
    if value is None:
        raise ConfigError(f"{run.name}: its curve has no {outcome.words}")
    return value


def _arms(wanted: Design) -> tuple[str, str]:
    """The candidate and the baseline."""
    assert wanted.claim.candidate is not None
    assert wanted.claim.baseline is not None
    return wanted.claim.candidate, wanted.claim.baseline


def _folders(data: Sequence[Path]) -> list[RunFolder]:
    """The runs at these paths: each a run, or a folder of runs."""
    found = []
    for path in data:
        if not path.is_dir():
            raise ConfigError(f"{path}: there is no such file or folder")
        runs = [RunFolder(path)] if RunFolder(path).looks_like_run() else list_runs(path)
        if not runs:
            raise ConfigError(f"{path}: holds no runs")
        found += runs
    return found

"""From run folders to outcomes: what each run's checkpoint did on each problem of a benchmark.

An evaluation's Parquet file holds a row per problem and sample; `read_answers` counts them. `evaluations_at`
says which of a run's evaluations a comparison uses: its last, or the one at equal steps, equal generated
tokens or equal wall-clock, and never the one before training. `outcome_table` lines runs up on the problems
that all of them answered.

Axes: S seeds (one run each), P problems, K samples per problem.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from atrium.base.errors import RunFolderError
from atrium.base.recorded import read_object
from atrium.base.records import CLUSTER
from atrium.base.seeding import derive_seed
from atrium.base.texts import TEXT_ID, text_key
from atrium.compare.curve_index import recorded_curves
from atrium.compare.curves import Axis, at_steps
from atrium.runs.layout import IMPORTED
from atrium.runs.reader import EvaluationPoint, read_evaluations
from atrium.runs.run_folder import RunFolder
from atrium.runs.sample_files import read_samples
from atrium.stats.clusters import cluster_numbers
from atrium.stats.crossed import Values
from atrium.stats.estimates import pass_at_k


class At(StrEnum):
    """At which point of training runs are compared."""

    LAST = "last"
    STEPS = "steps"
    TOKENS = "tokens"
    WALL_CLOCK = "wall_clock"


AT_WORDS = {
    At.LAST: "at each run's last evaluation",
    At.STEPS: "at equal steps",
    At.TOKENS: "at equal generated tokens",
    At.WALL_CLOCK: "at equal training time",
}
_AXES = {At.TOKENS: Axis.TOKENS, At.WALL_CLOCK: Axis.WALL_CLOCK}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """One checkpoint's answers on a benchmark: of `num_samples` per problem, how many were correct.

    `clusters` names the cluster of each problem that has one, `path` the file of the answers.
    """

    benchmark: str
    step: int
    num_samples: int
    num_correct: Mapping[str, int]
    clusters: Mapping[str, str] = field(default_factory=dict)
    path: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeTable:
    """Counts [S, P] of correct answers, out of K each; all runs answered these P problems.

    `cluster_P` is the number of each problem's cluster, or None.
    """

    benchmark: str
    problem_ids: tuple[str, ...]
    num_correct_SP: NDArray[np.int64]
    num_samples_S: tuple[int, ...]
    cluster_P: NDArray[np.int64] | None = None

    def of_rows(self, rows: Sequence[int]) -> OutcomeTable:
        """The table of some of the runs."""
        samples = tuple(self.num_samples_S[row] for row in rows)
        return replace(self, num_correct_SP=self.num_correct_SP[list(rows)], num_samples_S=samples)

    def mean_at_k(self) -> Values:
        """Mean@K by run and problem [S, P]."""
        shares_SP: Values = self.num_correct_SP / np.array(self.num_samples_S)[:, None]
        return shares_SP

    def pass_up_to(self, k: int) -> Values:
        """Pass@j by run, problem and j = 1 to k [S, P, k]; `ValueError` where a run has fewer samples."""
        if not 1 <= k <= min(self.num_samples_S):
            raise ValueError(f"Pass@{k} needs 1 <= k <= {min(self.num_samples_S)}, the fewest samples")
        counts = zip(self.num_correct_SP, self.num_samples_S, strict=True)
        return np.stack([pass_at_k(count_P, num)[:, :k] for count_P, num in counts])

    def pass_at(self, k: int) -> Values:
        """Pass@k by run and problem [S, P]; `ValueError` where a run has fewer than k samples."""
        return self.pass_up_to(k)[..., -1]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedRun:
    """A run's evaluations by benchmark, and what training had cost at each: tokens generated, seconds.

    `evaluations` of a run that trained leaves out step 0, which is no outcome of training. `cost` holds, for
    each axis that the run recorded, the value at each evaluated step. The evaluations of a run that
    `has_diverged` are those of the policy that it diverged to.
    """

    folder: RunFolder
    config: Mapping[str, object]
    evaluations: Mapping[str, tuple[EvaluationPoint, ...]]
    cost: Mapping[At, Mapping[int, float]]
    has_diverged: bool = False


def read_evaluated_run(folder: RunFolder) -> EvaluatedRun:
    """The evaluations of a run, and their cost. Raises `OSError` where its files cannot be read."""
    config, _ = read_object(folder.config_file)
    evaluations = read_evaluations(folder)
    steps = sorted({point.step for points in evaluations.values() for point in points})
    columns = recorded_curves(folder).columns
    cost: dict[At, Mapping[int, float]] = {At.STEPS: {step: float(step) for step in steps}}
    for at, axis in _AXES.items():
        values = at_steps(np.array(steps, dtype=np.float64), columns, axis)
        if values is not None:
            cost[at] = dict(zip(steps, values.tolist(), strict=True))
    is_exam = config.get("kind") == "evaluation" or (config.get("kind") == IMPORTED and not any(steps))
    first = 0 if is_exam else 1
    after = {
        name: tuple(point for point in points if point.step >= first) for name, points in evaluations.items()
    }
    return EvaluatedRun(
        folder=folder,
        config=config,
        evaluations={name: points for name, points in after.items() if points},
        cost=cost,
    )


def evaluations_at(runs: Sequence[EvaluatedRun], benchmark: str, at: At) -> dict[str, int]:
    """The evaluated step of each run that a comparison uses, by the run's name.

    At equal steps it is the largest that all runs evaluated. At equal tokens or wall-clock the budget is what
    the cheapest run had spent at its last evaluation, and each run's evaluation nearest to it is used.
    Raises `RunFolderError` where a run has no evaluation of the benchmark, or recorded no such cost.
    """
    steps = {run.folder.name: _steps(run, benchmark) for run in runs}
    if at is At.LAST:
        return {name: evaluated[-1] for name, evaluated in steps.items()}
    if at is At.STEPS:
        shared = set.intersection(*(set(evaluated) for evaluated in steps.values()))
        if not shared:
            raise RunFolderError(
                f"there is no step after 0 at which all runs evaluated {benchmark}; compare them at the last "
                "evaluation of each"
            )
        return dict.fromkeys(steps, max(shared))
    costs = {run.folder.name: _costs(run, benchmark, at) for run in runs}
    budget = min(max(by_step.values()) for by_step in costs.values())
    return {
        name: min(by_step, key=lambda step: (abs(by_step[step] - budget), step))
        for name, by_step in costs.items()
    }


def read_answers(folder: RunFolder, benchmark: str, step: int) -> Answers:
    """The answers that a run's evaluation at a step recorded, by problem.

    Raises `RunFolderError` where the samples are missing or damaged, or problems differ in their number.
    """
    path = folder.evaluation_path(benchmark, step)
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        raise RunFolderError(
            f"{folder.name} has no samples of {benchmark} at step {step}; runs are compared problem by "
            f"problem, so {path} is needed"
        ) from None
    return _read_answers(folder, benchmark, step, changed)


def matched_by_text(answers: Sequence[Answers]) -> Sequence[Answers]:
    """The answers with equal names for problems of equal text, where their ids do not say it.

    Ids count where all runs share some and none is an import without ids. A problem keeps the first id that a
    run has for it; a text that a run has twice matches nothing.
    """
    ids = [set(one.num_correct) for one in answers]
    is_named = not any(name.startswith(TEXT_ID) for own in ids for name in own)
    if all(own == ids[0] for own in ids) or (is_named and set.intersection(*ids)):
        return answers
    keys = [{} if one.path is None else _text_keys(one.path) for one in answers]
    names: dict[str, str] = {}
    for own in sorted(keys, key=lambda own: any(name.startswith(TEXT_ID) for name in own)):
        for name, key in own.items():
            names.setdefault(key, name)
    return [
        replace(
            one,
            num_correct={names.get(own.get(name, ""), name): num for name, num in one.num_correct.items()},
            clusters={names.get(own.get(name, ""), name): value for name, value in one.clusters.items()},
        )
        for one, own in zip(answers, keys, strict=True)
    ]


def _text_keys(path: Path) -> dict[str, str]:
    """The key of each problem's text, of texts that only one problem has."""
    questions = {
        str(row["problem_id"]): text_key(row["question"])
        for row in read_samples(path, ["problem_id", "question"])
        if row.get("question")
    }
    times = Counter(questions.values())
    return {name: key for name, key in questions.items() if times[key] == 1}


def outcome_table(answers: Sequence[Answers]) -> OutcomeTable:
    """Runs lined up on the problems that all of them answered, in the first run's order.

    The cluster of a problem is that of the first run that recorded one.

    Raises `RunFolderError` where they share no problem.
    """
    shared = set.intersection(*(set(one.num_correct) for one in answers))
    if not shared:
        raise RunFolderError(f"the runs share no problem of {answers[0].benchmark}")
    problem_ids = tuple(name for name in answers[0].num_correct if name in shared)
    return OutcomeTable(
        benchmark=answers[0].benchmark,
        problem_ids=problem_ids,
        num_correct_SP=np.array([[one.num_correct[name] for name in problem_ids] for one in answers]),
        num_samples_S=tuple(one.num_samples for one in answers),
        cluster_P=cluster_numbers(
            [next((one.clusters[n] for one in answers if n in one.clusters), None) for n in problem_ids]
        ),
    )


def common_answers(tables: Mapping[str, OutcomeTable]) -> tuple[int, dict[str, NDArray[np.int64]]]:
    """How many answers per problem all arms have, and how many of so many each arm has correct [P].

    An arm with more seeds or samples has more chances to be wrong once. Of its answers as many are drawn as
    the smallest number of any arm, by a key of benchmark and problem, so that a draw never changes.
    """
    num_answers = min(sum(table.num_samples_S) for table in tables.values())
    return num_answers, {name: _drawn(table, num_answers) for name, table in tables.items()}


def _drawn(table: OutcomeTable, num_answers: int) -> NDArray[np.int64]:
    total = sum(table.num_samples_S)
    correct_P: NDArray[np.int64] = table.num_correct_SP.sum(axis=0)
    if total == num_answers:
        return correct_P
    keys = (derive_seed(0, "common_answers", table.benchmark, name) for name in table.problem_ids)
    drawn = [
        np.random.default_rng(key).hypergeometric(num_correct, total - num_correct, num_answers)
        for key, num_correct in zip(keys, correct_P.tolist(), strict=True)
    ]
    return np.array(drawn, dtype=np.int64)


@lru_cache(maxsize=512)
def _read_answers(folder: RunFolder, benchmark: str, step: int, _changed: int) -> Answers:
    path = folder.evaluation_path(benchmark, step)
    rows = read_samples(path, ["problem_id", "is_correct", "metadata"])
    num_samples: dict[str, int] = {}
    num_correct: dict[str, int] = {}
    clusters: dict[str, str] = {}
    for row in rows:
        name = str(row.get("problem_id"))
        if name not in num_samples and (cluster := _cluster(row.get("metadata"))) is not None:
            clusters[name] = cluster
        num_samples[name] = num_samples.get(name, 0) + 1
        num_correct[name] = num_correct.get(name, 0) + (row.get("is_correct") is True)
    if len(set(num_samples.values())) != 1:
        raise RunFolderError(f"{path}: problems have different numbers of samples, or there are none")
    return Answers(
        benchmark=benchmark,
        step=step,
        num_samples=next(iter(num_samples.values())),
        num_correct=num_correct,
        clusters=clusters,
        path=path,
    )


def _cluster(metadata: object) -> str | None:
    """The cluster that a problem's metadata, which are JSON, name."""
    if not isinstance(metadata, str) or f'"{CLUSTER}"' not in metadata:
        return None
    try:
        value = json.loads(metadata).get(CLUSTER)
    except (ValueError, AttributeError):
        return None
    return None if value is None else str(value)


def _steps(run: EvaluatedRun, benchmark: str) -> list[int]:
    points = run.evaluations.get(benchmark)
    if not points:
        raise RunFolderError(f"{run.folder.name} has no evaluation of {benchmark} that counts")
    return [point.step for point in points]


def _costs(run: EvaluatedRun, benchmark: str, at: At) -> dict[int, float]:
    recorded = run.cost.get(at)
    if recorded is None:
        raise RunFolderError(f"{run.folder.name} did not record what a comparison {AT_WORDS[at]} needs")
    return {step: recorded[step] for step in _steps(run, benchmark)}

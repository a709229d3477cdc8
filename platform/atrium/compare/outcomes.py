"""Outcomes read from run directories: which problems of a benchmark each run's checkpoint solves.

An evaluation's Parquet file has a row per problem and sample; `read_answers` counts correct answers.
`evaluations_at` selects the evaluation of each run that a comparison uses: the last one, or the one at equal
steps, equal generated tokens or equal training time. The evaluation before training is never used.
`outcome_table` restricts runs to the problems that all of them answered.

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
from atrium.base.records import CLUSTER, Floats
from atrium.base.seeding import derive_seed
from atrium.base.texts import TEXT_ID, text_key
from atrium.compare.curve_index import recorded_curves
from atrium.compare.curves import XAxis, at_steps
from atrium.runs.layout import IMPORTED
from atrium.runs.reader import EvaluationPoint, read_evaluations
from atrium.runs.run_folder import RunFolder
from atrium.runs.sample_files import read_samples
from atrium.stats.clusters import cluster_numbers
from atrium.stats.estimates import pass_at_k


class At(StrEnum):
    """The point of training at which runs are compared."""

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
_AXES = {At.TOKENS: XAxis.TOKENS, At.WALL_CLOCK: XAxis.WALL_CLOCK}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The numbers of correct answers that one checkpoint gave to each problem, keyed by problem id.

    Each problem has `num_samples` answers. `clusters` maps problems to the names of their clusters. `path` is
    the file with the answers.
    """

    benchmark: str
    step: int
    num_samples: int
    num_correct: Mapping[str, int]
    clusters: Mapping[str, str] = field(default_factory=dict)
    path: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeTable:
    """Counts [S, P] of correct answers among K samples, for the P problems that all runs answered.

    `cluster_P` is the index of each problem's cluster, or None without clusters.
    """

    benchmark: str
    problem_ids: tuple[str, ...]
    num_correct_SP: NDArray[np.int64]
    num_samples_S: tuple[int, ...]
    cluster_P: NDArray[np.int64] | None = None

    def of_rows(self, rows: Sequence[int]) -> OutcomeTable:
        """Return the table restricted to the runs in these rows."""
        samples = tuple(self.num_samples_S[row] for row in rows)
        return replace(self, num_correct_SP=self.num_correct_SP[list(rows)], num_samples_S=samples)

    def mean_at_k(self) -> Floats:
        """Return Mean@K by run and problem [S, P]."""
        shares_SP: Floats = self.num_correct_SP / np.array(self.num_samples_S)[:, None]
        return shares_SP

    def pass_up_to(self, k: int) -> Floats:
        """Return Pass@j [S, P, k] for j = 1 to k; raise `ValueError` if a run has fewer than k samples."""
        if not 1 <= k <= min(self.num_samples_S):
            raise ValueError(
                f"k must be between 1 and {min(self.num_samples_S)}, the smallest number of samples, got {k}"
            )
        counts = zip(self.num_correct_SP, self.num_samples_S, strict=True)
        return np.stack([pass_at_k(count_P, num)[:, :k] for count_P, num in counts])

    def pass_at(self, k: int) -> Floats:
        """Return Pass@k by run and problem [S, P]; raise `ValueError` if a run has fewer than k samples."""
        return self.pass_up_to(k)[..., -1]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedRun:
    """A run's evaluations by benchmark, and the training cost of each in generated tokens and seconds.

    The `evaluations` of a trained run exclude step 0, which is not an outcome of training. `cost` maps each
    recorded cost to its values at the evaluated steps. `has_diverged` is set for a diverged run. Unless runs
    are compared at equal steps, such a run lacks the benchmarks on which its last policy was not evaluated.
    """

    folder: RunFolder
    config: Mapping[str, object]
    evaluations: Mapping[str, tuple[EvaluationPoint, ...]]
    cost: Mapping[At, Mapping[int, float]]
    has_diverged: bool = False


def read_evaluated_run(folder: RunFolder, config: Mapping[str, object] | None = None) -> EvaluatedRun:
    """Return a run's evaluations and their cost. Raises `OSError` if its files cannot be read.

    `config` contains the run's settings; if None, they are read from the run directory.
    """
    config = read_object(folder.config_file)[0] if config is None else config
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
    """Return the evaluated step that a comparison uses for each run, by run name.

    At equal steps, it is the largest step at which all runs were evaluated. At equal tokens or training time,
    the budget is the cost of the cheapest run at its last evaluation, and the step with the nearest cost is
    used for each run. All runs must have been evaluated on the benchmark and have recorded the cost. Raises
    `RunFolderError` if they share no evaluated step.
    """
    steps = {run.folder.name: [point.step for point in run.evaluations[benchmark]] for run in runs}
    if at is At.LAST or not runs:
        return {name: evaluated[-1] for name, evaluated in steps.items()}
    if at is At.STEPS:
        shared = set.intersection(*(set(evaluated) for evaluated in steps.values()))
        if not shared:
            raise RunFolderError(
                f"there is no step after 0 at which all of the runs were evaluated on {benchmark}; "
                "compare the runs at their last evaluations"
            )
        return dict.fromkeys(steps, max(shared))
    costs = {run.folder.name: {step: run.cost[at][step] for step in steps[run.folder.name]} for run in runs}
    budget = min(max(by_step.values()) for by_step in costs.values())
    return {
        name: min(by_step, key=lambda step: (abs(by_step[step] - budget), step))
        for name, by_step in costs.items()
    }


def read_answers(folder: RunFolder, benchmark: str, step: int) -> Answers:
    """Return the recorded numbers of correct answers in a run's evaluation at a step, by problem.

    Raises `RunFolderError` if the samples are missing or damaged, or problems have different numbers of
    samples.
    """
    path = folder.evaluation_path(benchmark, step)
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        raise RunFolderError(
            f"{folder.name} has no samples of {benchmark} at step {step}; restore {path}, or leave out "
            "the run"
        ) from None
    return _read_answers(folder, benchmark, step, changed)


def matched_by_text(answers: Sequence[Answers]) -> Sequence[Answers]:
    """Return the answers, with problems matched by text if ids do not identify them across runs.

    Ids identify the problems if all runs have the same ids, or if the runs share some ids and every run
    recorded its ids. The object `answers` itself is then returned. Matched problems get the same id, taken
    from a run that recorded ids if there is one. A text that occurs twice in a run is not matched.
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
    """Return a key of each problem's text, by problem id.

    Problems that share their text with another problem are left out.
    """
    questions = {
        str(row["problem_id"]): text_key(row["question"])
        for row in read_samples(path, ["problem_id", "question"])
        if row.get("question")
    }
    times = Counter(questions.values())
    return {name: key for name, key in questions.items() if times[key] == 1}


def outcome_table(answers: Sequence[Answers]) -> OutcomeTable:
    """Return the outcomes of runs on the problems that all of them answered, in the first run's order.

    The cluster of a problem is that of the first run that recorded one.

    Raises `RunFolderError` if the runs share no problem.
    """
    shared = set.intersection(*(set(one.num_correct) for one in answers))
    if not shared:
        raise RunFolderError(
            f"the runs share no problem of {answers[0].benchmark}; choose runs with the same problems"
        )
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
    """Draw equally many answers per problem from each arm.

    Returns the number of answers drawn per problem, and for each arm the numbers [P] of correct ones. As many
    answers are drawn as the arm with the fewest answers has. Without the draw, an arm with more seeds or
    samples would have more chances of a wrong answer. The random seed of the draw is derived from benchmark
    and problem, so the draw is reproducible.
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
        raise RunFolderError(
            f"{path} must contain the same number of samples, at least one, for each problem; evaluate again"
        )
    return Answers(
        benchmark=benchmark,
        step=step,
        num_samples=next(iter(num_samples.values())),
        num_correct=num_correct,
        clusters=clusters,
        path=path,
    )


def _cluster(metadata: object) -> str | None:
    """Return the cluster that a problem's JSON metadata names, or None if it names none."""
    if not isinstance(metadata, str) or f'"{CLUSTER}"' not in metadata:
        return None
    try:
        value = json.loads(metadata).get(CLUSTER)
    except (ValueError, AttributeError):
        return None
    return None if value is None else str(value)

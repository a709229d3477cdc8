"""Functions that train the runs of a sweep in this process, and read results from run directories.

A worker imports torch once and trains one run after another. A run depends only on its configuration, so it
is bitwise identical to the same run in a process of its own.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from atrium.assemble.choosing import with_split
from atrium.assemble.graders import build_grader
from atrium.assemble.prepared import check_start
from atrium.assemble.run import begin_folder, training_request
from atrium.assemble.training import run_training
from atrium.base.atomic import write_json
from atrium.base.errors import PolicyDivergedError, Pruned, TrainingDivergedError
from atrium.base.metrics import NUM_TOKENS
from atrium.base.processes import END_SIGNALS, received, stop_requests
from atrium.base.recorded import read_object
from atrium.compare.outcomes import outcome_table, read_answers
from atrium.runs.diagnosis import find_collapse
from atrium.runs.reader import EvaluationPoint, read_evaluations, read_facts, read_metrics, read_steps
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, known_status
from atrium.stats.failures import fell_below_start
from atrium.sweep.pruning import VALIDATION_SUFFIX, RunWatch
from atrium.sweep.results import DIVERGED, FINISHED, PRUNED, SeedResult
from atrium.sweep.runner import TrialRun
from atrium.sweep.setup import check_plugins, join
from atrium.sweep.storage import SweepStorage
from atrium.sweep.worker import SweepWorker

LABEL_FILE = "sweep.json"


def execute(run: TrialRun, watch: RunWatch) -> SeedResult:
    """Train one run of a trial until it ends, or resume it, and return its result.

    A run that has already finished or been pruned is not trained again. `watch` may prune the run. Pruning
    and divergence are recorded in the result, and other errors are raised.
    """
    run = replace(run, config=with_split(run.config, run.overrides))
    folder = _begun(run) or _new(run)
    run.on_begun(folder.name)
    state, reason = FINISHED, None
    status = known_status(folder.status_file)
    if status.state == RunState.PRUNED:
        state, reason = PRUNED, status.error or "pruned"
    elif status.state != RunState.FINISHED:
        config = run.config.model_copy(update={"resume": str(folder.path)})
        try:
            with build_grader(config.grader, config.model) as grader:
                run_training(config, grader, run.overrides, watch)
        except Pruned as decision:
            state, reason = PRUNED, str(decision)
        except (TrainingDivergedError, PolicyDivergedError) as error:
            state, reason = DIVERGED, f"it diverged: {error}"
    return read_result(folder, run.config.seed, state=state, reason=reason)


def read_result(
    folder: RunFolder, seed: int, *, state: str = FINISHED, reason: str | None = None
) -> SeedResult:
    """Read a run's result from its run directory.

    `state` is finished, pruned or diverged; `reason` explains why a run ended before its last step.
    """
    evaluations = read_evaluations(folder)
    curves = [points for name, points in evaluations.items() if name.endswith(VALIDATION_SUFFIX)]
    validation = curves[0] if curves else ()
    tests = {name: points for name, points in evaluations.items() if not name.endswith(VALIDATION_SUFFIX)}
    last = validation[-1] if validation else None
    metrics, collapse = read_metrics(folder), find_collapse(read_steps(folder), facts=read_facts(folder))
    tail = max(len(metrics.steps) // 4, 1)
    return SeedResult(
        seed=seed,
        state=state,
        run=folder.name,
        reason=reason,
        step=int(metrics.steps[-1]) if len(metrics.steps) else 0,
        k=last.k if last else None,
        mean_at_k=last.mean_at_k if last else None,
        pass_at_k=last.pass_at_k if last else None,
        curve=tuple(
            (point.step, point.mean_at_k, point.pass_at_k if point.pass_at_k is not None else math.nan)
            for point in validation
            if point.mean_at_k is not None
        ),
        problem_means=problem_means(folder, last) if last else (),
        test={name: _test_result(folder, points[-1]) for name, points in tests.items()},
        collapse=collapse.text if collapse else _fall(folder, tests) or "",
        metrics={name: _mean(values[-tail:].tolist()) for name, values in metrics.columns.items()},
        num_tokens=int(np.nansum(metrics.columns.get(NUM_TOKENS.name, np.zeros(0)))),
        wall_s=known_status(folder.status_file).wall_s,
    )


def _test_result(folder: RunFolder, point: EvaluationPoint) -> dict[str, Any]:
    """Return an evaluation's scores, the mean score of each problem, and the problems' clusters, if any."""
    table = outcome_table([read_answers(folder, point.benchmark, point.step)])
    clusters = {} if table.cluster_P is None else {"clusters": table.cluster_P.tolist()}
    return {**point.as_record(), "problem_means": table.mean_at_k()[0].tolist(), **clusters}


def _fall(folder: RunFolder, tests: Mapping[str, Sequence[EvaluationPoint]]) -> str | None:
    """Return a sentence if the scores on test problems fell during training, otherwise None.

    The scores of the last evaluations are compared with those before training. They fell if the 95 % interval
    of the change is below 0. Such a fall counts as a collapse of the run.
    """
    pairs = [(points[0], points[-1]) for points in tests.values() if points[0].step == 0 < points[-1].step]
    before, after = ([problem_means(folder, pair[side]) for pair in pairs] for side in (0, 1))
    if not fell_below_start(before, after):
        return None
    scores = [100 * sum(_mean(one) for one in values) / len(values) for values in (before, after)]
    return f"its score on test problems fell from {scores[0]:.1f} % to {scores[1]:.1f} %"


def problem_means(folder: RunFolder, point: EvaluationPoint) -> tuple[float, ...]:
    """Return the fraction of correct answers for each problem of an evaluation, in the benchmark's order."""
    answers = read_answers(folder, point.benchmark, point.step)
    return tuple(correct / answers.num_samples for correct in answers.num_correct.values())


def _begun(run: TrialRun) -> RunFolder | None:
    """Return the run directory that an earlier worker created for this run, or None if there is none."""
    runs_dir = Path(run.config.runs_dir)
    if run.run is not None:
        folder = RunFolder(runs_dir / run.run)
        return folder if folder.looks_like_run() else None
    wanted = dict(run.label)
    for path in (runs_dir / run.config.experiment_name).glob(f"*/{LABEL_FILE}"):
        label, _ = read_object(path)
        if all(label.get(key) == wanted[key] for key in ("sweep", "stage", "trial", "seed")):
            return RunFolder(path.parent)
    return None


def _new(run: TrialRun) -> RunFolder:
    check_start(run.config)
    folder = begin_folder(training_request(run.config), run.overrides)
    write_json(folder.path / LABEL_FILE, dict(run.label))
    return folder


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def work(url: str, name: str, runs_dir: str | None, parent: int | None, log: Callable[[str], None]) -> None:
    """Run trials of a sweep as a worker in this process until no work is left.

    `url` is the address of the sweep's storage, and `name` the sweep's name. `runs_dir` replaces the runs
    directory in the sweep's definition, unless it is None. If `parent` is not None, the worker stops once its
    parent process no longer has this id. On Ctrl-C, SIGTERM and SIGHUP, the worker writes a checkpoint after
    the current step and raises `Interrupted`.
    """
    storage = SweepStorage(url)
    check_plugins(storage, name)
    definition, created = join(storage, name, runs_dir)
    num_before = len(received)
    with stop_requests(lambda _: None, [signal.SIGINT, *END_SIGNALS]):
        SweepWorker(
            storage,
            definition,
            execute,
            # A run that has finished its last step receives a signal but does not act on it.
            should_stop=lambda: len(received) > num_before,
            log=log,
            created=created,
            parent=parent,
        ).work()

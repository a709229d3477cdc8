"""Real runs of a sweep in this process: labelled, watched, stopped early, gone on with, sharing work."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from tests.run_records import evaluated_sample, sum_problem

from atrium.assemble.sweeping import execute, read_result
from atrium.base.records import BenchmarkResult
from atrium.config.compose import compose
from atrium.evaluation.results import summarize
from atrium.runs.find import list_runs
from atrium.runs.reader import read_overview
from atrium.runs.run_folder import RunFolder
from atrium.runs.run_folder_writer import RunFolderWriter
from atrium.runs.status import RunState, read_status
from atrium.sweep.definition import PrunerConfig
from atrium.sweep.pruning import RunWatch
from atrium.sweep.runner import TrialRun
from atrium.train.update.optimizer import PolicyOptimizer

OVERRIDES = (
    "experiment=stress",
    "algorithm=atr",
    "debug=tiny_steps",
    "grader=exact",
    "tracking.figures=false",
    "checkpoint.every_num_steps=1",
)
NEVER = PrunerConfig(collapse_steps=None)


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("execute") / "runs"


def trial_run(runs_dir, seed, *, trial=0, run=None, begun=None, lines=OVERRIDES):
    place = ("experiment_name=small", f"runs_dir={runs_dir}", f"seed={seed}")
    return TrialRun(
        config=compose([*lines, *place, "tracking.progress=off"]),
        overrides=(*lines, f"seed={seed}"),
        label={
            "sweep": "small",
            "stage": "search",
            "trial": trial,
            "seed": seed,
            "labels": [],
            "settings": {},
        },
        run=run,
        on_begun=(begun if begun is not None else []).append,
    )


def quiet(step):
    del step


@pytest.fixture(scope="module")
def two_seeds(runs_dir):
    return [execute(trial_run(runs_dir, seed), RunWatch(NEVER, on_step=quiet)) for seed in (0, 1)]


def test_a_result_holds_the_curve_and_every_problem(two_seeds, runs_dir):
    for result in two_seeds:
        assert result.state == "finished"
        assert [point[0] for point in result.curve] == [0, 2, 3]
        assert len(result.problem_means) == 8
        assert result.mean_at_k == pytest.approx(sum(result.problem_means) / 8)
        assert set(result.test) == {"arithmetic-test"}
        assert result.num_tokens > 0
        assert result.metrics["objective/entropy"] > 0


def test_a_run_of_a_sweep_is_an_ordinary_run_that_names_its_sweep(two_seeds, runs_dir):
    runs = {run.name: run for run in list_runs(runs_dir)}
    assert runs.keys() == {result.run for result in two_seeds}
    label = json.loads((runs[two_seeds[1].run].path / "sweep.json").read_text())
    assert (label["sweep"], label["trial"], label["seed"]) == ("small", 0, 1)


def test_the_evaluation_before_training_is_made_once_and_recorded_by_each(two_seeds, runs_dir):
    cached = list((runs_dir / ".cache" / "first_evaluations").glob("*.parquet"))
    assert len(cached) == 2, "validation and test problems, whatever the seed"
    first, second = (RunFolder(runs_dir / result.run).evaluations_dir for result in two_seeds)
    for name in ("arithmetic-validation", "arithmetic-test"):
        files = [folder / name / "step-000000.parquet" for folder in (first, second)]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert two_seeds[0].curve[0] == two_seeds[1].curve[0]


def test_a_damaged_cache_is_made_anew(two_seeds, runs_dir):
    cached = sorted((runs_dir / ".cache" / "first_evaluations").glob("*.parquet"))
    before = [path.read_bytes() for path in cached]
    for path in cached:
        path.write_bytes(b"damaged")
    result = execute(trial_run(runs_dir, 0, trial=5), RunWatch(NEVER, on_step=quiet))
    assert [path.read_bytes() for path in cached] == before
    assert result.curve == two_seeds[0].curve, "and a run repeats, in the same process too"


def test_a_pruned_run_is_marked_so_and_stays_so(runs_dir):
    watch = RunWatch(NEVER, on_step=quiet, report=lambda step, results: step == 2)
    result = execute(trial_run(runs_dir, 0, trial=1), watch)
    assert (result.state, result.step) == ("pruned", 2)
    assert result.reason == "the validation curve is among the worst at step 2"
    folder = RunFolder(runs_dir / result.run)
    assert read_overview(folder).state == "pruned"
    assert read_status(folder.status_file).error == result.reason
    again = execute(trial_run(runs_dir, 0, trial=1, run=result.run), RunWatch(NEVER, on_step=quiet))
    assert again == result


@pytest.mark.full
def test_a_run_that_was_cut_short_goes_on_in_its_folder_and_ends_the_same(two_seeds, runs_dir):
    def fail(step):
        if step == 2:
            raise RuntimeError("power cut")

    begun = []
    with pytest.raises(RuntimeError):
        execute(trial_run(runs_dir, 0, trial=2, begun=begun), RunWatch(NEVER, on_step=fail))
    for named in (begun[0], None):  # a worker that died before it could say where, is found by its label
        result = execute(trial_run(runs_dir, 0, trial=2, run=named), RunWatch(NEVER, on_step=quiet))
        assert result.run == begun[0]
        assert result.curve == two_seeds[0].curve
        assert result.problem_means == two_seeds[0].problem_means


def test_a_run_that_diverges_is_evaluated_where_it_stopped(runs_dir, monkeypatch):
    """By the weights that its last finite update left, after the first of the two updates of step 2."""
    made, norms = PolicyOptimizer.clip_gradient, itertools.count(1)

    def blown_up(optimizer):
        return made(optimizer) if next(norms) <= 3 else math.inf

    monkeypatch.setattr(PolicyOptimizer, "clip_gradient", blown_up)
    lines = (
        *OVERRIDES,
        "optimizer.max_skipped_updates=0",
        "optimizer.num_minibatches=2",
        "optimizer.num_epochs=1",
    )
    result = execute(trial_run(runs_dir, 0, trial=7, lines=lines), RunWatch(NEVER, on_step=quiet))
    assert result.reason.startswith("it diverged: the gradient of step 2 is not finite")
    assert result.test["arithmetic-test"]["step"] == 2
    assert result.state == "diverged"
    assert result.step == 1
    assert len(result.outcome["arithmetic-test"]["problem_means"]) == 8


def test_a_run_whose_policy_blows_up_is_always_wrong(runs_dir):
    lines = (*OVERRIDES, "optimizer.learning_rate=1e18", "optimizer.num_warmup_steps=0")
    result = execute(trial_run(runs_dir, 0, trial=8, lines=lines), RunWatch(NEVER, on_step=quiet))
    assert result.state == "diverged"
    assert "logits are not finite" in result.reason
    assert result.outcome["arithmetic-test"]["problem_means"] == [0.0] * 8


@pytest.mark.parametrize(
    ("no_signal", "correct", "is_right_after", "said"),
    [
        (1.0, 0.25, True, "no signal, steps 1 to 12: in 100.0 % of the groups all rewards were equal"),
        (0.5, 0.5, False, "its score on test problems fell from 100.0 % to 0.0 %"),
        (1.0, 1.0, True, ""),
    ],
)
def test_a_result_says_whether_the_run_collapsed(tmp_path, no_signal, correct, is_right_after, said):
    folder = RunFolder.create(tmp_path / "runs", "small", "atr", 0)
    tracker = RunFolderWriter(folder)
    tracker.begin(step=0, num_steps=12)
    for step in range(13):
        if step:
            tracker.step(step, {"rollout/no_signal_frac": no_signal, "rollout/correct_frac": correct})
        if step in (0, 12):
            is_correct = step == 0 or is_right_after
            answers = [evaluated_sample(sum_problem(number), is_correct=is_correct) for number in range(8)]
            results = summarize(answers, num_samples=1, pass_at=[1])
            tracker.evaluation(BenchmarkResult(step=step, benchmark="exam", samples=answers, results=results))
    tracker.end(RunState.FINISHED)
    result = read_result(folder, 0)
    assert result.collapse.startswith(said)
    assert bool(result.collapse) == bool(said)
    assert result.outcome["exam"]["mean_at_k"] == is_right_after

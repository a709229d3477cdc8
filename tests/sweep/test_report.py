"""Reports: what a finished sweep says, draws and hands on."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from dataclasses import replace

import pytest
import yaml
from tests.sweep.conftest import ScriptedRuns

from atrium.assemble.sweep_report import report
from atrium.cli import main
from atrium.config.compose import compose
from atrium.stats.seeds import Score, mean_over_seeds
from atrium.sweep.analysis import setting_of, sweep_report
from atrium.sweep.document import best_sentence, trial_values
from atrium.sweep.figures import ranking_picture
from atrium.sweep.plan import Stage
from atrium.sweep.report_files import winner_yaml
from atrium.views.figures.sheet import save

BASE = ["experiment=stress", "num_steps=4", "optimizer.num_warmup_steps=1"]


def by_delta(config):
    return max(0.0, 0.8 - abs(config.divergence.delta - 0.02) * 2 + 0.01 * (config.seed % 3))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished sweep with a tuned baseline, and what was printed about it."""
    from tests.sweep.conftest import new_worker

    from atrium.config.messages import validate
    from atrium.sweep.definition import SweepDefinition
    from atrium.sweep.setup import prepare
    from atrium.sweep.storage import SweepStorage, storage_url

    runs_dir = tmp_path_factory.mktemp("report") / "runs"
    data = {
        "name": "small",
        "question": "Which delta?",
        "base": [*BASE, "algorithm=atr"],
        "space": {"divergence.delta": {"low": 0.002, "high": 0.2, "log": True, "num": 5}},
        "seeds": [0, 1, 2],
        "trials": 5,
        "baseline": {
            "base": [*BASE, "algorithm=grpo"],
            "space": {"divergence.delta": {"low": 0.1, "high": 0.5, "num": 3}},
        },
        "final": {"seeds": [70, 71, 72, 73, 74]},
        "runs_dir": str(runs_dir),
    }
    definition = validate(SweepDefinition, data, "test")
    storage = SweepStorage(storage_url("journal", runs_dir / "sweeps" / "small"))
    prepare(storage, definition)
    worker = new_worker(storage, definition, ScriptedRuns(by_delta))
    worker.work()
    return runs_dir, worker._studies


@pytest.fixture(scope="module")
def written(finished):
    """The report's folder, its content, and what was printed."""
    runs_dir, _ = finished
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        report(str(runs_dir), "small")
    folder = runs_dir / "sweeps" / "small" / "report"
    return folder, json.loads((folder / "report.json").read_text()), said.getvalue()


def as_found(finished, written):
    """The report as it was found before it was written."""
    return sweep_report(finished[1], written[1]["state"])


def test_means_have_t_intervals_over_seeds():
    mean = mean_over_seeds([0.7, 0.8, 0.9])
    assert mean.value == pytest.approx(0.8)
    assert mean.standard_error == pytest.approx(0.1 / 3**0.5)
    assert mean.interval() == pytest.approx((0.8 - 4.302653 * 0.057735, 0.8 + 4.302653 * 0.057735), abs=1e-5)
    assert mean_over_seeds([0.5]).interval() is None
    for value in (0.0, 0.1):  # the mean of three times 0.1 is rounded
        assert mean_over_seeds([value] * 3).interval() is None, "equal seeds are not certainty"


def test_a_report_names_the_best_and_what_may_be_concluded(written):
    folder, content, said = written
    assert content["best"]["settings"] == {"divergence.delta": 0.02}
    assert content["state"]["state"] == "finished"
    assert "the score is biased upward" in said
    assert (
        "with 5 fresh seeds, the winner (delta=0.02) against the baseline (tuned with 3 settings, the search "
        in said
    )
    assert content["verdict"]["contrasts"][0]["kind"] == "better"
    assert {"curve.png", "curve.svg", "ranking.svg"} <= {path.name for path in folder.iterdir()}


def test_tables_hold_every_trial_and_every_point(written):
    folder, _, _ = written
    trials = list(csv.DictReader(io.StringIO((folder / "trials.csv").read_text())))
    assert len(trials) == 5
    assert [float(row["mean_at_k"]) for row in trials] == sorted(
        (float(row["mean_at_k"]) for row in trials), reverse=True
    )
    points = list(csv.DictReader(io.StringIO((folder / "curve.csv").read_text())))
    assert [float(row["x"]) for row in points if row["stage"] == "search"] == sorted(
        float(row["divergence.delta"]) for row in trials
    )
    assert {row["stage"] for row in points} == {"search", "baseline"}


def test_the_verdict_is_about_all_fresh_seeds_and_test_problems(written):
    verdict = written[1]["verdict"]
    assert verdict["seeds"] == [70, 71, 72, 73, 74]
    assert verdict["benchmarks"] == ["arithmetic-test"]


def test_the_winner_runs_as_an_experiment_from_its_file_and_from_conf(written, tmp_path):
    folder, _, _ = written
    winner = compose([f"experiment={folder / 'winner.yaml'}", "seed=3"])
    meant = compose([*BASE, "algorithm=atr", "divergence.delta=0.02", "seed=3"])
    assert winner == meant.model_copy(update={"experiment_name": "small-winner"})


def test_equal_reports_give_equal_pictures(finished, written, tmp_path):
    folder, _, _ = written
    save([ranking_picture(as_found(finished, written))], tmp_path / "again", tmp_path / "cache")
    assert (tmp_path / "again" / "ranking.png").read_bytes() == (folder / "ranking.png").read_bytes()


def test_a_list_of_sweeps_says_how_each_stands(finished, capsys):
    runs_dir, _ = finished
    assert main(["sweep", "list", f"runs_dir={runs_dir}"]) == 0
    assert capsys.readouterr().out == "small  finished  search 5 of 5, baseline 3 of 3, final 10 of 10\n"


@pytest.fixture
def run_scripted(tmp_path):
    """Run a sweep of scripted runs over delta and group size; its report's content and folder."""

    def run(**changes):
        from tests.sweep.conftest import new_worker

        from atrium.config.messages import validate
        from atrium.sweep.definition import SweepDefinition
        from atrium.sweep.setup import prepare
        from atrium.sweep.storage import SweepStorage, storage_url

        data = {
            "name": "two",
            "question": "Which two?",
            "base": [*BASE, "algorithm=atr"],
            "space": {
                "divergence.delta": {"low": 0.002, "high": 0.2, "log": True},
                "rollout.group_size": {"choices": [4, 8]},
            },
            "seeds": [0],
            "runs_dir": str(tmp_path / "runs"),
            "pruner": {"collapse_steps": None},
            **changes,
        }
        definition = validate(SweepDefinition, data, "test")
        storage = SweepStorage(storage_url("journal", tmp_path / "runs" / "sweeps" / "two"))
        prepare(storage, definition)
        new_worker(storage, definition, ScriptedRuns(by_delta)).work()
        report(str(tmp_path / "runs"), "two")
        folder = tmp_path / "runs" / "sweeps" / "two" / "report"
        return json.loads((folder / "report.json").read_text()), folder

    return run


@pytest.mark.full
def test_importances_find_the_parameter_that_matters(run_scripted):
    content, folder = run_scripted(sampler={"kind": "random"}, trials=12)
    assert content["importances"]["divergence.delta"] > 0.9
    assert content["verdict"] is None
    assert any("it gives no verdict" in sentence for sentence in content["sentences"])
    assert not (folder / "curve.csv").exists()


@pytest.mark.full
def test_two_objectives_have_trials_that_no_other_beats_and_no_winner(run_scripted):
    objectives = [
        {"metric": "mean_at_k", "direction": "maximize"},
        {"metric": "num_tokens", "direction": "minimize"},
    ]
    content, folder = run_scripted(sampler={"kind": "nsga2"}, trials=5, objectives=objectives)
    best = max(content["ranking"], key=lambda one: one["values"][0])
    assert content["pareto"] == [best["number"]], "all spend equally many tokens"
    assert content["best"] is None
    assert not (folder / "winner.yaml").exists()


def test_settings_that_all_score_alike_have_no_best_one(finished):
    _, studies = finished
    ranking = [
        replace(setting_of(trial), k=2, num_seeds=2, mean_at_k=Score(value=0.0))
        for trial in studies.trials(Stage.SEARCH)[:2]
    ]
    said = best_sentence(ranking[0], ranking)
    assert said.startswith(
        "all 2 settings have the same score on validation, Mean@2 0.0 % (on each of 2 seeds)"
    )
    ranking[1] = replace(ranking[1], mean_at_k=Score(value=-0.1))
    assert best_sentence(ranking[0], ranking).startswith("best on validation: delta=0.002 at Mean@2 0.0 %")


def test_settings_without_a_score_on_validation_are_named_by_the_objective(finished):
    _, studies = finished
    [one, *_] = [replace(setting_of(trial), mean_at_k=Score()) for trial in studies.trials(Stage.SEARCH)]
    assert best_sentence(one, [one]).startswith("best by the objective: delta=0.002, without a score on val")


def test_a_winner_that_removes_a_setting_states_the_value_that_results(finished):
    definition, [trial, *_] = finished[1].definition, finished[1].trials(Stage.SEARCH)
    overrides = (*trial.planned.overrides, "regularizer=kl", "~regularizer.kl")
    planned = replace(trial.planned, overrides=overrides)
    text = winner_yaml(definition, replace(trial, planned=planned, results={0: trial.results[0]}))
    assert yaml.safe_load(text)["regularizer"] == {"kl": None}
    assert "with 1 seed;" in text


@pytest.mark.parametrize(
    ("metrics", "said"),
    [(["mean_at_k", "entropy"], "35.0 ± 1.0 %, 0.35"), (["kl", "pass_at_k"], "0.35 ± 0.01, 35.0 %")],
)
def test_only_scores_are_in_percent(metrics, said):
    assert trial_values({"values": [0.35, 0.35], "standard_errors": [0.01, None]}, metrics) == said

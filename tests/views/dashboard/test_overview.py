"""The first page: what an experiment's methods reached, which differences are real, and never an error."""

from __future__ import annotations

import json
import time

import httpx
import pytest

from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState


@pytest.fixture
def client(address):
    with httpx.Client(base_url=address, timeout=60) as opened:
        yield opened


def overview(client, **parameters):
    response = client.get("/api/overview", params=parameters)
    assert response.status_code == 200, response.text
    return response.json()


def rows(answer):
    """What is said of each method by its name; `cells` are those of the table."""
    [table] = answer["document"]["sections"][0]["tables"]
    return {
        row["name"]: {**row, "cells": shown["cells"], "place": shown["place"]}
        for row, shown in zip(answer["rows"], table["rows"], strict=True)
    }


def eventually(client, check):
    deadline = time.monotonic() + 30
    while not check(found := overview(client)):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)
    return found


def test_the_usual_baseline_is_taken_and_the_verdict_is_understood_by_itself(client):
    answer = overview(client)
    assert answer["experiment"] == "study"
    assert answer["baseline"] == "grpo"
    found = rows(answer)
    assert list(found) == ["atr", "grpo"], "the best is first"
    [sentence] = answer["document"]["answer"]
    assert sentence["text"].startswith("atr is higher at ")
    assert sentence["text"].endswith(" points over grpo (two seeds: not judged)")
    assert found["atr"]["cells"][4] == "2 two seeds: not judged"
    assert found["grpo"]["cells"][4] == "baseline"
    outcome = found["atr"]["cells"][2]
    assert outcome["interval"][0] < outcome["value"] < outcome["interval"][1]
    assert found["atr"]["states"] == {"finished": 2}
    assert found["atr"]["runs"] == [], "runs are listed where the row is opened"
    opened = rows(overview(client, opened="atr"))["atr"]["runs"]
    assert [run["is_counted"] for run in opened] == [True, True]


def test_another_baseline_can_be_pinned_and_colours_stay(client):
    run = rows(overview(client, opened="atr"))["atr"]["runs"][0]["name"]
    after = overview(client, base=run)
    assert after["baseline"] == "atr"
    [table] = after["document"]["sections"][0]["tables"]
    assert table["columns"][3]["title"] == "Difference to atr, points"
    assert after["document"]["answer"][0]["text"].startswith("atr is higher at ")
    assert {name: row["place"] for name, row in rows(after).items()} == {"atr": 0, "grpo": 1}


def test_equal_methods_are_said_to_be_equal_and_nothing_else(client, runs_dir, make_run):
    for seed in range(3):
        make_run(runs_dir, "clip", seed)
    make_run(runs_dir, "grpo", 2, ability=0.4)
    answer = eventually(client, lambda found: len(found["rows"]) == 3 and found.get("document"))
    texts = [sentence["text"] for sentence in answer["document"]["answer"]]
    [said] = [text for text in texts if "the same method" in text]
    assert said == "grpo and clip are the same method: their windows [l, u] are equal"
    assert rows(answer)["clip"]["cells"][4] == "= the same method"


def test_no_unrelated_run_and_no_damage_is_an_error(client, runs_dir, make_run, make_sweep):
    make_sweep(runs_dir, "delta")
    make_run(runs_dir, "atr", 0, experiment="delta")
    make_run(runs_dir, "mine", 0, experiment="other")
    make_run(runs_dir, "atr", 7, state=RunState.FAILED, until=3)
    (runs_dir / "study" / "empty").mkdir()
    damaged = make_run(runs_dir, "grpo", 9)
    (damaged.path / "config.json").write_text("{")
    evaluation = make_run(runs_dir, "atr", 0, experiment="evaluations")
    config = json.loads(evaluation.config_file.read_text())
    evaluation.config_file.write_text(json.dumps({**config, "kind": "evaluation"}))
    answer = eventually(
        client,
        lambda found: (
            sum(sum(row["states"].values()) for row in found["rows"]) == 7
            and {one["name"] for one in found["experiments"]} == {"other", "study"}
        ),
    )
    assert answer["experiment"] == "study", "one method alone answers nothing"
    found = rows(overview(client, opened="atr"))
    assert sum(found["runs without settings"]["states"].values()) == 2
    assert found["atr"]["cells"][4] != "baseline"
    failed = next(run for run in found["atr"]["runs"] if run["state"] == "failed")
    assert not failed["is_counted"]
    assert any(" failed at" in alert["detail"] for alert in answer["document"]["alerts"])
    assert overview(client, experiment="other")["reason"].startswith("A comparison needs a second method")
    assert overview(client, experiment="nonsense", base="nonsense")["experiment"] == "study"


def test_runs_that_train_are_shown_with_the_time_left_and_count_when_they_are_over(
    client, runs_dir, make_run
):
    for algorithm in ("atr", "grpo"):
        make_run(runs_dir, algorithm, 0, experiment="live", state=RunState.RUNNING, until=4)
    answer = eventually(client, lambda found: found["experiment"] == "live")
    assert answer["reason"] == "No verdict yet: 2 of 2 runs are still training."
    [run] = rows(overview(client, opened="atr"))["atr"]["runs"]
    assert (run["step"], run["num_steps"]) == (4, 8)
    assert run["left_s"] is None or run["left_s"] >= 0.0


def test_the_overview_and_the_table_of_runs_agree_on_collapsed_runs(client, runs_dir, make_run):
    fallen = make_run(runs_dir, "atr", 2, ability=0.0)
    gone, truncated = (make_run(runs_dir, "grpo", seed) for seed in (2, 3))
    for run, rule in ((gone, "entropy gone"), (truncated, "truncation")):
        summary = json.loads(run.summary_file.read_text())
        finding = {"rule": rule, "first_step": 3}
        run.summary_file.write_text(json.dumps({**summary, "findings": [finding]}))
    answer = eventually(client, lambda found: "1 of 4 runs of grpo" in json.dumps(found))
    [alert] = [one for one in answer["document"]["alerts"] if one["key"] == "collapsed"]
    assert alert["text"] == "collapsed: 1 of 4 runs of grpo, 1 of 3 runs of atr"
    assert "entropy gone in 1 run" in alert["detail"]
    assert answer["began"] == {"run": gone.name, "step": 3}
    runs = {run["name"]: run for run in client.get("/api/runs").json()["runs"]}
    collapses = {name: run["collapses"] for name, run in runs.items() if run["collapses"]}
    assert collapses == {fallen.name: ["score below its start"], gone.name: ["entropy gone"]}
    assert runs[truncated.name]["other_findings"] == ["truncation"]


def test_an_empty_folder_has_no_experiment(tmp_path, serving):
    with serving(tmp_path) as address, httpx.Client(base_url=address) as client:
        assert overview(client) == {"experiments": [], "experiment": None}


def test_an_evaluation_says_what_it_evaluated(client, runs_dir, make_run):
    made = make_run(runs_dir, "atr", 3, experiment="evaluations")
    folder = RunFolder(made.path)
    config = json.loads(folder.config_file.read_text())
    checkpoint = {"run": "study/some-run", "step": 8}
    folder.config_file.write_text(json.dumps({**config, "kind": "evaluation", "checkpoint": checkpoint}))

    def evaluated():
        runs = client.get("/api/runs").json()["runs"]
        return [run["evaluated"] for run in runs if run["evaluated"]]

    deadline = time.monotonic() + 30
    while not evaluated():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert evaluated() == [{"run": "study/some-run", "step": 8}]

from __future__ import annotations

import json

import numpy as np
import pytest

from atrium.base.nested import setting
from atrium.base.records import BenchmarkResult
from atrium.runs.reader import read_evaluations, read_metrics, read_overview, scores_of
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState


def test_an_empty_folder_is_shown_as_such(tmp_path):
    overview = read_overview(RunFolder(tmp_path))
    assert (overview.state, overview.problems) == (RunState.UNKNOWN, ("the folder is empty",))
    assert (dict(overview.config), dict(overview.scores)) == ({}, {})


def test_metrics_come_back_exactly_with_gaps_as_nan(folder):
    folder.metrics_file.write_text(
        '{"step":1,"time":5.5,"a/x":0.1}\n{"step":2,"time":6,"a/x":0.30000000000000004,"b/y":"NaN"}\n'
        '{"step":3,"b/y":"-Infinity","c/z":"text"}\n'
    )
    table = read_metrics(folder)
    assert table.steps.tolist() == [1, 2, 3]
    assert table.times[:2].tolist() == [5.5, 6.0]
    assert table.columns["a/x"][:2].tolist() == [0.1, 0.30000000000000004]
    assert np.isnan(table.columns["a/x"][2])
    assert np.isnan(table.columns["b/y"][:2]).all()
    assert table.columns["b/y"][2] == -np.inf
    assert np.isnan(table.columns["c/z"]).all()
    assert set(table.columns) == {"a/x", "b/y", "c/z"}


def test_incomplete_last_line_loses_only_itself(folder, record):
    record(folder).close()
    with folder.metrics_file.open("ab") as file:
        file.write(b'{"step":7,"rollout/rew')
    with folder.evaluations_file.open("ab") as file:
        file.write(b'{"step":7,"bench')
    assert read_metrics(folder).steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert [point.step for point in read_evaluations(folder)["validation"]] == [0, 3, 6]
    assert read_overview(folder).problems == ("config.json is missing",)


def test_records_out_of_order_repeated_or_without_a_step_are_sorted_and_merged(folder):
    folder.metrics_file.write_text(
        '{"step":2,"x":1}\n{"step":1,"x":2}\n{"step":2,"x":3}\n{"x":4}\n{"step":"3"}\nno\n'
    )
    table = read_metrics(folder)
    assert table.steps.tolist() == [1, 2]
    assert table.columns["x"].tolist() == [2.0, 3.0]
    assert table.num_unreadable == 4


def test_no_metrics_yet_is_an_empty_table(folder):
    table = read_metrics(folder)
    assert (table.steps.tolist(), dict(table.columns)) == ([], {})


def test_evaluations_carry_their_main_results(folder, record):
    record(folder).close()
    first, last = read_evaluations(folder)["test"]
    assert (first.step, first.k, first.mean_at_k, first.num_problems) == (0, 8, 0.2, 3)
    assert first.pass_at_k == pytest.approx(0.4)
    assert first.interval_over_problems == pytest.approx((0.1, 0.3))
    assert first.interval_sampling is None
    assert first.pass_interval_over_problems == pytest.approx((0.2, 0.5))
    assert last.step == 6
    assert setting(last.results, "breakdown.level") == {"2": {"mean_at_k": 0.8}}


def test_the_best_is_the_earliest_of_the_highest(folder, record, samples, results):
    tracker = record(folder)
    for step, mean in ((7, 0.95), (8, 0.95), (9, 0.5)):
        tracker.evaluation(
            BenchmarkResult(step=step, benchmark="validation", samples=samples(), results=results(mean))
        )
    tracker.close()
    scores = scores_of(read_evaluations(folder)["validation"])
    assert (scores.first.step, scores.best.step, scores.last.step) == (0, 7, 9)


@pytest.mark.parametrize(
    "content",
    [
        '{"step":1,"benchmark":"b","results":null}',
        '{"step":1,"benchmark":7,"results":{}}',
        '{"step":null,"benchmark":"b","results":{}}',
        '{"step":1.5,"benchmark":"b","results":{}}',
    ],
)
def test_evaluations_of_another_form_are_skipped(folder, content):
    folder.evaluations_file.write_text(content + "\n")
    assert read_evaluations(folder) == {}


def test_results_of_wrong_types_are_not_shown_as_numbers(folder):
    results = {
        "k": "8",
        "mean_at_k": "0.5",
        "interval_over_problems": [0.1],
        "pass_at_intervals": [1],
        "num_problems": 2.5,
    }
    folder.evaluations_file.write_text(json.dumps({"step": 1, "benchmark": "b", "results": results}) + "\n")
    [point] = read_evaluations(folder)["b"]
    assert (point.k, point.mean_at_k, point.interval_over_problems, point.num_problems) == (
        None,
        None,
        None,
        None,
    )
    assert scores_of([point]).best is point


def test_scores_of_a_finished_run_come_from_its_summary_or_if_damaged_from_evaluations(folder, record):
    record(folder).end(RunState.FINISHED)
    from_summary = read_overview(folder).scores
    folder.summary_file.write_text('{"evaluations": {"test": {"first": 5}}}')
    from_evaluations = read_overview(folder).scores
    for benchmark in ("test", "validation"):
        for place in ("first", "best", "last"):
            one, other = (getattr(scores[benchmark], place) for scores in (from_summary, from_evaluations))
            assert (one.step, one.k, one.mean_at_k, one.interval_over_problems) == (
                other.step,
                other.k,
                other.mean_at_k,
                other.interval_over_problems,
            )


def test_unreadable_files_are_named_and_the_rest_is_shown(folder, record):
    tracker = record(folder)
    tracker.close()
    folder.config_file.mkdir()
    folder.evaluations_file.unlink()
    folder.evaluations_file.mkdir()
    overview = read_overview(folder)
    assert overview.state is RunState.RUNNING
    assert overview.status.step == 6
    assert overview.problems == (
        "config.json cannot be read: it is not a regular file",
        "evaluations.jsonl cannot be read: it is not a regular file",
    )


@pytest.mark.parametrize("content", ["", "{", "[]", "nonsense", "[" * 100_000, "\x00" * 100])
@pytest.mark.parametrize(
    "name", ["status.json", "config.json", "summary.json", "metrics.jsonl", "evaluations.jsonl"]
)
def test_no_damage_to_any_file_stops_a_reader(folder, record, name, content):
    folder.write_config({"seed": 0})
    record(folder).end(RunState.FINISHED)
    (folder.path / name).write_text(content)
    overview = read_overview(folder)
    read_metrics(folder)
    if name in ("status.json", "config.json"):
        assert any(name in problem for problem in overview.problems)
    else:
        assert overview.state is RunState.FINISHED


def test_run_directory_of_a_newer_format_is_shown_with_its_known_content(folder, record):
    folder.write_config({"seed": 3})
    record(folder).end(RunState.FINISHED)
    status = json.loads(folder.status_file.read_text())
    folder.status_file.write_text(json.dumps({**status, "format_version": 7, "state": "hibernating"}))
    overview = read_overview(folder)
    assert overview.state is RunState.UNKNOWN
    assert overview.status.step == 6
    assert set(overview.scores) == {"test", "validation"}
    assert any("newer Atrium (format 7" in problem for problem in overview.problems)


def test_settings_are_found_by_dotted_key_and_missing_ones_are_none():
    config = {"algorithm": {"name": "atr", "ratio": {"gate": 1}}, "seed": 0}
    assert setting(config, "algorithm.name") == "atr"
    assert setting(config, "algorithm.ratio") == {"gate": 1}
    assert [setting(config, key) for key in ("seed.x", "absent", "algorithm.absent.deep", "")] == [None] * 4

from __future__ import annotations

import itertools
import json
import threading

import pytest

from atrium.base.errors import ConfigError, RunFolderError
from atrium.base.records import BenchmarkResult, RatioHistogram
from atrium.runs.layout import steps_in
from atrium.runs.reader import read_evaluations, read_metrics, read_overview
from atrium.runs.run_folder import RunFolder
from atrium.runs.run_folder_writer import RunFolderWriter, step_to_drop
from atrium.runs.sample_files import read_samples
from atrium.runs.status import RunState


@pytest.fixture
def tracker(folder):
    tracker = RunFolderWriter(folder, rollouts_every_num_steps=10)
    tracker.begin(step=0, num_steps=100)
    yield tracker
    tracker.close()


def recorded_steps(folder):
    return [step for step, _ in steps_in(folder.rollouts_dir)]


def test_metrics_are_on_disk_as_soon_as_they_are_logged(tracker):
    tracker.step(1, {"rollout/reward": 1 / 3, "objective/loss": float("nan")})
    table = read_metrics(tracker.folder)
    assert table.columns["rollout/reward"].tolist() == [1 / 3]
    line = json.loads(tracker.folder.metrics_file.read_text())
    assert list(line) == ["step", "time", "rollout/reward", "objective/loss"]


def test_ratios_of_a_step_are_a_separate_line_and_are_truncated_with_the_step(tracker):
    histogram = RatioHistogram(edges=(0.5, 1.0, 1.5), positive=(1, 2), negative=(3, 0), zero=(0, 4))
    for step in (1, 2):
        tracker.step(step, {})
        tracker.ratios(step, histogram)
    tracker.sync()
    lines = [json.loads(line) for line in tracker.folder.ratios_file.read_text().splitlines()]
    assert lines[1] == {
        "step": 2,
        "edges": [0.5, 1.0, 1.5],
        "positive": [1, 2],
        "negative": [3, 0],
        "zero": [0, 4],
    }
    tracker.folder.truncate_after(1)
    remaining = tracker.folder.ratios_file.read_text().splitlines()
    assert [json.loads(line) for line in remaining] == lines[:1]


def test_a_step_is_recorded_once_and_in_order_after_a_resume_too(tracker):
    tracker.step(1, {})
    tracker.step(3, {})
    for step in (3, 2):
        with pytest.raises(ValueError, match="must be greater than 3"):
            tracker.step(step, {})
    resumed = RunFolderWriter(tracker.folder)
    with pytest.raises(ValueError, match="must be greater than 3"):
        resumed.step(3, {})
    resumed.close()


def test_rollouts_are_recorded_at_the_first_step_and_at_every_tenth(tracker, groups):
    for step in range(1, 31):
        tracker.rollouts(step, groups(), ())
    assert recorded_steps(tracker.folder) == [1, 10, 20, 30]


@pytest.mark.parametrize("every", [None, 0])
def test_rollouts_every_none_records_no_rollouts(folder, groups, every):
    tracker = RunFolderWriter(folder, rollouts_every_num_steps=every)
    for step in range(20):
        tracker.rollouts(step, groups(), ())
    tracker.close()
    assert not folder.rollouts_dir.exists()


def test_size_limit_holds_and_remaining_rollouts_span_the_run(folder, groups):
    def total():
        return sum(path.stat().st_size for _, path in steps_in(folder.rollouts_dir))

    one = RunFolderWriter(folder, rollouts_every_num_steps=1)
    one.rollouts(1, groups(4, 50), ())
    max_mb = 6.5 * total() / 1e6
    one.close()
    tracker = RunFolderWriter(folder, rollouts_every_num_steps=1, rollouts_max_mb=max_mb)
    for step in range(2, 101):
        tracker.rollouts(step, groups(4, 50), ())
        assert total() <= max_mb * 1e6
    tracker.close()
    steps = recorded_steps(folder)
    assert steps[0] == 1
    assert steps[-1] == 100
    assert len(steps) >= 5
    gaps = [later - earlier for earlier, later in itertools.pairwise(steps)]
    assert max(gaps) <= 40


def test_rollouts_of_one_step_above_the_limit_are_left_out_and_reported_once(folder, groups):
    told = []
    settings = {"rollouts_every_num_steps": 1, "rollouts_max_mb": 1e-6}
    tracker = RunFolderWriter(folder, told.append, **settings)
    for step in range(1, 4):
        tracker.rollouts(step, groups(), ())
    tracker.close()
    assert recorded_steps(folder) == []
    assert told == ["rollouts of one step exceed 1e-06 MB"]


def test_newest_of_two_rollout_files_above_the_limit_is_kept_without_a_message(folder, groups):
    told = []
    tracker = RunFolderWriter(folder, told.append, rollouts_every_num_steps=1)
    tracker.rollouts(1, groups(4, 50), ())
    tracker._rollouts_max_mb = 1.5 * folder.rollouts_path(1).stat().st_size / 1e6
    tracker.rollouts(2, groups(4, 50), ())
    tracker.rollouts(3, groups(4, 5000), ())
    tracker.close()
    assert recorded_steps(folder) == [2]
    assert len(told) == 1, "only step 3 alone exceeds the limit"


def test_the_step_to_drop_leaves_the_smallest_gap_and_the_newest():
    assert step_to_drop((1, 10, 20, 30)) == 10
    assert step_to_drop((1, 20, 30, 40)) == 30
    assert step_to_drop((1, 100)) == 1
    assert step_to_drop((5,)) == 5


def test_an_evaluation_leaves_a_row_per_sample_and_a_line_of_results(tracker, samples, results):
    tracker.evaluation(
        BenchmarkResult(step=20, benchmark="aime24", samples=samples(3, 4), results=results(0.5))
    )
    rows = read_samples(tracker.folder.path / "evaluations" / "aime24" / "step-000020.parquet")
    assert len(rows) == 12
    assert rows[5]["problem_id"] == "p1"
    assert (rows[5]["sample_index"], rows[5]["is_correct"], rows[5]["step"]) == (1, True, 20)
    line = json.loads(tracker.folder.evaluations_file.read_text())
    assert (line["step"], line["benchmark"], line["results"]) == (20, "aime24", results(0.5))


def test_an_evaluation_that_is_repeated_after_a_resume_replaces_the_first(tracker, samples, results):
    for benchmark in ("test", "validation"):
        tracker.evaluation(
            BenchmarkResult(step=20, benchmark=benchmark, samples=samples(), results=results(0.5))
        )
    resumed = RunFolderWriter(tracker.folder)
    resumed.evaluation(
        BenchmarkResult(step=20, benchmark="test", samples=samples(num_correct=4), results=results(0.7))
    )
    resumed.evaluation(BenchmarkResult(step=40, benchmark="test", samples=samples(), results=results(0.8)))
    resumed.close()
    assert tracker.folder.evaluations_file.read_text().count("\n") == 3
    assert [point.mean_at_k for point in read_evaluations(tracker.folder)["test"]] == [0.7, 0.8]
    rows = read_samples(tracker.folder.evaluation_path("test", 20))
    assert all(row["is_correct"] for row in rows)


def test_a_benchmark_with_a_hostile_name_writes_nothing(tracker, samples, results):
    with pytest.raises(ConfigError):
        tracker.evaluation(
            BenchmarkResult(step=1, benchmark="../../up", samples=samples(), results=results(0.5))
        )
    assert not tracker.folder.evaluations_dir.exists()


def test_a_resumed_run_leaves_the_record_of_an_undisturbed_one(tmp_path, record):
    undisturbed = RunFolder.create(tmp_path, "a", "atr", 0)
    resumed = RunFolder.create(tmp_path, "b", "atr", 0)
    record(undisturbed).end(RunState.FINISHED)
    record(resumed, last=5).close()  # killed after step 5, the checkpoint is of step 3
    resumed.truncate_after(3)
    record(resumed, first=4).end(RunState.FINISHED)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        one, other = (
            [
                {key: value for key, value in json.loads(line).items() if key != "time"}
                for line in (folder.path / name).read_text().splitlines()
            ]
            for folder in (undisturbed, resumed)
        )
        assert one == other
    assert recorded_steps(resumed) == recorded_steps(undisturbed)
    assert read_overview(resumed).state is RunState.FINISHED


def test_full_disk_stops_no_step_is_reported_once_and_lines_are_written_later(
    folder, groups, samples, results, no_room_beyond
):
    told = []
    settings = {"rollouts_every_num_steps": 1}
    tracker = RunFolderWriter(folder, told.append, **settings)
    tracker.begin(step=0, num_steps=10)
    tracker.step(1, {"rollout/reward": 0.5})
    with no_room_beyond(folder.metrics_file.stat().st_size):
        for step in (2, 3):
            tracker.step(step, {"rollout/reward": 0.5})
            tracker.rollouts(step, groups(), ())
        tracker.evaluation(BenchmarkResult(step=3, benchmark="test", samples=samples(), results=results(0.5)))
        with pytest.raises(RunFolderError, match="cannot write the metrics"):
            tracker.sync()
    assert read_metrics(folder).steps.tolist() == [1]
    assert len(told) == len(set(told))
    assert any("metrics cannot be written" in text for text in told)
    assert any("rollouts cannot be written" in text for text in told)
    tracker.step(4, {"rollout/reward": 0.5})
    tracker.sync()
    tracker.end(RunState.FINISHED)
    assert read_metrics(folder).steps.tolist() == [1, 2, 3, 4]
    assert [point.step for point in read_evaluations(folder)["test"]] == [3]
    assert read_overview(folder).state is RunState.FINISHED
    assert not list(folder.path.rglob(".tmp-*"))


def test_a_folder_that_cannot_be_written_is_one_line_at_the_start(tmp_path):
    with pytest.raises(RunFolderError, match="cannot write into"):
        RunFolderWriter(RunFolder(tmp_path / "absent"))


def test_the_summary_has_the_promised_form(folder, record):
    record(folder).end(RunState.FINISHED)
    summary = json.loads(folder.summary_file.read_text())
    assert set(summary) == {"evaluations", "num_steps", "num_tokens", "wall_s", "status", "findings"}
    assert set(summary["evaluations"]) == {"test", "validation"}
    keys = {
        "step",
        "k",
        "mean_at_k",
        "pass_at_k",
        "interval_over_problems",
        "interval_sampling",
        "num_problems",
    }
    for benchmark, places in summary["evaluations"].items():
        assert set(places) == {"first", "best", "last"}
        assert set(places["first"]) == set(places["last"]) == keys
        assert set(places["best"]) == keys | {"selected_on"}
        assert places["best"]["selected_on"] == benchmark
        assert (places["first"]["step"], places["last"]["step"]) == (0, 6)
    assert summary["evaluations"]["test"]["last"]["mean_at_k"] == pytest.approx(0.8)
    assert summary["num_steps"] == 6
    assert summary["num_tokens"] == 6000 + 21
    assert summary["status"] == "finished"
    assert summary["wall_s"] >= 0.0


def test_a_run_that_failed_before_its_first_step_is_a_failed_start_with_a_summary(folder):
    tracker = RunFolderWriter(folder)
    tracker.begin(step=0, num_steps=10)
    tracker.end(RunState.FAILED, "the loss is not finite\nat step 1")
    summary = json.loads(folder.summary_file.read_text())
    assert (summary["status"], summary["num_steps"], summary["evaluations"]) == ("failed_start", 0, {})
    assert read_overview(folder).status.error == "the loss is not finite"


def test_ending_and_closing_twice_is_harmless(tracker):
    tracker.end(RunState.FINISHED)
    tracker.close()


def test_closed_writer_writes_nothing_more(folder):
    before = set(threading.enumerate())
    tracker = RunFolderWriter(folder)
    [beating] = set(threading.enumerate()) - before
    tracker.close()
    beating.join(60)
    assert not beating.is_alive()

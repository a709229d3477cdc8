"""Rows that mirrors deliver: every number of a step together, each step once, whatever files do."""

from __future__ import annotations

import math

import pytest

from atrium.base.json_lines import encode_line
from atrium.base.metric_names import mapped
from atrium.base.metrics import evaluation_name
from atrium.evaluation.results import summarize
from atrium.runs.mirrors.names import evaluation_numbers, mlflow_name
from atrium.runs.mirrors.rows import RowReader
from atrium.runs.run_folder import RunFolder


def append(path, *records):
    with path.open("ab") as file:
        for record in records:
            file.write(encode_line(record))


def metrics(*steps):
    return [{"step": step, "time": 100.0 + step, "rollout/reward": step / 10} for step in steps]


def evaluation(step, value=0.5, benchmark="exam"):
    return {
        "step": step,
        "time": 100.5 + step,
        "benchmark": benchmark,
        "results": {"k": 8, "mean_at_k": value},
    }


def test_step_is_delivered_only_after_a_later_step_or_the_end(tmp_path):
    folder = RunFolder(tmp_path)
    reader = RowReader(folder)
    append(folder.evaluations_file, evaluation(0))
    append(folder.metrics_file, *metrics(1, 2))
    assert [row.step for row in reader.read(is_over=False)] == [0, 1]
    append(folder.evaluations_file, evaluation(2))
    assert reader.read(is_over=False) == []
    [last] = reader.read(is_over=True)
    assert last.values == {"rollout/reward": 0.2, "evaluation/exam/mean_at_8": 0.5}
    assert last.time == 102.0


def test_rows_count_the_tokens_of_all_steps_and_each_step_once(tmp_path):
    folder = RunFolder(tmp_path)
    append(folder.metrics_file, *({**row, "rollout/num_tokens": 100.0} for row in metrics(1, 2, 3, 2, 3, 4)))
    rows = RowReader(folder).read(is_over=True)
    assert [(row.step, row.num_tokens) for row in rows] == [(1, 100), (2, 200), (3, 300), (4, 400)]
    [later] = RowReader(folder, delivered_step=3).read(is_over=True)
    assert (later.step, later.num_tokens) == (4, 400)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("trl", ("reward", "clip_ratio/high_mean", "clip_ratio/low_mean", "clip_ratio/region_mean")),
        (
            "verl",
            ("critic/score/mean", "objective/clip_high_frac", "objective/clip_low_frac", "actor/pg_clipfrac"),
        ),
    ],
)
def test_training_metrics_have_the_chosen_names_and_evaluations_keep_theirs(tmp_path, names, expected):
    folder = RunFolder(tmp_path)
    values = {"rollout/reward": 0.5, "objective/clip_high_frac": 0.02, "objective/clip_low_frac": 0.01}
    append(folder.metrics_file, {"step": 1, "time": 1.0, "own": 7.0, **values})
    append(folder.evaluations_file, evaluation(1))
    [row] = RowReader(folder, names=names).read(is_over=True)
    expected = dict(zip(expected, (0.5, 0.02, 0.01, 0.03), strict=True))
    assert row.values == pytest.approx({**expected, "own": 7.0, "evaluation/exam/mean_at_8": 0.5})
    assert mapped(row.values) == pytest.approx(
        {**values, "own": 7.0, "objective/clip_frac": 0.03, "evaluation/exam/mean_at_8": 0.5}
    )


def test_incomplete_line_is_delivered_later_and_nonfinite_numbers_are_delivered(tmp_path):
    folder = RunFolder(tmp_path)
    line = encode_line({"step": 1, "time": 1.0, "a": math.nan, "b": math.inf, "c": "text", "d": True})
    folder.metrics_file.write_bytes(line[:20])
    reader = RowReader(folder)
    assert reader.read(is_over=True) == []
    folder.metrics_file.write_bytes(line)
    [row] = reader.read(is_over=True)
    assert math.isnan(row.values["a"])
    assert row.values["b"] == math.inf
    assert set(row.values) == {"a", "b"}


def test_steps_that_a_resumed_run_repeats_are_not_delivered_again(tmp_path):
    folder = RunFolder(tmp_path)
    append(folder.metrics_file, *metrics(1, 2, 3))
    reader = RowReader(folder)
    for row in reader.read(is_over=True):
        reader.was_delivered(row)
    folder.metrics_file.unlink()
    append(folder.metrics_file, *metrics(1, 2, 3, 4))
    assert [row.step for row in reader.read(is_over=True)] == [4]
    assert [row.step for row in RowReader(folder, delivered_step=2).read(is_over=True)] == [3, 4]


def test_evaluation_added_to_an_old_step_is_delivered_late_and_once(tmp_path):
    folder = RunFolder(tmp_path)
    append(folder.metrics_file, *metrics(1, 2))
    append(folder.evaluations_file, evaluation(2))
    reader = RowReader(folder)
    for row in reader.read(is_over=True):
        reader.was_delivered(row)
    append(folder.evaluations_file, evaluation(2, 0.7, "aime"))
    [late] = reader.read(is_over=True)
    assert (late.step, late.is_late, late.values) == (2, True, {"evaluation/aime/mean_at_8": 0.7})
    reader.was_delivered(late)
    assert RowReader(folder, 2, reader.delivered_evaluations).read(is_over=True) == []


def test_evaluations_are_numbers_under_names_of_their_own(samples):
    results = summarize(samples(k=4), num_samples=4, pass_at=[1, 4], breakdown_by=["level"])
    found = evaluation_numbers({"step": 1, "benchmark": "exam", "results": results})
    expected = {"mean_at_4": results["mean_at_k"], "pass_at_1": results["pass_at"]["1"]}
    expected |= {"pass_at_4": results["pass_at"]["4"], "pass_hat_4": results["pass_hat"]["4"]}
    expected |= {name: results[name] for name in ("completion_length", "truncated_frac")}
    expected |= {f"{kind}_frac": share for kind, share in results["verdicts"].items()}
    groups = results["breakdown"]["level"]
    expected |= {f"level_{level}/mean_at_4": scores["mean_at_k"] for level, scores in groups.items()}
    assert groups
    assert found == {evaluation_name("exam", name): value for name, value in expected.items()}
    assert evaluation_numbers({"step": 1}) == {}


def test_names_change_only_where_mlflow_refuses_them():
    assert mlflow_name("evaluation/aime24/mean_at_8") == "evaluation/aime24/mean_at_8"
    assert mlflow_name("mean@8") == "mean:40:8"
    assert mlflow_name("level_C, D/β") == "level_C:2c: D/β"
    assert mlflow_name("a//b/../c") == "a/_/b/:2e::2e:/c"


def test_token_counts_that_are_not_finite_count_as_none(tmp_path):
    folder = RunFolder(tmp_path)
    for step, count in enumerate((math.nan, math.inf, 100.0), start=1):
        append(folder.metrics_file, {"step": step, "rollout/num_tokens": count})
    assert [row.num_tokens for row in RowReader(folder).read(is_over=True)] == [0, 0, 100]

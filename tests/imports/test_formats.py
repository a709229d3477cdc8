"""`atrium import` of files that the programs themselves wrote (`make_files.py`)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from atrium.base import metrics
from atrium.cli.app import main
from atrium.compare.curve_index import recorded_curves
from atrium.compare.outcomes import read_answers
from atrium.runs.find import find_runs, list_runs
from atrium.runs.reader import read_evaluations
from atrium.runs.sample_files import read_evaluated

FILES = Path(__file__).parent / "files"


def mean(run, benchmark, step):
    answered = read_answers(run, benchmark, step)
    return sum(answered.num_correct.values()) / len(answered.num_correct) / answered.num_samples


def test_two_methods_with_two_seeds_of_trl_are_imported_with_their_rewards_and_curves(imported, capsys):
    for method in ("grpo", "dr_grpo"):
        for seed in (0, 1):
            source = FILES / "trl" / f"{method}-{seed}"
            code, printed = imported(source, "--experiment", "trl", "--method", method, "--seed", seed)
            assert (code, "score is the reward has_digit" in printed) == (0, True), printed
            history = json.loads((source / "trainer_state.json").read_text())["log_history"]
            (run,) = (one for one in list_runs("runs") if f"-{method}-s{seed}-" in one.name)
            curves = recorded_curves(run).columns
            for place, entry in enumerate(history[:2]):
                assert mean(run, "training_rollouts", entry["step"]) == pytest.approx(entry["reward"])
                assert curves[metrics.REWARD.name][place] == entry["reward"]
                assert curves[metrics.CLIP_HIGH_FRAC.name][place] == entry["clip_ratio/high_mean"]
                assert curves["rewards/has_digit/std"][place] == entry["rewards/has_digit/std"]
    assert main(["compare", "trl", "--no-files"]) == 0
    printed = capsys.readouterr().out
    assert "dr_grpo against grpo: two seeds: not judged" in printed
    assert "training_rollouts: training rewards on batches that differ by step, not an" in printed
    assert "unknown for grpo and dr_grpo: model, training problems, optimizer" in printed


def test_samples_of_lm_eval_give_the_printed_mean_of_each_filter_and_the_settings(imported):
    code, printed = imported(FILES / "lm_eval", "--experiment", "e")
    assert (code, "method is tiny" in printed, "not stated" in printed) == (0, True, True)
    (results,) = (FILES / "lm_eval").glob("results_*.json")
    scores = json.loads(results.read_text())["results"]["sums"]
    (run,) = list_runs("runs")
    assert mean(run, "sums", 0) == scores["exact_match,strict"] == 0.5
    assert mean(run, "sums.lowercase", 0) == scores["exact_match,lowercase"]
    assert read_evaluations(run)["sums"][0].results["printed"] == 0.5
    config = json.loads(run.config_file.read_text())
    assert config["model"] == {"source": "tiny"}
    assert config["evaluation"] == {"temperature": 0.0, "max_new_tokens": 4}
    assert read_evaluated(run)["sums"][0]["question"] == "0+1="


def test_validations_of_verl_give_the_logged_mean_and_mapped_curves(imported):
    code, printed = imported(FILES / "verl", "--experiment", "e", "--method", "ours", "--seed", 3)
    assert (code, "4 of 5 metrics map to Atrium's names" in printed) == (0, True)
    (run,) = find_runs("runs", ["e"])
    logged = [json.loads(line)["data"] for line in (FILES / "verl" / "log.jsonl").read_text().splitlines()]
    for step, entry in zip((0, 10), logged, strict=True):
        assert mean(run, "validation_dump", step) == pytest.approx(entry["val-core/sums/acc/mean@2"])
    assert read_evaluations(run)["validation_dump"][1].results["printed"] == pytest.approx(
        logged[1]["val-core/sums/acc/mean@2"]
    )
    assert recorded_curves(run).columns["objective/clip_frac"][1] == pytest.approx(0.1)
    assert read_evaluated(run)["validation_dump"][0]["question"] == "0+1="


def test_details_of_lighteval_give_the_printed_mean_over_answers_and_the_settings(imported):
    code, printed = imported(FILES / "lighteval", "--experiment", "e")
    assert (code, "score is avg@n:n=4" in printed) == (0, True), printed
    (run,) = list_runs("runs")
    (results,) = (FILES / "lighteval").rglob("results_*.json")
    scores = json.loads(results.read_text())["results"]["sums|0"]
    assert mean(run, "sums_0", 0) == pytest.approx(scores["avg@n:n=4"])
    assert read_evaluations(run)["sums_0"][0].results["printed"] == scores["avg@n:n=4"]
    config = json.loads(run.config_file.read_text())
    assert config["model"] == {"source": "tiny"}
    assert config["evaluation"] == {"temperature": 0.05, "max_new_tokens": 1}


def test_lighteval_metric_of_the_best_answer_counts_as_one_answer_with_a_warning(imported):
    code, printed = imported(FILES / "lighteval", "--experiment", "e", "--map", "score=em")
    assert (code, "em is a single score for 4 answers to a problem, not their mean" in printed) == (0, True)
    (run,) = list_runs("runs")
    assert read_answers(run, "sums_0", 0).num_samples == 1


def test_samples_that_atrium_writes_for_lm_eval_and_lighteval_come_back(tmp_path, imported):
    rows = [{"method": "m", "problem": f"p{n}", "question": f"{n}?", "sample": k, "correct": (n + k) % 2}
            for n in range(3) for k in range(2)]  # fmt: skip
    (tmp_path / "r.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert imported("r.jsonl", "--experiment", "first", "--benchmark", "sums")[0] == 0
    assert main(["samples", "last", "--lm-eval", "out", "--lighteval", "light"]) == 0
    for folder in ("out", "light"):
        assert imported(folder, "--experiment", folder, "--method", "m")[0] == 0
        (run,) = find_runs("runs", [folder])
        assert mean(run, "sums", 0) == 0.5


def test_an_exported_chart_of_wandb_and_event_files_become_curves(tmp_path, imported):
    (tmp_path / "chart.csv").write_text(
        '"Step","ours - train/reward","ours - train/reward__MIN","base - train/reward"\n'
        "1,0.5,0.5,\n2,0.75,0.75,0.25\n"
    )
    assert imported("chart.csv", "--experiment", "wandb")[0] == 0
    curves = {run.name.split("-")[-3]: recorded_curves(run).columns for run in find_runs("runs", ["wandb"])}
    assert list(curves["ours"][metrics.REWARD.name]) == [0.5, 0.75]
    assert list(curves["base"][metrics.REWARD.name]) == [0.25]
    writer = EventFileWriter(str(tmp_path / "tb"))
    for step in (1, 2):
        value = Summary.Value(tag="actor/entropy", simple_value=step / 4)
        writer.add_event(Event(step=step, summary=Summary(value=[value])))
    writer.close()
    assert imported("tb", "--experiment", "tb", "--method", "ours", "--seed", "0")[0] == 0
    (run,) = find_runs("runs", ["tb"])
    assert list(recorded_curves(run).columns[metrics.ENTROPY.name]) == [0.25, 0.5]
    assert main(["show", "last"]) == 0


def test_trainer_logs_without_a_method_and_several_rewards_are_refused(tmp_path, imported):
    code, printed = imported(FILES / "verl", "--experiment", "e")
    assert (code, "does not name the method; give --method NAME" in printed) == (2, True)
    rows = [{"step": 1, "prompt": "p", "completion": "c", "advantage": 0.0, "good": 1.0, "short": 0.0}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet")
    code, printed = imported("c.parquet", "--experiment", "e", "--method", "m")
    assert (code, "give --map score=REWARD with one of the file's rewards: good, short" in printed) == (
        2,
        True,
    )
    assert imported("c.parquet", "--experiment", "e", "--method", "m", "--map", "score=good")[0] == 0


@pytest.mark.parametrize(
    ("source", "step"),
    [
        ("trl/grpo-0/completions/completions_00002.parquet", 2),
        ("verl/10.jsonl", 10),
        ("prime_rl/rollouts/step_10/eval/all/traces.jsonl", 10),
    ],
)
def test_a_step_other_than_the_recorded_one_is_refused(source, step, imported):
    code, printed = imported(FILES / source, "--experiment", "e", "--method", "m", "--step", 99)
    assert (code, f"--step 99 cannot be used, since the file records step {step}" in printed) == (2, True), (
        printed
    )


@pytest.mark.parametrize("score", [2.0, -0.25, 0.3, None, float("inf")])
def test_a_score_that_cannot_be_the_mean_of_the_answers_is_refused(score, tmp_path, imported):
    row = {"doc_id": 0, "doc": {"question": "q"}, "resps": [["a"] * 4], "filtered_resps": [["a"] * 4]}
    row |= {"metrics": ["acc"], "acc": score, "filter": "none"}
    (tmp_path / "samples_t_2026-01-01T00-00-00.jsonl").write_text(json.dumps(row))
    code, printed = imported(".", "--experiment", "e")
    assert (code, "cannot be the mean of 4 scores of 0 or 1" in printed) == (2, True), printed


def test_results_of_lm_eval_without_means_are_read(tmp_path, imported):
    row = {"doc_id": 0, "doc": {}, "resps": [["a"]], "metrics": ["acc"], "acc": 1.0, "filter": "none"}
    (tmp_path / "samples_t_2026-01-01T00-00-00.jsonl").write_text(json.dumps(row))
    (tmp_path / "results_2026-01-01T00-00-00.json").write_text('{"results": {"t": null}}')
    assert imported(".", "--experiment", "e")[0] == 0


@pytest.mark.parametrize(
    ("source", "changed", "message"),
    [
        ("trl/grpo-0", "trainer_state.json", "is damaged"),
        ("trl/grpo-0", "completions/completions_00002.parquet", "is not a complete Parquet file"),
        ("verl", "10.jsonl", "if it is incomplete"),
        ("verl", "log.jsonl", "if it is incomplete"),
    ],
)
def test_a_truncated_file_of_a_program_is_one_line_and_nothing_is_written(
    source, changed, message, tmp_path, imported
):
    shutil.copytree(FILES / source, tmp_path / "copy")
    content = (tmp_path / "copy" / changed).read_bytes()
    (tmp_path / "copy" / changed).write_bytes(content[: int(len(content) * 0.7)])
    code, printed = imported("copy", "--experiment", "e", "--method", "m", "--seed", 0)
    assert (code, message in printed) == (2, True), printed
    assert printed.splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "runs").exists()

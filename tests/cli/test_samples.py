"""`atrium samples` and `atrium evaluate --regrade`, over samples that a real run left behind."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from atrium.assemble.stored_answers import answers_of_file
from atrium.cli.app import main
from atrium.runs.find import find_run


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory):
    """Where an evaluation of the smallest model lies."""
    runs_dir = tmp_path_factory.mktemp("samples") / "runs"
    settings = ("debug=tiny_steps", "num_steps=1", "tracking.figures=false", "tracking.progress=off")
    assert main(["train", *settings, f"runs_dir={runs_dir}", "experiment_name=trained"]) == 0
    assert main(["evaluate", "--run", "last", "--runs-dir", str(runs_dir), "tracking.progress=off"]) == 0
    return runs_dir


@pytest.fixture
def run(runs_dir, capsys):
    """Runs a command and gives its exit code and what it printed."""

    def command(*arguments):
        capsys.readouterr()
        code = main([*arguments, "--runs-dir", str(runs_dir)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return command


def test_an_evaluation_is_shown_by_problem_and_an_answer_with_its_reason(run):
    code, printed = run("samples", "last")
    assert code == 0
    assert "arithmetic-test: 8 problems" in printed
    name = printed.splitlines()[2].split()[0]
    code, printed = run("samples", "last", "--problem", name)
    assert code == 0
    assert "gold:" in printed
    assert any(reason in printed for reason in ("no answer was found", "other value", "same text"))
    code, printed = run("samples", "last", "--problem", "nobody")
    assert code != 0
    assert "has no problem" in printed


def test_rows_go_out_as_csv_and_as_lm_eval_and_lighteval_write_them(run, tmp_path):
    folders = ("--lm-eval", str(tmp_path / "lm"), "--lighteval", str(tmp_path / "li"))
    assert run("samples", "last", "--csv", str(tmp_path / "rows.csv"), *folders)[0] == 0
    with (tmp_path / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16
    (lm_eval,) = (tmp_path / "lm").glob("samples_arithmetic-test_*.jsonl")
    lines = [json.loads(line) for line in lm_eval.read_text().splitlines()]
    assert [len(line["resps"][0]) for line in lines] == [2] * 8
    assert lines[0].keys() >= {"doc_id", "doc", "target", "filtered_resps", "doc_hash", "exact_match"}
    (lighteval,) = (tmp_path / "li").glob("details_arithmetic-test_*.parquet")
    details = pq.read_table(lighteval).to_pylist()
    counted = sum(row["is_correct"] == "True" for row in rows) / 16
    assert sum(line["exact_match"] for line in lines) / 8 == counted
    assert sum(detail["metric"]["avg@n:n=2"] for detail in details) / 8 == counted
    assert details[0]["model_response"]["text"] == [row["text"] for row in rows[:2]]


def test_the_same_grader_changes_nothing(run, runs_dir):
    before = find_run(runs_dir, "last").summary_file.read_bytes()
    code, printed = run("evaluate", "--regrade", "last")
    assert code == 0
    assert "16 answers graded by math" in printed
    assert "0 changed" in printed
    assert "graded by math, grader 4, math-verify" in " ".join(printed.split())
    assert find_run(runs_dir, "last").summary_file.read_bytes() == before


def test_completions_from_elsewhere_are_graded_and_what_changed_is_told(run, tmp_path):
    file, table = tmp_path / "theirs.jsonl", tmp_path / "table.csv"
    rows = [
        {"answer": "1/3", "output": r"so \boxed{0.33333}", "score": 0.0, "id": "third"},
        {"answer": "42", "output": r"\boxed{42}", "score": 1.0},
        {"answer": "7", "output": "no box", "score": 1.0},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, printed = run("evaluate", "--regrade", str(file), "grader=math_tolerance", "--csv", str(table))
    assert code == 0
    assert "3 answers graded by math_tolerance: correct 66.7 % -> 66.7 %, 2 changed" in printed
    assert "third" in printed
    with table.open(newline="") as opened:
        written = list(csv.DictReader(opened))
    assert [row["is_correct"] for row in written] == ["True", "True", "False"]
    assert {row["was_grader"] for row in written} == {"unknown"}
    assert all(row["grader"].startswith("math_tolerance, grader ") for row in written)


@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("lm_eval_samples.jsonl", "2 answers graded by math: correct 50.0 % -> 100.0 %, 1 changed"),
        ("lighteval_details.parquet", "3 answers graded by math: correct unknown -> 66.7 %, 1 changed"),
    ],
)
def test_samples_of_other_harnesses_are_graded_again(run, name, score):
    file = Path(__file__).parents[1] / "data/formats" / name
    code, printed = run("evaluate", "--regrade", str(file))
    assert code == 0, printed
    assert score in " ".join(printed.split())


def test_exported_samples_are_graded_as_the_evaluation_was(run, tmp_path):
    code, _ = run("samples", "last", "--lm-eval", str(tmp_path), "--lighteval", str(tmp_path))
    assert code == 0
    for file in tmp_path.iterdir():
        code, printed = run("evaluate", "--regrade", str(file))
        assert (code, "16 answers graded by math" in " ".join(printed.split())) == (0, True), printed


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"resps": [[["-1.5", "False"]]], "target": 1}, "use the samples of a task that generates text"),
        ({"resps": [["x"]], "target": ["1", "2"], "doc_id": 0}, ""),
        (
            {"resps": [["x"]], "target": ""},
            "the reference answer cannot be read, since the answer is missing; expected it in target",
        ),
        ({"model_response": {"text": []}}, "use the details file of a task that generates text"),
    ],
)
def test_samples_without_texts_or_references_are_refused_by_their_row(run, tmp_path, row, words):
    file = tmp_path / "theirs.jsonl"
    file.write_text(json.dumps(row))
    code, printed = run("evaluate", "--regrade", str(file))
    assert words in " ".join(printed.split())
    assert code == (2 if words else 0)


@pytest.mark.parametrize(
    "row",
    [
        {"resps": [["$4$ is \\boxed{4}"]], "target": ["5", "four", "4"]},
        {
            "doc": {"choices": ["5", "4", "6"], "gold_index": [0, 1]},
            "model_response": {"text": ["\\boxed{4}"]},
        },
        {"answer": ["5", "4"], "completion": "\\boxed{4}"},
    ],
)
def test_any_of_several_references_counts(run, tmp_path, row):
    file = tmp_path / "theirs.jsonl"
    wrong = json.loads(json.dumps(row).replace("boxed{4}", "boxed{3}"))
    file.write_text(f"{json.dumps(row)}\n{json.dumps(wrong)}\n")
    code, printed = run("evaluate", "--regrade", str(file))
    assert (code, "correct unknown -> 50.0 %" in printed) == (0, True), printed
    assert "2 answers have several references, any of which counts" in printed


def test_a_grader_that_finds_no_answer_in_any_row_names_others(run, tmp_path):
    file = tmp_path / "theirs.jsonl"
    file.write_text(json.dumps({"answer": "B", "completion": "Answer: B", "score": 1.0}))
    code, printed = run("evaluate", "--regrade", str(file))
    printed = " ".join(printed.split())
    assert (code, "the grader math looks for box; set grader=multiple_choice" in printed) == (0, True), (
        printed
    )
    suggested = ("grader=multiple_choice", "grader.answer='Answer: {answer}'")
    code, printed = run("evaluate", "--regrade", str(file), *suggested)
    assert (code, "no answer was found" in printed, "-> 100.0 %" in printed) == (0, False, True), printed


def test_last_is_the_latest_evaluation_of_a_training_run_too(run, runs_dir):
    folder = find_run(runs_dir, "last")
    recorded = folder.config_file.read_text()
    folder.config_file.write_text(json.dumps({**json.loads(recorded), "kind": "train"}))
    try:
        code, printed = run("evaluate", "--regrade", "last")
    finally:
        folder.config_file.write_text(recorded)
    assert (code, "16 answers graded by math" in printed) == (0, True), printed


def test_regrading_a_run_of_an_older_grader_shows_both_versions_and_keeps_its_record(run, runs_dir):
    folder = find_run(runs_dir, "last")
    recorded = json.loads(folder.provenance_file.read_text())
    old = "math, atrium 0.1.0, math-verify 0.9.0"
    recorded["data"]["grader_version"] = old
    folder.provenance_file.write_text(json.dumps(recorded))
    code, printed = run("evaluate", "--regrade", "last")
    assert code == 0
    assert f"recorded: {old}" in " ".join(printed.split())
    assert json.loads(folder.provenance_file.read_text()) == recorded


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 1 is not valid JSON"),
        ('{"answer": "1"}', "no field for the text"),
        ("", "contains no completions"),
        ('{"resps": null, "target": "1"}', "resps contains no completions"),
        ('{"answer": "4", "completion": ["4", "5"]}', "the completion must be text"),
    ],
)
def test_a_file_that_holds_no_completions_is_refused_in_a_line(run, tmp_path, line, words):
    file = tmp_path / "theirs.jsonl"
    file.write_text(line)
    code, printed = run("evaluate", "--regrade", str(file))
    assert code != 0
    assert words in printed


def test_what_regrading_does_not_read_is_refused(run):
    for arguments, words in (
        (("--regrade", "last", "benchmark=aime24"), "only settings of grader"),
        (("--regrade", "last", "--run", "last"), "--regrade cannot be combined with --run"),
        (("--csv", "x.csv"), "requires --regrade"),
    ):
        code, printed = run("evaluate", *arguments)
        assert (code, words in printed) == (2, True), printed


def test_a_list_as_name_and_a_score_that_is_no_number_are_read(tmp_path):
    file = tmp_path / "theirs.jsonl"
    of_lm_eval = {"doc_id": [1], "resps": [["4"]], "target": "4", "exact_match": float("nan")}
    file.write_text(
        f"{json.dumps(of_lm_eval)}\n{json.dumps({'answer': '4', 'text': '4', 'score': float('nan')})}"
    )
    assert [one.was_correct for one in answers_of_file(file)] == [None, None]

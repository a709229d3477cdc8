"""Benchmarks that are not loaded here, tested by files of their layout; and the note beside their scores."""

from __future__ import annotations

import csv

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from atrium.assemble.benchmarks import load_benchmarks
from atrium.assemble.references import Loading
from atrium.config.compose import compose
from atrium.grading.verifiers import MultipleChoiceVerifier
from atrium.runs.evaluation_document import contest_note


def _loaded(name, folder, tmp_path):
    config = compose([f"benchmark={name}", f"benchmark.source={folder}", "benchmark.revision=null"])
    loading = Loading(cache_dir=tmp_path, log=pytest.fail)
    (loaded,) = load_benchmarks(config.benchmark, config.dataset, verifier=config.grader, loading=loading)
    return loaded


@pytest.mark.parametrize(
    ("name", "num"), [("brumo25", 30), ("cmimc25", 40), ("smt25", 53), ("hmmt_nov25", 30), ("apex", 12)]
)
def test_a_contest_of_matharena_loads_from_a_file_of_its_layout(name, num, tmp_path):
    rows = [
        {"problem_idx": n, "problem": f"What is ${n}+1$?", "answer": str(n + 1), "problem_type": ["Algebra"]}
        for n in range(1, num + 1)
    ]
    (tmp_path / "data").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data/train-00000-of-00001.parquet")
    loaded = _loaded(name, tmp_path, tmp_path)
    assert (loaded.name, len(loaded.problems), loaded.problems[0].problem_id) == (name, num, "1")
    assert (loaded.problems[2].question, loaded.problems[2].answer) == ("What is $3+1$?", "4")
    assert loaded.published[:4] == "2025"


def test_gpqa_diamond_shows_shuffled_choices_and_grades_the_letter(tmp_path):
    wrong = [f"Incorrect Answer {n}" for n in (1, 2, 3)]
    with (tmp_path / "gpqa_diamond.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Question", "Correct Answer", *wrong, "Record ID", "High-level domain"])
        for n in range(198):
            writer.writerow(
                [f"Which, {n}?", f"yes {n}", f"no {n}", f"never {n}", f"maybe {n}", f"rec{n}", "Physics"]
            )
    loaded = _loaded("gpqa_diamond", tmp_path / "gpqa_diamond.csv", tmp_path)
    assert isinstance(loaded.verifier, MultipleChoiceVerifier)
    assert {problem.answer for problem in loaded.problems} == set("ABCD")
    for n, problem in enumerate(loaded.problems):
        assert f"({problem.answer}) yes {n}" in problem.question
        assert len(problem.question.splitlines()) == 6
    assert (loaded.problems[5].problem_id, dict(loaded.problems[5].metadata)) == (
        "rec5",
        {"subject": "Physics"},
    )


@pytest.mark.parametrize(
    ("published", "released", "words"),
    [
        ("2025-04-04", "2024-09-19", "after the model's release (2024-09-19): not seen in training"),
        ("2024-01-31", "2025-04-29", "before the model's release (2025-04-29): maybe seen in training"),
        (
            "2025-04-29",
            "2025-04-29",
            "on the day of the model's release (2025-04-29): maybe seen in training",
        ),
        ("2025-04-04", None, "set model.released=YYYY-MM-DD"),
        (None, "2025-04-29", ""),
    ],
)
def test_a_score_says_whether_the_problems_are_newer_than_the_model(published, released, words):
    note = contest_note({"settings": {"published": published, "released": released}})
    assert words in note
    assert bool(note) == bool(published)


def test_every_published_benchmark_and_described_model_has_a_date():
    assert compose(["benchmark=aime24", "model=qwen3_1_7b"]).benchmark.published == "2024-01-31"
    assert compose(["model=hub", "model.source=Qwen/Qwen3-1.7B"]).model.released == "2025-04-29"
    assert (
        compose(["model=hub", "model.source=a/b", "model.released=2025-01-02"]).model.released == "2025-01-02"
    )

"""Rows to problems: what is kept, what is dropped, and that every drop is counted and said."""

from __future__ import annotations

import json
from functools import partial

import pytest

from atrium.base.errors import DataError
from atrium.data.problem_sets import read_problem_set
from atrium.data.settings import Fields, ProblemFiles
from atrium.grading.extraction import extract_answer

FIELDS = Fields(
    question=("problem", "prompt[0].content", "prompt"),
    answer=("answer", "reward_model.ground_truth"),
    solution=("solution",),
    problem_id=("id",),
    metadata={"level": "level", "subject": "extra.type"},
)


@pytest.fixture
def read(tmp_path):
    """Reads rows that are given as dictionaries; settings may be changed."""

    def read_rows(rows, fields=FIELDS, **changes):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings = ProblemFiles(name="mine", source=str(path), fields=fields)
        return read_problem_set(
            settings.model_copy(update=changes),
            cache_dir=tmp_path,
            read_box=partial(extract_answer, thinking=False),
            log=pytest.fail,
        )

    return read_rows


def test_rows_of_many_shapes_become_problems(read):
    loaded = read(
        [
            {"problem": "A?", "answer": 27.0, "id": 7, "level": 3, "extra": {"type": "Algebra"}},
            {
                "prompt": [{"role": "user", "content": "B?"}],
                "reward_model": {"ground_truth": "34"},
                "id": "b",
            },
            {"prompt": "C?", "answer": None, "solution": r"so \boxed{\pi}", "id": "c", "level": None},
            {"problem": "D?", "answer": ["025"], "id": "d"},
        ]
    )
    assert [(p.problem_id, p.question, p.answer) for p in loaded.problems] == [
        ("7", "A?", "27"),
        ("b", "B?", "34"),
        ("c", "C?", r"\pi"),
        ("d", "D?", "025"),
    ]
    assert [dict(p.metadata) for p in loaded.problems] == [{"level": "3", "subject": "Algebra"}, {}, {}, {}]
    assert loaded.origin.warnings == (
        "2 rows have no field for metadata.level",
        "3 rows have no field for metadata.subject",
    )


def test_repeats_are_dropped_and_counted_whatever_their_layout(read):
    rows = [{"problem": f"What is ${n}^2$?", "answer": n * n} for n in (1, 2, 3)]
    again = [
        {"problem": "What is $ 2 ^2 $", "answer": 5},
        {"problem": "What is $\\left. 3^2$?", "answer": "9"},
    ]
    loaded = read([*rows, *rows, *again[:1]], fields=FIELDS.model_copy(update={"metadata": {}}))
    assert [problem.answer for problem in loaded.problems] == ["1", "4", "9"]
    assert (loaded.origin.num_rows, loaded.origin.num_repeated, loaded.origin.num_problems) == (7, 4, 3)
    assert loaded.origin.warnings == (
        "4 of 7 rows repeat a problem, 3 remain (1 repeats have another answer; the first answer is used)",
    )
    assert read([*rows, *rows], expected_num_rows=6, expected_num_problems=3).origin.num_repeated == 3
    with pytest.raises(DataError, match="must have 6 distinct problems, got 3"):
        read([*rows, *rows], expected_num_problems=6)


def test_problems_that_differ_in_a_sign_are_not_repeats(read):
    rows = [{"problem": f"7{sign}8=", "answer": "0"} for sign in "+-*/"]
    assert len(read(rows).problems) == 4


def test_names_come_from_the_question_where_rows_have_none_of_their_own(read):
    rows = [{"problem": f"{n}?", "answer": n, "id": n} for n in range(3)]
    assert [p.problem_id for p in read(rows).problems] == ["0", "1", "2"]
    for changed in ([{**row, "id": 1} for row in rows], [rows[0], rows[1], {"problem": "2?", "answer": 2}]):
        names = [p.problem_id for p in read(changed).problems]
        assert len(set(names)) == 3
        assert all(name.startswith("mine-") for name in names)
    nameless = [{"problem": f"{n}?", "answer": n} for n in range(3)]
    in_order = {p.question: p.problem_id for p in read(nameless).problems}
    reordered = {p.question: p.problem_id for p in read(nameless[::-1]).problems}
    assert in_order == reordered


def test_an_instruction_is_taken_off_or_kept_and_told_either_way(read):
    instruction = "Please reason step by step, and put your final answer within \\boxed{}."
    rows = [{"problem": f"What is {n}+1? {instruction}", "answer": n + 1} for n in range(3)]
    rows.append({"problem": "What is 2+1?", "answer": 3})
    stripped = read(rows, fields=FIELDS.model_copy(update={"metadata": {}}))
    assert [p.question for p in stripped.problems] == ["What is 0+1?", "What is 1+1?", "What is 2+1?"]
    assert (stripped.origin.num_instructions, stripped.origin.num_repeated) == (3, 1)
    assert "3 questions contain an instruction" in stripped.origin.warnings[1]
    assert stripped.origin.warnings[1].endswith("which is removed")
    kept = read(rows, fields=FIELDS.model_copy(update={"metadata": {}}), instruction="keep")
    assert kept.problems[0].question == rows[0]["problem"]
    assert "which is kept; choose a prompt without an instruction" in kept.origin.warnings[0]


def test_rows_are_chosen_by_the_values_of_fields(read):
    rows = [{"problem": f"{n}?", "answer": n, "level": n, "extra": {"type": "AB"[n % 2]}} for n in range(6)]
    chosen = read(rows, where={"level": (2, 3, 5), "extra.type": ("B",)})
    assert [p.question for p in chosen.problems] == ["3?", "5?"]
    assert [p.question for p in read(rows, where={"level": ("4",)}).problems] == ["4?"]
    assert (chosen.origin.num_rows, chosen.origin.num_chosen) == (6, 2)
    with pytest.raises(DataError, match=r"none of 6 rows has level in \['hard'\]"):
        read(rows, where={"level": ("hard",)})


def test_rows_without_a_question_or_an_answer_are_left_out_and_listed(read):
    rows = [
        {"problem": "1?", "answer": 1},
        {"problem": "", "answer": 2},
        {"problem": "3?", "answer": ["3", "4"]},
        {"problem": "4?", "answer": "", "solution": "no box"},
        {"problem": "5?", "answer": None},
    ]
    loaded = read(rows, fields=FIELDS.model_copy(update={"metadata": {}}))
    assert [p.question for p in loaded.problems] == ["1?"]
    assert loaded.origin.num_incomplete == 4
    (warning,) = loaded.origin.warnings
    assert warning.startswith("4 rows contain no problem: ")
    assert "expected one answer, got a list of 2: set dataset.fields.answer=answer[0] " in warning
    with pytest.raises(DataError, match=r"no row contains a problem \(row 1: the question is missing\); set"):
        read(rows[1:2])


def test_an_empty_file_is_an_error(read):
    with pytest.raises(DataError, match=r"'mine' \(.*rows\.jsonl\) has no rows"):
        read([])


def test_an_origin_is_plain_values(read):
    loaded = read([{"problem": "1?", "answer": 1}])
    record = json.loads(json.dumps(loaded.origin.as_record()))
    assert (record["num_rows"], record["files"], record["revision"]) == (1, ["rows.jsonl"], None)


def test_a_field_names_the_cluster_of_each_problem(read):
    rows = [{"q": f"{n}+1=", "a": str(n + 1), "contest": n // 2} for n in range(4)]
    fields = Fields(question=("q",), answer=("a",), cluster=("round", "contest"))
    loaded = read(rows, fields=fields)
    assert [problem.metadata["cluster"] for problem in loaded.problems] == ["0", "0", "1", "1"]
    with pytest.raises(DataError, match="no row has a field for the cluster, expected round;"):
        read(rows, fields=fields.model_copy(update={"cluster": ("round",)}))

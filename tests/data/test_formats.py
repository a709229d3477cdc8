"""Files as published code writes them load by their path alone: see docs/data_and_evaluation.md."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from atrium.base.errors import DataError
from atrium.config.compose import compose
from atrium.data.problem_sets import read_problem_set
from atrium.grading.extraction import extract_answer

FORMATS = Path(__file__).with_name("formats")
QUESTIONS = ["What is 17+25?", "What is 9*8?", "What is 100-1?"]
SYSTEM = [
    (("system", text),)
    for text in ("You are a careful mathematician.", "Answer with one number.", "Think first, then answer.")
]
FEW_SHOT = (*SYSTEM[0], ("user", "What is 1+1?"), ("assistant", r"\boxed{2}"))


def _load(path, *lines):
    config = compose(["benchmark=file", f"benchmark.source={path}", *(f"benchmark.{line}" for line in lines)])
    return read_problem_set(
        config.benchmark,
        cache_dir=FORMATS,
        read_box=partial(extract_answer, thinking=False),
        log=pytest.fail,
    )


@pytest.mark.parametrize(
    ("name", "turns"),
    [
        ("verl_system.jsonl", SYSTEM),
        ("skyrl.jsonl", SYSTEM),
        ("sharegpt.json", SYSTEM),
        ("trl.jsonl", [(), (), ()]),
        ("openrlhf.jsonl", [(), (), ()]),
        ("openrlhf_messages.jsonl", [(), (), ()]),
        ("open_r1.jsonl", [(), (), ()]),
        ("numinamath.jsonl", [(), (), ()]),
        ("messages.jsonl", [FEW_SHOT, FEW_SHOT, FEW_SHOT]),
        ("semicolons.csv", [(), (), ()]),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".parquet"])
def test_a_published_format_loads_by_its_path_alone(name, turns, suffix, tmp_path):
    path = FORMATS / name
    if suffix and path.suffix != ".csv":
        text = path.read_text()
        rows = (
            json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]
        )
        path = tmp_path / "rows.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path)
    problems = _load(path).problems
    assert [problem.question for problem in problems] == QUESTIONS
    assert [problem.answer for problem in problems] == ["42", "72", "99"]
    assert [problem.turns for problem in problems] == turns


def test_system_turns_are_counted_and_left_out_where_so_set():
    kept, dropped = (_load(FORMATS / "skyrl.jsonl", *lines) for lines in ((), ("system=drop",)))
    assert kept.origin.warnings == ("3 prompts have a system turn, which precedes that of model.prompt",)
    assert dropped.origin.warnings == ("3 prompts have a system turn, which is dropped",)
    assert [problem.turns for problem in dropped.problems] == [(), (), ()]
    assert [one.question for one in dropped.problems] == [one.question for one in kept.problems]


def test_the_same_follow_up_question_after_other_turns_is_another_problem(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [
        {
            "messages": [
                {"role": "system", "content": f"Be brief. {number % 2}"},
                {"role": "user", "content": f"Take {number // 2}."},
                {"role": "assistant", "content": "Yes."},
                {"role": "user", "content": "Double it."},
            ],
            "answer": 2 * (number // 2),
        }
        for number in range(6)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = _load(path)
    assert [problem.answer for problem in loaded.problems] == ["0", "2", "4"]
    assert loaded.origin.num_repeated == 3


@pytest.mark.parametrize("num_questions", [1, 3, 12, 25])
def test_rows_that_share_a_question_and_differ_in_the_answer_are_refused(tmp_path, num_questions):
    path = tmp_path / "rows.jsonl"
    rows = [
        {"question": f"Solve puzzle {number % num_questions}.", "answer": number, "puzzle": f"{number}+0"}
        for number in range(60)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(
        DataError, match=r"60 of 60 rows .*'Solve puzzle 0\.'\); set benchmark\.fields\.question"
    ):
        _load(path)
    assert len(_load(path, "fields.question=[puzzle]").problems) == 60


def test_samples_that_name_their_reference_in_two_ways_are_no_shared_question(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"question": f"{number // 2}?", "answer": ["1/2", "0.5"][number % 2]} for number in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(_load(path).problems) == 20


@pytest.mark.parametrize(
    ("answer", "line", "expected"),
    [
        ({"numbers": [1, 2], "target": 3}, "answer.target", "3"),
        ('{"numbers": [1, 2], "target": 3}', "answer.target", "3"),
        ([{"numbers": [1, 2], "target": 3}], "answer[0].target", "3"),
        ({"gold": ["4", "four"]}, "answer.gold[0]", "4"),
    ],
)
def test_an_answer_of_several_parts_is_refused_with_the_settings_that_read_it(
    tmp_path, answer, line, expected
):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "Which?", "answer": answer, "puzzle": "x"}))
    with pytest.raises(DataError) as caught:
        _load(path)
    assert f"set benchmark.fields.answer={line} " in str(caught.value)
    assert "benchmark.fields.verifier=answer" in str(caught.value)
    assert "a row has question, answer, puzzle" in str(caught.value)
    assert [problem.answer for problem in _load(path, f"fields.answer={line}").problems] == [expected]


@pytest.mark.parametrize(
    ("choices", "answer", "letter"),
    [
        (["3", "4", "5"], "B", "B"),
        (["3", "4", "5"], "(b)", "B"),
        (["x", "y", "z"], 1, "B"),
        (["30", "40", "50"], 40, "B"),
        (["A. 3", "B. 4"], "4", "B"),
        (["(A) 3", "(B) 4"], "B.", "B"),
        ({"A": "3", "B": "4", "C": None}, "B", "B"),
        ({"label": ["1", "2"], "text": ["3", "four"]}, "2", "B"),
        ([{"label": "A", "text": "3"}, {"label": "B", "text": "4"}], "B", "B"),
        ("a ) 38 , b ) 27.675 , c ) 30", "b", "B"),
        ('["3", "4"]', "B", "B"),
    ],
)
def test_choices_of_every_layout_are_shown_with_letters(tmp_path, choices, answer, letter):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "Which?", "options": choices, "answer": answer}))
    (problem,) = _load(path, "fields.choices=[options]").problems
    lines = problem.question.splitlines()
    assert lines[:2] == ["Which?", ""]
    assert [line[:4] for line in lines[2:]] == [f"({name}) " for name in "ABC"[: len(lines) - 2]]
    assert problem.answer == letter


@pytest.mark.parametrize(
    ("choices", "answer", "reason"),
    [
        (["1", "2", "3"], 1, "matches several of the 3 choices"),
        (["3", "4"], "C", "'C' matches none of the 2 choices"),
        (["3", "3"], "A", "2 to 26 different texts"),
        (["3"], "A", "got 1"),
        ([["3"], "4"], "A", "a choice has no text"),
    ],
)
def test_a_reference_that_names_no_choice_is_refused_by_name(tmp_path, choices, answer, reason):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "Which?", "options": choices, "answer": answer}))
    with pytest.raises(DataError, match=reason):
        _load(path, "fields.choices=[options]")


def test_unused_choices_are_told_and_used_ones_are_not():
    unused = _load(FORMATS / "choices.jsonl")
    assert "no question shows the choices in the column options" in unused.origin.warnings[-1]
    used = _load(FORMATS / "choices.jsonl", "fields.choices=[options]")
    assert [problem.answer for problem in used.problems] == ["B", "A", "C"]
    assert used.origin.warnings == ()


@pytest.mark.parametrize(
    ("columns", "answer", "letter"),
    [
        (["A", "B", "C", "D"], "C", "C"),
        (["option_a", "option_b", "option_c"], "b", "B"),
        (["opa", "opb", "opc", "opd"], 2, "C"),
        (["Option 1", "Option 2"], "2", "B"),
        (["choice1", "choice2"], 1, "B"),
        (["ending0", "ending1", "ending2"], "1", "B"),
    ],
)
def test_unused_columns_of_one_choice_each_are_told_with_the_setting_that_shows_them(
    tmp_path, columns, answer, letter
):
    path = tmp_path / "rows.jsonl"
    choices = {name: f"text {index}" for index, name in enumerate(columns)}
    path.write_text(json.dumps({"question": "Which?", **choices, "answer": answer}))
    (note,) = _load(path).origin.warnings
    listed = ",".join(columns)
    assert f"benchmark.fields.choices=[{listed}] to show them with letters" in note
    (problem,) = _load(path, f"fields.choices=[{listed}]").problems
    assert problem.answer == letter
    assert problem.question.endswith(f"({'ABCD'[len(columns) - 1]}) text {len(columns) - 1}")


@pytest.mark.parametrize("columns", [["a", "b"], ["answer1", "answer2"], ["A", "C", "D"], ["option_a"]])
def test_columns_that_are_no_choices_by_their_names_get_no_note(tmp_path, columns):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "Which?", **dict.fromkeys(columns, "1"), "answer": 1}))
    assert _load(path).origin.warnings == ()


def test_choices_in_several_columns_are_shuffled_by_the_question(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [
        {"Question": f"{n}?", "Correct": f"right {n}", "Wrong 1": f"wrong {n}", "Wrong 2": f"false {n}"}
        for n in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ("fields.choices=[Correct,Wrong 1,Wrong 2]", "fields.answer=[Correct]", "choice_order=shuffled")
    problems = _load(path, *lines).problems
    assert problems == _load(path, *lines).problems
    assert {problem.answer for problem in problems} == {"A", "B", "C"}
    for number, problem in enumerate(problems):
        assert f"({problem.answer}) right {number}" in problem.question


def test_values_for_the_verifier_reach_a_problem_unchanged(tmp_path):
    path = tmp_path / "rows.jsonl"
    tests = {"tests": [[1, 2.5], None], "text": '{"a": 1}'}
    row = {"question": "Write it.", "puzzle": tests, "spec": '{"size": 3}', "answer": '{"a": 1, "b": 2}'}
    path.write_text(json.dumps(row))
    (problem,) = _load(path, "fields.verifier={puzzle: puzzle, spec: spec}").problems
    assert problem.verifier == {"puzzle": tests, "spec": '{"size": 3}'}
    assert (problem.metadata, problem.answer) == ({}, '{"a": 1, "b": 2}')
    del row["answer"]
    path.write_text(json.dumps(row))
    (problem,) = _load(path, "fields.verifier=puzzle").problems
    assert (problem.verifier, problem.answer) == ({"puzzle": tests}, "")

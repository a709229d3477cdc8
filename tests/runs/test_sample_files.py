from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from atrium.base.errors import RunFolderError
from atrium.runs.sample_files import read_evaluated, read_samples, write_evaluation, write_rollouts
from atrium.runs.samples_document import samples_document

HOSTILE_TEXT = "<script>alert(1)</script>\x1b[31m\u202e\x00 \ud83d lone half"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rollouts" / "step-000010.parquet"


def test_rollouts_come_back_exactly_one_row_each(path, groups, trace):
    made = groups()
    write_rollouts(path, 10, made, [trace] * 4)
    rows = read_samples(path)
    assert [(row["problem_id"], row["sample_index"]) for row in rows] == [
        ("p0", 0),
        ("p0", 1),
        ("p1", 0),
        ("p1", 1),
    ]
    row, rollout = rows[2], made[1].rollouts[0]
    assert row["step"] == 10
    assert (row["question"], row["gold"], row["metadata"]) == ("1+1=", "2", '{"level": "2"}')
    assert (row["text"], row["verdict"], row["reason"], row["extracted"]) == (
        "\\boxed{1}",
        "correct",
        "equal",
        "2",
    )
    assert (row["reward"], row["finish_reason"], row["num_tokens"], row["weight_version"]) == (
        1.0,
        "stop",
        5,
        3,
    )
    assert row["token_ids"] == rollout.completion.token_ids.tolist()
    assert np.array_equal(np.float32(row["logprobs"]), rollout.completion.logprobs)
    assert tuple(row["ratio"]) == trace.ratio
    assert tuple(row["advantage"]) == trace.advantage
    assert np.allclose(row["entropy"], trace.entropy)
    assert tuple(row["clipped"]) == trace.clipped


def test_groups_of_the_same_problem_keep_their_own_traces(path, groups, trace):
    (group,) = groups(num_problems=1)
    traces = [replace(trace, advantage=(float(place),) * 5) for place in range(4)]
    write_rollouts(path, 10, [group, group], traces)
    assert [row["advantage"][0] for row in read_samples(path)] == [0.0, 1.0, 2.0, 3.0]


def test_rollouts_that_no_update_used_have_no_trace(path, groups):
    write_rollouts(path, 10, groups(), ())
    for row in read_samples(path):
        assert [row[name] for name in ("advantage", "ratio", "entropy", "clipped")] == [None] * 4
        assert len(row["logprobs"]) == 5


def test_a_step_without_rollouts_is_an_empty_file_with_all_columns(path):
    write_rollouts(path, 10, [], ())
    assert read_samples(path) == []


def test_completions_without_tokens_are_recorded(path, groups):
    write_rollouts(path, 10, groups(num_tokens=0), ())
    assert [row["token_ids"] for row in read_samples(path)] == [[]] * 4


def test_text_from_models_is_kept_as_text(path, groups, samples):
    write_rollouts(path, 10, groups(text=HOSTILE_TEXT), ())
    write_evaluation(path.with_name("evaluation.parquet"), 10, samples(text=HOSTILE_TEXT))
    for name in (path, path.with_name("evaluation.parquet")):
        assert {row["text"] for row in read_samples(name)} == {HOSTILE_TEXT.replace("\ud83d", "?")}


def test_only_the_columns_that_are_asked_for_and_exist_are_read(path, groups):
    write_rollouts(path, 10, groups(), ())
    rows = read_samples(path, ("text", "of_a_newer_version"))
    assert rows[0] == {"text": "\\boxed{1}"}


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"no parquet at all", None])
def test_a_damaged_or_missing_file_is_one_line(path, groups, damage):
    write_rollouts(path, 10, groups(), ())
    if damage is None:
        path.write_bytes(path.read_bytes()[:-20])
    else:
        path.write_bytes(damage)
    for broken in (path, path.with_name("absent.parquet")):
        with pytest.raises(RunFolderError, match="missing or damaged") as error:
            read_samples(broken)
        assert "\n" not in str(error.value)


def test_evaluated_samples_come_back_exactly(path, samples):
    write_evaluation(path, 20, samples(2, 3, num_correct=1))
    rows = read_samples(path)
    assert [row["is_correct"] for row in rows] == [True, False, False] * 2
    assert [row["verdict"] for row in rows[:2]] == ["correct", "incorrect"]
    assert {(row["step"], row["num_tokens"], row["logprob_sum"], row["finish_reason"]) for row in rows} == {
        (20, 7, -1.25, "stop")
    }


def test_missing_evaluation_at_step_0_is_named_with_its_step(folder):
    with pytest.raises(RunFolderError, match="has no samples of an evaluation at step 0; "):
        read_evaluated(folder, step=0)


def test_problem_of_one_benchmark_is_shown_without_the_other_benchmarks(folder, samples):
    given = samples(2, 1)
    write_evaluation(folder.evaluation_path("a", 1), 1, given[:1])
    write_evaluation(folder.evaluation_path("b", 1), 1, given[1:])
    evaluations = read_evaluated(folder)
    wanted = given[0].problem.problem_id
    assert [one.title for one in samples_document(evaluations, wanted).sections] == [f"a {wanted}"]
    with pytest.raises(RunFolderError, match="the evaluation of a, b has no problem 'c-1'; "):
        samples_document(evaluations, "c-1")

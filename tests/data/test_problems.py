from __future__ import annotations

from dataclasses import replace

import pytest

from atrium.base.errors import DataError
from atrium.base.records import Problem
from atrium.data.problems import Dataset, ProblemStream, content_hash


def _problems(num):
    return tuple(
        Problem(problem_id=f"p-{index}", question=f"{index}+1=", answer=str(index + 1))
        for index in range(num)
    )


@pytest.mark.parametrize(
    "change",
    [{"problem_id": "q"}, {"question": "9+9="}, {"answer": "0"}, {"metadata": {"level": "2"}}],
)
def test_the_content_hash_changes_with_every_field(change):
    first, *rest = _problems(3)
    assert content_hash([first, *rest]) != content_hash([replace(first, **change), *rest])


def test_the_content_hash_depends_on_content_and_order_only():
    problems = _problems(3)
    rebuilt = tuple(replace(problem, metadata={"b": "1", "a": "2"}) for problem in problems)
    reordered = tuple(replace(problem, metadata={"a": "2", "b": "1"}) for problem in problems)
    assert content_hash(rebuilt) == content_hash(reordered)
    assert content_hash(problems) != content_hash(problems[::-1])


def test_a_dataset_knows_its_hash_and_size():
    dataset = Dataset(name="d", problems=_problems(4))
    assert dataset.content_hash == content_hash(_problems(4))
    assert len(dataset) == 4


def test_a_dataset_refuses_a_repeated_problem_id():
    with pytest.raises(DataError, match="'d' contains the problem_id 'p-0' twice"):
        Dataset(name="d", problems=(*_problems(2), _problems(1)[0]))


def test_a_dataset_and_a_stream_refuse_to_be_empty():
    with pytest.raises(DataError, match="'d' contains no problems"):
        Dataset(name="d", problems=())
    with pytest.raises(DataError, match="at least one problem"):
        ProblemStream((), seed=0)


def test_every_epoch_of_a_stream_holds_every_problem_once_in_an_order_of_its_own():
    problems = _problems(50)
    stream = ProblemStream(problems, seed=3)
    epochs = [stream.take(50 * epoch, 50) for epoch in range(4)]
    for epoch in epochs:
        assert sorted(epoch, key=problems.index) == list(problems)
    assert len({tuple(problem.problem_id for problem in epoch) for epoch in epochs}) == 4


def test_a_stream_gives_the_same_problems_however_they_are_taken():
    stream = ProblemStream(_problems(7), seed=1)
    whole = stream.take(0, 40)
    assert sum((stream.take(cursor, 4) for cursor in range(0, 40, 4)), ()) == whole
    assert ProblemStream(_problems(7), seed=1).take(11, 20) == whole[11:31]
    assert stream.take(5, 0) == ()


def test_streams_of_different_seeds_differ():
    problems = _problems(50)
    assert ProblemStream(problems, seed=0).take(0, 50) != ProblemStream(problems, seed=1).take(0, 50)


def test_a_stream_refuses_negative_positions():
    with pytest.raises(ValueError, match="at least 0"):
        ProblemStream(_problems(2), seed=0).take(-1, 1)


def test_the_order_of_a_stream_is_stable_over_versions():
    order = [problem.problem_id for problem in ProblemStream(_problems(8), seed=0).take(0, 8)]
    assert order == ["p-7", "p-1", "p-6", "p-5", "p-3", "p-4", "p-2", "p-0"]

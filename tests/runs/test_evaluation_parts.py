"""The parts of an evaluation that is not finished: what is read back, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atrium.base.errors import RunFolderError
from atrium.runs.evaluation_parts import EvaluationParts
from atrium.runs.sample_files import write_evaluation


@pytest.fixture
def whole(tmp_path):
    return tmp_path / "evaluations" / "aime24" / "step-000003.parquet"


@pytest.fixture
def parts(whole):
    return EvaluationParts(whole, step=3)


def by_problem(samples):
    found = {}
    for sample in samples:
        found.setdefault(sample.problem.problem_id, []).append(sample)
    return found


def problems_of(samples):
    return list({sample.problem.problem_id: sample.problem for sample in samples}.values())


def test_appended_parts_are_read_back_exactly(parts, whole, samples):
    given = samples(num_problems=3, k=4)
    assert parts.read(problems_of(given), num_samples=4) == {}
    parts.append(given[:4])
    parts.append(given[4:])
    again = EvaluationParts(whole, step=3)
    assert again.read(problems_of(given), num_samples=4) == by_problem(given)
    again.append(given[:4])
    assert len(list(whole.parent.rglob("part-*.parquet"))) == 3, "a later process overwrites nothing"


def test_part_truncated_by_a_kill_is_ignored(parts, whole, samples):
    given = samples(num_problems=1)
    parts.append(given)
    (whole.parent / "parts" / whole.stem / ".tmp-0a1b2c3d-part-000002.parquet").write_bytes(b"PAR1half")
    assert parts.read(problems_of(given), num_samples=4) == by_problem(given)


def test_parts_are_deleted_once_the_whole_file_exists_and_replaces_them(parts, whole, samples):
    given = samples(num_problems=2)
    parts.append(given)
    parts.remove()
    assert parts.read(problems_of(given), num_samples=4) == by_problem(given), "nothing goes before that"
    write_evaluation(whole, 3, given)
    parts.remove()
    assert [path.name for path in whole.parent.iterdir()] == [whole.name]
    again = EvaluationParts(whole, step=3)
    assert again.read(problems_of(given), num_samples=4) == by_problem(given)
    again.remove()  # a later process finds the benchmark finished, and no parts to delete
    assert [path.name for path in whole.parent.iterdir()] == [whole.name]


def test_other_problems_another_k_and_damage_are_refused_in_one_line(parts, whole, samples):
    given = samples(num_problems=2)
    parts.append(given)
    known = problems_of(given)
    with pytest.raises(RunFolderError, match="no longer in the benchmark"):
        parts.read(known[:1], num_samples=4)
    with pytest.raises(RunFolderError, match="no longer in the benchmark"):
        parts.read([replace(known[0], answer="another"), known[1]], num_samples=4)
    with pytest.raises(RunFolderError, match=r"4 samples of problem .* expected 8"):
        parts.read(known, num_samples=8)
    next(whole.parent.rglob("part-*.parquet")).write_bytes(b"PAR1")
    with pytest.raises(RunFolderError, match="damaged"):
        parts.read(known, num_samples=4)

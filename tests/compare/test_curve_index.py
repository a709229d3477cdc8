from __future__ import annotations

import json

import numpy as np
import pytest

from atrium.compare import curve_index
from atrium.compare.curve_index import CurveIndex
from atrium.runs.reader import read_metrics
from atrium.runs.run_folder import RunFolder


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "study" / "one")
    folder.path.mkdir(parents=True)
    return folder


@pytest.fixture
def index(tmp_path):
    return CurveIndex(tmp_path / "runs" / ".cache")


def append(run, *records):
    with run.metrics_file.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def step(number, **more):
    return {"step": number, "time": 1.0 + number, "loss": number / 2, **more}


def assert_same_as_the_record(index, run):
    table, recorded = index.read(run), read_metrics(run)
    np.testing.assert_array_equal(table.steps, recorded.steps)
    assert table.columns.keys() == {"step", "time", *recorded.columns}
    for name, column in recorded.columns.items():
        np.testing.assert_array_equal(table.columns[name], column, err_msg=name)


def test_the_index_contains_the_recorded_metrics(index, run):
    append(run, step(1), step(2, reward=1), step(3, reward=None))
    assert index.read(run) is None
    assert index.refresh(run)
    assert_same_as_the_record(index, run)


def test_only_new_lines_are_read_and_no_new_line_changes_nothing(index, run):
    append(run, step(1))
    index.refresh(run)
    assert not index.refresh(run)
    assert index.num_bytes_behind(run) == 0
    append(run, step(2, entropy=0.5))
    assert index.num_bytes_behind(run) > 0
    assert index.refresh(run)
    assert_same_as_the_record(index, run)


def test_an_incomplete_line_is_indexed_once_it_is_complete(index, run):
    append(run, step(1))
    with run.metrics_file.open("a") as file:
        file.write('{"step": 2, "lo')
    index.refresh(run)
    assert index.read(run).steps.tolist() == [1.0]
    with run.metrics_file.open("a") as file:
        file.write('ss": 3}\n')
    index.refresh(run)
    assert index.read(run).columns["loss"].tolist() == [0.5, 3.0]


def test_unreadable_lines_are_counted_and_left_out(index, run):
    append(run, step(1))
    with run.metrics_file.open("ab") as file:
        file.write(b'not json\n["a list"]\n{"no": "step"}\n\xff\xfe\n')
    append(run, step(2))
    index.refresh(run)
    assert index.read(run).steps.tolist() == [1.0, 2.0]
    assert index.read(run).num_unreadable == 4


def test_text_instead_of_numbers_is_read_as_by_the_metrics_reader(index, run):
    append(run, step(1, a="NaN", b="Infinity", c=True), step(2, a=2.0, b="-Infinity", c=[1]))
    index.refresh(run)
    columns = index.read(run).columns
    np.testing.assert_array_equal(columns["a"], [np.nan, 2.0])
    np.testing.assert_array_equal(columns["b"], [np.inf, -np.inf])
    assert np.isnan(columns["c"]).all()


def test_both_parsers_agree(index, run, monkeypatch):
    rng = np.random.default_rng(0)
    append(
        run,
        *[step(i, value=float(rng.normal()), count=i, late=i if i > 150 else None) for i in range(1, 300)],
    )
    monkeypatch.setattr(curve_index, "_FEW_BYTES", 0)
    index.refresh(run)
    assert_same_as_the_record(index, run)
    quick = {name: column.copy() for name, column in index.read(run).columns.items()}
    monkeypatch.setattr(curve_index, "_FEW_BYTES", 10**9)
    index.path_of(run).unlink()
    index.refresh(run)
    for name, column in index.read(run).columns.items():
        np.testing.assert_array_equal(quick[name], column)


def test_a_broken_line_in_a_long_file_does_not_lose_the_rest(index, run, monkeypatch):
    monkeypatch.setattr(curve_index, "_FEW_BYTES", 0)
    append(run, step(1))
    with run.metrics_file.open("a") as file:
        file.write("{broken\n")
    append(run, step(2))
    index.refresh(run)
    assert index.read(run).steps.tolist() == [1.0, 2.0]


def test_a_truncated_record_is_indexed_again(index, run):
    append(run, step(1), step(2), step(3))
    index.refresh(run)
    run.write_config({})
    run.status_file.write_text("{}")
    run.truncate_after(1)
    append(run, step(2, loss=9.0))
    assert index.refresh(run)
    assert index.read(run).columns["loss"].tolist() == [0.5, 9.0]


@pytest.mark.parametrize("num_steps", [3, 300])
def test_a_truncated_record_that_grew_beyond_its_index_is_indexed_again(index, run, num_steps):
    """The file keeps its inode here, as the second rewriting of a file may give it the first one's."""
    append(run, *map(step, range(num_steps)))
    index.refresh(run)
    run.metrics_file.write_text("")
    append(run, step(0), *(step(i, time=9000.5 + i, loss=-8.25) for i in range(1, num_steps + 5)))
    num_behind = index.num_bytes_behind(run)
    index.refresh(run)
    assert_same_as_the_record(index, run)
    assert num_behind == run.metrics_file.stat().st_size


def test_the_later_record_of_a_step_counts(index, run):
    append(run, step(1), step(2), step(2, loss=7.0), step(3))
    index.refresh(run)
    assert_same_as_the_record(index, run)


def test_a_damaged_index_is_rebuilt(index, run):
    append(run, step(1))
    index.refresh(run)
    index.path_of(run).write_bytes(b"ARROW1 damaged")
    assert index.read(run) is None
    assert index.num_bytes_behind(run) > 0
    index.refresh(run)
    assert index.read(run).steps.tolist() == [1.0]


def test_an_index_of_an_earlier_version_is_rebuilt(index, run, monkeypatch):
    append(run, step(1))
    monkeypatch.setattr(curve_index, "FORMAT", "0")
    index.refresh(run)
    monkeypatch.undo()
    assert CurveIndex(index.path_of(run).parents[1]).read(run) is None


def test_a_run_without_metrics_is_not_behind(index, run):
    assert index.num_bytes_behind(run) == 0
    run.metrics_file.touch()
    assert index.refresh(run)
    assert len(index.read(run).steps) == 0

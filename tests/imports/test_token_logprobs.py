"""Tables with a log-probability per token: columns by name, steps, and damaged values in one line."""

from __future__ import annotations

import json

import pytest

from atrium.base.errors import ConfigError, DataError
from atrium.imports.token_logprobs import rows_by_step

ROW = {"problem_id": "a", "reward": 1.0, "logprobs": [-0.5, -1.0], "ratio": [1.0, 2.0]}


def written(path, *rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_rows_are_grouped_by_step_with_recognized_columns(tmp_path):
    table = written(tmp_path / "a.jsonl", {**ROW, "step": 1}, {**ROW, "step": 2}, {**ROW, "step": 1})
    assert [len(rows) for rows in rows_by_step(table, {})] == [2, 1]
    assert rows_by_step(table, {})[0][0] == ROW


def test_lists_in_a_csv_file_are_json(tmp_path):
    table = tmp_path / "a.csv"
    table.write_text('problem,acc,logps\nx,1,"[-0.5, -1]"\n')
    assert rows_by_step(table, {}) == [
        [{"problem_id": "x", "reward": 1.0, "logprobs": [-0.5, -1.0], "ratio": None}]
    ]


@pytest.mark.parametrize(
    ("row", "error", "word"),
    [
        ({"problem_id": "a", "reward": 1.0}, ConfigError, "no logprobs column"),
        ({**ROW, "logprobs": [0.5, -1.0]}, DataError, "at most 0"),
        ({**ROW, "logprobs": "low"}, DataError, "list of numbers"),
        ({**ROW, "ratio": [1.0]}, DataError, "expected 2 ratios"),
        ({**ROW, "reward": None}, DataError, "must be a number, got None"),
    ],
)
def test_a_damaged_row_is_one_line(tmp_path, row, error, word):
    with pytest.raises(error, match=word) as found:
        rows_by_step(written(tmp_path / "a.jsonl", row), {})
    assert "\n" not in str(found.value)

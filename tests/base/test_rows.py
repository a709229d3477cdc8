"""Rows of files: every kind alike, and what is damaged said in one line."""

from __future__ import annotations

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from atrium.base.errors import DataError
from atrium.base.rows import read_rows

ROWS = [{"problem": "1+1?", "answer": "2"}, {"problem": 'línea\nnueva, "q"', "answer": "3"}]
COLUMNS = {"problem", "answer"}


def _write(path, rows=ROWS):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix in (".csv", ".tsv"):
        mark = "," if path.suffix == ".csv" else "\t"
        quoted = [[f'"{value.replace(chr(34), chr(34) * 2)}"' for value in row.values()] for row in rows]
        path.write_text("\ufeff" + "\n".join(mark.join(cells) for cells in [list(rows[0]), *quoted]) + "\n")
    else:
        path.write_text("\n\n".join(json.dumps(row) for row in rows) + "\n")
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".json", ".parquet", ".csv", ".tsv", ".JSONL"])
def test_all_kinds_of_files_give_the_same_rows(tmp_path, suffix):
    assert list(read_rows(_write(tmp_path / f"rows{suffix}"), COLUMNS)) == ROWS


def test_json_may_be_lines_one_list_in_an_object_or_one_row(tmp_path):
    for text in (
        "\n".join(json.dumps(row) for row in ROWS),
        json.dumps({"version": "1", "problems": ROWS}),
        json.dumps(ROWS),
    ):
        (tmp_path / "rows.json").write_text(text)
        assert list(read_rows(tmp_path / "rows.json", COLUMNS)) == ROWS
    (tmp_path / "rows.json").write_text(json.dumps(ROWS[0]))
    assert list(read_rows(tmp_path / "rows.json", COLUMNS)) == ROWS[:1]


@pytest.mark.parametrize("prompt", [[{"role": "user", "content": "2+2"}], ["3", "4"]])
def test_json_object_with_a_list_of_messages_or_texts_is_one_row(prompt, tmp_path):
    row = {"prompt": prompt, "answer": "4"}
    (tmp_path / "rows.json").write_text(json.dumps(row))
    assert list(read_rows(tmp_path / "rows.json")) == [row]


def test_an_empty_list_in_a_json_object_has_no_rows_unless_other_values_are_beside_it(tmp_path):
    path = tmp_path / "rows.json"
    row = {"problem": "2+2", "answer": "4", "tags": []}
    path.write_text(json.dumps(row))
    assert list(read_rows(path)) == [row]
    path.write_text('{"problems": []}')
    assert list(read_rows(path)) == []


@pytest.mark.parametrize(
    "text",
    [
        'problem;answer\n1,5+1?;"2;5"\n',
        'sep=;\nproblem;answer\n1,5+1?;"2;5"\n',
        "problem\tanswer\n1,5+1?\t2;5\n",
        "problem|answer\n1,5+1?|2;5\n",
        'problem,answer\n"1,5+1?",2;5\n',
        '"problem";"answer"\n"1,5+1?";"2;5"\n',
        '"a, b";problem;answer\n;"1,5+1?";"2;5"\n',
        'problem;answer;in m, s, kg\n1,5+1?;"2;5";m\n',
        "problem\tanswer\ta;b;c;d\n1,5+1?\t2;5\tx\n",
        "problem|answer|a, b,c,d,e\n1,5+1?|2;5|x\n",
        'problem;answer;"a, b\n, c, d"\n1,5+1?;"2;5";"\n\n"\n',
    ],
)
def test_csv_delimiter_is_the_one_that_splits_records_like_the_header(tmp_path, text):
    (tmp_path / "rows.csv").write_text(text)
    (row,) = read_rows(tmp_path / "rows.csv", COLUMNS)
    assert (row["problem"], row["answer"]) == ("1,5+1?", "2;5")


def test_parquet_is_read_in_the_wanted_columns_and_names_the_others(tmp_path):
    path = _write(tmp_path / "rows.parquet", [{**row, "generations": ["long"] * 3} for row in ROWS])
    assert list(read_rows(path, {"answer", "gold"})) == [
        {"problem": None, "answer": row["answer"], "generations": None} for row in ROWS
    ]
    assert next(iter(read_rows(path, {"gold"})))["generations"] == ["long"] * 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.txt", b"", r"unknown kind of file; the name must end in one of \.jsonl"),
        ("rows.jsonl", b'{"problem": 1}\n{"prob', "line 2 is not valid JSON"),
        (
            "rows.jsonl",
            b'{"a": 1}\n{"a":\n{"a": 2}',
            r"line 2 is not valid JSON \(Expecting value at column 6",
        ),
        ("rows.jsonl", b'{"a": 1}\n{"b', r"\(Unterminated string at column 2\)"),
        ("rows.jsonl", b"[1, 2]\n", "line 1 is not an object"),
        ("rows.jsonl", b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        ("rows.jsonl", b'{"problem": "\xff"}\n', "is not UTF-8 text"),
        ("rows.jsonl", b'{"problem": "\\ud83d\\ude00"}\n{"problem": "\\ud800"}\n', "line 2 .*surrogates"),
        ("rows.json", b'["text"]', "entry 1 is not an object"),
        ("rows.json", b"3", "must contain a list of rows"),
        (
            "rows.csv",
            b"problem,answer\n1+1\n",
            r"line 2: expected 2 cells separated by ',', as in the header, got 1; put",
        ),
        ("rows.csv", b"problem,answer\n1,2,3\n", "line 2: expected 2 cells .*got 3"),
        ("rows.csv", b"a;b\n1;2\n3;4\n5;6;7,8\n", r"line 4: expected .*got 3; .*';'.* in double quotes"),
        ("rows.csv", b"sep=;\na;b\n1;2\n3\n", "line 4: expected 2 cells .*got 1"),
        ("rows.csv", b'problem,answer\n"1"1,2\n', "is not a valid CSV"),
        ("rows.parquet", b"PAR1", "is not a complete Parquet file"),
    ],
)
def test_a_damaged_file_is_one_line_that_says_where(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        list(read_rows(tmp_path / name, COLUMNS))
    assert "\n" not in str(caught.value)


def test_missing_file_is_one_line(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        list(read_rows(tmp_path / "rows.jsonl", COLUMNS))


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
@pytest.mark.parametrize("odd", ["pipe", "device", "endless"])
def test_pipe_device_or_huge_file_is_one_line_for_every_kind_of_file(tmp_path, suffix, odd):
    path = tmp_path / f"rows{suffix}"
    if odd == "pipe":
        os.mkfifo(path)
    elif odd == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)  # sparse: it takes no room
    with pytest.raises(DataError, match=r"not a regular file|more than|larger than|not a complete Parquet"):
        list(read_rows(path, COLUMNS))

from __future__ import annotations

import pytest

from atrium.base.json_lines import JsonLinesWriter, encode_line, keep_lines, read_json_lines


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def append_all(path, *records):
    writer = JsonLinesWriter(path)
    for record in records:
        writer.append(record)
    writer.close()


def test_appended_records_are_read_back_in_order(path):
    append_all(path, {"step": 1, "x": 0.1}, {"step": 2, "x": 1 / 3})
    lines = read_json_lines(path)
    assert lines.records == ({"step": 1, "x": 0.1}, {"step": 2, "x": 1 / 3})
    assert (lines.next_offset, lines.num_unreadable) == (path.stat().st_size, 0)


def test_missing_file_has_no_records(path):
    assert read_json_lines(path).records == ()


def test_reader_stops_before_an_incomplete_last_line_and_continues_once_it_is_complete(path):
    append_all(path, {"step": 1})
    whole = encode_line({"step": 2})
    with path.open("ab") as file:
        file.write(whole[:5])
    first = read_json_lines(path)
    assert first.records == ({"step": 1},)
    with path.open("ab") as file:
        file.write(whole[5:])
    assert read_json_lines(path, first.next_offset).records == ({"step": 2},)


def test_lines_without_an_object_are_counted_and_skipped(path):
    path.write_bytes(b'{"step":1}\n{"ste\xff\nnull\n[1]\n' + b"[" * 100_000 + b'\n\n{"step":2}\n')
    lines = read_json_lines(path)
    assert lines.records == ({"step": 1}, {"step": 2})
    assert lines.num_unreadable == 5


def test_writer_first_removes_the_incomplete_line_of_a_killed_writer(path):
    path.write_bytes(b'{"step":1}\n{"step":2,"rew')
    append_all(path, {"step": 2})
    assert path.read_bytes() == b'{"step":1}\n{"step":2}\n'


def test_full_disk_leaves_complete_lines_and_pending_ones_are_written_in_order_later(path, no_room_beyond):
    writer = JsonLinesWriter(path)
    writer.append({"step": 1})
    with no_room_beyond(path.stat().st_size + 4):
        for step in (2, 3):
            with pytest.raises(OSError, match=r"File too large|No space left"):
                writer.append({"step": step})
        assert path.read_bytes() == b'{"step":1}\n'
    writer.append({"step": 4})
    writer.close()
    assert path.read_bytes() == b'{"step":1}\n{"step":2}\n{"step":3}\n{"step":4}\n'


def test_kept_lines_are_bitwise_unchanged_and_broken_lines_are_removed(path):
    path.write_bytes(b'{"step": 1,  "x":1e0}\nbroken\n{"step":2}\n{"step":3}\n{"st')
    keep_lines(path, lambda record: record["step"] != 2)
    assert path.read_bytes() == b'{"step": 1,  "x":1e0}\n{"step":3}\n'


def test_file_without_removed_lines_is_not_rewritten(path):
    append_all(path, {"step": 1})
    before = path.stat().st_ino
    keep_lines(path, lambda record: True)
    assert path.stat().st_ino == before

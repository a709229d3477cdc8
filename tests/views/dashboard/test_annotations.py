from __future__ import annotations

import fcntl
import os
import threading

import pytest

from atrium.base.errors import RunFolderError
from atrium.views.dashboard.annotations import (
    FILE_NAME,
    Annotations,
    annotate,
    changed,
    read_annotations,
    write_annotations,
)


def test_what_is_written_is_read(tmp_path):
    said = Annotations(note="a note\nof two lines", tags=("good", "paper"), is_archived=True)
    write_annotations(tmp_path, said)
    assert read_annotations(tmp_path) == (said, None)


def test_a_run_that_nobody_annotated_has_none(tmp_path):
    assert read_annotations(tmp_path) == (Annotations(), None)


@pytest.mark.parametrize("content", ["", "[1]", '{"note": 3}', '{"tags": "x"}', '{"other": 1}', "\x00"])
def test_a_damaged_file_is_a_reason_and_no_crash(tmp_path, content):
    (tmp_path / FILE_NAME).write_text(content)
    said, reason = read_annotations(tmp_path)
    assert said == Annotations()
    assert FILE_NAME in reason


def test_a_change_leaves_the_rest():
    before = Annotations(note="n", tags=("a",))
    assert changed(before, {"is_archived": True}) == Annotations(note="n", tags=("a",), is_archived=True)
    assert changed(before, {"tags": [" b  c ", "b c", ""]}).tags == ("b c",)


def test_a_change_waits_for_another_dashboard_and_keeps_what_that_wrote(tmp_path):
    waiting = threading.Thread(target=annotate, args=(tmp_path, {"note": "ours"}))
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    waiting.start()
    waiting.join(timeout=0.2)
    write_annotations(tmp_path, Annotations(tags=("theirs",)))
    os.close(other)
    waiting.join()
    assert read_annotations(tmp_path)[0] == Annotations(note="ours", tags=("theirs",))


def test_a_damaged_file_is_not_replaced_by_a_change(tmp_path):
    (tmp_path / FILE_NAME).write_text('{"note": "a long story')
    with pytest.raises(RunFolderError, match="repair or remove"):
        annotate(tmp_path, {"tags": ["x"]})
    assert (tmp_path / FILE_NAME).read_text() == '{"note": "a long story'


@pytest.mark.parametrize(
    "changes",
    [
        None,
        [],
        {"name": "x"},
        {"note": None},
        {"note": "x" * 30_000},
        {"tags": ["x" * 100]},
        {"tags": [1]},
        {"tags": ["x"] * 100},
        {"is_archived": 1},
    ],
)
def test_what_is_no_annotation_is_refused(changes):
    with pytest.raises(RunFolderError):
        changed(Annotations(), changes)

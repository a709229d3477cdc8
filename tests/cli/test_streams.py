"""Commands whose output is closed, cut off, or cannot show every character, or whose folder is gone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_ATRIUM = f"{sys.executable} -m atrium"


def _run(command, **environment):
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (f"{_ATRIUM} objectives >&-", 0),
        (f"{_ATRIUM} nonsense >&- 2>&-", 2),
        (f"{_ATRIUM} --help <&- >&- 2>&-", 0),
    ],
)
def test_a_closed_stream_is_no_error(command, code):
    ended = _run(command)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", "")


def test_what_ascii_cannot_show_is_shown_as_a_question_mark():
    ended = _run(f"{_ATRIUM} objectives", PYTHONIOENCODING="ascii")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "?" in ended.stdout
    assert ended.stdout.isascii()


def test_a_reader_that_goes_away_ends_a_command_without_a_word():
    ended = _run(f"{_ATRIUM} objectives | head -1")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_full_disk_behind_a_commands_output_is_one_line():
    ended = _run(f"{_ATRIUM} objectives > /dev/full")
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert ended.stderr.startswith("error: cannot print the output because its disk is full")


def test_a_folder_that_was_removed_is_one_line(tmp_path):
    ended = _run(f"mkdir {tmp_path}/gone; cd {tmp_path}/gone; rmdir {tmp_path}/gone; {_ATRIUM} train")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert ended.stderr.startswith("error: the current folder was removed")

"""An error of the system is stated without its path, and with the remedy that fits its cause."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from atrium.base.atomic import explained
from atrium.base.errors import RunFolderError, reason_of


def test_the_reason_is_one_line_without_a_path_and_never_empty():
    assert reason_of(FileNotFoundError(2, os.strerror(2), "/a/b")) == "No such file or directory"
    assert reason_of(OSError("it is\n  not a file.")) == "it is not a file"
    assert reason_of(ValueError()) == "ValueError"
    assert reason_of(ValueError("a " * 300)).endswith("a…")


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.ENOSPC, "free disk space"), (errno.EEXIST, "check the path")]
)
def test_only_a_full_disk_asks_for_space(number, remedy):
    with (
        pytest.raises(RunFolderError, match=f"cannot write x: .*; {remedy}"),
        explained("write", Path("x")),
    ):
        raise OSError(number, os.strerror(number))

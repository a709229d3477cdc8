"""What is no regular file, or too large, stops no reader of run directories."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atrium.base.json_lines import read_json_lines
from atrium.base.plain_files import read_plain
from atrium.base.recorded import read_object
from atrium.cli.app import main
from atrium.runs.reader import read_overview
from atrium.runs.run_folder import RunFolder, log_into


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _endless(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: it takes no room


@pytest.mark.parametrize("make", [_pipe, _zeros, _endless])
def test_run_directory_of_pipes_and_devices_is_listed_and_read_without_blocking(tmp_path, make, capsys):
    folder = RunFolder.create(tmp_path, "tried", "grpo", 0)
    folder.status_file.unlink()
    for file in (folder.status_file, folder.config_file, folder.metrics_file, folder.evaluations_file):
        make(file)
    (tmp_path / "tried" / "whole").mkdir()
    RunFolder(tmp_path / "tried" / "whole").write_config({"seed": 1})
    assert read_overview(folder).problems
    assert main(["runs", "--runs-dir", str(tmp_path)]) == 0
    assert "whole" in capsys.readouterr().out


@pytest.mark.parametrize("make", [_pipe, _zeros])
def test_a_log_that_is_no_file_stops_nobody_who_writes_into_it(tmp_path, make):
    make(tmp_path / "log.txt")
    log_into(tmp_path / "log.txt", "a line")
    log_into(tmp_path / "whole.txt", "a line with \udcff")
    assert (tmp_path / "whole.txt").read_text().endswith("  a line with ?\n")


def test_files_that_are_not_regular_are_described_in_the_error(tmp_path):
    _pipe(tmp_path / "status.json")
    assert read_object(tmp_path / "status.json") == (
        {},
        "status.json cannot be read: it is not a regular file",
    )
    _endless(tmp_path / "metrics.jsonl")
    with pytest.raises(OSError, match="it is larger than 4096 MB"):
        read_json_lines(tmp_path / "metrics.jsonl")


def test_bytes_beyond_an_offset_are_what_counts(tmp_path):
    (tmp_path / "lines").write_bytes(b"0123456789")
    assert read_plain(tmp_path / "lines", 4, offset=7) == b"789"
    with pytest.raises(OSError, match="it is larger than"):
        read_plain(tmp_path / "lines", 4)

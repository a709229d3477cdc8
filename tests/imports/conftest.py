"""A place for imports, and the command."""

from __future__ import annotations

import pytest

from atrium.cli.app import main


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """An empty directory, whose files are not flushed to disk."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.fixture
def imported(capsys):
    """Run `atrium import` with arguments; the exit code, and what it printed."""

    def run(*arguments):
        capsys.readouterr()
        code = main(["import", *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run

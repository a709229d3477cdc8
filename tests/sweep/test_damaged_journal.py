"""A journal that others wrote into is named in one line, and a folder may be called anything."""

from __future__ import annotations

import pytest

from atrium.base.errors import ConfigError, SweepError
from atrium.sweep.storage import SweepStorage, storage_url


@pytest.mark.parametrize("line", ["garbage", "[]", "{}", '{"op_code": "x"}', "\udcff"])
def test_a_line_of_a_journal_that_is_no_operation_is_named(tmp_path, line):
    url = storage_url("journal", tmp_path)
    storage = SweepStorage(url)
    journal = tmp_path / "journal.log"
    journal.write_bytes(line.encode(errors="surrogateescape") + b"\n" + journal.read_bytes() + b"{}\n")
    with pytest.raises(SweepError, match="is not an operation of Optuna") as found, storage.explained():
        storage.optuna.get_all_studies()
    with pytest.raises(SweepError, match="is not an operation of Optuna"):
        SweepStorage(url)
    assert "\n" not in str(found.value)


def test_a_folder_of_runs_may_have_a_question_mark_in_its_name(tmp_path):
    folder = tmp_path / "what?"
    storage = SweepStorage(storage_url("journal", folder))
    assert storage.path == folder / "journal.log"
    assert storage.path.is_file()
    with pytest.raises(ConfigError, match="use storage=journal"):
        storage_url("sqlite", folder)

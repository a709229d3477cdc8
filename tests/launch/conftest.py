from __future__ import annotations

import pytest

from atrium.runs.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "runs", "launched", "atr", 0)

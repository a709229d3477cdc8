from __future__ import annotations

import gc
import sys

import pytest

from atrium.base.loading import loading


@pytest.fixture(autouse=True)
def _thawed():
    yield
    gc.unfreeze()


def load_what_is_missing():
    with loading():
        assert not gc.isenabled()
        raise ModuleNotFoundError


def test_the_collector_rests_while_libraries_load_and_works_again_after_a_failure():
    with pytest.raises(ModuleNotFoundError):
        load_what_is_missing()
    assert gc.isenabled()


def test_what_new_libraries_made_is_not_looked_through_again(monkeypatch):
    before = gc.get_freeze_count()
    with loading():
        pass
    assert gc.get_freeze_count() == before
    with loading():
        monkeypatch.setitem(sys.modules, "new_library", sys)
    assert gc.get_freeze_count() > before

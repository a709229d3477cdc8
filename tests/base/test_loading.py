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


def test_garbage_collector_is_off_during_imports_and_on_again_after_a_failure():
    with pytest.raises(ModuleNotFoundError):
        load_what_is_missing()
    assert gc.isenabled()


def test_objects_of_imported_libraries_are_frozen_for_the_garbage_collector(monkeypatch):
    before = gc.get_freeze_count()
    with loading():
        pass
    assert gc.get_freeze_count() == before
    with loading():
        monkeypatch.setitem(sys.modules, "new_library", sys)
    assert gc.get_freeze_count() > before

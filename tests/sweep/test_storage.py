"""The storage under a sweep: missing, replaced, locked, full or torn, it is one clear line and no more."""

from __future__ import annotations

import resource
import sqlite3
import threading
import time

import optuna
import pytest
from tests.sweep.conftest import ScriptedRuns, new_worker

from atrium.base.errors import ConfigError, MissingDependencyError, SweepError
from atrium.sweep import storage as module
from atrium.sweep.setup import known_storage, prepare
from atrium.sweep.storage import SweepStorage, storage_url, without_password


def test_passwords_are_never_shown():
    assert without_password("postgresql://me:secret@host/db") == "postgresql://me:***@host/db"
    in_query = without_password("postgresql://host/db?user=me&password=s3&sslpassword=s4&sslmode=require")
    assert in_query == "postgresql://host/db?user=me&password=***&sslpassword=***&sslmode=require"
    assert without_password("postgresql://:secret@host/db") == "postgresql://:***@host/db"
    assert without_password("postgresql://me:s@cre@t@host/db") == "postgresql://me:***@host/db"
    assert without_password("sqlite:////tmp/a@b/study.db") == "sqlite:////tmp/a@b/study.db"


@pytest.mark.parametrize("wanted", ["jurnal", "mongodb://host/db", "/tmp/x.db", "journal://x.log"])
def test_an_unknown_kind_of_storage_is_refused(tmp_path, wanted):
    with pytest.raises(ConfigError, match="must be journal, sqlite, or a URL"):
        storage_url(wanted, tmp_path)


def test_a_database_without_its_driver_names_what_to_install(tmp_path):
    with pytest.raises(MissingDependencyError, match="requires the driver of postgresql\\+pg8000"):
        SweepStorage("postgresql+pg8000://me@localhost/none")


def test_a_file_that_is_no_database_is_said(tmp_path):
    (tmp_path / "study.db").write_bytes(b"this is no database, it only says so" * 40)
    with pytest.raises(SweepError, match="file is not a database"):
        SweepStorage(storage_url("sqlite", tmp_path))


def test_a_sweep_that_does_not_exist_is_said_with_those_that_do(tmp_path):
    with pytest.raises(SweepError, match="existing sweeps: none"):
        known_storage(str(tmp_path), "delta")


def stopped_by(storage, definition, disturb):
    """What stops a worker whose storage is disturbed during its second run; its thread is gone then."""
    prepare(storage, definition)
    runs = ScriptedRuns(lambda config: 0.5)
    slow = threading.Event()

    def execute(run, watch):
        if len(runs.calls) == 1:
            disturb()
            for step in range(1, 5000):
                watch.step(step, {})  # a long run, in which the heartbeat notices
                slow.wait(0.02)
        return runs(run, watch)

    worker = new_worker(storage, definition, execute)
    with pytest.raises(SweepError) as caught:
        worker.work()
    assert "\n" not in str(caught.value)
    assert not [thread for thread in threading.enumerate() if "_beat_until" in thread.name]
    return str(caught.value)


def test_a_storage_that_is_removed_stops_the_worker_with_a_message(storage, define):
    said = stopped_by(storage, define(), storage.path.unlink)
    assert "was removed or replaced" in said


def test_a_journal_that_is_removed_is_not_begun_anew(journal, define):
    prepare(journal, define())
    journal.path.unlink()
    with pytest.raises(SweepError), journal.explained():
        optuna.create_study(storage=journal.optuna, study_name="another")
    assert not journal.path.exists()


@pytest.mark.full
def test_a_locked_database_stops_the_worker_with_a_message(tmp_path, define, monkeypatch):
    monkeypatch.setattr(module, "_LOCK_TIMEOUT_S", 0.2)
    storage = SweepStorage(storage_url("sqlite", tmp_path))
    holder = sqlite3.connect(storage.path, isolation_level=None, check_same_thread=False)
    try:
        said = stopped_by(storage, define(), lambda: holder.execute("BEGIN EXCLUSIVE"))
    finally:
        holder.close()
    assert "database is locked" in said


@pytest.fixture
def full_disk():
    """Let no file of this process grow beyond a size, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_stops_the_worker_and_room_lets_the_same_sweep_go_on(journal, define, full_disk):
    definition = define()
    prepare(journal, definition)
    runs = ScriptedRuns(lambda config: 0.5)
    full_disk(journal.path.stat().st_size + 1500)
    first = new_worker(journal, definition, runs)
    with pytest.raises(SweepError, match=r"failed: File too large"):
        first.work()
    full_disk(resource.RLIM_INFINITY)
    first._claims.end()  # as the end of its process would
    again = SweepStorage(journal.url)
    worker = new_worker(again, definition, runs)
    worker.work()
    assert [trial.state.name for trial in worker._studies.trials("search")] == ["COMPLETE"] * 3


def test_the_end_of_a_torn_write_is_cut_off(journal, define):
    prepare(journal, define())
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole + b'{"op_code": 4, "wor')
    optuna.create_study(storage=journal.optuna, study_name="after")
    assert journal.path.read_bytes().startswith(whole + b'{"op_code":0')
    assert "after" in optuna.get_all_study_names(SweepStorage(journal.url).optuna)


def test_a_lock_is_free_when_its_holder_is_gone(journal):
    first = module._KernelLock(journal.path)
    first.acquire()
    second = module._KernelLock(journal.path)
    got = threading.Thread(target=second.acquire)
    got.start()
    time.sleep(0.05)
    assert got.is_alive()
    first.release()
    got.join(100)
    assert not got.is_alive()
    second.release()

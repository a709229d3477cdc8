from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from atrium.base.errors import RunFolderError
from atrium.runs.run_folder import RunFolder

HOLD = """
import sys
from pathlib import Path
from atrium.runs.run_folder import RunFolder
lock = RunFolder(Path(sys.argv[1])).lock()
print("held", flush=True)
sys.stdin.read()
"""
HOLD_WITH_FORKED_CHILD = """
import os, sys
from pathlib import Path
from atrium.runs.run_folder import RunFolder
lock = RunFolder(Path(sys.argv[1])).lock()
if os.fork() == 0:
    print(os.getpid(), flush=True)
sys.stdin.read()
"""
"""The child speaks: only then has it been through what a fork does to the lock."""


def start(code, folder):
    command = [sys.executable, "-c", code, str(folder.path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def holder(code, folder):
    process = start(code, folder)
    return process, process.stdout.readline().strip()


def end(process):
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_lock_held_by_another_process_is_refused_with_its_owner(folder):
    process, said = holder(HOLD, folder)
    try:
        assert said == "held"
        with pytest.raises(RunFolderError, match=r"is in use by process \d+ on"):
            folder.lock()
    finally:
        end(process)


def test_the_lock_is_free_at_once_when_its_process_is_killed(folder):
    process, _ = holder(HOLD, folder)
    end(process)
    with folder.lock(), pytest.raises(RunFolderError, match="in use"):
        folder.lock()


def test_a_forked_child_that_outlives_its_parent_does_not_keep_the_lock(folder):
    process, child = holder(HOLD_WITH_FORKED_CHILD, folder)
    process.kill()
    process.wait()
    try:
        with folder.lock(), pytest.raises(RunFolderError, match="in use"):
            folder.lock()
    finally:
        os.kill(int(child), signal.SIGKILL)  # which raises unless it did outlive its parent
        end(process)
    assert process.returncode == -signal.SIGKILL


def test_two_processes_never_get_the_lock_at_once(folder):
    take = "lock = RunFolder(Path(sys.argv[1])).lock()"
    code = HOLD.replace(take, f"try:\n    {take}\nexcept RunFolderError:\n    sys.exit(print('refused'))")
    code = code.replace("import RunFolder\n", "import RunFolder, RunFolderError\n")
    takers = [start(code, folder) for _ in range(4)]
    said = sorted(taker.stdout.readline().strip() for taker in takers)
    for taker in takers:
        end(taker)
    assert said == ["held", "refused", "refused", "refused"]


def test_a_released_lock_can_be_taken_again_and_released_twice(folder):
    lock = folder.lock()
    with pytest.raises(RunFolderError):
        folder.lock()
    lock.release()
    lock.release()
    folder.lock().release()


def test_reading_a_locked_folder_is_possible(folder):
    with folder.lock():
        assert RunFolder.open(folder.path).name == folder.name

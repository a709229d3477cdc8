from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, replace

import psutil
import pytest

from atrium.runs.reader import read_overview
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import (
    RunState,
    RunStatus,
    StatusUnreadableError,
    StatusWriter,
    concluded_state,
    read_status,
)

TRAIN = """
import sys, time
from pathlib import Path
from atrium.runs.run_folder import RunFolder
from atrium.runs.run_folder_writer import RunFolderWriter
tracker = RunFolderWriter(RunFolder(Path(sys.argv[1])))
tracker.begin(step=0, num_steps=100)
for step in range(1, 4):
    tracker.step(step, {"rollout/reward": 0.5})
print("going", flush=True)
time.sleep(60)
"""


@pytest.fixture
def here():
    process = psutil.Process()
    return RunStatus(pid=os.getpid(), pid_started=process.create_time(), host=socket.gethostname())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "status.json"


class Clock:
    def __init__(self, now):
        self.now = now

    def __call__(self):
        return self.now


def test_a_run_is_running_while_its_process_lives_and_killed_once_it_is_killed(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", TRAIN, str(folder.path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "going\n"
    assert read_overview(folder).state is RunState.RUNNING
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
    assert read_overview(folder).state is RunState.KILLED
    process.wait()
    process.stdout.close()
    overview = read_overview(folder)
    assert overview.state is RunState.KILLED
    assert (overview.status.step, overview.status.num_steps) == (3, 100)


def test_a_later_process_with_the_same_number_is_not_taken_for_the_run(here):
    assert concluded_state(here) is RunState.RUNNING
    assert concluded_state(replace(here, pid_started=here.pid_started - 3600)) is RunState.KILLED


def test_nothing_is_concluded_about_a_process_on_another_host(here):
    elsewhere = replace(here, host="another-host", pid=2**22 + 1)
    assert concluded_state(elsewhere) is RunState.RUNNING
    assert concluded_state(replace(elsewhere, host=here.host)) is RunState.KILLED


@pytest.mark.parametrize("pid", [0, -1, 10**12])
def test_impossible_process_numbers_are_dead(here, pid):
    assert concluded_state(replace(here, pid=pid)) is RunState.KILLED


@pytest.mark.parametrize("state", [RunState.FINISHED, RunState.INTERRUPTED, RunState.FAILED])
def test_state_of_an_ended_run_is_as_recorded(here, state):
    assert concluded_state(replace(here, state=state, pid=0)) is state


def test_a_start_whose_process_is_gone_is_a_failed_start(here):
    starting = replace(here, state="starting")
    assert concluded_state(starting) is RunState.STARTING
    assert concluded_state(replace(starting, pid=0)) is RunState.FAILED_START
    elsewhere = replace(starting, host="elsewhere", updated=1.0, beat_s=15.0)
    assert concluded_state(elsewhere) is RunState.FAILED_START


def test_a_failure_before_training_was_set_up_is_a_failed_start_in_format_1_too(here):
    failed = replace(here, state="failed", num_steps=0, format_version=1)
    assert concluded_state(failed) is RunState.FAILED_START
    assert concluded_state(replace(failed, num_steps=3)) is RunState.FAILED
    assert concluded_state(replace(failed, format_version=2)) is RunState.FAILED


def test_a_resumed_run_that_fails_before_its_next_step_has_failed_and_is_no_failed_start(path):
    first = StatusWriter(path)
    first.begin(step=0, num_steps=4)
    first.advance(1)
    first.end(RunState.INTERRUPTED)
    StatusWriter(path).end(RunState.FAILED, "there is no model", "settings")
    status = read_status(path)
    assert (status.state, status.cause) == ("failed", "settings")


def test_a_failed_start_that_is_tried_again_is_starting_again(path):
    StatusWriter(path).end(RunState.FAILED, "no room")
    assert (read_status(path).state, read_status(path).cause) == ("failed_start", "error")
    second = StatusWriter(path)
    second.begin(step=0, num_steps=4)
    assert (read_status(path).state, read_status(path).error) == ("starting", None)
    second.record_start()
    assert read_status(path).state == "running"


def test_a_state_from_a_newer_version_is_unknown(here):
    assert concluded_state(replace(here, state="paused")) is RunState.UNKNOWN


def test_fields_of_a_newer_format_are_ignored_and_wrong_types_are_left_out(path, here):
    path.write_text(
        json.dumps({**asdict(here), "format_version": 9, "step": "many", "novel": [1], "num_steps": True})
    )
    status = read_status(path)
    assert (status.format_version, status.step, status.num_steps, status.pid) == (9, 0, 0, os.getpid())


@pytest.mark.parametrize("time_s", ["Infinity", "NaN", "1e30", "9" * 400])
def test_times_without_a_date_are_left_out(path, time_s):
    path.write_text(f'{{"started": {time_s}, "updated": 1.5}}')
    assert (read_status(path).started, read_status(path).updated) == (0.0, 1.5)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_status_is_an_error_with_words(path, content):
    path.write_bytes(content)
    with pytest.raises(StatusUnreadableError, match=r"status\.json"):
        read_status(path)


def test_steps_are_written_now_and_then_and_the_end_always(path):
    clock = Clock(1000.0)
    writer = StatusWriter(path, interval_s=1.0, clock=clock)
    writer.begin(step=0, num_steps=10)
    writer.record_start()
    for step in range(1, 10):
        clock.now += 0.3
        writer.advance(step)
    assert read_status(path).step == 8  # written at 1.2 s and 2.4 s
    writer.end(RunState.FAILED, "\nboom: it broke\nTraceback ...")
    status = read_status(path)
    assert (status.state, status.step, status.error) == ("failed", 9, "boom: it broke")


def test_a_clock_that_was_set_back_does_not_silence_the_status(path):
    clock = Clock(1000.0)
    writer = StatusWriter(path, interval_s=1.0, clock=clock)
    writer.begin(step=0, num_steps=10)
    clock.now = 10.0
    writer.advance(5)
    assert read_status(path).step == 5
    assert read_status(path).wall_s == 0.0


def test_wall_time_adds_up_over_sessions_without_the_time_between(path):
    clock = Clock(1000.0)
    first = StatusWriter(path, clock=clock)
    first.begin(step=0, num_steps=10)
    clock.now = 1010.0
    first.end(RunState.INTERRUPTED)
    clock.now = 5000.0
    second = StatusWriter(path, clock=clock)
    second.begin(step=4, num_steps=10)
    clock.now = 5005.0
    second.end(RunState.FINISHED)
    status = read_status(path)
    assert (status.wall_s, status.started, status.error) == (15.0, 1000.0, None)


def test_set_up_between_making_the_folder_and_training_counts_as_wall_time(path):
    clock = Clock(1000.0)
    StatusWriter(path, clock=clock).begin(step=0, num_steps=0)
    clock.now = 1020.0
    writer = StatusWriter(path, clock=clock)
    writer.begin(step=0, num_steps=10)
    clock.now = 1050.0
    writer.end(RunState.FINISHED)
    assert read_status(path).wall_s == 50.0


def test_a_run_whose_folder_was_copied_is_not_taken_for_running(tmp_path, folder, here):
    copy = RunFolder(tmp_path / "copy")
    copy.path.mkdir()
    copy.status_file.write_text(json.dumps(asdict(replace(here, pid=2**22 + 1))))
    assert read_overview(copy).state is RunState.KILLED


def test_run_on_another_host_is_lost_after_its_status_updates_stop(path, here):
    clock = Clock(10_000.0)
    beating = replace(here, host="elsewhere", pid=1, beat_s=15.0, updated=clock.now)
    clock.now += 180.0
    assert concluded_state(beating, clock=clock) is RunState.RUNNING
    clock.now += 30.0
    assert concluded_state(beating, clock=clock) is RunState.LOST
    # A version that promised nothing, and a run that ended, are what they say.
    assert concluded_state(replace(beating, beat_s=0.0), clock=clock) is RunState.RUNNING
    assert concluded_state(replace(beating, state="finished"), clock=clock) is RunState.FINISHED


def test_a_status_is_written_while_nothing_happens_until_the_run_ends(path):
    writer = StatusWriter(path)
    writer.begin(step=0, num_steps=5)
    before = read_status(path)
    assert before.beat_s == 0.0
    writer.keep_beating(0.02)
    deadline = time.monotonic() + 100.0
    while read_status(path).updated == before.updated:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert read_status(path).beat_s == 0.02
    writer.end(RunState.FINISHED)
    ended = read_status(path)
    writer.beat()
    time.sleep(0.1)
    assert read_status(path) == ended


def test_a_finished_run_whose_resumption_fails_before_it_goes_on_stays_finished(tmp_path):
    path = tmp_path / "status.json"
    first = StatusWriter(path)
    first.begin(step=0, num_steps=2)
    first.advance(2)
    first.end(RunState.FINISHED)
    StatusWriter(path).end(RunState.FAILED, "the data changed", "data")
    kept = read_status(path)
    assert (kept.state, kept.step, kept.error, kept.cause) == (RunState.FINISHED, 2, None, None)
    resumed = StatusWriter(path)
    resumed.begin(step=2, num_steps=4)
    resumed.end(RunState.FAILED, "the engine is gone", "engine")
    assert read_status(path).state == RunState.FAILED

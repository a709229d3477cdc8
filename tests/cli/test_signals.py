"""A run that is asked to end before it trains ends in one line, and its folder says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from atrium.base.errors import Interrupted
from atrium.base.processes import END_SIGNALS, STOP_SIGNALS, stop_requests, stopped_at_once
from atrium.runs.find import list_runs
from atrium.runs.status import RunState, read_status

_PATIENCE_S = 120.0


def _started(runs_dir):
    """A run that has said what it computes with, which it says before torch is loaded."""
    process = subprocess.Popen(
        [sys.executable, "-m", "atrium", "train", "debug=tiny_steps", f"runs_dir={runs_dir}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert any(line.startswith("compute:") for line in process.stdout)
    return process


def _ended(process):
    """The exit code, and the last line on standard error; Python may speak of a finalizer before it."""
    _, said = process.communicate(timeout=_PATIENCE_S)
    return process.returncode, said.splitlines()[-1]


@pytest.mark.full
def test_a_signal_while_torch_is_loaded_ends_in_one_line(tmp_path):
    process = _started(tmp_path)
    process.send_signal(signal.SIGTERM)
    code, said = _ended(process)
    assert code == 130
    assert "stopped" in said


@pytest.mark.full
def test_a_signal_while_the_parts_are_built_is_recorded_in_the_folder(tmp_path):
    process = _started(tmp_path)
    deadline = time.monotonic() + _PATIENCE_S
    while not (runs := [run for run in list_runs(tmp_path) if run.config_file.is_file()]):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGHUP)
    code, _ = _ended(process)
    assert code == 130
    assert read_status(runs[0].status_file).state == RunState.INTERRUPTED


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_that_stops_at_once_raises_its_error(number):
    with (
        pytest.raises(Interrupted, match=f"stopped by {number}"),
        stopped_at_once(lambda number: Interrupted(f"stopped by {number}")),
    ):
        os.kill(os.getpid(), number)


def _swallowed(stop_if_asked):
    with suppress(Exception):
        signal.raise_signal(signal.SIGTERM)
    stop_if_asked()


def _explained(_):
    try:
        signal.raise_signal(signal.SIGTERM)
    except Exception as error:
        raise ImportError("this library cannot be loaded") from error


@pytest.mark.parametrize("body", [_swallowed, _explained])
def test_a_signal_that_a_library_swallows_or_explains_in_its_own_way_is_not_lost(body):
    with (
        pytest.raises(Interrupted, match="stopped by 15"),
        stopped_at_once(lambda number: Interrupted(f"stopped by {number}")) as stop_if_asked,
    ):
        body(stop_if_asked)


@pytest.mark.parametrize("number", END_SIGNALS)
def test_nohup_alone_keeps_a_signal_from_being_heard(number):
    before = signal.signal(number, signal.SIG_IGN)
    heard = []
    try:
        with stop_requests(heard.append, [number]):
            signal.raise_signal(number)
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)
    assert heard == ([] if number == signal.SIGHUP else [number])

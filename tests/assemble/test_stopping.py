"""Signals while a run is prepared, and while it steps."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest

from atrium.assemble.run import StopRequests
from atrium.errors import Interrupted
from atrium.processes import STOP_SIGNALS, stop_requests


@pytest.fixture
def should_stop():
    return StopRequests(lambda line: None)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_before_the_first_step_ends_the_run_as_interrupted(should_stop, number):
    with pytest.raises(Interrupted, match="before the first step"), stop_requests(should_stop.ask):
        os.kill(os.getpid(), number)


def _swallowed():
    with suppress(Exception):
        signal.raise_signal(signal.SIGTERM)


def _explained():
    try:
        signal.raise_signal(signal.SIGTERM)
    except Exception as error:
        raise ImportError("this library cannot be loaded") from error


@pytest.mark.parametrize("body", [_swallowed, _explained])
def test_a_signal_that_a_library_swallows_or_explains_in_its_own_way_is_not_lost(should_stop, body):
    with stop_requests(should_stop.ask), pytest.raises(Interrupted), should_stop.before_steps():
        body()


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_while_it_steps_waits_for_the_step(should_stop, number):
    with stop_requests(should_stop.ask):
        with should_stop.before_steps():
            pass
        assert not should_stop()
        os.kill(os.getpid(), number)
        assert should_stop()


def test_a_second_ctrl_c_stops_at_once_and_the_handlers_are_put_back(should_stop):
    before = signal.getsignal(signal.SIGINT)
    with stop_requests(should_stop.ask):
        with should_stop.before_steps():
            pass
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before

"""Signals while a run steps."""

from __future__ import annotations

import os
import signal

import pytest

from atrium.assemble.run import StopRequests
from atrium.base.processes import STOP_SIGNALS, stop_requests


@pytest.fixture
def should_stop():
    return StopRequests(lambda line: None)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_while_it_steps_waits_for_the_step(should_stop, number):
    with stop_requests(should_stop.ask):
        assert not should_stop()
        os.kill(os.getpid(), number)
        assert should_stop()


def test_a_second_ctrl_c_stops_at_once_and_the_handlers_are_put_back(should_stop):
    before = signal.getsignal(signal.SIGINT)
    with stop_requests(should_stop.ask):
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before

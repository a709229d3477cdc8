"""Stop requests: which handler sees a signal, and what an outer one can learn of it."""

from __future__ import annotations

import os
import signal

from atrium.base.processes import received, stop_requests


def test_a_signal_in_a_nested_body_is_received_although_only_the_inner_request_is_called():
    outer, inner = [], []
    num_before = len(received)
    with stop_requests(outer.append, [signal.SIGUSR1]):
        with stop_requests(inner.append, [signal.SIGUSR1]):
            os.kill(os.getpid(), signal.SIGUSR1)
        assert (outer, inner, received[num_before:]) == ([], [signal.SIGUSR1], [signal.SIGUSR1])
        os.kill(os.getpid(), signal.SIGUSR1)
    assert outer == [signal.SIGUSR1]

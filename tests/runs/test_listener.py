"""Listeners of a run: in which order they hear it, one that fails, one that is slow, one that stops it."""

from __future__ import annotations

import pytest

from atrium.base.errors import Pruned, RunFolderError
from atrium.runs.listener import Listener, Listeners
from atrium.runs.status import RunState


class Hearing(Listener):
    """Notes in `heard` all that it is told; `at_step` is done within a step."""

    def __init__(self, name, heard, *, at_step=None, may_stop=False):
        self.name, self.heard, self.may_stop = name, heard, may_stop
        self.at_step = at_step or (lambda: None)

    def step(self, step, metrics):
        self.heard.append((self.name, step))
        self.at_step()

    def message(self, text):
        self.heard.append((self.name, text))

    def wants_rollouts(self, step):
        return self.name == "b" and step == 2

    def end(self, state, error=None, cause=None):
        self.heard.append((self.name, state))
        if self.may_stop and self.at_step.__name__ == "lose":
            self.at_step()


def play(listeners, num_steps=3):
    for step in range(1, num_steps + 1):
        listeners.step(step, {})
    listeners.end(RunState.FINISHED)


def test_each_listener_receives_every_event_in_order():
    heard = []
    play(Listeners([Hearing(name, heard) for name in "abc"]), num_steps=2)
    assert heard == [(name, what) for what in (1, 2, RunState.FINISHED) for name in "abc"]


def test_rollouts_are_wanted_if_any_listener_wants_them():
    listeners = Listeners([Hearing(name, []) for name in "abc"])
    assert [listeners.wants_rollouts(step) for step in (1, 2, 3)] == [False, True, False]
    assert not Listeners([]).wants_rollouts(2)


def test_failed_listener_is_reported_once_and_then_receives_only_the_end():
    def fail():
        raise ZeroDivisionError("a defect\nin two lines")

    heard = []
    play(Listeners([Hearing("a", heard), Hearing("b", heard, at_step=fail), Hearing("c", heard)]))
    assert [what for name, what in heard if name == "b"] == [1, RunState.FINISHED]
    said = "b failed and is ignored from now on: a defect in two lines"
    for name in "ac":
        assert sorted(map(str, (what for who, what in heard if who == name))) == sorted(
            [said, "1", "2", "3", "finished"]
        )


def test_listener_that_may_stop_stops_the_run_before_later_listeners_receive_the_step():
    def prune():
        raise Pruned("its curve fell behind")

    heard = []
    watcher = Hearing("watcher", heard, at_step=prune, may_stop=True)
    with pytest.raises(Pruned, match="fell behind"):
        play(Listeners([Hearing("a", heard), watcher, Hearing("c", heard)]))
    assert heard == [("a", 1), ("watcher", 1)]


def test_all_listeners_receive_the_end_although_the_first_raises():
    def lose():
        raise RunFolderError("the folder is gone")

    heard = []
    folder = Hearing("folder", heard, at_step=lose, may_stop=True)
    with pytest.raises(RunFolderError, match="is gone"):
        Listeners([folder, Hearing("b", heard)]).end(RunState.FAILED, "why")
    assert heard == [("folder", RunState.FAILED), ("b", RunState.FAILED)]


def test_slow_listener_is_reported_once_and_still_receives_events():
    now = [0.0]

    def wait():
        now[0] += 25.0

    heard = []
    slow = Hearing("the mirror", heard, at_step=wait)
    play(Listeners([Hearing("a", heard), slow], clock=lambda: now[0]))
    assert [what for name, what in heard if name == "the mirror"][:2] == [
        1,
        "the mirror delayed the run by 25 s",
    ]
    assert [what for name, what in heard if name == "a"] == [
        1,
        "the mirror delayed the run by 25 s",
        2,
        3,
        RunState.FINISHED,
    ]

"""Deliveries to a tracker that may be down, refuse, or lose its process; training's folder is the record.

The tracker here is a small one of its own, kept in memory: it obeys the contract of `Destination`, and what
it holds is compared with what the run recorded.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from functools import partial

import pytest

from atrium.base.errors import ConfigError, RunFolderError
from atrium.cli.app import main
from atrium.config.compose import compose
from atrium.runs.lock import RunLock
from atrium.runs.mirrors import delivery
from atrium.runs.mirrors.delivery import (
    Delivered,
    Delivery,
    MirrorError,
    Mirrors,
    delivered_file,
    describe,
    read_delivered,
)
from atrium.runs.run_folder import RunFolder
from atrium.runs.run_folder_writer import RunFolderWriter
from atrium.runs.status import RunState


class MemoryTracker:
    """Values by (step, name), as a tracker whose connection can be cut."""

    def __init__(self, target="memory", can_continue=True):
        self.target = target
        self.values = {}
        self.num_sent = 0
        self.ended = None
        self.fails_after = None
        self.is_down = False
        self.can_continue = can_continue

    def open(self, delivered):
        if self.is_down:
            raise MirrorError("connection refused")
        self.ended = None
        if not self.can_continue:
            self.values = {}
            return Delivered(target=self.target, remote="r", where="w")
        return replace(delivered, remote="r", where="w")

    def send(self, rows):
        for row in rows:
            if self.fails_after is not None and self.num_sent >= self.fails_after:
                raise MirrorError("connection reset")
            for name, value in row.values.items():
                assert (row.step, name) not in self.values, "delivered twice"
                self.values[row.step, name] = value
            self.num_sent += 1

    def finish(self, state, ended, findings):
        self.ended, self.findings = state, findings

    def close(self):
        pass


@pytest.fixture
def training(tmp_path):
    """A run directory, and a function that records steps up to one."""
    folder = RunFolder.create(tmp_path / "runs", "study", "atr", 0)
    folder.write_config({"seed": 0})
    tracker = RunFolderWriter(folder)
    tracker.begin(step=0, num_steps=250)
    recorded = iter(range(1, 10_000))

    def train(num_steps):
        for _ in range(num_steps):
            step = next(recorded)
            tracker.step(step, {"rollout/reward": step / 100})

    yield folder, train, tracker
    tracker.close()


def deliver_once(folder, tracker):
    """What a process of its own does, such as `atrium sync`."""
    delivery = Delivery(folder=folder, kind="memory", destination=tracker)
    try:
        return delivery.deliver()
    finally:
        delivery.close()


def wait_until(holds, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def expected(num_steps):
    return {(step, "rollout/reward"): step / 100 for step in range(1, num_steps + 1)}


def test_a_run_is_delivered_while_it_trains_and_to_its_end(training):
    folder, train, tracker = training
    memory = MemoryTracker()
    delivery = Delivery(folder=folder, kind="memory", destination=memory)
    train(3)
    assert not delivery.deliver()
    assert memory.values == expected(2)
    train(250)
    tracker.end(RunState.FINISHED)
    assert delivery.deliver()
    assert memory.values == expected(253)
    assert (memory.ended, memory.findings) == (RunState.FINISHED, "")


def test_findings_are_sent_to_the_tracker_after_the_run(training):
    folder, _, tracker = training
    tracker.step(1, {"optimizer/grad_norm": math.inf})
    tracker.end(RunState.FINISHED)
    memory = MemoryTracker()
    assert deliver_once(folder, memory)
    assert memory.findings.startswith("divergence, step 1: optimizer/grad_norm is not a finite number")


def test_failing_tracker_is_reported_once_and_receives_missing_data_later(training):
    folder, train, tracker = training
    memory = MemoryTracker()
    memory.is_down = True
    delivery = Delivery(folder=folder, kind="memory", destination=memory)
    train(5)
    for _ in range(3):
        with pytest.raises(MirrorError) as failure:
            delivery.deliver()
        delivery.report(failure.value)
    assert folder.log_file.read_text().count("connection refused") == 1
    assert read_delivered(folder, "memory").problem == "memory: connection refused"
    memory.is_down = False
    tracker.end(RunState.FINISHED)
    assert delivery.deliver()
    assert memory.values == expected(5)
    assert read_delivered(folder, "memory").problem is None


def test_a_connection_cut_in_the_middle_loses_nothing_and_repeats_nothing(training):
    folder, train, tracker = training
    train(230)
    tracker.end(RunState.FINISHED)
    memory = MemoryTracker()
    memory.fails_after = 100
    delivery = Delivery(folder=folder, kind="memory", destination=memory)
    with pytest.raises(MirrorError):
        delivery.deliver()
    memory.fails_after = None
    assert delivery.deliver()
    assert memory.values == expected(230)


def test_another_process_continues_the_delivery_of_a_killed_one(training):
    folder, train, tracker = training
    memory = MemoryTracker()
    train(10)
    deliver_once(folder, memory)
    train(10)
    tracker.end(RunState.INTERRUPTED)
    assert deliver_once(folder, memory)
    assert memory.values == expected(20)
    num_sent = memory.num_sent
    assert deliver_once(folder, memory)
    assert memory.num_sent == num_sent


def test_copy_that_cannot_be_continued_is_written_again_from_the_first_step(training):
    folder, train, tracker = training
    memory = MemoryTracker(can_continue=False)
    train(10)
    deliver_once(folder, memory)
    train(5)
    tracker.end(RunState.FINISHED)
    deliver_once(folder, memory)
    assert memory.values == expected(15)


def test_another_tracker_of_the_same_kind_starts_from_nothing(training):
    folder, train, tracker = training
    train(5)
    tracker.end(RunState.FINISHED)
    for target in ("here", "there"):
        memory = MemoryTracker(target)
        deliver_once(folder, memory)
        assert memory.values == expected(5)


def test_a_record_of_delivery_that_is_damaged_counts_as_none(training):
    folder, train, tracker = training
    train(2)
    tracker.end(RunState.FINISHED)
    deliver_once(folder, MemoryTracker())
    delivered_file(folder, "memory").write_text('{"step": "many"}')
    memory = MemoryTracker()
    deliver_once(folder, memory)
    assert memory.values == expected(2)


@pytest.fixture
def mirrored(training, monkeypatch):
    """A function that gives the mirrors of a run to one tracker and what they said; pauses are short."""
    monkeypatch.delenv("ATRIUM_MIRRORS", raising=False)
    for name in ("POLL_S", "_FIRST_RETRY_S"):
        monkeypatch.setattr(delivery, name, 0.01)
    monkeypatch.setattr(delivery, "PATIENCE_S", 0.5)
    monkeypatch.setattr(delivery, "LINGER_S", 0.2)
    folder, _, _ = training
    threads = []

    def begin(tracker):
        said = []
        make = partial(Delivery, folder=folder, kind="memory", destination=tracker)
        mirrors = Mirrors(folder, {"memory": make}, said.append)
        threads.extend(mirrors._threads)
        return mirrors, said

    yield begin
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_mirrors_deliver_while_a_run_trains_and_end_with_it(training, mirrored):
    folder, train, tracker = training
    memory = MemoryTracker()
    mirrors, said = mirrored(memory)
    train(3)
    mirrors.step(3, {})
    wait_until(lambda: memory.values == expected(2))
    train(1)
    tracker.end(RunState.FINISHED)
    mirrors.end(RunState.FINISHED)
    wait_until(lambda: memory.values == expected(4))
    assert memory.ended is None, "files such as figures are still to come"
    mirrors.close()
    assert (memory.ended, said) == (RunState.FINISHED, [])
    assert read_delivered(folder, "memory").final_state == "finished"


def test_tracker_that_is_down_is_reported_once_and_gets_everything_later(training, mirrored):
    _, train, tracker = training
    memory = MemoryTracker()
    memory.is_down = True
    mirrors, said = mirrored(memory)
    train(3)
    mirrors.step(3, {})
    wait_until(lambda: mirrors.step(3, {}) or said)
    for _ in range(20):
        mirrors.step(3, {})
    assert said == ["memory: connection refused; training continues, and missing data is delivered later"]
    memory.is_down = False
    tracker.end(RunState.FINISHED)
    mirrors.end(RunState.FINISHED)
    mirrors.close()
    assert memory.values == expected(3)
    assert len(said) == 1


def test_crash_of_a_trackers_library_is_one_line_and_training_goes_on(training, mirrored):
    _, _, tracker = training

    class Broken(MemoryTracker):
        def open(self, delivered):
            raise RuntimeError("segment lost\nsee the manual")

        def close(self):
            raise KeyError("close")

    mirrors, said = mirrored(Broken())
    mirrors.step(1, {})
    wait_until(lambda: mirrors.step(1, {}) or said)
    tracker.end(RunState.FINISHED)
    mirrors.end(RunState.FINISHED)
    mirrors.close()
    assert [line.partition(";")[0] for line in said] == [
        "memory: segment lost",
        "memory: the end of the run could not be delivered",
    ]


def test_tracker_that_does_not_answer_takes_no_time_of_steps_and_little_of_the_end(training, mirrored):
    folder, train, tracker = training
    answers = threading.Event()

    class Silent(MemoryTracker):
        def open(self, delivered):
            answers.wait()
            return super().open(delivered)

    memory = Silent()
    mirrors, said = mirrored(memory)
    train(3)
    began = time.monotonic()
    for step in range(1, 1000):
        mirrors.step(step, {})
    tracker.end(RunState.FINISHED)
    mirrors.end(RunState.FINISHED)
    assert time.monotonic() - began < 0.5
    mirrors.close()
    assert time.monotonic() - began < 1.5
    command = f"atrium sync {folder.path} --to memory"
    assert said == [f"memory: the end of the run is not delivered yet; `{command}` delivers it"]
    answers.set()
    wait_until(lambda: memory.values == expected(3))


def test_resumed_run_is_reported_to_the_tracker_as_running(training):
    folder, train, tracker = training
    train(3)
    tracker.end(RunState.INTERRUPTED)
    memory = MemoryTracker()
    deliver_once(folder, memory)
    assert memory.ended is RunState.INTERRUPTED
    again = RunFolderWriter(folder)
    again.begin(step=3, num_steps=6)
    again.step(4, {"rollout/reward": 0.04})
    assert not deliver_once(folder, memory)
    assert memory.ended is None
    again.end(RunState.FINISHED)
    assert deliver_once(folder, memory)
    assert memory.values == expected(4)


def test_the_switch_keeps_all_mirrors_off(training, monkeypatch):
    folder, _, _ = training
    monkeypatch.setenv("ATRIUM_MIRRORS", "off")
    said = []
    mirrors = Mirrors(folder, {"memory": pytest.fail}, said.append)
    for _ in range(3):
        mirrors.step(1, {})
    mirrors.end(RunState.FINISHED)
    mirrors.close()
    assert said == []
    assert not (folder.path / ".mirrors").exists()


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (
            "Failed to establish a new connection: [Errno 111] Connection refused",
            "[Errno 111] Connection refused",
        ),
        (
            "Failed to resolve 'a.b' ([Errno -2] Name or service not known)",
            "[Errno -2] Name or service not known",
        ),
        ("Read timed out. (read timeout=20)", "timed out"),
        ("something", "no connection"),
    ],
)
def test_unreachable_server_is_described_briefly(cause, said):
    error = f"API request failed: HTTPConnectionPool(host='a.b', port=443): Max retries exceeded ({cause})"
    assert describe(MirrorError(error)) == f"a.b:443 does not respond ({said})"


def test_other_errors_are_their_first_line():
    assert describe(MirrorError("quota exceeded\nsee there")) == "quota exceeded"
    assert describe(ValueError()) == "ValueError"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sync", "x"], "required: --to"),
        (["sync", "x", "--to", "neptune"], "invalid choice: 'neptune'"),
        (["sync", "nothing", "--to", "mlflow"], "there is no run"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(training, capsys, arguments, said):
    folder, _, _ = training
    assert main([*arguments, "--runs-dir", str(folder.path.parents[1])]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_two_processes_do_not_deliver_one_run_at_once(training, capsys):
    folder, _, _ = training
    (folder.path / ".mirrors").mkdir()
    with RunLock(folder.path / ".mirrors" / "mlflow.lock", "another"):
        code = main(["sync", folder.path.name, "--to", "mlflow", "--runs-dir", str(folder.path.parents[1])])
    assert code == 1
    assert "in use by the process that mirrors it to mlflow" in capsys.readouterr().out


def test_a_delivery_without_the_lock_leaves_the_record_to_the_process_that_holds_it(training):
    folder, train, _ = training
    train(5)
    holder = Delivery(folder=folder, kind="memory", destination=MemoryTracker())
    holder.deliver()
    other = Delivery(folder=folder, kind="memory", destination=MemoryTracker())
    other.delivered = Delivered()
    with pytest.raises(RunFolderError) as failure:
        other.deliver()
    other.report(failure.value)
    assert "in use" in other.delivered.problem
    holder.close()
    known = read_delivered(folder, "memory")
    assert (known.step, known.problem) == (4, None)


def test_a_server_with_a_password_in_its_uri_is_refused_before_anything_is_written():
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_PASSWORD"):
        compose(["tracking.mlflow.uri=http://me:secret@host"])


def test_the_settings_choose_the_mirrors():
    chosen = {name: compose([f"tracking={name}"]).tracking.mirrors for name in CHOICES}
    assert chosen == CHOICES
    assert compose([]).tracking.mirrors == ("mlflow",)


CHOICES = {
    "none": (),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
    "both": ("mlflow", "wandb"),
    "tensorboard": ("tensorboard",),
}

"""Launched runs on this node, with small programs for ranks: how they end, whoever ends them."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from datetime import timedelta

import psutil
import pytest

from atrium.base.errors import ConfigError, DataError, EngineError, Interrupted, RankError
from atrium.launch.agent import Meeting, RankFailure
from atrium.launch.rank_logs import last_words, rank_log
from atrium.launch.settings import NodeSettings
from atrium.launch.supervisor import HangClock, NodeRun, agreed_folder, cause_of, mend_status
from atrium.runs.status import StatusWriter, end_by, read_status

# A timer of torch's elastic agent joins its own thread where the collector frees it there, which is harmless.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <finalize:pytest.PytestUnraisableExceptionWarning"
)

RANK = """
import json, os, signal, sys, time
from pathlib import Path
run, what = Path(sys.argv[1]), sys.argv[2]
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
(run / f"seen-{rank}-{attempt}.json").write_text(
    json.dumps({"pid": os.getpid(), **{name: os.environ[name] for name in names}})
)
log = (run / "ranks")
log.mkdir(exist_ok=True)
def say(text):
    with (log / f"rank-{rank}.log").open("a") as file:
        file.write(text + chr(10))
def stop(number, frame):
    say("error: stopped after step 3")
    sys.exit(130)
if what == "listeners":
    import psutil
    own = [c for pid in (os.getppid(), os.getpid()) for c in psutil.Process(pid).net_connections(kind="tcp")]
    listening = [list(c.laddr) for c in own if c.status == psutil.CONN_LISTEN]
    (run / f"listeners-{rank}.json").write_text(json.dumps(listening))
if what == "kill" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if what == "kill":
    time.sleep(600)
if what == "mistake":
    say("error: rollout.num_prompts=3: no such thing")
    sys.exit(2)
if what == "once" and rank == 1 and attempt == 0:
    say("error: out of luck")
    sys.exit(1)
if what == "wait":
    signal.signal(signal.SIGTERM, stop)
    (run / f"ready-{rank}").touch()
    time.sleep(60)
"""


@pytest.fixture
def launch(folder):
    """Runs two ranks that do as the word says; gives what was said meanwhile."""

    def _launch(what, **settings):
        said = []
        chosen = NodeSettings(num_processes=2, **{"timeout_s": 30.0, **settings})
        run = NodeRun(folder, chosen, Meeting(chosen), said.append)
        run.run([sys.executable, "-c", RANK, str(folder.path), what])
        return said

    return _launch


def seen(folder, rank, attempt=0):
    return json.loads((folder.path / f"seen-{rank}-{attempt}.json").read_text())


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.full
def test_every_rank_is_started_once_and_knows_its_place(folder, launch):
    assert launch("work") == []
    for rank in (0, 1):
        place = {name: value for name, value in seen(folder, rank).items() if name != "pid"}
        assert place == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
        }


def listeners(pids):
    """Where processes listen: the address and port of each TCP socket."""
    found = (place for pid in pids for place in psutil.Process(pid).net_connections(kind="tcp"))
    return {tuple(place.laddr) for place in found if place.status == psutil.CONN_LISTEN}


def test_on_one_machine_every_store_listens_on_the_loopback_alone(folder, launch):
    others = listeners([os.getpid()])  # what earlier tests opened
    settings = NodeSettings(num_processes=2)
    meeting = Meeting(settings)
    opened = listeners([os.getpid()]) - others
    assert {host for host, _ in opened} == {"127.0.0.1"}
    assert meeting.store.port in {port for _, port in opened}
    launch("listeners")
    seen_by_rank = {tuple(place) for place in json.loads((folder.path / "listeners-0.json").read_text())}
    assert seen_by_rank > opened
    assert {host for host, _ in seen_by_rank - others} == {"127.0.0.1"}


def test_the_store_of_several_nodes_listens_at_the_address_that_was_named_alone():
    others = listeners([os.getpid()])
    port = free_port()
    settings = NodeSettings(num_processes=1, num_nodes=2, rendezvous=f"127.0.0.1:{port}")
    first, second = Meeting(settings), Meeting(settings)
    assert listeners([os.getpid()]) - others == {("127.0.0.1", port)}
    assert (first.is_first(), second.is_first()) == (True, False)


def test_a_rendezvous_that_nobody_can_reach_is_said_in_one_line(monkeypatch):
    monkeypatch.setattr("atrium.launch.agent._STORE_TIMEOUT", timedelta(seconds=1))
    nowhere = "no.such.host.invalid:29500"
    with pytest.raises(ConfigError, match=f"compute.rendezvous={nowhere} cannot be reached"):
        Meeting(NodeSettings(num_processes=1, num_nodes=2, rendezvous=nowhere))


@pytest.mark.full
def test_a_killed_rank_ends_the_run_which_names_it_and_leaves_no_process(folder, launch):
    with pytest.raises(RankError, match=r"rank 1 was killed by SIGKILL.*logs of all ranks are in") as ended:
        launch("kill")
    assert "--resume" not in str(ended.value), "it failed before its first step"
    assert is_gone(seen(folder, 0)["pid"])
    status = read_status(folder.status_file)
    assert status.state == "failed_start"
    assert status.error == "rank 1 was killed by SIGKILL (from outside, or out of memory)"


@pytest.mark.full
def test_ranks_start_again_as_often_as_they_may_and_it_is_said_why(folder, launch):
    said = launch("once", max_restarts=2)
    assert len(said) == 1
    assert "rank 1 failed: out of luck; all ranks start again" in said[0]
    assert said[0] in folder.log_file.read_text()
    assert seen(folder, 0, attempt=1)["WORLD_SIZE"] == "2"


def test_a_mistake_of_the_user_is_said_once_and_never_tried_again(folder, launch):
    with pytest.raises(ConfigError, match=r"^rollout\.num_prompts=3: no such thing$"):
        launch("mistake", max_restarts=2)
    assert not (folder.path / "seen-0-1.json").exists()


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_is_passed_on_and_stops_all_ranks_for_good(folder, launch, number):
    def ask():
        while not all((folder.path / f"ready-{rank}").exists() for rank in (0, 1)):
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    asking = threading.Thread(target=ask)
    asking.start()
    with pytest.raises(Interrupted, match="stopped after step 3"):
        launch("wait", max_restarts=2)
    asking.join()
    assert read_status(folder.status_file).state == "interrupted"


def failure(rank, exit_code=1, phase="", message=""):
    return RankFailure(rank=rank, exit_code=exit_code, phase=phase, message=message)


def test_the_cause_is_the_rank_that_did_not_fail_because_of_another():
    lost = failure(0, message="rank 0 lost the others in update: rank 2 is gone")
    killed = str(cause_of([lost, failure(2, -9, "update")]))
    assert killed == "rank 2 was killed by SIGKILL in update (from outside, or out of memory)"
    said = cause_of([lost, failure(1, phase="sampling", message="EngineError")])
    assert str(said) == "rank 1 failed in sampling: EngineError"
    assert str(cause_of([lost])) == "rank 0 lost the others in update: rank 2 is gone"
    assert isinstance(cause_of([lost, failure(1, 130, message="stopped")]), Interrupted)
    assert isinstance(cause_of([lost, failure(1, 2, message="x=1: no")]), ConfigError)


def test_cause_that_a_rank_recorded_is_kept_for_its_own_error_only(folder):
    for recorded, said, cause in (
        (DataError("no rows"), failure(0, 2, message="no rows"), "data"),
        (EngineError("broken"), failure(0, phase="sampling", message="broken"), "engine"),
        (DataError("no rows"), failure(1, 2, message="x=1: no"), "settings"),
        (RankError("rank 0 lost the others"), failure(1, 2, message="x=1: no"), "settings"),
    ):
        StatusWriter(folder.status_file).end(*end_by(recorded))
        mend_status(folder, cause_of([said]))
        assert read_status(folder.status_file).cause == cause


def test_a_rank_hangs_when_nobody_says_anything_new_for_too_long():
    clock = HangClock(timeout_s=100.0)
    phases = {0: "7 update", 1: "6 sampling"}
    assert clock.look(phases, 0.0) is None
    assert clock.look(phases, 599.0) is None
    assert clock.look({**phases, 0: "8 waiting"}, 600.0) is None
    assert clock.look({**phases, 0: "8 waiting"}, 1199.0) is None
    said = clock.look({**phases, 0: "8 waiting"}, 1201.0)
    assert said is not None
    assert said.startswith("rank 1 made no progress for 601 s in sampling")


def test_the_last_words_of_a_rank_are_its_error_or_the_end_of_its_traceback(tmp_path):
    log = rank_log(tmp_path, 3)
    assert last_words(log) == ""
    log.parent.mkdir()
    log.write_text("error: old\n")
    since = log.stat().st_size
    with log.open("a") as file:
        file.write(
            "Traceback (most recent call last):\n  File x\nValueError: 3 is odd\nsome noise of a library\n"
        )
    assert last_words(log, since) == "ValueError: 3 is odd"
    assert last_words(log) == "old"


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def test_nodes_agree_on_the_folder_of_the_first_and_refuse_other_settings(tmp_path):
    settings = NodeSettings(
        num_processes=1, num_nodes=2, rendezvous=f"localhost:{free_port()}", timeout_s=60.0
    )
    first, second, third = Meeting(settings), Meeting(settings), Meeting(settings)
    assert agreed_folder(first, lambda: tmp_path, "a") == tmp_path
    assert agreed_folder(second, pytest.fail, "a") == tmp_path
    with pytest.raises(ConfigError, match="settings or GPUs of this node differ"):
        agreed_folder(third, pytest.fail, "b")


@pytest.mark.full
def test_nodes_that_do_not_share_a_disk_are_told_so(tmp_path):
    settings = NodeSettings(
        num_processes=1, num_nodes=2, rendezvous=f"localhost:{free_port()}", timeout_s=60.0
    )
    first, second = Meeting(settings), Meeting(settings)
    agreed_folder(first, lambda: tmp_path / "elsewhere", "a")
    with pytest.raises(ConfigError, match="a file system that all nodes share"):
        agreed_folder(second, pytest.fail, "a")


@pytest.mark.full
def test_a_node_that_waits_in_vain_for_others_says_so(folder):
    settings = NodeSettings(
        num_processes=1, num_nodes=2, rendezvous=f"localhost:{free_port()}", timeout_s=1.0
    )
    run = NodeRun(folder, settings, Meeting(settings), pytest.fail)
    with pytest.raises(ConfigError, match=r"compute.num_nodes=2: not all nodes connected"):
        run.run([sys.executable, "-c", "pass"])
    assert read_status(folder.status_file).state == "failed_start"


@pytest.mark.full
def test_a_node_that_waits_for_others_can_be_stopped(folder):
    port = free_port()
    settings = NodeSettings(num_processes=1, num_nodes=2, rendezvous=f"localhost:{port}", timeout_s=250.0)
    run = NodeRun(folder, settings, Meeting(settings), pytest.fail)
    before = signal.getsignal(signal.SIGTERM)

    def ask():
        while signal.getsignal(signal.SIGTERM) is before:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=ask, daemon=True).start()
    with pytest.raises(Interrupted, match="before any rank was started"):
        run.run([sys.executable, "-c", "pass"])
    assert read_status(folder.status_file).state == "interrupted"

"""Real runs of two ranks on a CPU, killed, stopped and left alone: how they end, and that they go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from atrium.base.json_lines import read_json_lines
from atrium.runs.find import list_runs
from atrium.runs.status import RunState, concluded_state, read_status

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

PATIENCE_S, TIMEOUT_S = 300.0, 30
SETTINGS = (
    "debug=tiny_steps",
    "tracking.figures=false",
    "checkpoint.every_num_steps=1",
    "compute.num_processes=2",
    "experiment_name=ranks",
)


class Launched:
    """A launched run, the processes of its ranks, and what it prints."""

    def __init__(self, tmp_path, *settings, num_steps=6):
        self.runs_dir, self.log = tmp_path / "runs", tmp_path / "printed"
        command = [sys.executable, "-m", "atrium", "train", *SETTINGS, f"num_steps={num_steps}", *settings]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, f"runs_dir={self.runs_dir}"], stdout=log, stderr=log, start_new_session=True
            )

    def until(self, holds, what):
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"{what}: {self.log.read_text()}"
            time.sleep(0.05)

    @property
    def folder(self):
        return list_runs(self.runs_dir)[-1]

    def until_step(self, step):
        def is_there():
            runs = list_runs(self.runs_dir) if self.runs_dir.is_dir() else []
            return (
                bool(runs) and bool(runs[-1].checkpoint_steps()) and runs[-1].checkpoint_steps()[-1] >= step
            )

        self.until(lambda: is_there() or self.process.poll() is not None, f"step {step}")
        assert self.process.poll() is None, self.log.read_text()

    def ranks(self):
        """The processes of the ranks, in their order."""
        children = psutil.Process(self.process.pid).children()
        ranks = [child for child in children if "atrium.cli.rank" in child.cmdline()]
        return sorted(ranks, key=lambda child: int(child.environ()["RANK"]))

    def end(self):
        self.until(lambda: self.process.poll() is not None, "its end")
        return self.process.returncode, self.log.read_text()

    def steps(self):
        return [record["step"] for record in read_json_lines(self.folder.metrics_file).records]


def all_gone(processes):
    gone, alive = psutil.wait_procs(processes, timeout=60)
    return not alive and len(gone) == len(processes)


def test_a_killed_rank_is_named_and_the_run_goes_on_by_itself(tmp_path):
    run = Launched(tmp_path, "compute.max_restarts=1")
    run.until_step(2)
    before = run.ranks()
    before[1].kill()
    code, printed = run.end()
    assert code == 0, printed
    assert "rank 1 was killed by SIGKILL" in printed
    assert "all ranks start again from the last checkpoint (1 of 1 times)" in printed
    assert all_gone(before)
    assert run.steps() == [1, 2, 3, 4, 5, 6]
    assert read_status(run.folder.status_file).state == "finished"
    assert {path.name for path in (run.folder.path / "ranks").glob("*.log")} == {"rank-0.log", "rank-1.log"}


@pytest.mark.release
def test_a_rank_that_hangs_ends_the_run_in_time_and_another_number_of_ranks_goes_on(tmp_path):
    run = Launched(tmp_path, f"compute.timeout_s={TIMEOUT_S}")
    run.until_step(2)
    ranks = run.ranks()
    os.kill(ranks[1].pid, signal.SIGSTOP)
    code, printed = run.end()
    assert code == 1
    *_, last = printed.strip().splitlines()
    assert last.startswith("error: ")
    assert "rank 1" in last
    assert "the logs of all ranks are in" in last
    assert all_gone(ranks)
    status = read_status(run.folder.status_file)
    assert status.state == "failed"
    assert "rank 1" in status.error
    resume = [sys.executable, "-m", "atrium", "train", "--resume", str(run.folder.path)]
    done = subprocess.run(
        [*resume, "compute.num_processes=1"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert run.steps() == [1, 2, 3, 4, 5, 6]


def test_ranks_end_with_their_launcher(tmp_path):
    run = Launched(tmp_path, num_steps=500)
    run.until_step(1)
    ranks = run.ranks()
    run.process.kill()
    run.process.wait()
    assert all_gone(ranks)
    state = concluded_state(read_status(run.folder.status_file))
    assert state in (RunState.INTERRUPTED, RunState.FAILED, RunState.KILLED)
    assert run.folder.checkpoint_steps()


def listening(pid):
    """The addresses at which a process and all that it started listen just now."""
    found = set()
    try:
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                places = one.net_connections(kind="tcp")
                found |= {place.laddr.ip for place in places if place.status == psutil.CONN_LISTEN}
    except psutil.NoSuchProcess:
        pass
    return found


def test_nothing_of_a_run_of_two_processes_listens_beyond_the_loopback(tmp_path):
    run = Launched(tmp_path, num_steps=3)
    found = set()

    def has_ended():
        found.update(listening(run.process.pid))
        return run.process.poll() is not None

    run.until(has_ended, "its end")
    assert run.process.returncode == 0, run.log.read_text()
    assert found == {"127.0.0.1"}

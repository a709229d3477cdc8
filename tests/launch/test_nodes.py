"""Two nodes, played by two commands on this machine that meet at a port: one run, one folder."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from atrium.base.json_lines import read_json_lines
from atrium.runs.find import list_runs
from atrium.runs.status import read_status

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

PATIENCE_S = 400.0


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def ranks_of(process):
    children = psutil.Process(process.pid).children()
    return [child for child in children if "atrium.cli.rank" in child.cmdline()]


def test_two_nodes_train_one_run_and_start_again_together(tmp_path):
    runs_dir = tmp_path / "runs"
    command = [
        *(sys.executable, "-m", "atrium", "train", "debug=tiny_steps", "compute=multi_node"),
        *("compute.device=cpu", "compute.num_processes=1", f"compute.rendezvous=localhost:{free_port()}"),
        *("compute.max_restarts=1", "checkpoint.every_num_steps=1", "num_steps=4"),
        *("tracking.figures=false", "experiment_name=nodes", f"runs_dir={runs_dir}"),
    ]
    logs = [tmp_path / "node-0", tmp_path / "node-1"]
    nodes = []
    for path in logs:
        with path.open("w") as log:
            nodes.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
    deadline = time.monotonic() + PATIENCE_S
    killed = False
    while any(node.poll() is None for node in nodes):
        assert time.monotonic() < deadline, [path.read_text() for path in logs]
        time.sleep(0.05)
        runs = list_runs(runs_dir) if runs_dir.is_dir() else []
        if not killed and runs and runs[0].checkpoint_steps():
            [rank] = ranks_of(nodes[1])
            rank.send_signal(signal.SIGKILL)
            killed = True
    said = [path.read_text() for path in logs]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert killed
    [run] = list_runs(runs_dir)
    assert [record["step"] for record in read_json_lines(run.metrics_file).records] == [1, 2, 3, 4]
    assert read_status(run.status_file).state == "finished"
    assert {path.name for path in (run.path / "ranks").glob("*.log")} == {"rank-0.log", "rank-1.log"}
    assert any("was killed by SIGKILL" in text for text in said)

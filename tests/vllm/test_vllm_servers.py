"""Runs with real vLLM servers equal the run with vLLM in the trainer's process, bit for bit."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.vllm.settings import SMALL
from tests.vllm.test_vllm_runs import train

from atrium.cli import main
from atrium.errors import EngineError
from atrium.rollout.server.engine import ServerEngine
from atrium.rollout.server.guard import TOKEN

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(torch.cuda.is_available(), reason="bitwise equality is promised on a CPU"),
]

LAGGED = ("num_steps=4", "rollout.lag=1", "rollout.num_prompts=8", "compute.num_threads=1")


def of_no_time(steps):
    """Metrics that are no times and no memory."""
    return [
        {name: value for name, value in step.items() if name != "time" and not name.endswith(("_s", "_mb"))}
        for step in steps
    ]


def shared_memory():
    """What servers and their weights could leave behind."""
    return {path for path in Path("/dev/shm").iterdir() if path.name.startswith(("atrium-", "psm_"))}


def same_run(one, other):
    (steps, folder), (other_steps, other_folder) = one, other
    assert of_no_time(steps) == of_no_time(other_steps)
    ours, theirs = (
        load_file(one.checkpoint_path(4) / "policy" / "model.safetensors") for one in (folder, other_folder)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.fixture(scope="module")
def inside(tmp_path_factory):
    return train(tmp_path_factory.mktemp("inside"), *LAGGED)


def test_run_with_two_servers_of_which_one_is_killed_equals_the_run_inside(tmp_path, monkeypatch, inside):
    """About 60 s."""
    generate, killed = ServerEngine.generate_by, []

    def generate_and_kill(self, version, requests, sampling):
        generations = generate(self, version, requests, sampling)
        yield next(generations)
        if len(requests) == 8 and not killed:
            killed.extend(self.pool.servers[0].process.pids)
            os.kill(killed[-1], signal.SIGKILL)
        yield from generations

    monkeypatch.setattr(ServerEngine, "generate_by", generate_and_kill)
    shared = shared_memory()
    run = train(tmp_path, *LAGGED, "rollout.placement=server", "rollout.num_servers=2")
    assert len(killed) >= 2
    assert "server 0 is lost" in run[1].log_file.read_text()
    same_run(run, inside)
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in killed)
    assert shared_memory() <= shared


def test_run_on_a_server_at_an_address_equals_the_run_inside(tmp_path, monkeypatch, capsys, inside):
    """About 70 s: the server is started by the command that `atrium engine-command` prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert main(["engine-command", *SMALL, *LAGGED, f"runs_dir={tmp_path}", "--port", str(port)]) == 0
    command = capsys.readouterr().out
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(TOKEN, "secret")
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(["sh", "-c", command], stdout=log, stderr=log, start_new_session=True)
    at_address = ("rollout.placement=server", f"rollout.servers=[http://127.0.0.1:{port}]")
    try:
        run = train(tmp_path, *LAGGED, *at_address)
        with pytest.raises(EngineError, match=r"num_hidden_layers=2, the policy has 1; serve the policy's"):
            train(tmp_path, *LAGGED, *at_address, "model.num_layers=1")
        monkeypatch.setenv(TOKEN, "wrong")
        with pytest.raises(EngineError, match=r"the server refuses the token; set ATRIUM_TOKEN"):
            train(tmp_path, *LAGGED, *at_address)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    same_run(run, inside)

"""Runs with real vLLM servers equal the run with vLLM in the trainer's process, bit for bit."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
import torch
from safetensors.torch import load_file
from tests.engines.conftest import pids_of
from tests.engines.test_server_engine import free_port, running_server
from tests.vllm.settings import SMALL
from tests.vllm.test_vllm_runs import train

from atrium.base.errors import EngineError
from atrium.cli import main
from atrium.engines.server.engine import ServerEngine
from atrium.engines.server.guard import TOKEN
from atrium.engines.server.plugin import identity, shared_memory_of

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(torch.cuda.is_available(), reason="bitwise equality is promised on a CPU"),
]

LAGGED = ("num_steps=3", "rollout.lag=1", "rollout.num_prompts=8", "compute.num_threads=1")


def of_no_time(steps):
    """Metrics that are no times and no memory, preemptions included."""
    return [
        {name: value for name, value in step.items() if not re.match(r"time$|(time|memory)/|.*_s$", name)}
        for step in steps
    ]


def shared_memory():
    """What servers of this process and their weights could leave behind; tests beside it have their own."""
    memory = Path("/dev/shm")
    others = psutil.process_iter()
    used = set().union(*(shared_memory_of(one.pid) for one in others if one.pid != os.getpid()))
    owner = f" {identity(os.getpid())}"
    weights = {path.parent for path in memory.glob("atrium-*/owner") if path.read_text().endswith(owner)}
    return weights | {path for path in memory.glob("psm_*") if path not in used}


def same_run(one, other):
    (steps, folder), (other_steps, other_folder) = one, other
    assert of_no_time(steps) == of_no_time(other_steps)
    ours, theirs = (
        load_file(one.checkpoint_path(3) / "policy" / "model.safetensors") for one in (folder, other_folder)
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
            killed.extend(pids_of(self.pool.servers[0].process))
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


def wait_until_healthy(url, server, timeout_s=300.0):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        assert server.poll() is None, "the server exited before it was ready"
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", headers={"Authorization": "Bearer secret"}).status_code == 200:
                return
        time.sleep(0.5)
    raise AssertionError(f"{url} was not ready within {timeout_s} s")


@pytest.fixture(scope="module")
def at_address(tmp_path_factory):
    """The URL of a server that `atrium engine-command` says how to start, and the folder of its model."""
    folder, port = tmp_path_factory.mktemp("at_address"), free_port()
    line = [*SMALL, *LAGGED, f"runs_dir={folder}", "--port", str(port)]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["engine-command", *line]) == 0
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            ["sh", "-c", printed.getvalue()],
            env={**os.environ, "PATH": path, TOKEN: "secret"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (model,) = (folder / ".cache" / "vllm-models").iterdir()
    wait_until_healthy(f"http://127.0.0.1:{port}", server)
    yield f"http://127.0.0.1:{port}", model
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


@pytest.mark.release
def test_run_on_a_server_at_an_address_equals_the_run_inside(tmp_path, monkeypatch, inside, at_address):
    """About 60 s, its start included."""
    monkeypatch.setenv(TOKEN, "secret")
    line = (*LAGGED, "rollout.placement=server", f"rollout.servers=[{at_address[0]}]")
    run = train(tmp_path, *line)
    with pytest.raises(
        EngineError, match=r"num_hidden_layers=2, expected 1; start the server with the policy's"
    ):
        train(tmp_path, *line, "model.num_layers=1")
    monkeypatch.setenv(TOKEN, "wrong")
    with pytest.raises(EngineError, match=r"the server rejects the token; set ATRIUM_TOKEN"):
        train(tmp_path, *line)
    same_run(run, inside)


def generated(**parameters):
    sampling = {"temperature": 1.0, "seed": 5, "max_tokens": 4, "logprobs": 0, **parameters}
    return {"model": "policy", "token_ids": [1, 2, 3], "sampling_params": sampling}


LOAD = {"method": "update_config", "kwargs": {"overrides": {"load_config": {"load_format": "safetensors"}}}}
REQUESTS = [
    ("GET", "/version", None),
    ("GET", "/server_info?config_format=json", None),
    ("GET", "/atrium/model", None),
    ("GET", "/atrium/folder?folder=/", None),
    ("GET", "/health", None),
    ("GET", "/nothing", None),
    ("POST", "/update_weight_version", {"new_version": "7"}),
    ("POST", "/inference/v1/generate", generated()),
    ("POST", "/inference/v1/generate", generated(temperature=3.0)),
    ("POST", "/collective_rpc", LOAD),
    ("POST", "/pause?mode=keep&clear_cache=true", None),
    ("POST", "/reset_prefix_cache?reset_running_requests=true", None),
    ("POST", "/resume", None),
]


@pytest.mark.parametrize("token", ["secret", "wrong"])
def test_stand_in_answers_as_the_real_server_does(at_address, token):
    url, model = at_address
    headers = {"Authorization": f"Bearer {token}"}
    with running_server(model, token="secret") as stand_in:
        for method, path, body in REQUESTS:
            real, ours = (
                httpx.request(method, base + path, json=body, headers=headers, timeout=60.0)
                for base in (url, stand_in)
            )
            assert real.status_code == ours.status_code, (path, real.text)
            if ours.status_code == httpx.codes.OK and path != "/health":
                assert_has(real.json(), ours.json(), path)
        counters = [httpx.get(f"{base}/metrics", headers=headers).text for base in (url, stand_in)]
        names = [set(re.findall(r"vllm:\w+_total", text)) for text in counters]
        assert names[1] <= names[0]


def assert_has(real, ours, place):
    """The real answer has all that the stand-in's has, of the same types."""
    if isinstance(ours, dict):
        for name in ours:
            assert name in real, f"{place}: {name}"
            assert_has(real[name], ours[name], f"{place} {name}")
    elif isinstance(ours, list):
        assert_has(real[0], ours[0], f"{place}[0]")
    else:
        assert type(real) is type(ours) or None in (real, ours), f"{place}: {real!r} and {ours!r}"

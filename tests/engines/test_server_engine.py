"""The engine of vLLM servers, with a stand-in for the server: deals, restarts, refuses and cleans up."""

from __future__ import annotations

import contextlib
import http.server
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file
from tests.engines.conftest import are_gone, pids_of
from tests.server_stand_in import sampled

from atrium.base.errors import EngineError, PolicyDivergedError
from atrium.engines.engine import GenerationRequest, SamplingParams
from atrium.engines.server.client import Expected, ServerClient
from atrium.engines.server.engine import ServerEngine
from atrium.engines.server.guard import TOKEN
from atrium.engines.server.pool import Server, ServerPool
from atrium.engines.server.process import ServerProcess
from atrium.engines.server.weights import WeightFiles
from atrium.engines.vllm_start import model_config, sampling_fields

SAMPLING = SamplingParams(max_new_tokens=8)
REQUESTS = [
    GenerationRequest(prompt_token_ids=np.array([1, 2, 3 + place], dtype=np.int32), sample_seeds=(place, 77))
    for place in range(24)
]


@pytest.fixture
def folders(tmp_path):
    made = [tmp_path / name for name in ("weights", "sockets", "logs")]
    for folder in made:
        folder.mkdir()
    with tempfile.TemporaryDirectory(prefix="atrium-") as short:  # paths of sockets have 108 characters
        yield made[0], Path(short), made[2]


@pytest.fixture
def start(policy, folders):
    """Starts an engine of stand-ins, or joins servers at addresses."""
    engines, logged = [], []
    (folders[0] / "model").mkdir(exist_ok=True)
    (folders[0] / "model" / "config.json").write_text(model_config(policy.model))

    def started(
        num_servers=2,
        *,
        variables=None,
        urls=(),
        token="right",
        start_timeout_s=30.0,
        hang_timeout_s=30.0,
        dtype="float32",
        num_kept=2,
    ):
        weights, sockets, logs = folders
        arguments = ("--model", str(weights / "model"), "--dtype", dtype, "--max-model-len", "128")
        processes = [
            ServerProcess(
                number,
                (*arguments, "--middleware", "guard"),
                variables=variables or {},
                folder=sockets,
                shared=(),
                token=token,
                log=logs / f"{number}.log",
                device=None,
                module="tests.server_stand_in",
            )
            for number in range(0 if urls else num_servers)
        ]
        joined = [Server(name=f"server {url}", client=ServerClient(url, token), process=None) for url in urls]
        own = [
            Server(name=f"server {number}", client=ServerClient(one.address, token), process=one)
            for number, one in enumerate(processes)
        ]
        pool = ServerPool(
            joined or own,
            expected=Expected(model=policy.model.config.to_dict(), dtype="float32", context_length=128),
            is_continuous=False,
            start_timeout_s=start_timeout_s,
            hang_timeout_s=hang_timeout_s,
            log=logged.append,
        )
        files = WeightFiles(weights, model_config(policy.model), None, num_kept)
        engines.append(ServerEngine(policy, pool, files=files, per_server=4, context_length=128, folders=()))
        return engines[-1]

    started.logged = logged
    yield started
    for engine in engines:
        engine.close()


def expected_completions(engine, version):
    """What each request has to get, whoever answers it."""
    return [
        [
            sampled(
                request.prompt_token_ids.tolist(),
                sampling_fields(SAMPLING, seed, engine._stop_token_ids),
                str(version),
            )
            for seed in request.sample_seeds
        ]
        for request in REQUESTS
    ]


def completions(generations):
    found = {one.request_index: one.completions for one in generations}
    return [
        [(one.token_ids.tolist(), one.logprobs.tolist()) for one in found[place]]
        for place in range(len(found))
    ]


def test_all_servers_answer_with_the_newest_weights(start, policy):
    engine = start()
    for version in (0, 3):
        engine.update_weights(policy.model.state_dict(), version)
        assert completions(engine.generate(REQUESTS, SAMPLING)) == expected_completions(engine, version)
    assert engine.facts.described["servers"] == 2
    assert all(server.busy_s > 0.0 for server in engine.pool.servers)


def test_server_goes_back_to_the_weights_of_a_batch_that_is_requested_late(start, policy):
    engine = start(num_kept=4)
    for version in range(1, 4):
        engine.update_weights(policy.model.state_dict(), version)
    found = completions(engine.generate_by(1, REQUESTS, SAMPLING))
    assert found == expected_completions(engine, 1)


def test_server_loads_one_set_of_weights_at_a_time(start, policy, monkeypatch):
    engine = start(num_servers=1, num_kept=3)
    engine.update_weights(policy.model.state_dict(), 1)
    take_weights, loading, loaded = ServerClient.take_weights, [], []

    async def taken(self, folder, version):
        loading.append(version)
        await take_weights(self, folder, version)
        loaded.append(tuple(loading))
        loading.remove(version)

    async def load_and_update():
        engine.pool.load_idle(0)
        await engine.pool.update(engine._files.write(policy.model.state_dict(), 2), 2)

    monkeypatch.setattr(ServerClient, "take_weights", taken)
    engine._run(load_and_update())
    engine._weight_version = 2
    assert completions(engine.generate(REQUESTS, SAMPLING)) == expected_completions(engine, 2)
    assert loaded == [(0,), (2,)]


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_killed_or_hung_server_is_restarted_and_changes_no_result(start, policy, number):
    """Servers are lost at random moments of batches; about 8 s."""
    engine = start(hang_timeout_s=1.0 if number == signal.SIGSTOP else 30.0)
    draw = np.random.default_rng(int(number))
    num_left, version = (3 if number == signal.SIGSTOP else 10), 0
    while num_left:
        version += 1
        engine.update_weights(policy.model.state_dict(), version)
        generations = engine.generate(REQUESTS, SAMPLING)
        before = [next(generations) for _ in range(int(draw.integers(1, 20)))]
        up = [one for one in engine.pool.servers if one.lost is not None and one.num_lost == 0]
        if up:
            os.kill(pids_of(up[int(draw.integers(len(up)))].process)[0], number)
            num_left -= 1
        assert completions([*before, *generations]) == expected_completions(engine, version)
    assert any("is lost" in line and "restarted" in line for line in start.logged)


def test_both_servers_killed_are_restarted_and_answer_the_rest(start):
    engine = start()
    generations = engine.generate(REQUESTS, SAMPLING)
    first = next(generations)
    for server in engine.pool.servers:
        os.kill(pids_of(server.process)[0], signal.SIGKILL)
    assert completions([first, *generations]) == expected_completions(engine, 0)


def test_completion_of_another_version_is_sampled_again(start, tmp_path):
    wrong = tmp_path / "wrong"
    engine = start(variables={"STAND_IN_WRONG": str(wrong)})
    wrong.touch()
    assert completions(engine.generate(REQUESTS, SAMPLING)) == expected_completions(engine, 0)
    assert any("weights of version 99, expected 0" in line for line in start.logged)


def test_logprob_that_is_not_finite_ends_the_run_as_diverged(start, tmp_path):
    wrong = tmp_path / "wrong"
    engine = start(variables={"STAND_IN_WRONG": str(wrong)})
    wrong.write_text("logprob")
    with pytest.raises(PolicyDivergedError):
        list(engine.generate(REQUESTS, SAMPLING))
    assert [line for line in start.logged if "is lost" in line] == []


def test_server_that_dies_again_and_again_ends_the_run_with_its_log(start):
    engine = start(1, variables={"STAND_IN_DELAY_S": "30"})
    stopped = threading.Event()

    def kill_again_and_again():
        while not stopped.wait(0.05):
            server = engine.pool.servers[0]
            if server.num_requests and (pids := pids_of(server.process)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[0], signal.SIGKILL)

    thread = threading.Thread(target=kill_again_and_again)
    thread.start()
    with pytest.raises(EngineError, match=r"server 0 is lost.*log .*0\.log.*lost 4 times.*--resume"):
        list(engine.generate(REQUESTS, SAMPLING))
    stopped.set()
    thread.join()


def test_interrupt_ends_sampling_until_new_weights_arrive(start, policy):
    engine = start(1, variables={"STAND_IN_DELAY_S": "0.2"})
    generations = engine.generate(REQUESTS, SAMPLING)
    engine_thread = threading.Timer(0.1, engine.interrupt)
    engine_thread.start()
    with pytest.raises(InterruptedError):
        list(generations)
    engine.update_weights(policy.model.state_dict(), 1)
    assert len(list(engine.generate(REQUESTS[:2], SAMPLING))) == 2


def test_samples_of_a_stream_are_pending_until_it_is_closed_and_interruption_reaches_it(start):
    engine = start(1, variables={"STAND_IN_DELAY_S": "5"})
    stream = engine.stream(SAMPLING)
    stream.add(0, REQUESTS[0])
    assert engine.num_pending == 2
    engine.interrupt()
    with pytest.raises(InterruptedError):
        stream.next()
    stream.close()
    assert engine.num_pending == 0


@pytest.mark.parametrize(
    ("variables", "dtype", "message"),
    [
        ({"STAND_IN_VERSION": "0.31.2"}, "float32", r"runs vLLM 0\.31\.2, expected 0\.32 to 0\.33"),
        ({}, "bfloat16", r"dtype=torch\.bfloat16, expected torch\.float32"),
    ],
)
def test_unfit_server_is_refused_before_the_first_request(start, variables, dtype, message):
    with pytest.raises(EngineError, match=message):
        start(1, variables=variables, dtype=dtype)


def test_sampling_that_the_server_refuses_ends_the_run_with_its_answer(start):
    """Configurations refuse it before anything starts."""
    engine = start(1)
    with pytest.raises(EngineError, match=r"generate returned 400: .*temperature must be in \[0, 2\]"):
        list(engine.generate(REQUESTS, SamplingParams(max_new_tokens=8, temperature=3.0)))


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def running_server(folder, *arguments, token="right", port=None):
    """A stand-in on the loopback that somebody else started, and its URL."""
    port = port or free_port()
    command = [sys.executable, "-m", "tests.server_stand_in", "--port", str(port), "--model", str(folder)]
    command += ["--dtype", "float32", "--max-model-len", "128", "--middleware", "guard", *arguments]
    process = subprocess.Popen(command, env={**os.environ, TOKEN: token})
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 30.0
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"{url}/health")
                break
            time.sleep(0.05)
        yield url
    finally:
        process.kill()
        process.wait()


def test_servers_at_addresses_answer_as_started_ones(start, folders):
    model = folders[0] / "model"
    with running_server(model) as url:
        engine = start(urls=[url], token="right")
        assert completions(engine.generate(REQUESTS, SAMPLING)) == expected_completions(engine, 0)


def test_wrong_token_open_server_and_other_model_are_refused(start, folders, tmp_path):
    model = folders[0] / "model"
    with running_server(model) as url:
        for path in ("/health", "/weight_info", "/metrics", "/nothing"):
            assert httpx.get(url + path).status_code == 401
        assert httpx.post(f"{url}/collective_rpc", json={}).status_code == 401
        with pytest.raises(EngineError, match=r"rejects the token; set ATRIUM_TOKEN"):
            start(urls=[url], token="wrong")
    with (
        running_server(model, "--middleware", "") as url,
        pytest.raises(EngineError, match=r"without a token; start it with .*`atrium engine-command`"),
    ):
        start(urls=[url], token="right")
    other = tmp_path / "other"
    other.mkdir()
    text = (model / "config.json").read_text()
    layers = '"num_hidden_layers": '
    number = text.partition(layers)[2].partition(",")[0].partition("\n")[0]
    (other / "config.json").write_text(text.replace(layers + number, f"{layers}77"))
    with (
        running_server(other) as url,
        pytest.raises(EngineError, match=r"num_hidden_layers=77, expected"),
    ):
        start(urls=[url], token="right")


def test_server_with_a_shorter_context_is_refused(start, folders):
    with (
        running_server(folders[0] / "model", "--max-model-len", "64") as url,
        pytest.raises(EngineError, match=r"max_model_len=64, expected at least 128; start it with"),
    ):
        start(urls=[url])


def test_weights_that_a_server_cannot_read_are_refused_before_it_loads_them(
    start, folders, policy, monkeypatch
):
    with running_server(folders[0] / "model") as url:
        engine = start(urls=[url])
        monkeypatch.setattr(engine._files, "_write", lambda weights, path: None)
        with pytest.raises(EngineError, match=r"cannot read .*/1; set rollout\.weights_dir to a folder"):
            engine.update_weights(policy.model.state_dict(), 1)
        assert httpx.get(f"{url}/health", headers={"Authorization": "Bearer right"}).status_code == 200


def test_address_without_a_server_is_named_at_once_and_refused_after_the_timeout(start):
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(EngineError, match=rf"server {url} cannot be used: no server was ready within 0\.5 s"):
        start(urls=[url], start_timeout_s=0.5)
    assert start.logged == [
        f"server {url} does not respond (All connection attempts failed); the run waits 0.5 s for it "
        "(rollout.start_timeout_s)"
    ]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (307, r"redirects to http://other:8000/health; use the server's own address"),
        (404, r"no vLLM server is at this address"),
    ],
)
def test_address_that_is_no_vllm_server_is_refused_at_once(start, status, message):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("Location", "http://other:8000/health")
            self.end_headers()

        def log_message(self, *_):
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(EngineError, match=message):
                start(urls=[f"http://127.0.0.1:{server.server_port}"])
        finally:
            server.shutdown()


def test_lost_server_at_an_address_is_used_again_once_it_answers(start, folders, policy):
    model, port = folders[0] / "model", free_port()
    with running_server(model, port=port) as url:
        engine = start(urls=[url])
        engine.update_weights(policy.model.state_dict(), 1)
        generations = engine.generate(REQUESTS, SAMPLING)
        first = next(generations)
    with running_server(model, port=port):
        assert completions([first, *generations]) == expected_completions(engine, 1)
    (line,) = start.logged
    assert f"server {url} is lost" in line
    assert "the run waits 30 s for it (rollout.start_timeout_s), and its requests are sent again" in line


def test_lost_server_at_an_address_ends_the_run_after_the_timeout(start, folders):
    with running_server(folders[0] / "model") as url:
        engine = start(urls=[url], start_timeout_s=0.5)
        generations = engine.generate(REQUESTS, SAMPLING)
        next(generations)
    with pytest.raises(EngineError, match=r"no server was ready within 0\.5 s .*--resume"):
        list(generations)


@pytest.mark.full
def test_killed_trainer_leaves_no_server_and_no_folder(folders, tmp_path):
    weights, sockets, logs = folders
    (weights / "model").mkdir()
    (weights / "model" / "config.json").write_text("{}")
    shared = tmp_path / "shared"
    shared.mkdir()
    program = f"""
import sys, time
from pathlib import Path
from atrium.engines.server.process import ServerProcess
arguments = ("--model", {str(weights / "model")!r}, "--dtype", "float32", "--max-model-len", "128")
process = ServerProcess(0, arguments, variables={{}}, folder=Path({str(sockets)!r}),
    shared=(Path({str(shared)!r}),), token="t", log=Path({str(logs / "log")!r}), device=None,
    module="tests.server_stand_in")
process.start()
print(process._process.pid, flush=True)
time.sleep(600)
"""
    trainer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pid = int(trainer.stdout.readline())
    deadline = time.monotonic() + 30.0
    while not (sockets / "0.sock").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.Process(pid).net_connections("inet")
    trainer.kill()
    trainer.communicate()
    assert are_gone([pid])
    assert not shared.exists()
    assert not (sockets / "0.sock").exists()


@pytest.mark.parametrize("num_kept", [2, 3])
def test_weight_files_hold_the_rounded_weights_of_the_newest_versions(policy, tmp_path, num_kept):
    files = WeightFiles(tmp_path, "{}", torch.bfloat16, num_kept)
    for version in range(4):
        folder = files.write(policy.model.state_dict(), version)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3"][-num_kept:]
    stored, weights = load_file(folder / "model.safetensors"), policy.model.state_dict()
    assert stored.keys() == weights.keys()
    assert all(torch.equal(stored[name], weights[name].to(torch.bfloat16)) for name in weights)

"""Weights that are sent to real vLLM servers: all that is above NCCL, on a CPU."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
import torch
from tests.engines.conftest import pids_of
from tests.opened_run import opened_run
from tests.vllm import store_transfer
from tests.vllm.settings import SMALL
from tests.vllm.test_vllm_engine import mean_gap, request

from atrium.assemble.servers import build_placed_engine
from atrium.config.compose import compose
from atrium.engines.engine import SamplingParams
from atrium.engines.server.transfer import NcclSender
from atrium.models.settings import TinySettings
from atrium.models.tiny import build_tiny_policy
from atrium.runs.run_folder import RunFolder

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.release,
    pytest.mark.timeout(600),
    pytest.mark.skipif(torch.cuda.is_available(), reason="NCCL itself is tested in tests/gpu"),
]

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def engine_of(tmp_path, monkeypatch):
    """A function that starts two servers to which weights are sent, and what the engine logs."""
    paths = (REPOSITORY / "platform", REPOSITORY, store_transfer.plugin_folder(tmp_path / "plugin"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))
    monkeypatch.setenv("STORE_TRANSFER_FOLDER", str(tmp_path))
    servers = ("rollout.placement=server", "rollout.num_servers=2")
    config = compose([*SMALL, *servers, "compute.num_threads=1", f"runs_dir={tmp_path}"])
    config.rollout.prepare_environment("cpu", tmp_path / ".cache")
    store_transfer.install(monkeypatch.setattr)
    # `compose` refuses to send weights from a CPU.
    rollout = config.rollout.model_copy(update={"weight_transfer": "nccl"})
    config, logged, engines = config.model_copy(update={"rollout": rollout}), [], []

    def start(policy):
        run = opened_run(config, RunFolder(tmp_path / "run"), logged)
        engines.append(build_placed_engine(run, policy))
        return engines[0], logged

    yield start
    for engine in engines:
        engine.close()


def sampled(engine, policy, version):
    """Tokens and log-probabilities, which are those of the policy."""
    requests = [request(*range(4)), request(4, 5), request(6, 7)]
    generations = [*engine.generate(requests, SamplingParams(max_new_tokens=24))]
    generations.sort(key=lambda one: one.request_index)
    completions = [completion for one in generations for completion in one.completions]
    assert {completion.weight_version for completion in completions} == {version}
    assert mean_gap(policy.model, completions) < 1e-5
    return [(one.token_ids.tolist(), one.logprobs.tolist()) for one in completions]


def test_two_servers_sample_by_sent_weights_as_by_weights_in_files(engine_of, monkeypatch):
    """About 80 s: two servers start, and start again after one was killed during a transfer."""
    first, second = (build_tiny_policy(TinySettings(head_dim=32), seed=seed) for seed in range(2))
    engine, logged = engine_of(first)
    sent = {0: sampled(engine, first, 0)}
    engine.update_weights(second.weights(), 1)
    sent[1] = sampled(engine, second, 1)
    assert not [*engine._files._base.rglob("*.safetensors")]  # no weights were on the host

    with monkeypatch.context() as by_files:
        by_files.setattr(engine, "_sender", None)
        for version, policy in ((2, first), (3, second)):
            engine.update_weights(policy.weights(), version)
            assert sampled(engine, policy, version) == sent[version - 2]

    broadcast, killed = NcclSender._broadcast, []

    def kill_and_broadcast(self, weights):
        if not killed:
            killed.extend(pids_of(engine.pool.servers[1].process))
            os.kill(killed[-1], signal.SIGKILL)
        broadcast(self, weights)

    monkeypatch.setattr(NcclSender, "_broadcast", kill_and_broadcast)
    engine.update_weights(first.weights(), 4)
    assert sampled(engine, first, 4) == sent[0]
    assert [server.version for server in engine.pool.servers] == [4, 4]
    assert len([line for line in logged if "weights could not be sent over NCCL" in line]) == 2
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    listening = [
        place.laddr.ip for one in family for place in one.net_connections() if place.status == "LISTEN"
    ]
    assert set(listening) <= {"127.0.0.1", "::ffff:127.0.0.1"}

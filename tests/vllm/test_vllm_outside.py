"""One real vLLM of two processes beside the trainer: what it samples, and what the death of each does."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
import torch
from tests.vllm.test_vllm_runs import EXACT, train

from atrium.metrics import MISMATCH_MAX, OVERLAP_S, STALENESS
from atrium.rollout.dealt_engine import DealtEngine
from atrium.tracking.recorded import read_object

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(0 < torch.cuda.device_count() < 3, reason="a trainer and two processes need 3 GPUs"),
]

LAGGED = ("num_steps=4", "rollout.lag=1", "optimizer.num_minibatches=1")
SPLIT = ("rollout.placement=beside", "rollout.tensor_parallel=2")
NUM_PROMPTS = 16


@pytest.fixture
def seen(monkeypatch):
    """The engine's processes and where they listen, batch after batch.

    In the first batch the first of them is killed, in the second the second.
    """
    generate, processes, addresses = DealtEngine.generate, [], set()

    def generate_and_kill(self, requests, sampling):
        generations = generate(self, requests, sampling)
        if len(requests) == NUM_PROMPTS:  # no evaluation
            yield next(generations)
            (engine,) = self._engines
            processes.append([psutil.Process(one.process.pid) for one in engine._processes])
            addresses.update(
                connection.laddr.ip.removeprefix("::ffff:")
                for process in processes[-1]
                for connection in process.net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            )
            if len(processes) <= 2:
                os.kill(processes[-1][len(processes) - 1].pid, signal.SIGKILL)
        yield from generations

    monkeypatch.setattr(DealtEngine, "generate", generate_and_kill)
    return processes, addresses


def test_a_vllm_of_two_processes_beside_the_trainer_samples_as_one_inside_whichever_of_them_dies(
    tmp_path, seen
):
    processes, addresses = seen
    inside, inside_folder = train(tmp_path / "inside", *LAGGED)
    shared = set(Path("/dev/shm").iterdir())
    steps, folder = train(tmp_path / "beside", *LAGGED, *SPLIT)
    assert read_object(folder.provenance_file)[0]["engine"]["processes"] == 2
    assert folder.log_file.read_text().count("engine 0 died") == 2
    assert [step[STALENESS.name] for step in steps] == [0.0, 1.0, 1.0, 1.0]
    assert max(step[MISMATCH_MAX.name] for step in (*steps, *inside)) < EXACT  # stale weights: far more
    assert all(step[OVERLAP_S.name] > 0.0 for step in steps[1:])
    ours, theirs = (completions_of_the_first_step(one) for one in (folder, inside_folder))
    assert ours.keys() == theirs.keys()
    # Sums in another order differ in their last bits, which may turn a draw that is close.
    assert sum(ours[key] == theirs[key] for key in theirs) > 0.95 * len(theirs)
    assert [len(set(processes[batch]) & set(processes[batch + 1])) for batch in range(3)] == [0, 0, 2]
    assert addresses == {"127.0.0.1"}
    assert not any(process.is_running() for of_batch in processes for process in of_batch)
    assert set(Path("/dev/shm").iterdir()) <= shared


def completions_of_the_first_step(folder):
    rows = pq.read_table(folder.rollouts_path(1)).to_pylist()
    return {(row["problem_id"], row["sample_index"]): row["token_ids"] for row in rows}

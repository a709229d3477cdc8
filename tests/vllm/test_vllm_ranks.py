"""Two ranks train together, with one real vLLM each or with one that they share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from tests.vllm.settings import SMALL

from atrium.base.json_lines import read_json_lines
from atrium.base.metrics import MISMATCH_MAX, NUM_TOKENS, RANK_TOKENS_MAX, RANK_TOKENS_MIN, REWARD
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, read_status

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(torch.cuda.device_count() == 1, reason="each rank takes a GPU, and there is one"),
]

REPOSITORY = Path(__file__).resolve().parents[2]
NUM_STEPS = 6


def run_two(*command):
    """Run a program on two ranks to its end."""
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "localhost",
            "--nproc-per-node", "2", *map(str, command),
        ],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "GLOO_SOCKET_IFNAME": "lo",
            "ATRIUM_MIRRORS": "off",
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "platform")]),
        },
        capture_output=True,
        text=True,
        timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Trains on two ranks, of which so many share each vLLM; the folder and the steps of the run."""
    runs, runs_dir = {}, tmp_path_factory.mktemp("runs")

    def trained(tensor_parallel):
        if tensor_parallel not in runs:
            name = f"shared-by-{tensor_parallel}"
            run_two(
                "-m", "atrium", "train", *SMALL, f"num_steps={NUM_STEPS}", f"runs_dir={runs_dir}",
                f"experiment_name={name}", "compute.num_processes=2",
                f"rollout.tensor_parallel={tensor_parallel}",
            )  # fmt: skip
            (path,) = (runs_dir / name).iterdir()
            runs[tensor_parallel] = RunFolder(path)
        folder = runs[tensor_parallel]
        return folder, read_json_lines(folder.metrics_file).records

    return trained


@pytest.mark.parametrize("tensor_parallel", [pytest.param(1, marks=pytest.mark.release), 2])
def test_two_ranks_learn_the_task(train, tensor_parallel):
    folder, steps = train(tensor_parallel)
    assert read_status(folder.status_file).state == RunState.FINISHED
    assert len(steps) == NUM_STEPS
    assert max(step[MISMATCH_MAX.name] for step in steps) < 1e-4  # stale weights would differ by far more
    assert min(step[RANK_TOKENS_MIN.name] for step in steps) > 0
    assert steps[-1][REWARD.name] > steps[0][REWARD.name] + 0.4


@pytest.mark.release
def test_one_vllm_of_two_ranks_samples_what_two_of_one_rank_sample(train):
    (apart, _), (shared, steps) = train(1), train(2)
    for step in steps:  # one engine, whose tokens count once
        assert step[RANK_TOKENS_MIN.name] == step[RANK_TOKENS_MAX.name] == step[NUM_TOKENS.name]
    ours, theirs = (completions_of_the_first_step(folder) for folder in (shared, apart))
    assert ours.keys() == theirs.keys()
    # Sums in another order differ in their last bits, which may turn a draw that is close.
    assert sum(ours[key] == theirs[key] for key in theirs) > 0.95 * len(theirs)


def completions_of_the_first_step(folder):
    rows = pq.read_table(folder.rollouts_path(1)).to_pylist()
    found = {(row["problem_id"], row["sample_index"]): row["token_ids"] for row in rows}
    assert len(found) == len(rows) == 16 * 8
    return found


def test_ranks_that_share_a_vllm_hold_half_of_it_and_are_kept_in_step(tmp_path):
    run_two(Path(__file__).with_name("sharing.py"), tmp_path)
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert first["part"] == [32, 2, 1]  # of 64 rows of the vocabulary, 4 query heads, 2 key-value heads
    assert max(first["gaps"]) < 1e-5
    assert first["tokens"][0] != first["tokens"][1]
    assert "requests cannot be appended" in first["appended"]
    assert "are out of step" in first["afterwards"]

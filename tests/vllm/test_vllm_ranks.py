"""Two ranks with one real vLLM each train together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.vllm.settings import SMALL

from atrium.metrics import MISMATCH_MAX, RANK_TOKENS_MIN, REWARD
from atrium.tracking.json_lines import read_json_lines
from atrium.tracking.run_folder import RunFolder
from atrium.tracking.status import RunState, read_status

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

REPOSITORY = Path(__file__).resolve().parents[2]


def test_two_ranks_with_an_engine_each_learn_the_task(tmp_path):
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "localhost",
        "--nproc-per-node", "2", "-m", "atrium", "train", *SMALL, "num_steps=8", f"runs_dir={tmp_path}",
        "experiment_name=two",
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "ATRIUM_MIRRORS": "off"},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (path,) = (tmp_path / "two").iterdir()
    folder = RunFolder(path)
    steps = read_json_lines(folder.metrics_file).records
    assert read_status(folder.status_file).state == RunState.FINISHED
    assert len(steps) == 8
    assert max(step[MISMATCH_MAX.name] for step in steps) < 1e-4  # stale weights would differ by far more
    assert min(step[RANK_TOKENS_MIN.name] for step in steps) > 0
    assert steps[-1][REWARD.name] > steps[0][REWARD.name] + 0.4

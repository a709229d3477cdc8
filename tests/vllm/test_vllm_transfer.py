"""Weights that are sent to vLLMs outside the trainer: all that is above NCCL, on a CPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).resolve().parents[2]


def sent(folder, *overrides):
    """What a trainer found that sends weights to engines, one of which is killed between two updates."""
    done = subprocess.run(
        [sys.executable, "tests/vllm/sending.py", folder, *overrides],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "ATRIUM_MIRRORS": "off",
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "platform")]),
        },
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize(
    "engines",
    [
        ("rollout.num_engines=2",),
        ("rollout.tensor_parallel=2",),
        ("rollout.placement=cluster", "rollout.num_engines=2"),
    ],
    ids=["two engines", "one engine of two processes", "two actors of a Ray cluster"],
)
def test_sent_weights_are_those_that_engines_read_also_after_one_was_killed(tmp_path, engines):
    found = sent(tmp_path, *engines)
    assert found["samples"]["sent to one anew"] == found["samples"]["read"]
    assert found["samples"]["sent"] != found["samples"]["read"]
    assert max(found["gaps"].values()) < 1e-5
    assert found["versions"] == {"read": [0], "sent": [1], "sent to one anew": [2], "sent alone": [3]}
    assert set(found["listening"]) <= {"127.0.0.1", "::ffff:127.0.0.1"}
    first, last = found["logged"]
    assert re.fullmatch(r"engine 0 died .*; it is started again, and its work is asked again", first)
    assert re.match(r"engine 0 died .* while weights were sent to all engines", last)
    assert found["ended"] == last

"""Starting real ranks with torchrun, on one thread each and on the loopback alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def environment():
    """What ranks run under."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "ATRIUM_MIRRORS": "off",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "platform")]),
    }


def torchrun(num_ranks, *command):
    """The command line that starts so many ranks of a Python program."""
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "localhost",
        "--nproc-per-node", str(num_ranks), *map(str, command),
    ]  # fmt: skip


@pytest.fixture(scope="session")
def run_ranks():
    """Runs a program on so many ranks to its end; the finished process."""

    def run(num_ranks, *command, timeout=500):
        return subprocess.run(
            torchrun(num_ranks, *command),
            env=environment(),
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run

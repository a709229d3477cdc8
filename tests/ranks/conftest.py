"""Starting real ranks, on one thread each and on the loopback alone."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

from tests.forked import Forked

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


def run_ranks(num_ranks, *command, timeout=500):
    """Run a program on so many ranks to its end; the ranks' exit codes, and what they said.

    For what ranks compute. Where one ends before the others, tests start them by torchrun itself.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks}
    shared |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
    ranks = []
    for rank in range(num_ranks):
        torchruns = shared | {"RANK": rank, "LOCAL_RANK": rank} if num_ranks > 1 else {}
        variables = {name: str(value) for name, value in torchruns.items()}
        ranks.append(Forked(*command, environment=environment() | variables, cwd=REPOSITORY))
    ended = time.monotonic() + timeout
    said = [rank.communicate(max(0.0, ended - time.monotonic()))[1].decode() for rank in ranks]
    return [rank.returncode for rank in ranks], "\n".join(said)

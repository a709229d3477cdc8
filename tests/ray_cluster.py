"""Ray's own simulated cluster: two nodes on this machine, on the loopback alone, that ask for a token.

Run as a program, it starts such a cluster, prints its address, and ends it when its input is closed.
"""

from __future__ import annotations

import atexit
import os
import secrets
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
CPUS_PER_NODE = 2


@contextmanager
def ray_cluster(*, asks_for_token=True, **nodes):
    """The environment of whoever joins the cluster, as a mapping; `nodes` are for its nodes alone."""
    variables = {
        "RAY_AUTH_MODE": "token" if asks_for_token else "disabled",
        "RAY_AUTH_TOKEN": secrets.token_hex(16),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # else engines wait for all else on a busy machine
    }
    started = subprocess.Popen(
        [sys.executable, __file__],
        env={**os.environ, **variables, **nodes, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        address = started.stdout.readline().strip()
        assert address, "Ray's simulated cluster did not start"
        yield {**variables, "RAY_ADDRESS": address}
    finally:
        started.stdin.close()
        started.wait(60)
        started.stdout.close()


@cache
def ray_cluster_here(**nodes):
    """The environment of whoever joins a cluster that lives until this process ends."""
    closing = ExitStack()
    atexit.register(closing.close)
    return closing.enter_context(ray_cluster(**nodes))


def main():
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    for _ in range(2):
        cluster.add_node(num_cpus=CPUS_PER_NODE, include_dashboard=False, node_ip_address="127.0.0.1")
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()

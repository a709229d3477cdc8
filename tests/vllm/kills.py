"""Runs whose servers are killed at random moments equal the run inside the trainer, bit for bit.

`python -m tests.vllm.kills --kills 14 --lags 0 1 3`, about four minutes per lag on two cores. One process of
a server (its API, its engine core or a helper) is killed in each batch, once all servers are up again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import torch
from safetensors.torch import load_file
from tests.engines.conftest import pids_of
from tests.vllm.test_vllm_runs import train
from tests.vllm.test_vllm_servers import of_no_time

from atrium.engines.server.engine import ServerEngine

SETTINGS = ("rollout.num_prompts=16", "compute.num_threads=1", "optimizer.num_minibatches=1")


def kill_in_batches(count, rng):
    """Let the next `count` batches each lose a process; the names of the victims are added to the result."""
    generate, victims = ServerEngine.generate_by, []

    def kill(server):
        for pid in rng.sample(pids := pids_of(server.process), len(pids)):
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                victims.append(psutil.Process(pid).name())
                os.kill(pid, signal.SIGKILL)
                return

    def generate_by(self, version, requests, sampling):
        if len(requests) > 8 and len(victims) < count:  # evaluations have 8
            up = self.pool.reachable(wait_for_all=True)
            asyncio.run_coroutine_threadsafe(up, self._loop).result()
            server = rng.choice(self.pool.servers)
            timer = threading.Timer(rng.uniform(0.0, 2.0), kill, [server])
            timer.daemon = True
            timer.start()
        return generate(self, version, requests, sampling)

    ServerEngine.generate_by = generate_by
    return victims


def weights(folder, num_steps):
    return load_file(folder.checkpoint_path(num_steps) / "policy" / "model.safetensors")


def main():
    """Print one line of JSON per lag."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kills", type=int, default=14, help="per lag")
    options.add_argument("--lags", type=int, nargs="+", default=[0, 1, 3])
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    generate = ServerEngine.generate_by
    for lag in args.lags:
        num_steps = args.kills + 4
        lines = (*SETTINGS, f"num_steps={num_steps}", f"rollout.lag={lag}")
        served = ("rollout.placement=server", "rollout.num_servers=2")
        with tempfile.TemporaryDirectory() as runs_dir:
            inside, inside_folder = train(Path(runs_dir) / "inside", *lines)
            undisturbed, undisturbed_folder = train(Path(runs_dir) / "undisturbed", *lines, *served)
            victims = kill_in_batches(args.kills, random.Random(args.seed + lag))
            killed, folder = train(Path(runs_dir) / "killed", *lines, *served)
            ServerEngine.generate_by = generate
            expected = weights(inside_folder, num_steps)
            found = {
                name: of_no_time(steps) == of_no_time(inside)
                and all(torch.equal(weights(one, num_steps)[key], expected[key]) for key in expected)
                for name, steps, one in (
                    ("undisturbed", undisturbed, undisturbed_folder),
                    ("killed", killed, folder),
                )
            }
            lost = folder.log_file.read_text(encoding="utf-8").count("is lost")
        line = {"lag": lag, "steps": num_steps, "equal": found, "lost": lost, "killed": victims}
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()

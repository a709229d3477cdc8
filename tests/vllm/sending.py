"""A trainer that sends weights to vLLMs outside: `sending.py FOLDER SETTING=VALUE ...`.

What it found is written to `found.json`. Where there are no GPUs, `store_transfer` stands for NCCL.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import psutil
import torch
from tests.ray_cluster import ray_cluster_here

from atrium import plugins

ON_GPU = torch.cuda.is_available()
HEAD_DIM = 64 if ON_GPU else 32
# A run refuses to send weights from a CPU, so there they are asked for behind what is refused.
BASE = (
    ("rollout=vllm", "compute=one_gpu", "compute.dtype=bfloat16", "rollout.enforce_eager=true")
    if ON_GPU
    else ("rollout=vllm_cpu", "compute=cpu")
)


def main(folder, *overrides):
    if not ON_GPU:
        plugins.load([str(Path(__file__).with_name("store_transfer.py"))])
    if "rollout.placement=cluster" in overrides:
        # The trainer has the first GPU, of which Ray is not told.
        os.environ.update(ray_cluster_here(CUDA_VISIBLE_DEVICES="1"))
    # Only now: plugins come before the settings.
    from atrium.assemble.placement import build_placed_engine
    from tests.vllm.test_vllm_engine import mean_gap, request

    from atrium.config.compose import compose
    from atrium.errors import EngineError
    from atrium.models.settings import TinySettings
    from atrium.models.tiny import build_tiny_policy
    from atrium.rollout.engine import SamplingParams

    torch.set_num_threads(1)
    own = ("rollout.placement=beside", f"model.head_dim={HEAD_DIM}", f"runs_dir={folder}")
    config = compose([*BASE, *own, *overrides])
    rollout = config.rollout.model_copy(update={"weight_transfer": "nccl"})
    config = config.model_copy(update={"rollout": rollout})
    first, second, third = (
        build_tiny_policy(TinySettings(head_dim=HEAD_DIM), seed=seed) for seed in range(3)
    )
    for policy in (first, second, third):
        policy.model.to(config.compute.device)
    found = {"logged": [], "samples": {}, "versions": {}, "gaps": {}}
    engine = build_placed_engine(config, first, folder / "engines", found["logged"].append)

    def sample(name, policy):
        requests = [request(*range(4)), request(4, 5), request(6, 7)]
        answers = sorted(
            engine.generate(requests, SamplingParams(max_new_tokens=24)), key=lambda one: one.request_index
        )
        completions = [completion for answer in answers for completion in answer.completions]
        found["samples"][name] = [[c.token_ids.tolist(), c.logprobs.tolist()] for c in completions]
        found["versions"][name] = sorted({completion.weight_version for completion in completions})
        found["gaps"][name] = mean_gap(policy.model.cpu(), completions)
        policy.model.to(config.compute.device)

    sample("read", first)
    engine.update_weights(second.weights(), 1)
    sample("sent", second)
    process = psutil.Process(engine.process_ids[0])
    process.kill()
    psutil.wait_procs([process], timeout=60)
    engine.update_weights(first.weights(), 2)
    sample("sent to one anew", first)
    engine._place.write = lambda weights: None  # what comes now never is in the host's memory
    engine.update_weights(third.weights(), 3)
    sample("sent alone", third)
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    found["listening"] = [
        place.laddr.ip
        for one in family
        for place in one.net_connections()
        if place.status == psutil.CONN_LISTEN
    ]
    if not ON_GPU:  # where it is not known whether NCCL lets go of a group that lost one
        process, send = psutil.Process(engine.process_ids[0]), engine._sender.send

        def lose_one_and_send(*arguments):
            process.suspend()
            threading.Timer(1.0, process.kill).start()
            send(*arguments)

        engine._sender.send = lose_one_and_send
        try:
            engine.update_weights(first.weights(), 4)
        except EngineError as error:
            found["ended"] = str(error)
    engine.close()
    (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

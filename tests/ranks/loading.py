"""Loading a policy over ranks: `loading.py FOLDER OUT`; each rank writes what it held."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from atrium.models.digests import weights_digest
from atrium.models.policy import load_policy
from atrium.models.skeletons import take_weights
from atrium.train.ranks.connected_ranks import ConnectedRanks
from atrium.train.ranks.receiving import receive_buffers, receive_shards
from atrium.train.ranks.sharding import mesh_of, shard


def main(source, out):
    """Load on rank 0, shard over all ranks, and hash what all of them hold."""
    torch.set_num_threads(1)
    ranks = ConnectedRanks(os.environ, device="cpu", timeout_s=60)
    mesh = mesh_of("cpu", ranks.size, ranks.size)
    before = _peak_bytes()
    policy = load_policy(source, dtype=torch.float32, device="cpu" if ranks.is_first else "meta")
    digest = weights_digest(policy.weights()) if ranks.is_first else ""
    weights = take_weights(policy.model)
    receive_buffers(policy.model, ranks)
    shard(policy.model, mesh, dtype=torch.float32)
    receive_shards(policy.model, weights if ranks.is_first else {}, ranks)
    grown = _peak_bytes() - before
    found = weights_digest(policy.weights())  # gathers, which training itself never does here
    head, embeddings = policy.model.get_output_embeddings(), policy.model.get_input_embeddings()
    record = {
        "digest": digest,
        "found": found,
        "grown": grown,
        "is_tied": head.weight is embeddings.weight,
        "num_bytes": 4 * policy.num_parameters,
        "buffers": [float(one.double().sum()) for one in policy.model.buffers()],
    }
    records = ranks.gather(record)
    if ranks.is_first:
        out.write_text(json.dumps(records), encoding="utf-8")
    ranks.close()


def _peak_bytes():
    """The largest resident memory so far (Linux)."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    return 0


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

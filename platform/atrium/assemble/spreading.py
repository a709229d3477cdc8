"""The sharded parts of a run: models, checkpoints, and the report on the ranks.

On one process models stay unchanged, and nothing of torch.distributed is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from atrium.assemble.run import Run
from atrium.launch.rank_logs import ranks_dir
from atrium.models.policy import Policy, write_policy
from atrium.models.policy_files import write_policy_files
from atrium.runs.policy_origin import write_origin
from atrium.train.checkpoint.checkpoint import Checkpoint, CheckpointStore
from atrium.train.ranks.rank_report import RankReport
from atrium.train.ranks.ranks import Ranks, Shards
from atrium.train.update.reference import MovingReference


def rank_report(run: Run) -> RankReport:
    """Return the report on the differences between the run's ranks."""
    file = ranks_dir(run.folder.path) / f"rank-{run.ranks.rank}.jsonl"
    return RankReport(run.ranks, file=None if run.ranks.is_alone else file, log=run.log)


def shard_models(run: Run, policy: Policy, reference: MovingReference | None) -> Shards:
    """Shard policy and reference over the ranks, in place."""
    if run.ranks.is_alone:
        return Shards()
    from atrium.train.ranks.sharding import shard

    compute = run.config.compute
    over_ranks = partial(
        shard,
        device=compute.device,
        dtype=torch.bfloat16 if compute.dtype == "bfloat16" else torch.float32,
        num_ranks=run.ranks.size,
        offload=compute.offload,
    )
    return Shards(
        policy=over_ranks(policy.model),
        reference=None if reference is None else over_ranks(reference.model),
    )


def read_sharded(
    checkpoint: Checkpoint, policy: Policy, reference: MovingReference | None, ranks: Ranks
) -> Mapping[str, Tensor]:
    """Load a checkpoint into the sharded policy and reference; return the optimizer's state."""
    from atrium.train.checkpoint.sharded_checkpoint import read_optimizer, read_shards
    from atrium.train.ranks.connected_ranks import ConnectedRanks

    assert isinstance(ranks, ConnectedRanks)
    parameters = dict(policy.model.named_parameters())
    with torch.no_grad():
        read_shards(checkpoint.policy, parameters, ranks)
        if reference is not None and reference.moves:
            read_shards(checkpoint.path, dict(reference.model.named_parameters()), ranks)
    return read_optimizer(checkpoint.path, parameters, ranks)


def checkpoint_store(run: Run, policy: Policy) -> CheckpointStore:
    """Return the run's checkpoint store."""
    settings, ranks = run.config.checkpoint, run.ranks

    def save_policy(path: Path) -> None:
        (write_policy if ranks.is_alone else write_policy_files)(policy, path)
        write_origin(path, run.config.as_record(), run=run.folder.name)

    store = CheckpointStore(
        folder=run.folder.checkpoints_dir,
        save_policy=save_policy,
        keep_last=settings.keep_last,
        keep_best=settings.keep_best,
    )
    if ranks.is_alone:
        return store
    from atrium.train.checkpoint.sharded_checkpoint import ShardedCheckpointStore
    from atrium.train.ranks.connected_ranks import ConnectedRanks

    assert isinstance(ranks, ConnectedRanks)
    return ShardedCheckpointStore(**vars(store), model=policy.model, ranks=ranks)

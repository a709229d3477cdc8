"""Sharding of models and checkpoints over the ranks of a run, and a report on differences between ranks.

In a run with one process, models are not sharded and torch.distributed is not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from atrium.assemble.policies import check_base
from atrium.assemble.run import Run
from atrium.launch.rank_logs import ranks_dir
from atrium.models.lora import ADAPTER_FOLDER, has_lora, plain_parameters, read_adapter
from atrium.models.policy import Policy, write_policy
from atrium.models.policy_files import write_policy_files
from atrium.models.skeletons import take_weights
from atrium.runs.policy_origin import write_origin
from atrium.train.checkpoint.checkpoint import Checkpoint, CheckpointStore
from atrium.train.ranks.rank_report import RankReport
from atrium.train.ranks.ranks import Ranks, Shards
from atrium.train.update.reference import MovingReference


def rank_report(run: Run) -> RankReport:
    """Return the object that reports differences in time and memory between ranks.

    If there are several ranks, each rank also writes its own values to a file in the run directory.
    """
    file = ranks_dir(run.folder.path) / f"rank-{run.ranks.rank}.jsonl"
    return RankReport(run.ranks, file=None if run.ranks.is_alone else file, log=run.log)


def taken_weights(policy: Policy, ranks: Ranks) -> dict[str, Tensor]:
    """Remove the parameters from the policy's model, and return them on rank 0.

    On other ranks, the result is empty. The buffers of rank 0 are copied to all ranks. `shard_models`
    later distributes the parameters. With one process, nothing is removed and the result is empty.
    """
    if ranks.is_alone:
        return {}
    from atrium.train.ranks.connected_ranks import ConnectedRanks
    from atrium.train.ranks.receiving import receive_buffers

    assert isinstance(ranks, ConnectedRanks)
    weights = take_weights(policy.model)
    receive_buffers(policy.model, ranks)
    return weights if ranks.is_first else {}


def shard_models(
    run: Run, policy: Policy, reference: MovingReference | None, weights: dict[str, Tensor]
) -> Shards:
    """Shard the policy and the reference over the ranks in place; return their shardings.

    `weights` is the result of `taken_weights`. With one process, nothing is sharded.
    """
    if run.ranks.is_alone:
        return Shards()
    from atrium.train.ranks.connected_ranks import ConnectedRanks
    from atrium.train.ranks.receiving import receive_shards
    from atrium.train.ranks.sharding import mesh_of, shard

    assert isinstance(run.ranks, ConnectedRanks)
    compute, ranks = run.config.compute, run.ranks
    over_ranks = partial(
        shard,
        mesh=mesh_of(compute.device, ranks.size, compute.num_shards or ranks.size),
        dtype=torch.bfloat16 if compute.dtype == "bfloat16" else torch.float32,
        offload=compute.offload,
        exchanges_once=compute.gradient_exchange == "minibatch",
    )
    shards = Shards(
        policy=over_ranks(policy.model),
        reference=None if reference is None else over_ranks(reference.model),
    )
    receive_shards(policy.model, weights, ranks)
    if reference is not None:
        reference.load(policy.weights())
    return shards


def read_sharded(
    checkpoint: Checkpoint, policy: Policy, reference: MovingReference | None, ranks: Ranks
) -> Mapping[str, Tensor]:
    """Load a checkpoint into the sharded policy and reference; return the optimizer's state.

    A frozen reference is not loaded.
    """
    from atrium.train.checkpoint.sharded_checkpoint import read_optimizer, read_shards
    from atrium.train.ranks.connected_ranks import ConnectedRanks

    assert isinstance(ranks, ConnectedRanks)
    parameters = dict(policy.model.named_parameters())
    with torch.no_grad():
        if has_lora(policy.model):
            read_adapter(policy.model, checkpoint.policy / ADAPTER_FOLDER)
            stored = {name: torch.zeros_like(one) for name, one in plain_parameters(policy.model).items()}
            read_shards(checkpoint.policy, stored, ranks)
            check_base(policy.model, stored, checkpoint.policy)
        else:
            read_shards(checkpoint.policy, parameters, ranks)
        if reference is not None and reference.moves:
            read_shards(checkpoint.path, dict(reference.model.named_parameters()), ranks)
    return read_optimizer(checkpoint.path, parameters, ranks)


def checkpoint_store(run: Run, policy: Policy) -> CheckpointStore:
    """Return the run's checkpoint store, which writes sharded checkpoints if there are several ranks."""
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

"""Functions that connect the ranks (processes) of a run and give them the same settings and run directory.

A run with one process does not import torch.distributed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from atrium.assemble.checks import device_bytes
from atrium.assemble.fitting import changed
from atrium.assemble.memory import PROMPT_TOKENS, settled
from atrium.assemble.shapes import exact_shape
from atrium.base.atomic import explained
from atrium.base.errors import AtriumError, CheckpointError, ConfigError, EngineError, reason_of
from atrium.config.consistency import check_ranks
from atrium.config.schema import RunConfig
from atrium.runs.reader import read_metrics, read_overview
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState
from atrium.train.checkpoint.checkpoint import Checkpoint, latest_checkpoint, load_checkpoint
from atrium.train.checkpoint.checkpoint_files import going_back
from atrium.train.ranks.ranks import Ranks


@contextmanager
def joined_ranks(config: RunConfig) -> Iterator[Ranks]:
    """Connect this process to the run's other ranks, and yield the connection.

    If the `with` block raises an error, its message is sent to the other ranks. Raises `ConfigError` for
    settings that do not work with the number of processes.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    _check_engines(config, int(os.environ.get("LOCAL_WORLD_SIZE", str(size))))
    if size == 1:
        if (num_shards := config.compute.num_shards) is not None:
            raise ConfigError(
                f"compute.num_shards={num_shards} has no effect with a single process; use null"
            )
        yield Ranks()
        return
    check_ranks(config, size)
    from atrium.train.ranks.connected_ranks import ConnectedRanks

    ranks = ConnectedRanks(
        os.environ,
        device=config.compute.device,
        timeout_s=config.compute.timeout_s,
        ranks_per_engine=config.rollout.ranks_per_engine,
    )
    try:
        yield ranks
    except BaseException as failure:
        ranks.close(reason_of(failure))
        raise
    ranks.close()


@contextmanager
def explained_by(ranks: Ranks) -> Iterator[None]:
    """Convert an error that a lost rank caused into a `RankError` that names the missing rank."""
    try:
        yield
    except Exception as error:  # torch, gloo and NCCL raise many types of error when a rank is lost
        # Ranks that share vLLM notice a lost rank inside vLLM, whose failures are raised as `EngineError`.
        lost = error.__cause__ if isinstance(error, EngineError) and error.__cause__ else error
        explained = lost if isinstance(lost, AtriumError) else ranks.explained(lost)
        if explained is lost:
            raise
        raise explained from error


def _check_engines(config: RunConfig, num_started: int) -> None:
    shared = config.rollout.ranks_per_engine
    if num_started % shared:
        raise ConfigError(
            f"rollout.tensor_parallel must divide the number of processes on this node ({num_started}), "
            f"got {shared}; start a multiple of {shared} processes"
        )


def fixed_for_ranks(config: RunConfig, ranks: Ranks) -> RunConfig:
    """Replace `compute.micro_batch_tokens=auto` by a predicted size if there are several ranks.

    Only a run with one rank can find the size by trial.
    """
    if ranks.is_alone or config.compute.micro_batch_tokens != "auto":
        return config
    planned = _planned_tokens(config, ranks.size) if ranks.is_first else None
    return changed(config, compute={"micro_batch_tokens": ranks.from_first(planned)})


def _planned_tokens(config: RunConfig, num_ranks: int) -> int:
    """Return a number of tokens per micro-batch that is predicted to fit the GPU of a rank.

    `compute.max_micro_batch_tokens` is halved until the plan fits, but not below the length of one row. On a
    CPU or a GPU of unknown memory, this setting is returned unchanged.
    """
    run = changed(config, compute={"num_processes": num_ranks, "num_nodes": 1, "slurm": None})
    if config.compute.device == "cpu" or (num_bytes := device_bytes(run)) is None:
        return config.compute.max_micro_batch_tokens
    return settled(run, exact_shape(run), PROMPT_TOKENS, num_bytes).compute.max_micro_batch_tokens


def agreed_folder(folder: RunFolder | None, ranks: Ranks) -> RunFolder:
    """Return the run directory that rank 0 has opened; `folder` is None on other ranks."""
    path = ranks.from_first(None if folder is None else str(folder.path))
    return folder if folder is not None else RunFolder(Path(path))


def restore_and_truncate(
    config: RunConfig, folder: RunFolder, ranks: Ranks, log: Callable[[str], None]
) -> Checkpoint | None:
    """Return a resumed run's newest checkpoint, and move the records of later steps to another folder.

    Returns None for a new run. If a resumed run has no checkpoint, all of its records are moved and the
    result is None. Raises `CheckpointError` before anything is changed if the newest checkpoint is damaged,
    or if the recorded steps show that later checkpoints are missing.
    """
    if config.resume is None:
        return None
    checkpoint, path = None, None
    if ranks.is_first:
        checkpoint = latest_checkpoint(folder.checkpoints_dir, with_tensors=ranks.is_alone)
        _check_newest(config, folder, checkpoint)
        if (aside := folder.truncate_after(checkpoint.state.step if checkpoint else -1)) is not None:
            log(f"records after the last checkpoint are kept in {aside}")
        path = None if checkpoint is None else str(checkpoint.path)
    path = ranks.from_first(path)
    if ranks.is_first or path is None:
        return checkpoint
    return load_checkpoint(Path(path), with_tensors=False, digests=False)


def _check_newest(config: RunConfig, folder: RunFolder, newest: Checkpoint | None) -> None:
    """Raise `CheckpointError` if the recorded steps show that a checkpoint after `newest` is missing."""
    with explained("read", folder.metrics_file):
        recorded = max(read_metrics(folder).steps.tolist(), default=0)
    step, every = newest.state.step if newest else 0, config.checkpoint.every_num_steps
    # Several ranks write a checkpoint while they continue to train, until the next one is due.
    num_unsaved = 0 if read_overview(folder).state is RunState.FINISHED else 2 * every
    if recorded > step + num_unsaved:
        has = f"its newest checkpoint is of step {step}" if newest else "it has no checkpoint"
        raise CheckpointError(
            f"{folder.path} has {recorded} recorded steps, and checkpoint.every_num_steps={every}, but "
            f"{has}; nothing was changed; restore the later checkpoints, or "
            f"{going_back(folder.path, step)}"
        )

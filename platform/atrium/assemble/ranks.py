"""The processes of one run: how they join, and how the run's parts are spread over them.

On one process everything here gives back what it was given, and nothing of torch.distributed is loaded.
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
from atrium.base.errors import AtriumError, CheckpointError, ConfigError, EngineError
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
    """The ranks of the run, joined; those that are left are told how this one ended.

    Raises `ConfigError` for settings that only one process has.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    _check_engines(config, int(os.environ.get("LOCAL_WORLD_SIZE", str(size))))
    if size == 1:
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
        ranks.close(" ".join(str(failure).split()) or type(failure).__name__)
        raise
    ranks.close()


@contextmanager
def explained_by(ranks: Ranks) -> Iterator[None]:
    """Re-raise errors caused by another rank's failure so that they name that rank."""
    try:
        yield
    except Exception as error:  # what is lost with a rank is raised by torch, gloo or NCCL in many types
        # Ranks that share vLLM lose each other inside it, whose failures are told as `EngineError`.
        lost = error.__cause__ if isinstance(error, EngineError) and error.__cause__ else error
        explained = lost if isinstance(lost, AtriumError) else ranks.explained(lost)
        if explained is lost:
            raise
        raise explained from error


def _check_engines(config: RunConfig, num_started: int) -> None:
    shared = config.rollout.ranks_per_engine
    if num_started % shared:
        raise ConfigError(
            f"rollout.tensor_parallel={shared} does not divide the number of processes that were started on "
            f"this node, {num_started}, and so many of them share each vLLM; start a multiple of {shared}"
        )


def fixed_for_ranks(config: RunConfig, ranks: Ranks) -> RunConfig:
    """The settings, with micro-batches of a planned size where several ranks cannot find one by trying."""
    if ranks.is_alone or config.compute.micro_batch_tokens != "auto":
        return config
    planned = _planned_tokens(config, ranks.size) if ranks.is_first else None
    return changed(config, compute={"micro_batch_tokens": ranks.from_first(planned)})


def _planned_tokens(config: RunConfig, num_ranks: int) -> int:
    """Tokens of a rank's micro-batches that are predicted to fit its GPU; on a CPU a rule."""
    run = changed(config, compute={"num_processes": num_ranks, "num_nodes": 1, "slurm": None})
    if config.compute.device == "cpu" or (num_bytes := device_bytes(run)) is None:
        return config.compute.max_micro_batch_tokens
    return settled(run, exact_shape(run), PROMPT_TOKENS, num_bytes).compute.max_micro_batch_tokens


def agreed_folder(folder: RunFolder | None, ranks: Ranks) -> RunFolder:
    """The run folder that rank 0 has opened, for all."""
    path = ranks.from_first(None if folder is None else str(folder.path))
    return folder if folder is not None else RunFolder(Path(path))


def restore_and_truncate(
    config: RunConfig, folder: RunFolder, ranks: Ranks, log: Callable[[str], None]
) -> Checkpoint | None:
    """The checkpoint that a resumed run goes on from, with everything recorded after it set aside.

    Raises `CheckpointError`, and changes nothing, where the newest one is damaged or gone.
    """
    if config.resume is None:
        return None
    checkpoint, path = None, None
    if ranks.is_first:
        checkpoint = latest_checkpoint(folder.checkpoints_dir, with_tensors=ranks.is_alone)
        _check_newest(config, folder, checkpoint)
        if checkpoint is not None and not checkpoint.is_verified:
            log(f"{checkpoint.path.name} was written without digests: only sizes and headers were checked")
        if (aside := folder.truncate_after(checkpoint.state.step if checkpoint else -1)) is not None:
            log(f"what was recorded after the last checkpoint is kept in {aside}")
        path = None if checkpoint is None else str(checkpoint.path)
    path = ranks.from_first(path)
    if ranks.is_first or path is None:
        return checkpoint
    return load_checkpoint(Path(path), with_tensors=False, digests=False)


def _check_newest(config: RunConfig, folder: RunFolder, newest: Checkpoint | None) -> None:
    """Raise `CheckpointError` where a later checkpoint than `newest` must have been written, and is gone."""
    with explained("read", folder.metrics_file):
        recorded = max(read_metrics(folder).steps.tolist(), default=0)
    step, every = newest.state.step if newest else 0, config.checkpoint.every_num_steps
    # Several ranks write a checkpoint while they train on, until the next one is due.
    num_unsaved = 0 if read_overview(folder).state is RunState.FINISHED else 2 * every
    if recorded > step + num_unsaved:
        has = f"its newest checkpoint is of step {step}" if newest else "it has no checkpoint"
        raise CheckpointError(
            f"{folder.path} has recorded {recorded} steps and writes a checkpoint every {every}, but {has}: "
            "what came later was removed or is not mounted; nothing was changed; bring it back, or "
            f"{going_back(folder.path, step)}"
        )

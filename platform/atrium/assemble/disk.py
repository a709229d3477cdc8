"""The check of the disk space for a run's checkpoints, without importing torch."""

from __future__ import annotations

import shutil

from atrium.assemble.memory import trainer_demand
from atrium.base.errors import RunFolderError
from atrium.config.schema import RunConfig
from atrium.models.shape import ModelShape
from atrium.planning.memory import checkpoint_bytes

_GB = 1e9


def check_disk(config: RunConfig, shape: ModelShape) -> None:
    """Raise `RunFolderError` if the disk of `runs_dir` is too small for the run's checkpoints.

    A new run needs space for the newest checkpoints, the best one, and the one being written. A resumed
    run already has its earlier checkpoints, so it needs space only for the one being written.
    """
    one = _checkpoint_bytes(config, shape)
    num = 1 if config.resume is not None else _most_at_once(config)
    free = shutil.disk_usage(config.runs_dir).free
    if free >= num * one:
        return
    settings = config.checkpoint
    fewer = ", or set checkpoint.keep_last=1 checkpoint.keep_best=false" if num > 2 else ""
    kept = f"checkpoint.keep_last={settings.keep_last} checkpoint.keep_best={str(settings.keep_best).lower()}"
    single = "the checkpoint that is being written"
    several = f"{num} checkpoints of {one / _GB:.1f} GB each: {kept}, and {single}"
    raise RunFolderError(
        f"runs_dir={config.runs_dir}: the run needs {num * one / _GB:.1f} GB for checkpoints "
        f"({several if num > 1 else single}), but only {free / _GB:.1f} GB are free; free disk space "
        f"(`atrium clean` lists deletable files), or choose another disk with runs_dir=PATH{fewer}"
    )


def _checkpoint_bytes(config: RunConfig, shape: ModelShape) -> int:
    demand = trainer_demand(config, shape, batch_tokens=1, trains=True)
    return checkpoint_bytes(shape, demand, with_reference=config.algorithm.reference.moves)


def _most_at_once(config: RunConfig) -> int:
    """Return the largest number of checkpoints that are on disk at the same time.

    These are the checkpoints that are kept and the one being written, but no more than the run writes in
    total.
    """
    settings, every = config.checkpoint, config.evaluation.every_num_steps
    num_saved = -(-config.num_steps // settings.every_num_steps)
    if settings.keep_best and every is not None:
        num_saved += config.num_steps // every
    return min(settings.keep_last + settings.keep_best + 1, num_saved)

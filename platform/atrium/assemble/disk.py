"""The disk space of a run's checkpoints, checked before anything is loaded. Never torch."""

from __future__ import annotations

import shutil
from pathlib import Path

from atrium.assemble.memory import trainer_demand
from atrium.base.errors import RunFolderError
from atrium.config.schema import RunConfig
from atrium.models.shape import ModelShape
from atrium.planning.memory import checkpoint_bytes

_GB = 1e9


def check_disk(config: RunConfig, shape: ModelShape) -> None:
    """Raise `RunFolderError` if the disk of `runs_dir` is too small for the run's checkpoints.

    Counted are the newest ones, the best one, and the one being written; for a resumed run, which already has
    the others, only the last.
    """
    one = _checkpoint_bytes(config, shape)
    num = 1 if config.resume is not None else _most_at_once(config)
    folder = Path(config.runs_dir)
    free = shutil.disk_usage(folder).free
    if free >= num * one:
        return
    settings = config.checkpoint
    fewer = " or checkpoint.keep_last=1 checkpoint.keep_best=false" if num > 2 else ""
    raise RunFolderError(
        f"runs_dir={folder}: {free / _GB:.1f} GB are free, and checkpoints take {num * one / _GB:.1f} GB: "
        f"{num} of {one / _GB:.1f} GB at once (checkpoint.keep_last={settings.keep_last}, the best one and "
        "the one being written); free disk space (`atrium clean` lists what runs can spare), choose "
        f"another disk with runs_dir=PATH{fewer}"
    )


def _checkpoint_bytes(config: RunConfig, shape: ModelShape) -> int:
    demand = trainer_demand(config, shape, batch_tokens=1, trains=True)
    return checkpoint_bytes(shape, demand, with_reference=config.algorithm.reference.moves)


def _most_at_once(config: RunConfig) -> int:
    """Return the number of checkpoints kept and being written, or all that the run will write."""
    settings, every = config.checkpoint, config.evaluation.every_num_steps
    num_saved = -(-config.num_steps // settings.every_num_steps)
    if settings.keep_best and every is not None:
        num_saved += config.num_steps // every
    return min(settings.keep_last + settings.keep_best + 1, num_saved)

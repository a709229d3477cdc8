"""`atrium train --resume RUN@STEP`: a new run that starts from a checkpoint of another run.

The new run may have different settings.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from atrium.assemble.launching import is_rank
from atrium.base.errors import ConfigError
from atrium.config.resume import branched
from atrium.config.schema import BranchConfig, RunConfig
from atrium.runs.branch import copy_until
from atrium.runs.method_settings import method_key
from atrium.runs.run_folder import RunFolder
from atrium.train.checkpoint.checkpoint_files import check_files


def split_step(run: str) -> tuple[str, int | None]:
    """Split RUN@STEP into the run and the step.

    The step is None for RUN alone, and for an existing path that contains an @. Raises `ConfigError` if the
    part before the @ is empty, or if the part after it is not a positive whole number.
    """
    name, at, step = run.rpartition("@")
    if not at or os.path.exists(run):  # noqa: PTH110 - Path.exists raises for a name that is too long
        return run, None
    if not (name and step.isascii() and step.isdigit() and int(step)):
        raise ConfigError(
            f"resume={run}: expected RUN, or RUN@STEP, where STEP is a checkpoint's step, at least 1"
        )
    return name, int(step)


def branch_config(stored: RunConfig, parent: RunFolder, step: int, overrides: Sequence[str]) -> RunConfig:
    """Return the configuration of a new run that branches from `step` of the run `parent`; write nothing.

    Raises `ConfigError` if the parent has no checkpoint of the step, if torchrun started this process, or if
    an override changes a setting that a branch must keep. Raises `CheckpointError` if the checkpoint is
    damaged.
    """
    if is_rank():
        raise ConfigError(
            f"resume={parent.name}@{step} must be started by a single process, but torchrun started "
            "several; run the command without torchrun, and set compute.num_processes=N to use N processes"
        )
    steps = parent.checkpoint_steps()
    if step not in steps:
        left = (
            f"it has checkpoints of steps {', '.join(map(str, steps))}" if steps else "it has no checkpoints"
        )
        raise ConfigError(f"resume={parent.name}@{step}: the run has no checkpoint of that step; {left}")
    branch = BranchConfig(run=parent.name, step=step, method=method_key(stored.as_record()))
    config = branched(stored, parent.path, branch, overrides)
    check_files(parent.checkpoint_path(step))
    return config


def begin_branch(config: RunConfig, parent: RunFolder, step: int, overrides: Sequence[str]) -> RunConfig:
    """Create the new run directory with the parent's records up to `step`.

    Returns the new run's configuration, whose setting `resume` is the new run directory.
    """
    folder = RunFolder.create(config.runs_dir, config.experiment_name, config.algorithm.name, config.seed)
    folder.write_overrides(overrides)
    copy_until(parent, step, folder)
    begun = config.model_copy(update={"resume": str(folder.path)})
    folder.write_config(begun.as_record())
    return begun

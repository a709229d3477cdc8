"""`atrium train --resume RUN@STEP`: a new run from a step of another, with settings that may differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from atrium.assemble.launching import is_rank
from atrium.base.errors import ConfigError
from atrium.config.resume import branched
from atrium.config.schema import BranchConfig, RunConfig
from atrium.runs.branch import copy_until
from atrium.runs.method_settings import method_key
from atrium.runs.run_folder import RunFolder
from atrium.train.checkpoint.checkpoint_files import check_files


def split_step(run: str) -> tuple[str, int | None]:
    """Return RUN and STEP of RUN@STEP; an existing path may contain an @."""
    name, at, step = run.rpartition("@")
    if not at or Path(run).exists():
        return run, None
    if not (name and step.isascii() and step.isdigit() and int(step)):
        raise ConfigError(
            f"resume={run}: expected RUN@STEP with a step of at least 1 that has a checkpoint, or RUN alone"
        )
    return name, int(step)


def branch_config(stored: RunConfig, parent: RunFolder, step: int, overrides: Sequence[str]) -> RunConfig:
    """Return the new run's configuration; nothing is written.

    Raises `ConfigError` for a step without a checkpoint, and `CheckpointError` for a damaged one.
    """
    if is_rank():
        raise ConfigError(
            f"resume={parent.name}@{step}: each of torchrun's processes would start a run; use one "
            "process, which starts compute.num_processes=N by itself"
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
    """Create the new run's folder; return the configuration that continues it."""
    folder = RunFolder.create(config.runs_dir, config.experiment_name, config.algorithm.name, config.seed)
    folder.write_overrides(overrides)
    copy_until(parent, step, folder)
    begun = config.model_copy(update={"resume": str(folder.path)})
    folder.write_config(begun.as_record())
    return begun
